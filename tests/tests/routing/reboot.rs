//! A node loses its power and starts again, with the same name and addresses.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use denizen_tests::eventually::observed;
use denizen_tests::node::fixture::PORT;
use denizen_tests::node::world::ip;
use denizen_tests::packets::load::Load;
use denizen_tests::packets::probe::{Outcome, Protocol};

use super::TIMEOUT;
use super::bgp::PAUSE;
use super::table::{VIPS, web};
use super::underlay::Underlay;

/// Connections between pods of the first and of the third node.
fn load_between_others(fabric: &Underlay) -> Result<Load> {
    let mut load = Load::with_pause(PAUSE);
    let [from, to] = [0, 2].map(|index| fabric.segment.nodes[index].pod());
    let (from, to) = (from?, to?);
    let targets = to.addresses.iter().map(|ip| (SocketAddr::new(*ip, PORT), Protocol::Tcp));
    load.client(&from.netns, targets.collect(), |outcome| outcome.endpoint().is_some())?;
    Ok(load)
}

/// Connections from outside to the service. One that was made before its route changed may
/// break: no other node knows it.
fn load_from_outside(fabric: &Underlay) -> Result<Load> {
    let mut load = Load::with_pause(PAUSE);
    let vips = VIPS.map(|vip| (SocketAddr::new(ip(vip), 80), Protocol::Tcp)).to_vec();
    let is_let_in =
        |outcome: &Outcome| matches!(outcome, Outcome::Answered { .. } | Outcome::Broken(_));
    load.client(&fabric.client, vips, is_let_in)?;
    Ok(load)
}

/// Waits until the routers have given the second node up: for the time that they agreed upon.
fn until_given_up(fabric: &Underlay) -> Result<()> {
    for tor in &fabric.tors {
        let sessions = || -> Result<Vec<String>> {
            [4, 6].iter().map(|n| tor.ask(&format!("show protocols node2_{n}"))).collect()
        };
        let is_over = |them: &Vec<String>| !them.iter().any(|line| line.contains("Established"));
        observed("given up", TIMEOUT * 2, sessions, is_over)?;
    }
    Ok(())
}

/// The other nodes' pods do not notice. The node has nothing that it had, and the routers forget
/// what they had heard of it. When it serves again, no client is refused or lost.
#[test]
fn a_node_that_reboots_disturbs_no_other_and_serves_again() -> Result<()> {
    let mut fabric = Underlay::new("bgp-reboot")?;
    fabric.segment.manifests.put("web", &web(&fabric.segment.nodes[0], true)?)?;
    fabric.put_web(&[(0, true), (1, true)])?;
    fabric.until_next_hops(&[0, 1])?;
    let flag = format!("--config={}", fabric.segment.folder.path().join("config.yaml").display());

    let others = load_between_others(&fabric)?;
    fabric.power_off()?;
    fabric.put_web(&[(0, true)])?;
    until_given_up(&fabric)?;
    // Routers keep what they heard of it for its graceful restart, but this BIRD knows of none.
    fabric.power_on(&flag)?;
    fabric.until_up()?;
    fabric.until_next_hops(&[0])?;
    let outside = load_from_outside(&fabric)?;
    fabric.put_web(&[(0, true), (1, true)])?;
    fabric.until_next_hops(&[0, 1])?;
    fabric.until_all_reach_all()?;
    thread::sleep(Duration::from_secs(2));
    for (what, load) in [("others", others), ("outside", outside)] {
        let tally = load.stop()?;
        ensure!(tally.answered > 20 && tally.failed == 0, "{what}: {tally:?}");
    }
    Ok(())
}
