//! `--routing-mode direct`: routes to the pods of many nodes.

use std::time::{Duration, Instant};

use anyhow::Result;
use denizen_route::{MAIN, RouteWatch};
use denizen_tests::bench::timing::text;
use denizen_tests::node::manifest;
use denizen_tests::node::netns::{self, Netns};
use denizen_tests::node::world::ip;
use denizen_tests::peers::api::{Api, ApiServer};
use serde_json::{Value, json};

use crate::agent;
use crate::heard::{added, counted};
use crate::quantiles;

const NODES: usize = 1_000;
const CHANGES: usize = 50;
const OURS: u8 = 213;

/// A Node whose name and address have this number, and whose podCIDR is [`cidr`] of `range`.
fn node(number: usize, range: usize) -> Value {
    let address = ip(&format!("192.168.{}.{}", number / 250, number % 250 + 1));
    let mut node = manifest::node(&format!("node-{number}"), &[address], "");
    node["spec"] = json!({ "podCIDRs": [cidr(range)] });
    node
}

fn cidr(number: usize) -> String {
    format!("10.{}.{}.0/24", 128 + number / 250, number % 250)
}

/// Measures all nodes at once, then one podCIDR's change at a time.
pub fn measure() -> Result<()> {
    let here = Netns::new("bench-direct")?;
    here.ip("link set lo up\nlink add eth0 type veth peer name peer0\n\
         addr add 192.168.0.1/16 dev eth0\nlink set eth0 up\nlink set peer0 up")?;
    let folder = netns::folder()?;
    let api = ApiServer::start(&here, "127.0.0.1:6443".parse()?, folder.path())?;
    api.put_all(&(0..NODES).map(|number| node(number, number)).collect::<Vec<_>>())?;
    println!("\n## Routes to the pods of {NODES} nodes on one network\n");
    let begun = Instant::now();
    let _agent = agent::start(&here, api.kubeconfig(), folder.path(), &["--routing-mode=direct"])?;
    let [_, all] = counted(&here, OURS, MAIN, NODES - 1)?;
    println!("all, from the agent's start: {}", text(all - begun));
    let mut watch = here.run(|| RouteWatch::open(Vec::new()))??;
    let mut times = Vec::new();
    for change in 0..CHANGES {
        std::thread::sleep(Duration::from_millis(100));
        let range = NODES + change;
        let sent = Instant::now();
        api.put(&node(1 + change, range))?;
        times.push(added(&mut watch, &cidr(range))? - sent);
    }
    println!("one node has another podCIDR, from the API: {}", quantiles(times));
    Ok(())
}
