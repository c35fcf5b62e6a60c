//! What agents say, as edges between boxes. Pure.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use serde::Deserialize;

use super::directory::Directory;
use super::participant::Participant;
use crate::verb::connections::{ClusterConnection, ClusterConnections, Connection, NamedEnd};
use crate::verb::refused::Flow;

/// What identifies an edge.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct EdgeKey {
    pub from: Participant,
    pub to: Participant,
    /// The name of a service's port, or the number and the protocol.
    pub port: String,
}

/// What happens to the packets. Ordered: the worst comes last.
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
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExampleEnds {
    pub from: String,
    pub to: String,
    /// The node that gets the packets of a sender outside the cluster.
    pub via: Option<String>,
}

/// A number of connections or packets of one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EdgeObservation {
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

/// The edges of what a node's kernel noted, each with the number of minutes since its first packet.
pub fn of_refused(
    node: &str,
    noted: Vec<Flow>,
    directory: &Directory,
) -> Vec<(u64, Vec<EdgeObservation>)> {
    let mut by_minute: BTreeMap<u64, NodeDropped> = BTreeMap::new();
    for flow in noted {
        let Flow { verdict, reason, policy, protocol, source, destination, service, .. } = flow;
        by_minute.entry(flow.seconds / 60).or_default().dropped.push(DroppedKind {
            verdict,
            reason,
            policy,
            packets: flow.packets,
            protocol: Some(protocol),
            source: Some(source),
            destination: Some(destination),
            service,
        });
    }
    let observations = |(minute, dropped)| (minute, of_dropped(node, &dropped, directory));
    by_minute.into_iter().map(observations).collect()
}

/// The edges of all connections. A connection to a service has two: to the service, and on to its
/// endpoint.
pub fn of_connections(
    connections: &ClusterConnections,
    directory: &Directory,
) -> Vec<EdgeObservation> {
    let mut counts = ObservationCounts::default();
    for ClusterConnection { connection, nodes } in &connections.connections {
        let Connection { protocol, client, destination, service, endpoint, .. } = connection;
        let verdict = match connection.state.as_deref() {
            Some("syn_sent" | "unanswered" | "cookie_wait") => EdgeVerdict::Unanswered,
            Some(_) | None => EdgeVerdict::Connected,
        };
        let from = participant_of(client, directory);
        let is_outside = matches!(from, Participant::Outside { .. });
        let ends = || ExampleEnds {
            from: explain_name(client),
            to: format!("{}/{protocol}", destination.address),
            via: nodes.first().filter(|_| is_outside).cloned(),
        };
        let last = endpoint.as_ref().unwrap_or(destination);
        let at = port(last.address, protocol);
        let mut add = |from: &Participant, to: Participant, port: String| {
            let key = EdgeKey { from: from.clone(), to, port };
            counts.add(key, verdict, 1, None, ends);
        };
        match service.as_deref().and_then(Directory::service_port) {
            Some((participant, name)) => {
                let shown = if name.is_empty() {
                    port(destination.address, protocol)
                } else {
                    name.to_owned()
                };
                add(&from, participant.clone(), shown);
                if endpoint.is_some() {
                    add(&participant, participant_of(last, directory).into_destination(), at);
                }
            }
            None => add(&from, participant_of(last, directory).into_destination(), at),
        }
    }
    counts.into()
}

/// The edges of what a node's rules dropped.
pub fn of_dropped(
    node: &str,
    dropped: &NodeDropped,
    directory: &Directory,
) -> Vec<EdgeObservation> {
    let mut counts = ObservationCounts::default();
    for kind in &dropped.dropped {
        let (Some(source), Some(destination)) = (&kind.source, &kind.destination) else { continue };
        let protocol = kind.protocol.as_deref().unwrap_or_default();
        let verdict = match &*kind.verdict {
            "refused" => EdgeVerdict::Refused,
            _ => EdgeVerdict::Dropped,
        };
        // `this node` is the node that reports the packet.
        let named = |end: &NamedEnd| match end.name.as_deref() {
            Some("this node") => Participant::Node(node.to_owned()),
            _ => participant_of(end, directory),
        };
        let from = named(source);
        let via = matches!(from, Participant::Outside { .. }).then(|| node.to_owned());
        let to = format!("{}/{protocol}", destination.address);
        let ends = || ExampleEnds { from: explain_name(source), to, via };
        let at = port(destination.address, protocol);
        let (to, port) = match kind.service.as_deref().and_then(Directory::service_port) {
            Some((participant, "")) => (participant, at),
            Some((participant, name)) => (participant, name.to_owned()),
            None => (named(destination).into_destination(), at),
        };
        let reason = match &kind.policy {
            Some(policy) => format!("{}: {policy}", kind.reason),
            None => kind.reason.clone(),
        };
        let key = EdgeKey { from, to, port };
        counts.add(key, verdict, kind.packets.max(1), Some(reason), ends);
    }
    counts.into()
}

fn participant_of(end: &NamedEnd, directory: &Directory) -> Participant {
    directory.participant(end.address.ip(), end.name.as_deref())
}

/// A pod by its name, everything else by its address: a sender's node is found by either.
fn explain_name(end: &NamedEnd) -> String {
    let ip = || IpAddr::to_string(&end.address.ip().to_canonical());
    end.name.clone().filter(|name| name.contains('/')).unwrap_or_else(ip)
}

fn port(address: SocketAddr, protocol: &str) -> String {
    match address.port() {
        0 => protocol.to_owned(),
        port => format!("{port}/{protocol}"),
    }
}

