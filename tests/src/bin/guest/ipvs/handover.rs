//! From kube-proxy in ipvs mode to the backend ipvs, and back.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use denizen_tests::agent::Agent;
use denizen_tests::eventually::eventually;
use denizen_tests::kernel::iptables::Variant;
use denizen_tests::packets::long_connection::LongConnection;
use denizen_tests::peers::kube_proxy::ipvs::{DEVICE, Ipvs};

use crate::context::GuestContext;

/// An emulated processor has to load the kernel's modules first; and the agent resyncs every
/// minute.
const TIMEOUT: Duration = Duration::from_secs(150);

/// The agent's scheduler: first one that differs from kube-proxy's, then the same.
const SCHEDULERS: [&str; 2] = ["wrr", "rr"];

struct Handover<'a> {
    context: &'a GuestContext,
    ipvs: Ipvs<'a>,
}

impl Handover<'_> {
    fn start(&self, scheduler: &str) -> Result<Agent> {
        let scheduler = format!("--ipvs-scheduler={scheduler}");
        let mut agent = self.context.start(vec!["--backend=ipvs".to_owned(), scheduler])?;
        agent.quiet();
        Ok(agent)
    }

    /// Whether all virtual servers have the agent's scheduler.
    fn has_all(&self, scheduler: &str) -> Result<bool> {
        let (servers, scheduler) = (self.servers()?, format!(" -s {scheduler}"));
        Ok(!servers.is_empty() && servers.iter().all(|server| server.ends_with(&scheduler)))
    }

    fn cleanup(&self, agent: &Agent) -> Result<String> {
        let run_dir = agent.run_dir().to_str().context("a path")?;
        self.context.cleanup(&["--kube-proxy", "--run-dir", run_dir])
    }

    fn servers(&self) -> Result<Vec<String>> {
        let saved = self.context.node().output("ipvsadm", &["--save", "--numeric"])?;
        let servers = saved.lines().filter(|line| line.starts_with("-A"));
        Ok(servers.map(|line| line.trim_end().to_owned()).collect())
    }

    /// All hosts connect and are answered; returns how many connections that were, and how many of
    /// them went through IPVS.
    fn carried(&self, what: &str) -> Result<[u64; 2]> {
        let before = self.ipvs.taken()?;
        let connections = self.context.everyone(what)?;
        Ok([connections, self.ipvs.taken()? - before])
    }
}

/// Kube-proxy's virtual servers become the agent's, with their connections, and kube-proxy's again.
pub(crate) fn nobody_notices() -> Result<()> {
    let context = GuestContext::new("ipvs-handover")?;
    let before = context.addresses()?;
    let handover = Handover { context: &context, ipvs: context.ipvs(Variant::Legacy) };
    handover.ipvs.start()?;
    let mut theirs = context.lasting()?;
    let flow = context.flow()?;
    let start = || handover.start(SCHEDULERS[0]);
    let agent = context.unnoticed(&mut theirs, "denizen comes", start)?;
    let [_, taken] = handover.carried("both are there")?;
    ensure!(taken == 0, "denizen's rules come first: {taken}");
    let output = context.unnoticed(&mut theirs, "kube-proxy goes", || handover.cleanup(&agent))?;
    ensure!(output.contains("to the agent, with their connections"), "{output}");
    ensure!(!output.contains("ended"), "{output}");
    eventually("all are denizen's", TIMEOUT, || handover.has_all(SCHEDULERS[0]))?;
    agent.until("no errors", TIMEOUT, |status| {
        status["errors"].as_array().is_some_and(Vec::is_empty)
    })?;
    // Rules choose for `web` over TCP, not IPVS, because it shares its endpoints with `frontend`.
    eventually("ipvs carries", TIMEOUT, || {
        let [all, taken] = handover.carried("denizen alone")?;
        Ok(taken > all / 2 && taken < all)
    })?;
    ensure!(flow.send().endpoint().is_some(), "a flow broke");
    theirs.iter_mut().try_for_each(LongConnection::still_alive)?;
    let addresses = context.addresses()?;
    ensure!(addresses == before, "{before}\nbut now\n{addresses}");

    // While kube-proxy changes schedulers, the kernel would refuse some connections: so the agent
    // takes kube-proxy's scheduler first.
    agent.terminate()?;
    let agent = handover.start(SCHEDULERS[1])?;
    eventually("kube-proxy's scheduler", TIMEOUT, || handover.has_all(SCHEDULERS[1]))?;
    context.unnoticed(&mut theirs, "kube-proxy comes back", || handover.ipvs.start())?;
    let output = context.unnoticed(&mut theirs, "denizen goes", || {
        agent.terminate()?;
        context.cleanup(&[])
    })?;
    // The virtual server of `echo` at its IPv6 address, which kube-proxy does not have.
    ensure!(output.contains("removed 1 virtual server\n"), "others are kube-proxy's: {output}");
    let [all, taken] = handover.carried("ipvs serves again")?;
    ensure!(taken == all, "nobody else is there: {taken} of {all}");
    let links = context.node().output("ip", &["-brief", "link"])?;
    ensure!(links.contains(DEVICE), "{links}");
    theirs.iter_mut().try_for_each(LongConnection::still_alive)?;
    let output = context.cleanup(&["--kube-proxy"])?;
    ensure!(output.contains("kube-proxy ipvs device"), "{output}");
    ensure!(handover.servers()?.is_empty(), "{:#?}", handover.servers()?);
    let routes =
        context.node().output("ip", &["route", "show", "table", "local", "proto", "213"])?;
    ensure!(routes.is_empty(), "{routes}");
    Ok(())
}
