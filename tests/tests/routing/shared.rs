//! Two Services have one load balancer IP, and this node has endpoints of one of them: whoever asks
//! for the other one here is not answered.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Result, ensure};
use denizen_tests::agent::Objects;
use denizen_tests::binary;
use denizen_tests::eventually::observed;
use denizen_tests::node::fixture::{PORT, service_ips};
use denizen_tests::node::manifest::{Port, service, slice};
use denizen_tests::node::world::ip;
use denizen_tests::packets::probe::{Outcome, Probe, SILENCE};
use denizen_tests::peers::api::{Api, ApiServer};
use serde_json::{Value, json};

use super::TIMEOUT;
use super::segment::{Node, Segment, addresses, objects};
use super::table::{FLAGS, VIPS, explained};

/// A service of policy Local at the first VIP, with one endpoint on this node.
fn local(name: &str, number: u8, port: u16, endpoint: (IpAddr, &str)) -> Vec<Value> {
    let ports = [Port::tcp("http", port, PORT)];
    let mut object = service(name, &service_ips(number), &ports);
    object["spec"]["type"] = "LoadBalancer".into();
    object["spec"]["externalTrafficPolicy"] = "Local".into();
    object["status"] = json!({ "loadBalancer": { "ingress": [{ "ip": VIPS[0] }] } });
    vec![object, slice(name, &ports, &[endpoint])]
}

fn warnings(node: &Node) -> Result<Vec<String>> {
    let status = node.agent()?.status()?;
    let warnings = status["warnings"].as_array().cloned().unwrap_or_default();
    let texts = warnings.iter().filter_map(|warning| warning.as_str().map(str::to_owned));
    Ok(texts.filter(|text| text.contains(VIPS[0])).collect())
}

fn explained_to_people(node: &Node) -> Result<String> {
    let program = binary::ours("denizen-agent")?;
    let run_dir = node.run_dir.to_string_lossy();
    let arguments = ["explain", "--announce", VIPS[0], "--run-dir", &run_dir];
    node.netns.output(&program.to_string_lossy(), &arguments)
}

#[test]
fn a_service_that_an_announced_address_drops_is_named() -> Result<()> {
    let mut segment = Segment::new("table-shared")?;
    let host = segment.join("table-shared-api", 77)?;
    let folder = segment.folder.path().join("api");
    std::fs::create_dir(&folder)?;
    let api = ApiServer::start(&host, SocketAddr::new(addresses(77)[0], 6443), &folder)?;
    for object in objects([1, 2]) {
        api.put(&object)?;
    }
    let node = &mut segment.nodes[0];
    node.objects = Objects::Kubeconfig(api.kubeconfig().to_owned());
    node.start_with(&FLAGS)?;
    node.attach()?;
    let pod = node.pod()?.addresses[0];
    let elsewhere = ip("10.1.2.5");
    for object in local("web", 10, 80, (pod, "node-1")) {
        api.put(&object)?;
    }
    let node = &segment.nodes[0];
    observed(
        "announced",
        TIMEOUT,
        || explained(node, VIPS[0]),
        |status| status["announced"] == true,
    )?;
    assert_eq!(warnings(node)?, Vec::<String>::new(), "one service alone");

    for object in local("mail", 11, 25, (elsewhere, "node-2")) {
        api.put(&object)?;
    }
    let named = observed("named", TIMEOUT, || warnings(node), |named| named.len() == 1)?;
    for part in ["default/web", "default/mail", "25/tcp", "policy is Local", "dropped"] {
        ensure!(named[0].contains(part), "no {part:?}: {named:?}");
    }
    // That is what packets meet.
    let client = &segment.nodes[1].netns;
    client.ip(&format!("route add {} via 192.0.2.1", VIPS[0]))?;
    let ask =
        |port| Probe::tcp(SocketAddr::new(ip(VIPS[0]), port)).timeout(SILENCE).send_in(client);
    ensure!(ask(80).endpoint().is_some(), "web is served");
    assert_eq!(ask(25), Outcome::Dropped, "mail is not");
    let output = explained(node, VIPS[0])?;
    ensure!(output["announced"] == true, "{output}");
    let dropped = output["dropped"][0].as_str().unwrap_or_default();
    ensure!(dropped.contains("25/tcp of Service default/mail"), "{output}");
    let text = explained_to_people(node)?;
    ensure!(text.contains("25/tcp of Service default/mail"), "{text}");
    let events = || {
        let events = api.objects("events").into_iter();
        Ok(events.filter(|event| event["reason"] == "SharedAddress").collect::<Vec<_>>())
    };
    let events = observed("an event", TIMEOUT, events, |events| !events.is_empty())?;
    ensure!(events.len() == 1 && events[0]["regarding"]["name"] == "mail", "{events:#?}");

    // An endpoint comes to this node.
    for object in local("mail", 11, 25, (pod, "node-1")) {
        api.put(&object)?;
    }
    observed("served", TIMEOUT, || warnings(node), Vec::is_empty)?;
    ensure!(ask(25).endpoint().is_some(), "mail is served");
    let output = explained(node, VIPS[0])?;
    ensure!(output["announced"] == true && output.get("dropped").is_none(), "{output}");
    Ok(())
}
