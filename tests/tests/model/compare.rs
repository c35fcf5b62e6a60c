//! What the rules do with a packet against what `explain` says of it, and with a client's next
//! packets.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use anyhow::{Context, Result, bail, ensure};
use denizen_plan::explain::{Explanation, PacketVerdict};
use serde_json::Value;

use super::agent::Agent;
use super::cluster::ports;
use super::world::World;
use denizen_tests::oracle::reader::{Arrival, ReadEnd, ReadFate, Reader};

/// Draws that should be as likely as each other differ by less.
const ROUNDING: f64 = 1e-9;

/// Fates, and whether the source is replaced.
pub type Fates = BTreeSet<(ReadFate, bool)>;

/// Walks a packet through the rules, holds the outcome against what `explain` said, and returns it.
pub fn compare(
    reader: &Reader,
    arrival: &Arrival,
    output: &Explanation,
) -> Result<BTreeMap<ReadEnd, f64>> {
    let ends = reader.walk(arrival).context("the rules cannot be read")?;
    let sum: f64 = ends.values().sum();
    ensure!((sum - 1.0).abs() < ROUNDING, "probabilities sum up to {sum}: {ends:?}");
    let mut shares: BTreeMap<(ReadFate, bool), f64> = BTreeMap::new();
    for (end, share) in &ends {
        *shares.entry((end.fate, end.masqueraded)).or_default() += share;
    }
    let wanted = wanted(arrival, output, reader)?;
    let found: Fates = shares.keys().copied().collect();
    ensure!(found == wanted, "the rules do {found:?}, explain says {wanted:?}");
    for (fate, share) in &shares {
        let even = 1.0 / wanted.len() as f64;
        ensure!(
            (share - even).abs() < ROUNDING,
            "{fate:?} has the share {share} of {}",
            wanted.len()
        );
    }
    Ok(ends)
}

/// What the rules make of a packet, without how likely.
pub fn fates(ends: &BTreeMap<ReadEnd, f64>) -> Fates {
    ends.keys().map(|end| (end.fate, end.masqueraded)).collect()
}

/// Fates, and whether the source is replaced, by what `explain` says.
fn wanted(
    arrival: &Arrival,
    output: &Explanation,
    reader: &Reader,
) -> Result<BTreeSet<(ReadFate, bool)>> {
    Ok(match output.verdict {
        PacketVerdict::Reject => BTreeSet::from([(ReadFate::Reject, output.masquerade)]),
        PacketVerdict::Drop => BTreeSet::from([(ReadFate::Drop, output.masquerade)]),
        // No other proxy has rules here, and what it does not translate is dropped in a range.
        PacketVerdict::Foreign => {
            let is_checked = output.steps.iter().any(|step| step.why.contains("is dropped"));
            let fate = if is_checked { ReadFate::Drop } else { ReadFate::Untouched };
            BTreeSet::from([(fate, false)])
        }
        PacketVerdict::Untouched => BTreeSet::from([(ReadFate::Untouched, output.masquerade)]),
        PacketVerdict::Unknown => bail!("no kernel is asked, so none rejects anything"),
        PacketVerdict::Forward => {
            ensure!(!output.endpoints.is_empty(), "forwarded to nobody");
            let tells = |words: &str| output.steps.iter().any(|step| step.what.starts_with(words));
            let itself = tells("if the chosen endpoint is the sender itself");
            let stays = tells("if the chosen endpoint is on this host's network");
            let fate = |endpoint: &String| -> Result<_> {
                let at: SocketAddr = endpoint.parse()?;
                let masqueraded = match at.ip() {
                    ip if itself && ip == arrival.source => true,
                    ip if stays && reader.is_own(ip) => false,
                    _ => output.masquerade,
                };
                Ok((ReadFate::Forward(at), masqueraded))
            };
            output.endpoints.iter().map(fate).collect::<Result<_>>()?
        }
    })
}

/// What the rules remember of a client: nothing without session affinity. With it, every frontend
/// of the service port leads to the endpoint that the client had, or to any where that one is not
/// among the frontend's; and no other service is different for it.
pub fn remembers(world: &World, agent: &Agent, reader: &Reader, arrival: &Arrival) -> Result<()> {
    let (output, ends) = (agent.explain(arrival)?, reader.walk(arrival)?);
    let sticky =
        output.service.as_ref().and_then(|name| service(world, name)).is_some_and(is_sticky);
    for end in ends.keys() {
        let ReadFate::Forward(had) = end.fate else { continue };
        ensure!(sticky != end.packet.memory.is_empty(), "remembered: {:?}", end.packet.memory);
        for again in others(world, arrival) {
            let next = agent.explain(&again)?;
            let same = next.service == output.service && again.protocol == arrival.protocol;
            let ends = reader.walk_again(&again, &end.packet)?;
            let mut wanted = fates(&reader.walk(&again)?);
            if same && sticky && next.endpoints.contains(&had.to_string()) {
                wanted.retain(|(fate, _)| *fate == end.fate);
            }
            ensure!(
                fates(&ends) == wanted,
                "the client had {had}; at {again:?} the rules do {:?} in place of {wanted:?}",
                fates(&ends)
            );
        }
    }
    Ok(())
}

/// The Service that `explain` names.
pub fn service<'a>(world: &'a World, name: &str) -> Option<&'a Value> {
    let named = |service: &&Value| {
        let metadata = &service["metadata"];
        let (namespace, own) = (metadata["namespace"].as_str(), metadata["name"].as_str());
        let full = format!("{}/{}", namespace.unwrap_or_default(), own.unwrap_or_default());
        name == full || name.strip_prefix(&full).is_some_and(|rest| rest.starts_with(':'))
    };
    world.services.iter().find(named)
}

pub fn is_sticky(service: &Value) -> bool {
    service["spec"]["sessionAffinity"] == "ClientIP"
}

/// The same client's packets to every frontend of every service with affinity.
fn others(world: &World, first: &Arrival) -> Vec<Arrival> {
    let v4 = first.destination.is_ipv4();
    let mut found = Vec::new();
    for port in ports(world, v4).into_iter().filter(|port| is_sticky(port.service)) {
        let at_node = world.addresses.iter().map(|(ip, _)| (*ip, port.number("nodePort")));
        let own = port.addresses().into_iter().map(|(_, ip)| (ip, port.number("port")));
        for (ip, number) in own.chain(at_node).filter(|(ip, _)| ip.is_ipv4() == v4) {
            let Some(number) = number else { continue };
            let destination = SocketAddr::new(ip, number);
            found.push(Arrival { destination, protocol: port.protocol(), ..first.clone() });
        }
    }
    found
}
