//! New pods that a real container runtime makes: containerd, called by CRI as the kubelet calls it.

use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::symlink;

use anyhow::{Context, Result, ensure};
use denizen_state::RunDir;
use denizen_tests::agent::CNI_CACHE;
use denizen_tests::binary;
use denizen_tests::node::pod::Wiring;
use denizen_tests::peers::containerd::{Containerd, SandboxConfig};
use denizen_tests::test_length;

use super::{add, isolate};
use crate::newcomers::{Listener, Newcomers, next, nothing_wrong};
use denizen_tests::node::two_nodes::NodeHost;

/// containerd on a node, with the chain of its bridged pods.
fn start(host: &NodeHost) -> Result<Containerd> {
    let folder = host.run_dir.join("containerd");
    let list = Containerd::conf_dir(&folder)?.join("10-pods.conflist");
    fs::write(list, host.chain(Wiring::Bridged).conflist())?;
    let plugin = Containerd::bin_dir(&folder)?.join("denizen");
    symlink(binary::ours("denizen")?, plugin)?;
    let cache = host.run_dir.join(CNI_CACHE);
    let mut containerd = Containerd::start(&host.netns, &folder, &cache)?;
    containerd.wait_network()?;
    Ok(containerd)
}

/// As [`super::of_a_new_pod`]: peers send to each since before it had its address.
#[test]
fn of_a_pod_that_containerd_makes() -> Result<()> {
    let newcomers = Newcomers::new("first-ctr", &isolate("10s"))?;
    let host = &newcomers.nodes.hosts[0];
    let containerd = start(host)?;
    let cri = containerd.cri()?;
    let before = add(&newcomers, "before", "new", Wiring::Bridged)?;
    let mut last = before.addresses.clone();
    for number in 0..test_length::in_full(20, 2) {
        let name = format!("p{number}");
        newcomers.announce(&format!("new/{name}"), &name, "new")?;
        let awaited = next(&last)?;
        newcomers.aim(|targets| targets.extend(&awaited));
        let mut config = SandboxConfig::new(&name);
        config.metadata.as_mut().context("there is some")?.namespace = "new".to_owned();
        let sandbox = cri.run_sandbox_as(config)?;
        last = addresses(&cri.addresses(&sandbox)?)?;
        ensure!(last == awaited, "{last:?} instead of {awaited:?}");
        let state = RunDir::open(&host.run_dir)?.read()?.context("there is a record")?;
        let mut records = state.attachments.into_values();
        let record =
            records.find(|record| record.container_id == sandbox).context("it is recorded")?;
        let netns = containerd.pod_netns(record.netns.as_deref().context("it has a netns")?)?;
        let listener = Listener::start(&netns, &last)?;
        let wrong = newcomers.first_packets(&listener)?;
        drop(listener);
        newcomers.aim(std::collections::BTreeSet::clear);
        cri.stop_sandbox(&sandbox)?;
        cri.remove_sandbox(&sandbox)?;
        nothing_wrong(1, &wrong).with_context(|| name)?;
    }
    Ok(())
}

/// IPv4 first, as everywhere in these tests.
fn addresses(output: &[String]) -> Result<Vec<IpAddr>> {
    let mut addresses =
        output.iter().map(|address| address.parse()).collect::<Result<Vec<IpAddr>, _>>()?;
    addresses.sort();
    Ok(addresses)
}
