//! Session affinity while endpoints come and go: a client keeps its endpoint as long as that is one, whichever
//! door it uses, and nobody is sent to one that is gone.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use denizen_tests::agent::programmed;
use denizen_tests::cast::{Cast, PROTOCOLS, Who, every_protocol, service_ips};
use denizen_tests::manifest::Port;
use denizen_tests::probe::Protocol;

const NODE_PORT: u16 = 30080;
const CLIENTS: [Who; 4] = [Who::Bridged, Who::Routed, Who::Remote, Who::Outside];

/// Who answers whom, over what and in which family.
type Choices = BTreeMap<(usize, String), Who>;

fn put(cast: &Cast, members: &[Who]) -> Result<()> {
    let ports: Vec<Port> = every_protocol()
        .into_iter()
        .map(|port| port.at_node(NODE_PORT))
        .collect();
    let mut objects = cast.service("sticky", 10, &ports, members)?;
    objects[0]["spec"]["sessionAffinity"] = "ClientIP".into();
    cast.cluster.manifests.put("sticky", &objects)
}

/// Asks at the cluster IP and at the node port, more than once: all must be answered by the same.
fn choice(cast: &Cast, who: Who, doors: [SocketAddr; 2], protocol: Protocol) -> Result<Who> {
    let mut chosen = None;
    for door in [doors, doors].concat() {
        let outcome = cast.ask(who, door, protocol)?;
        let by = outcome.endpoint().and_then(|endpoint| cast.owner(endpoint.ip()));
        let by = by.with_context(|| format!("{who:?} to {door} over {protocol}: {outcome:?}"))?;
        ensure!(
            chosen.is_none_or(|chosen| chosen == by),
            "{who:?} to {doors:?} over {protocol}: {chosen:?}, then {by:?} at {door}"
        );
        chosen = Some(by);
    }
    chosen.context("it was asked")
}

fn choices(cast: &Cast) -> Result<Choices> {
    let mut found = Choices::new();
    for (number, who) in CLIENTS.into_iter().enumerate() {
        for ip in service_ips(10) {
            let node = cast.address(Who::ThisNode, ip)?;
            let doors = [SocketAddr::new(ip, 80), SocketAddr::new(node, NODE_PORT)];
            for protocol in PROTOCOLS {
                let by = choice(cast, who, doors, protocol)?;
                found.insert((number, format!("{protocol} to {ip}")), by);
            }
        }
    }
    Ok(found)
}

#[test]
fn a_client_keeps_its_endpoint_while_others_come_and_go_and_loses_it_with_the_endpoint() -> Result<()> {
    let (cast, _servers) = Cast::new("aff-churn")?;
    put(&cast, &[Who::Bridged, Who::Routed, Who::Remote])?;
    let agent = cast.cluster.start_agent()?;
    let mut before = choices(&cast)?;
    let churn = [
        &[Who::Routed, Who::Remote][..],
        &[Who::Remote],
        &[Who::Bridged, Who::Remote],
        &[Who::Bridged, Who::Routed],
        &[Who::Remote, Who::Bridged, Who::Routed],
    ];
    for members in churn {
        programmed(&agent, || put(&cast, members), || ())?;
        let now = choices(&cast)?;
        for (client, by) in &now {
            ensure!(members.contains(by), "{client:?} by {by:?}, of {members:?}");
            let earlier = before[client];
            ensure!(
                !members.contains(&earlier) || earlier == *by,
                "{client:?} was {earlier:?}'s, which is still there, and is {by:?}'s now"
            );
        }
        before = now;
    }
    Ok(())
}
