//! A Node comes that claims everything: this node goes on to announce what it serves.

use anyhow::{Result, ensure};
use denizen_tests::eventually::observed;
use denizen_tests::node::fixture::{PORT, service_ips};
use denizen_tests::node::manifest::{Port, service, slice};
use denizen_tests::node::world::ip;
use serde_json::{Value, json};

use super::TIMEOUT;
use super::segment::{Node, Segment, object, ranges};
use super::table::{FLAGS, Monitor, VIPS, explained, table, until_table, web};

/// What it claims, as podCIDRs: everything, this node's own, what services have.
fn claims() -> Vec<Vec<String>> {
    let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
    vec![
        texts(&["0.0.0.0/0", "::/0"]),
        texts(&["0.0.0.0/1", "128.0.0.0/1"]),
        ranges(1).into(),
        texts(&["10.1.0.0/16", "fd01::/32"]),
        texts(&["203.0.113.0/24", "2001:db8:5::/64"]),
        texts(&["203.0.113.7/32", "2001:db8:5::7/128"]),
    ]
}

/// A service whose address shows that all was decided again.
fn marker(node: &Node, number: u8) -> Result<Vec<Value>> {
    let ports = [Port::tcp("http", 80, PORT)];
    let mut marker = service("marker", &service_ips(11), &ports);
    marker["spec"]["externalIPs"] = json!([format!("203.0.113.{number}")]);
    Ok(vec![marker, slice("marker", &ports, &[(node.pod()?.addresses[0], "node-1")])])
}

#[test]
fn a_younger_node_that_claims_everything_withdraws_nothing() -> Result<()> {
    let mut segment = Segment::new("table-greedy")?;
    let manifests = segment.manifests.clone();
    let node = &mut segment.nodes[0];
    node.start_with(&FLAGS)?;
    node.attach()?;
    manifests.put("web", &web(node, true)?)?;
    let [v4, v6] = ranges(1).map(|range| format!("blackhole {range}"));
    let [vip, vip6] = VIPS.map(|vip| format!("blackhole {vip}"));
    until_table(node, &[&v4, &vip, &vip6, &v6])?;
    let mut monitor = Monitor::of(&node.netns)?;
    for (claims, number) in claims().iter().zip(100..) {
        // It has an address in this node's own range too.
        manifests.put("greedy", &[object("greedy", 20, &[ip("10.1.1.77")], claims)])?;
        manifests.put("marker", &marker(node, number)?)?;
        let marked = format!("203.0.113.{number}");
        let is_decided = |address: &Value| address["announced"] == true;
        observed("decided", TIMEOUT, || explained(node, &marked), is_decided)?;
        let left = table(&node.netns)?;
        for prefix in [&v4, &vip, &vip6, &v6] {
            ensure!(left.contains(prefix), "{claims:?} withdrew {prefix}: {left:?}");
        }
        let withdrawn = monitor.withdrawn()?;
        let of_markers =
            withdrawn.iter().all(|prefix| prefix.to_string().starts_with("203.0.113.10"));
        ensure!(of_markers, "{claims:?}: {withdrawn:?}");
    }
    // What an older Node has it keeps.
    manifests.put("greedy", &[object("greedy", 0, &[ip("192.0.2.99")], &ranges(1))])?;
    let is_lost = |address: &Value| address["announced"] == false;
    let output = observed("an older Node's", TIMEOUT, || explained(node, "10.1.1.5"), is_lost)?;
    assert_eq!(output["why"], format!("it overlaps {} of Node greedy", ranges(1)[0]), "{output}");
    Ok(())
}