/// Equal observations once, with the ends of the first. What agents say is sorted, so the same
/// state gives the same example.
#[derive(Default)]
struct ObservationCounts(BTreeMap<ObservationKey, ObservationCount>);

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct ObservationKey {
    edge: EdgeKey,
    verdict: EdgeVerdict,
    reason: Option<String>,
}

struct ObservationCount {
    count: u64,
    ends: ExampleEnds,
}

impl ObservationCounts {
    fn add(
        &mut self,
        edge: EdgeKey,
        verdict: EdgeVerdict,
        count: u64,
        reason: Option<String>,
        ends: impl FnOnce() -> ExampleEnds,
    ) {
        let key = ObservationKey { edge, verdict, reason };
        let new = || ObservationCount { count: 0, ends: ends() };
        let total = self.0.entry(key).or_insert_with(new);
        total.count = total.count.saturating_add(count);
    }
}

impl From<ObservationCounts> for Vec<EdgeObservation> {
    fn from(counts: ObservationCounts) -> Self {
        let observation =
            |(ObservationKey { edge, verdict, reason }, total): (_, ObservationCount)| {
                let ObservationCount { count, ends } = total;
                EdgeObservation { key: edge, verdict, count, reason, ends }
            };
        counts.0.into_iter().map(observation).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::objects::PodObject;
    use crate::verb::connections::joined;

    fn directory() -> Directory {
        let pod = |name: &str, ip: &str| {
            json!({ "metadata": { "namespace": "a", "name": name },
            "status": { "podIPs": [{ "ip": ip }] } })
        };
        let pods = json!([pod("client", "10.0.1.5"), pod("web", "10.0.2.7")]);
        let pods: Vec<PodObject> = serde_json::from_value(pods).unwrap();
        Directory::of(&[], &pods, &[], &[])
    }

    fn end(address: &str, name: &str) -> Value {
        match name {
            "" => json!({ "address": address }),
            name => json!({ "address": address, "name": name }),
        }
    }

    /// `FROM -> TO PORT VERDICT COUNT` of each, and what would be explained.
    fn texts(observations: Vec<EdgeObservation>) -> Vec<String> {
        let text = |observation: EdgeObservation| {
            let EdgeObservation { key: EdgeKey { from, to, port }, verdict, count, reason, ends } =
                observation;
            let ExampleEnds { from: client, to: of, via } = ends;
            let via = via.map(|node| format!(" via {node}")).unwrap_or_default();
            let why = reason.map(|reason| format!(" {reason}")).unwrap_or_default();
            format!("{from} -> {to} {port} {} {count}{why}; {client} {of}{via}", verdict.word())
        };
        observations.into_iter().map(text).collect()
    }

    #[test]
    fn a_connection_to_a_service_is_two_edges() {
        let of = |connection: Value| {
            let answer = serde_json::from_value(json!({ "connections": [connection] })).unwrap();
            texts(of_connections(&joined(vec![("n1".to_owned(), answer)]), &directory()))
        };
        let service = json!({ "protocol": "tcp", "state": "established",
            "client": end("10.0.1.5:4000", "a/client"), "destination": end("10.96.0.1:80", ""),
            "service": "a/web:http", "endpoint": end("10.0.2.7:8080", "") });
        let expected = [
            "a/client -> service a/web http connected 1; a/client 10.96.0.1:80/tcp",
            "service a/web -> a/web 8080/tcp connected 1; a/client 10.96.0.1:80/tcp",
        ];
        assert_eq!(of(service), expected);
        let silent = json!({ "protocol": "udp", "state": "unanswered",
            "client": end("203.0.113.9:4000", ""), "destination": end("10.0.2.7:53", "a/web") });
        let expected = ["outside -> a/web 53/udp unanswered 1; 203.0.113.9 10.0.2.7:53/udp via n1"];
        assert_eq!(of(silent), expected);
        let own = json!({ "protocol": "tcp", "client": end("192.168.0.1:4000", "this node"),
            "destination": end("198.51.100.1:443", "") });
        assert_eq!(
            of(own),
            ["node n1 -> outside 443/tcp connected 1; 192.168.0.1 198.51.100.1:443/tcp"]
        );
    }

    #[test]
    fn a_dropped_packet_has_its_reason_and_policy() {
        let of = |kind: Value| {
            let dropped = serde_json::from_value(json!({ "dropped": [kind] })).unwrap();
            texts(of_dropped("n2", &dropped, &directory()))
        };
        let packet = |more: Value| {
            let mut kind = json!({ "verdict": "dropped", "reason": "no policy", "packets": 4,
                "protocol": "tcp", "source": end("10.0.1.5:4000", "a/client"),
                "destination": end("10.0.2.7:22", "this node") });
            kind.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            kind
        };
        let to_node = "a/client -> node n2 22/tcp dropped 4 no policy; a/client 10.0.2.7:22/tcp";
        assert_eq!(of(packet(json!({}))), [to_node]);
        let more = json!({ "verdict": "refused", "service": "a/web:ssh", "policy": "a/deny" });
        let to_service =
            "a/client -> service a/web ssh refused 4 no policy: a/deny; a/client 10.0.2.7:22/tcp";
        assert_eq!(of(packet(more)), [to_service]);
        // A packet that is not IP has no ends.
        assert!(of(json!({ "verdict": "dropped", "reason": "tagged" })).is_empty());
    }
}
