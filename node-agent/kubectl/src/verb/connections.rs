//! `connections`: who talks to whom, on all nodes. A connection between two nodes is in the
//! conntrack tables of both, and is shown once.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddr;

use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::only;
use crate::cluster::Api;
use crate::output::{Body, ClusterReport, Level};
use crate::session::request::{self, Request};
use crate::survey::{Limits, survey};
use denizen_text::Printable;

#[derive(Debug, Clone, Args)]
pub struct ConnectionsArgs {
    /// Only the connections of this pod
    #[arg(long, value_name = "[NAMESPACE/]POD|ADDR")]
    pod: Option<String>,
    /// Only the connections to this service, or to one of its ports
    #[arg(long, value_name = "[NAMESPACE/]NAME[:PORT]")]
    service: Option<String>,
    /// The most connections that each node shows
    #[arg(long, value_name = "NUMBER", default_value = "200")]
    limit: usize,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterConnections {
    pub connections: Vec<ClusterConnection>,
    /// Nodes that have more connections than they show. So a connection that another node shows may
    /// lack what these nodes know of it.
    pub more: Vec<TruncatedNode>,
}

/// A connection, and the nodes that know it.
#[derive(Debug, Serialize)]
pub struct ClusterConnection {
    #[serde(flatten)]
    pub connection: Connection,
    pub nodes: BTreeSet<String>,
}

#[derive(Debug, Serialize)]
pub struct TruncatedNode {
    pub node: String,
    pub shown: usize,
    pub total: u64,
}

/// What `denizen-agent connections` says.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct NodeConnections {
    connections: Vec<Connection>,
    total: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Connection {
    pub protocol: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    pub client: NamedEnd,
    pub destination: NamedEnd,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<NamedEnd>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub masqueraded_as: Option<SocketAddr>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    seconds: Option<u64>,
    /// Further fields of the agent's answer.
    #[serde(flatten)]
    other: Map<String, Value>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedEnd {
    pub address: SocketAddr,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

pub async fn connections(
    api: &Api,
    limits: Limits,
    args: &ConnectionsArgs,
) -> anyhow::Result<ClusterReport<ClusterConnections>> {
    let node_agents = api.node_agents().await?;
    let is_address = |name: &str| name.parse::<std::net::IpAddr>().is_ok();
    let qualified = |name: &String| match is_address(name) {
        true => name.clone(),
        false => api.qualified(name),
    };
    let request = Request::Connections(request::ConnectionsQuery {
        pod: args.pod.as_ref().map(qualified),
        service: args.service.as_ref().map(|name| api.qualified(name)),
        limit: args.limit,
    });
    let read = |_: &str, answers| only(answers);
    let surveyed = survey(&api.client, node_agents, limits, &[request], read).await;
    Ok(ClusterReport::of(surveyed, joined))
}

/// The connection as it is on the wire between two nodes: after all translation on the sender's
/// node, and before any on the receiver's.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct WireTuple {
    protocol: String,
    source: SocketAddr,
    destination: SocketAddr,
}

impl Connection {
    fn wire_tuple(&self) -> WireTuple {
        WireTuple {
            protocol: self.protocol.clone(),
            source: self.masqueraded_as.unwrap_or(self.client.address),
            destination: self.endpoint.as_ref().unwrap_or(&self.destination).address,
        }
    }

    /// With the node's name in place of `this node`.
    fn named(mut self, node: &str) -> Self {
        let ends = [Some(&mut self.client), Some(&mut self.destination), self.endpoint.as_mut()];
        for end in ends.into_iter().flatten() {
            if end.name.as_deref() == Some("this node") {
                end.name = Some(format!("node {node}"));
            }
        }
        self
    }

    /// How much the entry tells: if two nodes have the connection, the more detailed entry is kept.
    /// The sender's node knows the service.
    fn detail(&self) -> (bool, bool, bool) {
        (self.service.is_some(), self.endpoint.is_some(), self.masqueraded_as.is_some())
    }

    /// Takes over names that the other node knows.
    fn complete(&mut self, other: Self) {
        let others = [Some(other.client), Some(other.destination), other.endpoint];
        for of in others.into_iter().flatten() {
            let ends =
                [Some(&mut self.client), Some(&mut self.destination), self.endpoint.as_mut()];
            for end in ends.into_iter().flatten() {
                if end.address == of.address && end.name.is_none() {
                    end.name.clone_from(&of.name);
                }
            }
        }
    }
}

pub fn joined(answered: Vec<(String, NodeConnections)>) -> ClusterConnections {
    // Boxes, since a map moves what it holds.
    let mut by_wire: BTreeMap<WireTuple, Box<ClusterConnection>> = BTreeMap::new();
    let mut more = Vec::new();
    for (node, NodeConnections { connections, total }) in answered {
        let shown = connections.len();
        if total > shown as u64 {
            more.push(TruncatedNode { node: node.clone(), shown, total });
        }
        for connection in connections {
            let connection = connection.named(&node);
            let wire = connection.wire_tuple();
            match by_wire.get_mut(&wire) {
                None => {
                    let nodes = BTreeSet::from([node.clone()]);
                    by_wire.insert(wire, Box::new(ClusterConnection { connection, nodes }));
                }
                Some(joined) => {
                    joined.nodes.insert(node.clone());
                    let better = connection.detail() > joined.connection.detail();
                    let other = match better {
                        true => std::mem::replace(&mut joined.connection, connection),
                        false => connection,
                    };
                    joined.connection.complete(other);
                }
            }
        }
    }
    let connections = by_wire.into_values().map(|joined| *joined).collect();
    ClusterConnections { connections, more }
}

impl Body for ClusterConnections {
    const NEEDS_ANSWERS: bool = true;

    fn level(&self) -> Level {
        Level::Good
    }
}

impl fmt::Display for NamedEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(f, "{} ({name})", self.address),
            None => write!(f, "{}", self.address),
        }
    }
}

