//! The node, its addresses, the kernel, and restarts.

use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use denizen_tests::agent::{Agent, programmed};
use denizen_tests::cast::{Who, service_ips};
use denizen_tests::manifest::Port;
use denizen_tests::probe::{Outcome, Protocol::Tcp};
use denizen_tests::world::ip;
use serde_json::json;

use super::{Fate, HTTP, NODE_PORT, Trap, at, at_node, by};

const SOON: Duration = Duration::from_secs(20);
const AT_NODE: [Port; 1] = [HTTP[0].at_node(NODE_PORT)];

#[test]
fn trap_01_of_two_ranges_of_one_family_both_count() -> Result<()> {
    let flag =
        "--detect-local=node-cidr=10.10.0.0/16,172.20.0.0/14,fd00:10:10::/48,fd00:172:20::/48";
    let trap = Trap::set("01", &[flag], |cast| cast.service("web", 10, &HTTP, &[Who::Remote]))?;
    for to in at(10, 80) {
        for (who, masqueraded) in
            [(Who::Bridged, false), (Who::Routed, false), (Who::Outside, true)]
        {
            let outcome = trap.cast.ask(who, to, Tcp)?;
            assert_eq!(trap.cast.was_masqueraded(who, &outcome)?, masqueraded, "{who:?} to {to}");
        }
    }
    Ok(())
}

#[test]
fn trap_02_no_detector_is_an_error_and_the_usual_one_needs_no_flag() -> Result<()> {
    for flag in ["--detect-local=", "--detect-local=cluster-cidr", "--cluster-cidr=10.0.0.0/8"] {
        let refused = Trap::set("02-bad", &[flag], |_| Ok(Vec::new())).err();
        let refused = format!("{:#}", refused.context(flag)?);
        assert!(refused.contains("pod-state"), "{flag}: {refused}");
    }
    let trap = Trap::set("02", &[], |cast| cast.service("web", 10, &HTTP, &[Who::Remote]))?;
    for to in at(10, 80) {
        let outcome = trap.cast.ask(Who::Outside, to, Tcp)?;
        assert!(trap.cast.was_masqueraded(Who::Outside, &outcome)?, "{to}");
    }
    Ok(())
}

#[test]
fn trap_03_a_family_without_a_range_serves_no_node_port() -> Result<()> {
    let flag = "--nodeport-addresses=192.168.0.0/16";
    let trap = Trap::set("03", &[flag], |cast| cast.service("web", 10, &AT_NODE, &[Who::Remote]))?;
    for to in at_node(&trap.cast, NODE_PORT)? {
        let expected = if to.is_ipv4() { by([Who::Remote]) } else { Fate::Refused };
        assert_eq!(trap.fate(Who::Outside, to, Tcp)?, expected, "{to}");
    }
    Ok(())
}

/// Kernels before 6.2 refuse to remove a chain in the transaction that removes the last element
/// that leads to it. Chains are for kinds of services here, and stay: they neither grow in number
/// nor go.
#[test]
fn trap_17_no_chain_goes_with_the_elements_that_led_to_it() -> Result<()> {
    let trap = Trap::set("17", &[], |cast| cast.service("web", 10, &HTTP, &[Who::Remote]))?;
    let chains = || -> Result<BTreeSet<String>> {
        let node = &trap.cast.cluster.world.node;
        let text = node.output("nft", &["list", "table", "ip", "denizen"])?;
        let named = text.lines().filter_map(|line| line.trim().strip_prefix("chain "));
        Ok(named.map(str::to_owned).collect())
    };
    let mut after = None;
    for round in 0..6 {
        let mut many =
            trap.cast.service("web", 10, &HTTP, &[Who::Bridged, Who::Routed, Who::Remote])?;
        many[0]["spec"]["sessionAffinity"] = "ClientIP".into();
        trap.becomes(&many)?;
        trap.becomes(&trap.cast.service("web", 10, &HTTP, &[Who::Remote])?)?;
        let now = chains()?;
        assert_eq!(after.get_or_insert_with(|| now.clone()), &now, "round {round}");
    }
    assert_eq!(trap.agent.status()?["errors"], json!([]));
    assert!(!trap.agent.log().contains("trying again"), "{}", trap.agent.log());
    Ok(())
}

/// Rules of a newer nft make an older one crash as it lists them. Denizen needs none.
#[test]
fn trap_18_nobody_elses_nft_is_run() -> Result<()> {
    let trap = Trap::set("18", &[], |cast| cast.service("web", 10, &HTTP, &[Who::Remote]))?;
    let pid = trap.agent.pid();
    let mut more = trap.cast.service("web", 10, &HTTP, &[Who::Remote, Who::Bridged])?;
    more[0]["spec"]["sessionAffinity"] = "ClientIP".into();
    // Whatever it had run would be in the accounts of its children, even when it has ended.
    programmed(&trap.agent, || trap.cast.cluster.manifests.put("trap", &more), || ())?;
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let fields: Vec<&str> = stat.rsplit(") ").next().context("fields")?.split(' ').collect();
    // cminflt, cmajflt: page faults of children that were waited for.
    assert_eq!((fields[8], fields[10]), ("0", "0"), "{stat}");
    Ok(())
}

#[test]
fn trap_19_node_ports_follow_the_nodes_addresses() -> Result<()> {
    let flag = "--nodeport-addresses=192.168.0.0/16";
    let trap = Trap::set("19", &[flag], |cast| cast.service("web", 10, &AT_NODE, &[Who::Remote]))?;
    let node = &trap.cast.cluster.world.node;
    let to = (ip("192.168.0.99"), NODE_PORT).into();
    let is = |wanted: fn(&Outcome) -> bool| -> Result<()> {
        let started = Instant::now();
        loop {
            let outcome = trap.cast.ask(Who::Outside, to, Tcp)?;
            if wanted(&outcome) {
                return Ok(());
            }
            ensure!(started.elapsed() < SOON, "still {outcome:?}: {}", trap.agent.log());
        }
    };
    node.ip("addr add 192.168.0.99/24 dev eth0")?;
    is(|outcome| outcome.endpoint().is_some())?;
    node.ip("addr del 192.168.0.99/24 dev eth0")?;
    is(|outcome| outcome.endpoint().is_none())
}

#[test]
fn trap_20_a_restart_keeps_the_rules_until_all_is_known() -> Result<()> {
    let Trap { cast, agent, _servers } =
        Trap::set("20", &[], |cast| cast.service("web", 10, &HTTP, &[Who::Remote]))?;
    assert!(agent.terminate()?.success());
    let manifests = cast.cluster.manifests.folder();
    let aside = cast.cluster.world.folder().join("aside");
    fs::rename(manifests, &aside)?;
    let mut agent = Agent::spawn(&cast.cluster.world.node, cast.cluster.settings())?;
    let started = Instant::now();
    while agent.status().is_err() {
        ensure!(started.elapsed() < SOON, "{}", agent.log());
    }
    assert_eq!(agent.status()?["synced"], json!(false), "nothing is known yet");
    for _ in 0..20 {
        for like in service_ips(10) {
            let outcome = cast.ask(Who::Outside, (like, 80).into(), Tcp)?;
            assert!(outcome.endpoint().is_some(), "{outcome:?}");
        }
    }
    fs::rename(&aside, manifests)?;
    agent.wait_programmed(SOON)
}
