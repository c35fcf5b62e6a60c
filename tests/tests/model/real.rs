//! A sample of random worlds with real packets: the real agent in a node's namespace, real pods and
//! hosts, and `explain` in this process as the one who says what must come out.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::slice;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use denizen_plan::explain::{Explanation, PacketVerdict as Said};
use denizen_tests::node::pod::Wiring;
use denizen_tests::oracle::flows;
use denizen_tests::oracle::flows::table::{
    Backend, Config, DetectLocal, FlowCase, FlowExpectation, FlowRow, FlowSource, FlowVerdict,
    Nobody, NodeRow, PodRow,
};
use denizen_tests::packets::probe::Protocol;
use denizen_tests::random::{self, seed};
use denizen_tests::test_length;
use serde_json::{Value, json};

use super::agent::Agent;
use super::compare::{is_sticky, service};
use super::place::{HERE, PROTOCOLS};
use super::services::Wildness;
use super::world::{World, worlds};
use denizen_tests::oracle::reader::Arrival;

/// Packets of one world; each is several connections.
const PACKETS: usize = 16;

#[test]
fn real_packets_go_where_explain_says_bridged() -> Result<()> {
    run(Wiring::Bridged)
}

#[test]
fn real_packets_go_where_explain_says_routed() -> Result<()> {
    run(Wiring::Routed)
}

/// Worlds that are the same in every run, and as many that are not.
fn run(wiring: Wiring) -> Result<()> {
    let count = u32::try_from(test_length::times(30, 6))?;
    // Shrinking would take hours: a world is hosts, pods and servers.
    for seed in [1, seed()?] {
        random::run(count, seed, Duration::ZERO, worlds(Wildness::Playable), |world| {
            let case = case(world)?;
            eprintln!("seed {seed}: {} packets", case.flows.len());
            flows::run_cases(slice::from_ref(&case), Backend::Nftables, wiring)
                .map(drop)
                .with_context(|| format!("{:#?}", case.flows))
        })?;
    }
    Ok(())
}

fn case(world: &World) -> Result<FlowCase> {
    let folder = tempfile::tempdir()?;
    let agent = Agent::new(world, folder.path())?;
    let own = |flag: &str| world.flags.iter().find_map(|has| has.strip_prefix(flag));
    let node = world.node.as_ref().context("a playable world has its node")?;
    let zone = &node["metadata"]["labels"]["topology.kubernetes.io/zone"];
    let ranges = world.ranges.iter().flat_map(|range| range["spec"]["cidrs"].as_array());
    Ok(FlowCase {
        name: "random world".to_owned(),
        description: String::new(),
        backends: vec!["nftables".to_owned()],
        services: world.services.clone(),
        endpointslices: world.slices.clone(),
        node: NodeRow {
            name: HERE.to_owned(),
            ips: world.addresses.iter().map(|(ip, _)| *ip).collect(),
            zone: zone.as_str().unwrap_or_default().to_owned(),
        },
        config: Config {
            detect_local: DetectLocal { pods: pods(world) },
            masquerade_all: own("--masquerade-all").is_some(),
            localhost_node_ports: false,
            node_port_addresses: own("--nodeport-addresses=")
                .map(|ranges| ranges.split(',').map(str::to_owned).collect())
                .unwrap_or_default(),
            service_cidrs: ranges.flatten().filter_map(Value::as_str).map(str::to_owned).collect(),
            prefer_same_node: own("--feature-gates=").map(|_| false),
        },
        flows: flows(world, &agent)?,
    })
}

fn pods(world: &World) -> Vec<PodRow> {
    let row = |pod: &super::world::Pod| PodRow { iface: pod.veth.clone(), ips: pod.ips.clone() };
    world.pods.iter().map(row).collect()
}

/// Packets that hosts can really send, no two alike.
fn flows(world: &World, agent: &Agent) -> Result<Vec<FlowRow>> {
    let mut flows = Vec::new();
    let mut seen = BTreeSet::new();
    for arrival in &world.packets {
        let output = agent.explain(arrival)?;
        let own = world.addresses.iter().any(|(ip, _)| *ip == arrival.destination.ip());
        // The way to an address of nobody's here leads past the node.
        if [Said::Untouched, Said::Foreign].contains(&output.verdict) && !own {
            continue;
        }
        let sticky =
            output.service.as_ref().and_then(|name| service(world, name)).is_some_and(is_sticky);
        // What one frontend makes a client remember would change what another does.
        let of_client = (sticky && output.verdict == Said::Forward)
            .then_some((output.service.clone(), arrival.source));
        let alike = match of_client {
            Some((service, source)) => (service, source, None, arrival.protocol),
            None => (None, arrival.source, Some(arrival.destination), arrival.protocol),
        };
        if seen.insert(alike) && flows.len() < PACKETS {
            flows.push(flow(world, arrival, &output, sticky)?);
        }
    }
    Ok(flows)
}

fn flow(world: &World, arrival: &Arrival, output: &Explanation, sticky: bool) -> Result<FlowRow> {
    let name = PROTOCOLS
        .iter()
        .find(|(_, number)| *number == arrival.protocol)
        .map_or("", |(name, _)| name);
    let protocol: Protocol = name.parse()?;
    let endpoints = match output.verdict {
        Said::Forward => {
            let each = output.endpoints.iter().map(|endpoint| Ok(endpoint.parse()?));
            FlowVerdict::Forward(each.collect::<Result<_>>()?)
        }
        Said::Reject => FlowVerdict::Nobody(Nobody::Reject),
        Said::Drop => FlowVerdict::Nobody(Nobody::Drop),
        Said::Untouched | Said::Foreign => FlowVerdict::Nobody(Nobody::None),
        Said::Unknown => bail!("no kernel is asked, so none rejects anything"),
    };
    Ok(FlowRow {
        name: format!("{} to {}/{protocol}", arrival.source, arrival.destination),
        from: arrival.source,
        from_kind: from(world, arrival.source, arrival.interface.is_none()),
        protocol,
        dest_ip: arrival.destination.ip(),
        dest_port: arrival.destination.port(),
        expect: FlowExpectation {
            endpoints,
            masq: output.masquerade,
            sticky: sticky.then_some(json!(true)),
        },
        backends: None,
    })
}

fn from(world: &World, source: IpAddr, node: bool) -> FlowSource {
    let outside = super::place::FAMILIES.iter().flat_map(|family| family.outside);
    if node {
        FlowSource::Node
    } else if world.pods.iter().any(|pod| pod.ips.contains(&source)) {
        FlowSource::LocalPod
    } else if outside.into_iter().any(|ip| ip.parse() == Ok(source)) {
        FlowSource::External
    } else {
        FlowSource::RemotePod
    }
}