impl fmt::Display for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.protocol)?;
        if let Some(state) = &self.state {
            write!(f, " {state}")?;
        }
        write!(f, ": {} to ", self.client)?;
        match &self.service {
            Some(service) => write!(f, "{} ({service})", self.destination.address)?,
            None => write!(f, "{}", self.destination)?,
        }
        if let Some(endpoint) = &self.endpoint {
            write!(f, ", endpoint {endpoint}")?;
        }
        if let Some(source) = &self.masqueraded_as {
            write!(f, ", masqueraded as {source}")?;
        }
        match self.seconds {
            Some(seconds) => write!(f, ", {seconds} s"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for ClusterConnections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for ClusterConnection { connection, nodes } in &self.connections {
            let nodes: Vec<&str> = nodes.iter().map(String::as_str).collect();
            let line = format!("{connection}  [{}]", nodes.join(", "));
            writeln!(f, "{}", Printable(&line))?;
        }
        writeln!(f, "connections: {}", self.connections.len())?;
        self.more.iter().try_for_each(|TruncatedNode { node, shown, total }| {
            writeln!(f, "node {} shows {shown} of {total}: see --limit", Printable(node))
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(node: &str, connections: Value) -> (String, NodeConnections) {
        let total = 1;
        let connections = serde_json::from_value(connections).unwrap();
        (node.to_owned(), NodeConnections { connections, total })
    }

    #[test]
    fn a_connection_that_two_nodes_know_is_one() {
        let sender = json!([{
            "protocol": "tcp", "client": { "address": "10.0.1.5:40000", "name": "a/client" },
            "destination": { "address": "10.96.0.1:80" }, "service": "a/web:http", "new": 1,
            "endpoint": { "address": "10.0.2.7:8080" }, "masqueradedAs": "192.168.0.1:61234",
        }]);
        let receiver = json!([{
            "protocol": "tcp", "client": { "address": "192.168.0.1:61234" },
            "destination": { "address": "10.0.2.7:8080", "name": "a/web-0" },
        }]);
        let other = json!([{
            "protocol": "udp", "client": { "address": "192.168.0.1:61234", "name": "this node" },
            "destination": { "address": "10.0.2.7:8080" },
        }]);
        let all = [of("n2", receiver), of("n1", sender), of("n3", other)];
        for reversed in [false, true] {
            let mut all: Vec<_> = all
                .iter()
                .map(|(node, of)| {
                    (
                        node.clone(),
                        NodeConnections { connections: of.connections.clone(), total: of.total },
                    )
                })
                .collect();
            if reversed {
                all.reverse();
            }
            let joined = joined(all);
            let json = serde_json::to_value(&joined).unwrap();
            assert_eq!(json["connections"][0]["new"], 1, "what an agent says is passed on");
            let text = joined.to_string();
            let expected = "\
tcp: 10.0.1.5:40000 (a/client) to 10.96.0.1:80 (a/web:http), endpoint 10.0.2.7:8080 (a/web-0), \
masqueraded as 192.168.0.1:61234  [n1, n2]
udp: 192.168.0.1:61234 (node n3) to 10.0.2.7:8080  [n3]
connections: 2
";
            assert_eq!(text, expected);
        }
    }

    #[test]
    fn a_node_that_does_not_show_all_is_named() {
        let cut = NodeConnections { connections: Vec::new(), total: 70_000 };
        let text = joined(vec![("n1".to_owned(), cut)]).to_string();
        assert!(text.contains("node n1 shows 0 of 70000"), "{text}");
    }
}
