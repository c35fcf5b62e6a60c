//! Faults of a node that only a machine of its own can have: modules that are not there, no room
//! for connections, ipvs.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;

use anyhow::{Context, Result};
use denizen_tests::agent::check::CheckedNode;
use denizen_tests::kernel::ctnetlink::{self, FlowEntry};
use denizen_tests::node::netns::checked;

/// Makes each fault, expects `check` to find it, and undoes it.
pub(crate) fn faults_are_found() -> Result<()> {
    let node = CheckedNode::new("guest-check")?;
    // The modules that a healthy node needs are loaded by now.
    node.check(&[])?.ensure_well()?;
    without(&node, "nf_conntrack_netlink", ["conntrack-netlink", "failure", "cannot be deleted"])?;
    without(&node, "br_netfilter", ["br-netfilter", "warning", "br_netfilter is not loaded"])?;
    room(&node)?;
    ipvs(&node)?;
    node.check(&[])?.ensure_well()
}

/// Gives a setting of the kernel a value.
pub(crate) fn setting(name: &str, value: &str) -> Result<()> {
    let path = format!("/proc/sys/{name}");
    fs::write(&path, value).with_context(|| format!("{value} to {path}"))
}

/// `check` without this module: it is unloaded, and the kernel cannot load it again.
fn without(node: &CheckedNode, module: &str, [name, verdict, words]: [&str; 3]) -> Result<()> {
    let loader = fs::read_to_string("/proc/sys/kernel/modprobe")?;
    checked(Command::new("modprobe").args(["-r", module]))?;
    setting("kernel/modprobe", "/nowhere")?;
    let found = node.check(&[]);
    setting("kernel/modprobe", loader.trim())?;
    checked(Command::new("modprobe").arg(module))?;
    found?.ensure_only(name, verdict, words)
}

/// How many entries the node's conntrack table has.
const CONNECTIONS: u32 = 100;

fn room(node: &CheckedNode) -> Result<()> {
    let number = |name: &str| -> Result<u64> {
        let text = fs::read_to_string(format!("/proc/sys/net/netfilter/nf_conntrack_{name}"))?;
        Ok(text.trim().parse()?)
    };
    let (max, buckets) = (number("max")?, number("buckets")?);
    let at = |address: [u8; 4], port| SocketAddr::new(Ipv4Addr::from(address).into(), port);
    let flow = |number: u32| FlowEntry {
        client: at([10, 200, 0, 1], 10_000 + number as u16),
        frontend: at([172, 30, 0, 53], 53),
        endpoint: at([10, 10, 0, 2], 5353),
    };
    node.netns.run(|| ctnetlink::fill(CONNECTIONS, flow))??;
    let cases = [
        (100, "failure", "100 of 100"),
        (130, "warning", "nearly full: 100 of 130"),
        (9 * buckets, "warning", "lookups are slow"),
    ];
    for (most, verdict, words) in cases {
        setting("net/netfilter/nf_conntrack_max", &most.to_string())?;
        let found = node.check(&[]);
        setting("net/netfilter/nf_conntrack_max", &max.to_string())?;
        found?.ensure_only("conntrack-room", verdict, words)?;
    }
    Ok(())
}

fn ipvs(node: &CheckedNode) -> Result<()> {
    let off = ["--services=off", "--network-policy=on"];
    node.check(&off)?.ensure_well()?;
    node.netns.output("ipvsadm", &["-A", "-t", "172.30.0.10:80", "-s", "rr"])?;
    node.check(&off)?.ensure_only("service-proxies", "failure", "ipvs")?;
    node.check(&[])?.ensure_only("service-proxies", "warning", "virtual servers of ipvs")?;
    node.netns.output("ipvsadm", &["-C"])?;
    Ok(())
}
