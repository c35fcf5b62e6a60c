//! What agents say, as edges between boxes. Pure.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use serde::Deserialize;

use super::directory::Directory;
use super::party::Party;
use crate::verb::connections::{ClusterConnections, Connection, Joined, NamedEnd};

/// What an edge is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct EdgeKey {
    pub from: Party,
    pub to: Party,
    /// The name of a service's port, or the number and the protocol.
    pub port: String,
}

/// What becomes of the packets. Ordered: the worst comes last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum EdgeVerdict {
    Connected,
    /// Nothing came back.
    Unanswered,
    /// A rule dropped it, and its sender got an answer.
    Refused,
    /// A rule dropped it.
    Dropped,
}

impl EdgeVerdict {
    pub const ALL: [Self; 4] = [Self::Connected, Self::Unanswered, Self::Refused, Self::Dropped];

    pub fn word(self) -> &'static str {
        match self {
            Self::Connected => "connected",
            Self::Unanswered => "unanswered",
            Self::Refused => "refused",
            Self::Dropped => "dropped",
        }
    }
}

/// Two ends as `explain` takes them.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ExampleEnds {
    pub from: String,
    pub to: String,
    /// The node that gets the packets of a sender outside the cluster.
    pub via: Option<String>,
}

/// So many of one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sighting {
    pub key: EdgeKey,
    pub verdict: EdgeVerdict,
    pub count: u64,
    /// The rule's reason, and the policy's name, if a rule is behind it.
    pub reason: Option<String>,
    pub ends: ExampleEnds,
}

/// What an agent saw its rules drop.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeDropped {
    pub dropped: Vec<DroppedKind>,
    pub has_more: bool,
}

/// Packets that differ in their source port alone.
#[derive(Debug, Deserialize)]
pub struct DroppedKind {
    verdict: String,
    reason: String,
    policy: Option<String>,
    #[serde(default)]
    packets: u64,
    protocol: Option<String>,
    source: Option<NamedEnd>,
    destination: Option<NamedEnd>,
    service: Option<String>,
}

/// The edges of all connections. One to a service is two: to the service, and on to its endpoint.
pub fn of_connections(connections: &ClusterConnections, directory: &Directory) -> Vec<Sighting> {
    let mut counts = Counts::default();
    for Joined { connection, nodes } in &connections.connections {
        let Connection { protocol, client, destination, service, endpoint, .. } = connection;
        let verdict = match connection.state.as_deref() {
            Some("syn_sent" | "unanswered" | "cookie_wait") => EdgeVerdict::Unanswered,
            Some(_) | None => EdgeVerdict::Connected,
        };
        let from = party_of(client, directory);
        let is_outside = matches!(from, Party::Outside { .. });
        let via = nodes.first().filter(|_| is_outside).cloned();
        let ends = ExampleEnds {
            from: asked(client),
            to: format!("{}/{protocol}", destination.address),
            via,
        };
        let last = endpoint.as_ref().unwrap_or(destination);
        let at = port(last.address, protocol);
        let mut add = |from: &Party, to: Party, port: String| {
            let key = EdgeKey { from: from.clone(), to, port };
            counts.add(key, verdict, 1, None, &ends);
        };
        match service.as_deref().and_then(Directory::service_port) {
            Some((party, name)) => {
                let shown = if name.is_empty() {
                    port(destination.address, protocol)
                } else {
                    name.to_owned()
                };
                add(&from, party.clone(), shown);
                if endpoint.is_some() {
                    add(&party, party_of(last, directory).asked(), at);
                }
            }
            None => add(&from, party_of(last, directory).asked(), at),
        }
    }
    counts.into()
}

/// The edges of what a node's rules dropped.
pub fn of_dropped(node: &str, dropped: &NodeDropped, directory: &Directory) -> Vec<Sighting> {
    let mut counts = Counts::default();
    for kind in &dropped.dropped {
        let (Some(source), Some(destination)) = (&kind.source, &kind.destination) else { continue };
        let protocol = kind.protocol.as_deref().unwrap_or_default();
        let verdict = match &*kind.verdict {
            "refused" => EdgeVerdict::Refused,
            _ => EdgeVerdict::Dropped,
        };
        // On the node that sees it, an end of that name is the node.
        let named = |end: &NamedEnd| match end.name.as_deref() {
            Some("this node") => Party::Node(node.to_owned()),
            _ => party_of(end, directory),
        };
        let from = named(source);
        let via = matches!(from, Party::Outside { .. }).then(|| node.to_owned());
        let to = format!("{}/{protocol}", destination.address);
        let ends = ExampleEnds { from: asked(source), to, via };
        let at = port(destination.address, protocol);
        let (to, port) = match kind.service.as_deref().and_then(Directory::service_port) {
            Some((party, "")) => (party, at),
            Some((party, name)) => (party, name.to_owned()),
            None => (named(destination).asked(), at),
        };
        let reason = match &kind.policy {
            Some(policy) => format!("{}: {policy}", kind.reason),
            None => kind.reason.clone(),
        };
        let key = EdgeKey { from, to, port };
        counts.add(key, verdict, kind.packets.max(1), Some(reason), &ends);
    }
    counts.into()
}

fn party_of(end: &NamedEnd, directory: &Directory) -> Party {
    directory.party(end.address.ip(), end.name.as_deref())
}

/// A pod by its name, everything else by its address: a sender's node is found by either.
fn asked(end: &NamedEnd) -> String {
    let ip = || IpAddr::to_string(&end.address.ip().to_canonical());
    end.name.clone().filter(|name| name.contains('/')).unwrap_or_else(ip)
}

fn port(address: SocketAddr, protocol: &str) -> String {
    match address.port() {
        0 => protocol.to_owned(),
        port => format!("{port}/{protocol}"),
    }
}

/// Equal sightings once.
#[derive(Default)]
struct Counts(BTreeMap<(EdgeKey, EdgeVerdict, Option<String>), (u64, ExampleEnds)>);

impl Counts {
    fn add(
        &mut self,
        key: EdgeKey,
        verdict: EdgeVerdict,
        count: u64,
        reason: Option<String>,
        ends: &ExampleEnds,
    ) {
        let (sum, example) =
            self.0.entry((key, verdict, reason)).or_insert_with(|| (0, ends.clone()));
        *sum = sum.saturating_add(count);
        // Whichever comes first: the same state gives the same example.
        if ends < example {
            example.clone_from(ends);
        }
    }
}

impl From<Counts> for Vec<Sighting> {
    fn from(counts: Counts) -> Self {
        let sighting = |((key, verdict, reason), (count, ends))| Sighting {
            key,
            verdict,
            count,
            reason,
            ends,
        };
        counts.0.into_iter().map(sighting).collect()
    }
}
