//! `impact --live`: which of today's connections would be lost. All agents are asked for what they
//! track.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

use denizen_model::{Family, PodName, Protocol, family_of};
use denizen_plan::Direction;
use denizen_plan::impact::{AccessChange, Impact, ImpactEnd, ImpactRow};
use denizen_text::Printable;
use serde::Serialize;

use super::super::connections::{self, ClusterConnection, Connection, NodeConnections};
use super::super::only;
use crate::cluster::Api;
use crate::output::ClusterReport;
use crate::session::request::{self, Request};
use crate::survey::{Limits, survey};

/// The most connections that each node is asked for: what fits into an agent's answer.
const LIMIT: usize = 20_000;

/// How many connections of a row are shown.
const EXAMPLES: usize = 3;

/// The connections of now that a row is about.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct RowConnections {
    #[serde(rename = "connections")]
    pub number: usize,
    /// Some of them, in words.
    pub examples: Vec<String>,
}

impl RowConnections {
    /// For a person, as the last lines of a row.
    pub fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.number {
            0 => writeln!(f, "    no connection now")?,
            1 => writeln!(f, "    1 connection now:")?,
            number => writeln!(f, "    {number} connections now, such as:")?,
        }
        self.examples.iter().try_for_each(|one| writeln!(f, "      {}", Printable(one)))
    }
}

/// The ends of a connection, as indices into [`Impact::ends`], and the destination's port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct ConnectionEnds {
    client: Option<usize>,
    /// The client as the receiver's node sees it: a node, if that node masqueraded.
    seen: Option<usize>,
    receiver: usize,
    family: Family,
    protocol: Protocol,
    port: u16,
}

/// What all agents track. Nodes with more than is shown are noted.
pub async fn tracked(
    api: &Api,
    limits: Limits,
) -> anyhow::Result<ClusterReport<Vec<ClusterConnection>>> {
    let request =
        request::ConnectionsQuery { limit: LIMIT, ..request::ConnectionsQuery::default() };
    let request = Request::Connections(request);
    let read = |_: &str, answers| only::<NodeConnections>(answers);
    let node_agents = api.node_agents().await?;
    let surveyed = survey(&api.client, node_agents, limits, &[request], read).await;
    let mut more = Vec::new();
    let mut report = ClusterReport::of(surveyed, |answered| {
        let all = connections::joined(answered);
        more = all.more;
        all.connections
    });
    report.notes.extend(more.iter().map(|of| {
        format!("of {} connections of node {}, {} are counted", of.total, of.node, of.shown)
    }));
    Ok(report)
}

/// The connections of each row of losses. `nodes`: where pods are.
pub fn lost(
    impact: &Impact,
    nodes: &HashMap<PodName, String>,
    tracked: &[ClusterConnection],
) -> Vec<RowConnections> {
    let mut by_sides: BTreeMap<ConnectionEnds, Vec<&Connection>> = BTreeMap::new();
    for ClusterConnection { connection, .. } in tracked {
        if was_answered(connection)
            && let Some(sides) = sides(impact, connection)
            && !is_own_node(impact, nodes, &sides)
        {
            by_sides.entry(sides).or_default().push(connection);
        }
    }
    let members = |profiles: &[usize]| -> HashSet<usize> {
        profiles.iter().flat_map(|profile| &impact.profiles[*profile]).copied().collect()
    };
    let of_row = |row: &ImpactRow| {
        let mut found = RowConnections::default();
        if row.change != AccessChange::Lost {
            return found;
        }
        let (subjects, peers) = (members(&row.subjects), members(&row.peers));
        for (sides, connections) in &by_sides {
            let (subject, peer) = match row.direction {
                Direction::Egress => (sides.client, Some(sides.receiver)),
                Direction::Ingress => (Some(sides.receiver), sides.seen),
            };
            let (Some(subject), Some(peer)) = (subject, peer) else { continue };
            if subject != peer
                && subjects.contains(&subject)
                && peers.contains(&peer)
                && row.families.contains(&sides.family)
                && row.ports.passes(Some(sides.protocol), sides.port)
            {
                found.number += connections.len();
                let room = EXAMPLES.saturating_sub(found.examples.len());
                found.examples.extend(connections.iter().take(room).map(ToString::to_string));
            }
        }
        found
    };
    impact.rows.iter().map(of_row).collect()
}

/// A connection that was never established is no loss.
fn was_answered(connection: &Connection) -> bool {
    !matches!(connection.state.as_deref(), Some("syn_sent" | "unanswered"))
}

fn sides(impact: &Impact, connection: &Connection) -> Option<ConnectionEnds> {
    let receiver = connection.endpoint.as_ref().unwrap_or(&connection.destination).address;
    let client = connection.client.address.ip();
    let seen = connection.masqueraded_as.map_or(client, |address| address.ip());
    let protocol = Protocol::ALL.into_iter().find(|of| of.as_str() == connection.protocol)?;
    Some(ConnectionEnds {
        client: impact.end_at(client),
        seen: impact.end_at(seen),
        receiver: impact.end_at(receiver.ip())?,
        family: family_of(receiver.ip()),
        protocol,
        port: receiver.port(),
    })
}

/// Whether a node connects to its own pod, which is always permitted.
fn is_own_node(impact: &Impact, nodes: &HashMap<PodName, String>, sides: &ConnectionEnds) -> bool {
    match (sides.seen.map(|seen| &impact.ends[seen]), &impact.ends[sides.receiver]) {
        (Some(ImpactEnd::Node(node)), ImpactEnd::Pod(pod)) => {
            nodes.get(pod).is_some_and(|of| **of == **node)
        }
        (_, _) => false,
    }
}
