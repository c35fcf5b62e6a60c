//! An agent that ends and starts, and what others do to its tables.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use denizen_tests::eventually::eventually;
use denizen_tests::node::netns::Netns;
use denizen_tests::packets::probe::Probe;
use denizen_tests::policy::PolicyRule;

use super::test_cluster::{TIMEOUT, TestCluster, x};

const TABLE: &str = "denizen-firewall";

/// Forbidden packets keep coming while agents end and start, killed or not.
#[test]
fn a_restarted_agent_opens_no_window() -> Result<()> {
    let mut cluster = TestCluster::new("np-restart")?;
    cluster.put([x("deny").ingress([])])?;
    let to = cluster.addresses("x/a").map(|address| SocketAddr::new(address, 80));
    let (over, asked, leaked) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
    let senders = ["y/a", "x/b", "x/c"].map(|pod| cluster.netns(pod).path());
    let ask = || {
        for to in to.iter().cycle().take_while(|_| !over.load(Ordering::Relaxed)) {
            let answer = Probe::udp(*to).timeout(Duration::from_millis(10)).send();
            asked.fetch_add(1, Ordering::Relaxed);
            leaked.fetch_add(usize::from(answer.endpoint().is_some()), Ordering::Relaxed);
        }
    };
    thread::scope(|scope| {
        for sender in &senders {
            scope.spawn(|| Netns::run_at(sender, ask));
        }
        let restarted = [true, false].into_iter().try_for_each(|kills| {
            cluster.end_agent(kills)?;
            cluster.start_agent()
        });
        over.store(true, Ordering::Relaxed);
        restarted
    })?;
    let (asked, leaked) = (asked.into_inner(), leaked.into_inner());
    ensure!(asked > 0 && leaked == 0, "{leaked} of {asked} packets leaked");
    cluster.expect(cluster.netns("x/a"), "y/a", true)
}

/// The plugin adds to the set while no agent runs, and an agent that ends may leave more.
#[test]
fn what_was_left_pending_is_lifted() -> Result<()> {
    let mut cluster = TestCluster::new("np-pending")?;
    cluster.put([x("all").ingress([PolicyRule::all()])])?;
    cluster.end_agent(true)?;
    for (family, address) in ["ip", "ip6"].into_iter().zip(cluster.addresses("x/a")) {
        for set in ["pending", "egress-isolated"] {
            let added = format!("add element {family} {TABLE} {set} {{ {address} }}");
            cluster.node(0).nft(&added)?;
        }
    }
    cluster.expect(cluster.netns("y/a"), "x/a", false)?;
    cluster.start_agent()?;
    cluster.expect(cluster.netns("y/a"), "x/a", true)?;
    cluster.expect(cluster.netns("x/a"), "y/a", true)
}

#[test]
fn drift_is_repaired_and_others_tables_are_left_alone() -> Result<()> {
    let mut cluster = TestCluster::new("np-drift")?;
    cluster.put([x("deny").ingress([])])?;
    cluster.node(0).nft(
        "table ip mine { set ingress-isolated { type ipv4_addr; elements = { 192.0.2.7 }; }
         chain forward { type filter hook forward priority -5; ip daddr @ingress-isolated drop; }; }",
    )?;
    let mine =
        |cluster: &TestCluster| cluster.node(0).output("nft", &["list", "table", "ip", "mine"]);
    let before = mine(&cluster)?;
    let [address, _] = cluster.addresses("x/a");
    cluster.node(0).nft(&format!("delete element ip {TABLE} ingress-isolated {{ {address} }}"))?;
    let is_back = || {
        let list = ["list", "set", "ip", TABLE, "ingress-isolated"];
        Ok(cluster.node(0).output("nft", &list)?.contains(&address.to_string()))
    };
    eventually("the element is back", TIMEOUT, is_back)?;
    cluster.expect(cluster.netns("y/a"), "x/a", false)?;
    cluster.put([])?;
    ensure!(mine(&cluster)? == before, "another's table changed");
    Ok(())
}
