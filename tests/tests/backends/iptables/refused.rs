//! A rule, or a removal, that `iptables-restore` refuses: it is named and left out, and everything
//! else is written.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use denizen_tests::agent::programmed;
use denizen_tests::agent::wrapped::WrappedAgent;
use denizen_tests::for_each_variant;
use denizen_tests::kernel::iptables::Variant;
use denizen_tests::node::fixture::{Fixture, Host, PORT, service_ips};
use denizen_tests::node::manifest::Port;
use denizen_tests::node::netns::{self, checked};
use denizen_tests::packets::probe::{Outcome, Protocol};
use serde_json::{Value, json};
use tempfile::TempDir;

const HTTP: [Port; 1] = [Port::tcp("http", 80, PORT)];

fn ask(fixture: &Fixture, number: u8) -> Result<Outcome> {
    fixture.probe(Host::Bridged, SocketAddr::new(service_ips(number)[0], 80), Protocol::Tcp)
}

fn is_served(fixture: &Fixture, number: u8) -> bool {
    ask(fixture, number).is_ok_and(|outcome| outcome.endpoint().is_some())
}

fn sticky(fixture: &Fixture, number: u8) -> Result<Vec<Value>> {
    let mut objects = fixture.service("sticky", number, &HTTP, &[Host::Routed, Host::Remote])?;
    objects[0]["spec"]["sessionAffinity"] = json!("ClientIP");
    Ok(objects)
}

/// iptables' extensions as a small image may have them: without the one that session affinity
/// needs.
fn without_recent() -> Result<TempDir> {
    let found = checked(Command::new("find").args(["/usr/lib", "-name", "libxt_recent.so"]))?;
    let found = String::from_utf8(found.stdout)?;
    let all = found.lines().next().and_then(|file| Path::new(file).parent());
    let some = netns::folder()?;
    for file in fs::read_dir(all.context("no extensions")?)? {
        let file = file?;
        if file.file_name() != "libxt_recent.so" {
            symlink(file.path(), some.path().join(file.file_name()))?;
        }
    }
    Ok(some)
}

/// `explain` tells the service whose rules are missing from those that are served, and says why
/// they are.
fn explained_as_it_is(fixture: &Fixture, agent: &WrappedAgent) -> Result<()> {
    let explained = |number: u8| -> Result<Value> {
        let to = SocketAddr::new(service_ips(number)[0], 80);
        let from = fixture.address(Host::Bridged, to.ip())?;
        agent.explain(&from.to_string(), &to.to_string())
    };
    let sticky = explained(11)?;
    let steps = sticky["steps"].to_string();
    ensure!(
        sticky["verdict"] == "unknown"
            && steps.contains("the kernel rejected rules of this service")
            && steps.contains("recent"),
        "{sticky}"
    );
    let web = explained(10)?;
    ensure!(web["verdict"] == "forward", "{web}");
    Ok(())
}

/// One service's rules cannot be written, at the start and later; the others are served, come and
/// go.
fn one_service_holds_up_no_other(label: &str, variant: Variant) -> Result<()> {
    let fixture = Fixture::new(label)?;
    let manifests = &fixture.cluster.manifests;
    manifests.put("web", &fixture.service("web", 10, &HTTP, &[Host::Routed, Host::Remote])?)?;
    manifests.put("sticky", &sticky(&fixture, 11)?)?;
    let extensions = without_recent()?;
    let mut program = Command::new("env");
    program.arg(format!("XTABLES_LIBDIR={}", extensions.path().display()));
    let agent = WrappedAgent::start_with(&fixture.cluster, program, &variant.flags())?;
    let named = |status: &Value| {
        let errors = status["errors"].to_string();
        errors.contains("default/sticky:http")
            && errors.contains("recent")
            && !errors.contains("default/web")
    };
    agent
        .until("synced, and the other named", |status| status["synced"] == true && named(status))?;
    ensure!(ask(&fixture, 10)?.endpoint().is_some(), "web is served");
    ensure!(ask(&fixture, 11)?.endpoint().is_none(), "sticky is not");
    explained_as_it_is(&fixture, &agent)?;
    manifests.put("more", &fixture.service("more", 12, &HTTP, &[Host::Remote])?)?;
    agent.until("one more", |status| status["services"] == 3 && is_served(&fixture, 12))?;
    ensure!(named(&agent.status()?), "{}", agent.status()?);
    // A look finds it as it was left, which is nobody's doing.
    variant.run(&fixture.cluster.world.node, "-t nat -F KUBE-SERVICES")?;
    agent.until("repaired", |status| {
        status["driftRepaired"] == 1
            && named(status)
            && is_served(&fixture, 10)
            && is_served(&fixture, 12)
    })?;
    // Written otherwise, it is tried again.
    manifests
        .put("sticky", &fixture.service("sticky", 11, &HTTP, &[Host::Routed, Host::Remote])?)?;
    let is_well = |status: &Value| status["errors"] == json!([]);
    agent.until("no errors", |status| is_well(status) && is_served(&fixture, 11))?;
    manifests.put("sticky", &sticky(&fixture, 11)?)?;
    agent.until("named again", named)?;
    ensure!(ask(&fixture, 10)?.endpoint().is_some(), "web is served");
    ensure!(ask(&fixture, 11)?.endpoint().is_some(), "sticky is as it was before");
    manifests.remove("sticky")?;
    agent.until("gone, with its error", |status| is_well(status) && !is_served(&fixture, 11))?;
    Ok(())
}

for_each_variant!(one_service_holds_up_no_other, "ref-svc");

/// Somebody's rule leads to a service's chain, so the kernel does not let that go; the service goes
/// all the same.
fn a_chain_in_use_holds_up_nobody(label: &str, variant: Variant) -> Result<()> {
    let fixture = Fixture::new(label)?;
    let node = &fixture.cluster.world.node;
    let manifests = &fixture.cluster.manifests;
    manifests.put("web", &fixture.service("web", 10, &HTTP, &[Host::Routed])?)?;
    let agent = fixture.cluster.start_agent_with(variant.flags())?;
    // Its first sync is reported later, and is not the next one's.
    agent.until("at rest", Duration::from_secs(60), |status| status["flushing"] == false)?;
    let rules = variant.dump(node)?;
    let chain =
        rules.split_whitespace().find(|word| word.starts_with("KUBE-SVC-")).context("no chain")?;
    variant.run(node, "-t nat -N THEIRS")?;
    variant.run(node, &format!("-t nat -A THEIRS -j {chain}"))?;
    programmed(&agent, || manifests.remove("web"), || ())?;
    let status = programmed(
        &agent,
        || manifests.put("more", &fixture.service("more", 12, &HTTP, &[Host::Remote])?),
        || (),
    )?;
    let errors = status["errors"].to_string();
    ensure!(errors.contains(&format!("-X {chain}")), "{status}");
    ensure!(ask(&fixture, 10)?.endpoint().is_none(), "web is gone");
    ensure!(ask(&fixture, 12)?.endpoint().is_some(), "more is served");
    ensure!(
        !variant.dump(node)?.contains("default/web"),
        "nothing of it is left: {}",
        variant.dump(node)?
    );
    programmed(
        &agent,
        || manifests.put("web", &fixture.service("web", 10, &HTTP, &[Host::Routed])?),
        || (),
    )?;
    ensure!(ask(&fixture, 10)?.endpoint().is_some(), "web is back");
    assert_eq!(agent.status()?["errors"], json!([]));
    assert_eq!(agent.status()?["driftRepaired"], 0);
    Ok(())
}

for_each_variant!(a_chain_in_use_holds_up_nobody, "ref-use");
