//! The modules of IPVS: the agent makes the kernel load them where it can.

use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use denizen_tests::agent::Agent;
use denizen_tests::eventually::eventually;
use denizen_tests::node::netns::checked;
use serde_json::Value;

use crate::check::setting;
use crate::context::GuestContext;

/// An emulated processor has to load modules, and the kernel removes namespaces of earlier tests
/// when it has time for that.
const TIMEOUT: Duration = Duration::from_secs(90);

/// A scheduler that no other test asks for.
const SCHEDULER: &str = "nq";

/// A configuration file of `modprobe`, and its content: asking for IPVS's generic netlink family
/// then does not load the module, as on kernels whose module has no such alias.
const CONFIGURATION: &str = "/etc/modprobe.d/ipvs.conf";
const NO_ALIAS: &str = "alias net-pf-16-proto-16-family-IPVS off\n";

/// The modules of IPVS that are loaded.
fn loaded() -> Result<Vec<String>> {
    let all = fs::read_to_string("/proc/modules")?;
    let names = all.lines().filter_map(|line| line.split(' ').next());
    let ours = names.filter(|name| name.starts_with("ip_vs") || *name == "xt_ipvs");
    Ok(ours.map(str::to_owned).collect())
}

/// Unloads the modules, which nothing uses any more.
fn unload() -> Result<()> {
    eventually("no module of IPVS", TIMEOUT, || {
        let mut left = loaded()?;
        // The other modules need ip_vs: it goes last.
        left.sort_by_key(|name| name == "ip_vs");
        for name in &left {
            // The module may be in use still, or gone together with another one.
            Command::new("modprobe").args(["--quiet", "--remove", name]).output()?;
        }
        Ok(loaded()?.is_empty())
    })
}

fn start(context: &GuestContext) -> Result<Agent> {
    let scheduler = format!("--ipvs-scheduler={SCHEDULER}");
    context.start(vec!["--backend=ipvs".to_owned(), scheduler])
}

fn errors(status: &Value) -> Vec<&str> {
    status["errors"].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

/// A node on which nothing is loaded, and one on which nothing can be.
pub(crate) fn are_loaded() -> Result<()> {
    let context = GuestContext::new("ipvs-modules")?;
    unload()?;
    fs::create_dir_all("/etc/modprobe.d")?;
    fs::write(CONFIGURATION, NO_ALIAS)?;
    let started = start(&context);
    fs::remove_file(CONFIGURATION)?;
    let agent = started?;
    let module = format!("ip_vs_{SCHEDULER}");
    ensure!(loaded()?.contains(&module), "{:?}", loaded()?);
    ensure!(errors(&agent.status()?).is_empty(), "{}", agent.status()?);
    let saved = context.node().output("ipvsadm", &["--save", "--numeric"])?;
    let others = |line: &&str| line.starts_with("-A") && !line.contains(&format!("-s {SCHEDULER}"));
    ensure!(!saved.is_empty() && saved.lines().find(others).is_none(), "{saved}");
    agent.terminate()?;
    context.cleanup(&[])?;

    unload()?;
    let loader = fs::read_to_string("/proc/sys/kernel/modprobe")?;
    setting("kernel/modprobe", "/nowhere")?;
    let without = is_served_without(&context);
    setting("kernel/modprobe", loader.trim())?;
    checked(Command::new("modprobe").arg("ip_vs_rr"))?;
    without
}

/// The agent says what is missing, and serves all the same.
fn is_served_without(context: &GuestContext) -> Result<()> {
    let agent = start(context)?;
    let status = agent.status()?;
    let expected =
        ["IPVS cannot be used, nftables balances everything: the kernel's module ip_vs is \
                 not loaded"];
    ensure!(errors(&status) == expected, "{status}");
    ensure!(loaded()?.is_empty(), "{:?}", loaded()?);
    context.everyone("nftables balances")?;
    agent.terminate()?;
    context.cleanup(&[])?;
    Ok(())
}
