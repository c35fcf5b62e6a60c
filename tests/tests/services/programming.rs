//! How services are programmed, where others' ways had consequences.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};
use denizen_tests::agent::{Agent, programmed};
use denizen_tests::eventually::eventually;
use denizen_tests::node::fixture::{Host, service_ips};
use denizen_tests::packets::probe::Protocol::Tcp;
use serde_json::json;

use crate::context::{AgentContext, HTTP};

const TIMEOUT: Duration = Duration::from_secs(20);

/// Kernels before 6.2 refuse to remove a chain in the transaction that removes the last element
/// that leads to it. So chains of session affinity go by a later transaction, and all others
/// stay: they are for kinds of services, and do not grow in number.
#[test]
fn no_chain_goes_with_the_elements_that_led_to_it() -> Result<()> {
    let context = AgentContext::new("nft-chains", &[], |fixture| {
        fixture.service("web", 10, &HTTP, &[Host::Remote])
    })?;
    let chains = || -> Result<BTreeSet<String>> {
        let node = &context.fixture.cluster.world.node;
        let text = node.output("nft", &["list", "table", "ip", "denizen"])?;
        let named = text.lines().filter_map(|line| line.trim().strip_prefix("chain "));
        Ok(named.map(str::to_owned).collect())
    };
    let mut after = None;
    for round in 0..6 {
        let mut many = context.fixture.service(
            "web",
            10,
            &HTTP,
            &[Host::Bridged, Host::Routed, Host::Remote],
        )?;
        many[0]["spec"]["sessionAffinity"] = "ClientIP".into();
        context.becomes(&many)?;
        context.becomes(&context.fixture.service("web", 10, &HTTP, &[Host::Remote])?)?;
        let now = chains()?;
        assert_eq!(after.get_or_insert_with(|| now.clone()), &now, "round {round}");
    }
    assert_eq!(context.agent.status()?["errors"], json!([]));
    assert!(!context.agent.log().contains("will retry"), "{}", context.agent.log());
    Ok(())
}

/// Rules of a newer nft make an older one crash as it lists them. Denizen needs none.
#[test]
fn nobody_elses_nft_is_run() -> Result<()> {
    let context = AgentContext::new("nft-alone", &[], |fixture| {
        fixture.service("web", 10, &HTTP, &[Host::Remote])
    })?;
    let pid = context.agent.pid();
    let mut more = context.fixture.service("web", 10, &HTTP, &[Host::Remote, Host::Bridged])?;
    more[0]["spec"]["sessionAffinity"] = "ClientIP".into();
    // Whatever it had run would be in the accounts of its children, even when it has ended.
    programmed(&context.agent, || context.fixture.cluster.manifests.put("services", &more), || ())?;
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let fields: Vec<&str> = stat.rsplit(") ").next().context("fields")?.split(' ').collect();
    // cminflt, cmajflt: page faults of children that were waited for.
    assert_eq!((fields[8], fields[10]), ("0", "0"), "{stat}");
    Ok(())
}

#[test]
fn a_restart_keeps_the_rules_until_all_is_known() -> Result<()> {
    let AgentContext { fixture, agent } = AgentContext::new("restart-known", &[], |fixture| {
        fixture.service("web", 10, &HTTP, &[Host::Remote])
    })?;
    assert!(agent.terminate()?.success());
    let manifests = fixture.cluster.manifests.folder();
    let aside = fixture.cluster.world.folder().join("aside");
    fs::rename(manifests, &aside)?;
    let mut agent = Agent::spawn(&fixture.cluster.world.node, fixture.cluster.settings())?;
    eventually("answering", TIMEOUT, || Ok(agent.status().is_ok()))?;
    assert_eq!(agent.status()?["synced"], json!(false), "nothing is known yet");
    for _ in 0..20 {
        for like in service_ips(10) {
            let outcome = fixture.probe(Host::Outside, (like, 80).into(), Tcp)?;
            assert!(outcome.endpoint().is_some(), "{outcome:?}");
        }
    }
    fs::rename(&aside, manifests)?;
    agent.wait_programmed(TIMEOUT)
}
