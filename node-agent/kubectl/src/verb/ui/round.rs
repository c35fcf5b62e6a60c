//! One round: asks the API and all agents. There are no rounds while no browser shows the picture.

use std::cell::RefCell;
use std::collections::BTreeMap;

use super::directory::Directory;
use super::observation::NodeDropped;
use super::round_result::RoundResult;
use super::state::State;
use crate::cluster::{Api, NodeAgent, NodeAgents};
use crate::no_answer::NoAnswer;
use crate::session::Answers;
use crate::session::request::{ConnectionsQuery, DroppedQuery, RefusedQuery, Request};
use crate::survey::{Limits, Survey, survey};
use crate::verb::connections::{ClusterConnections, NamedEnd, NodeConnections, joined};
use crate::verb::drops::{Counts, merged};
use crate::verb::only;
use crate::verb::refused::{self, NodeRefused};

/// How many connections all nodes together show, and the minimum and maximum for one node.
const CONNECTIONS: usize = 50_000;
const OF_A_NODE: (usize, usize) = (50, 2_000);

/// Up to this many nodes, dropped packets are watched on all of them.
const WATCHED: usize = 20;

/// With more nodes, dropped packets are watched on this many nodes whose counters have risen most.
const RISEN: usize = 50;

/// Up to this many pods, the API's objects are read in each round.
const PODS: usize = 2_000;

/// How long packets are watched in a round, in seconds.
const WATCH: u64 = 5;

/// What is remembered of one round for the next.
#[derive(Debug, Default)]
pub struct RoundMemory {
    /// Dropped packets, by node.
    dropped: BTreeMap<String, u64>,
    /// The minute when the API's objects were read.
    read: Option<u64>,
    /// Whether the kernels were asked what they had noted before.
    has_noted: bool,
}

struct NodeAnswers {
    connections: NodeConnections,
    /// Missing if the agent could not count.
    counts: Option<Counts>,
    /// Missing if the agent was not asked.
    refused: Option<Result<NodeRefused, NoAnswer>>,
}

/// Asks the API and the agents, and puts their answers into `state` as they come. `minute` returns
/// the current minute.
pub async fn round(
    api: &Api,
    limits: Limits,
    state: &RefCell<State>,
    before: &mut RoundMemory,
    minute: impl Fn() -> u64,
) -> anyhow::Result<()> {
    let node_agents = api.node_agents().await?;
    let all = node_agents.all.clone();
    let limit = (CONNECTIONS / all.len().max(1)).clamp(OF_A_NODE.0, OF_A_NODE.1);
    let connections =
        Request::Connections(ConnectionsQuery { limit, ..ConnectionsQuery::default() });
    let mut requests = vec![connections, Request::DROPS];
    if !before.has_noted {
        requests.push(Request::Refused(RefusedQuery { limit: refused::limit(all.len()) }));
    }
    let is_due = before.is_due(minute(), &state.borrow().directory);
    // At the same time, as both take long.
    let (directory, Survey { answered, unanswered, notes }) = tokio::join!(
        async {
            match is_due {
                true => Directory::read(api, &all).await.map(Some),
                false => Ok(None),
            }
        },
        survey(&api.client, node_agents, limits, &requests, decode),
    );
    let nodes = answered.len() + unanswered.len();
    let (mut connections, mut counts, mut noted) = (Vec::new(), Vec::new(), Vec::new());
    for (node, answers) in answered {
        noted.extend(answers.refused.map(|refused| (node.clone(), refused)));
        counts.extend(answers.counts.map(|counts| (node.clone(), counts)));
        connections.push((node, answers.connections));
    }
    let connections = joined(connections);
    let mut directory = directory?;
    if !is_due && has_new_pod(&connections, &state.borrow().directory) {
        directory = Some(Directory::read(api, &all).await?);
    }
    if let Some(directory) = directory {
        state.borrow_mut().directory = directory;
    }
    let watched = before.watched(all, &counts);
    let last_round = RoundResult { nodes, unanswered, notes, drops: merged(counts), forgotten: 0 };
    state.borrow_mut().connections(minute(), &connections, last_round);
    if !std::mem::replace(&mut before.has_noted, true) {
        state.borrow_mut().refused(minute(), noted);
    }

    let node_agents = NodeAgents { all: watched, notes: Vec::new() };
    let request = Request::Dropped(DroppedQuery { seconds: WATCH });
    let read = |_: &str, answers| only::<NodeDropped>(answers);
    let seen = survey(&api.client, node_agents, limits, &[request], read).await;
    state.borrow_mut().dropped(minute(), &seen.answered, &seen.unanswered);
    Ok(())
}

fn decode(_: &str, answers: Answers) -> Result<NodeAnswers, NoAnswer> {
    let mut answers = answers.split();
    let nothing = || NoAnswer::new(NoAnswer::FAILED, "the agent sent no answer");
    let connections = only(answers.next().ok_or_else(nothing)?)?;
    let counts = answers.next().and_then(|counts| only(counts).ok());
    let refused = answers.next().map(only);
    Ok(NodeAnswers { connections, counts, refused })
}

impl RoundMemory {
    /// Whether the API's objects are to be read in any case: where there are many, once a minute.
    fn is_due(&mut self, minute: u64, directory: &Directory) -> bool {
        let last = self.read.replace(minute);
        directory.pods() < PODS || last != Some(minute)
    }

    /// The nodes where packets are watched: all if there are few, else where most were dropped
    /// since the round before.
    fn watched(&mut self, all: Vec<NodeAgent>, counts: &[(String, Counts)]) -> Vec<NodeAgent> {
        let now: BTreeMap<String, u64> =
            counts.iter().map(|(node, counts)| (node.clone(), counts.packets())).collect();
        let before = std::mem::replace(&mut self.dropped, now);
        let answered =
            all.into_iter().filter(|node_agent| self.dropped.contains_key(&node_agent.node));
        let answered: Vec<NodeAgent> = answered.collect();
        if answered.len() <= WATCHED {
            return answered;
        }
        let risen = |node_agent: NodeAgent| {
            let packets = self.dropped.get(&node_agent.node)?;
            let more = packets.checked_sub(*before.get(&node_agent.node)?)?;
            (more > 0).then_some((more, node_agent))
        };
        let mut risen: Vec<(u64, NodeAgent)> = answered.into_iter().filter_map(risen).collect();
        risen.sort_by(|one, other| other.0.cmp(&one.0).then(one.1.node.cmp(&other.1.node)));
        risen.truncate(RISEN);
        risen.into_iter().map(|(_, node_agent)| node_agent).collect()
    }
}

/// Whether an agent names a pod that came after the API's objects were read.
fn has_new_pod(connections: &ClusterConnections, directory: &Directory) -> bool {
    let is_new = |end: &NamedEnd| end.name.as_deref().is_some_and(|name| !directory.knows(name));
    let all = connections.connections.iter().map(|joined| &joined.connection);
    let mut ends =
        all.flat_map(|of| [Some(&of.client), Some(&of.destination), of.endpoint.as_ref()]);
    ends.any(|end| end.is_some_and(is_new))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::objects::PodObject;

    #[test]
    fn many_objects_are_read_each_minute_and_when_a_pod_is_new() {
        let pod = |at: usize| json!({ "metadata": { "namespace": "a", "name": format!("p{at}") } });
        let pods: Vec<PodObject> =
            serde_json::from_value((0..PODS).map(pod).collect::<Vec<_>>().into()).unwrap();
        let of = |name: &str| {
            let end = json!({ "address": "10.0.0.1:1", "name": name });
            let of = json!([{ "protocol": "tcp", "client": end, "destination": end }]);
            let answers = serde_json::from_value(json!({ "connections": of })).unwrap();
            joined(vec![("n1".to_owned(), answers)])
        };
        let few = Directory::of(&[], &pods[1..], &[], &[]);
        let many = Directory::of(&[], &pods, &[], &[]);
        let mut before = RoundMemory::default();
        for (minute, directory, expected) in
            [(0, &many, true), (0, &many, false), (0, &few, true), (1, &many, true)]
        {
            assert_eq!(before.is_due(minute, directory), expected);
        }
        for (name, expected) in [("a/p1", false), ("this node", false), ("a/new", true)] {
            assert_eq!(has_new_pod(&of(name), &many), expected, "{name}");
        }
    }

    #[test]
    fn of_many_nodes_those_are_watched_where_the_counters_rise() {
        let agents = |number: usize| -> Vec<NodeAgent> {
            let agent = |at| NodeAgent {
                node: format!("n{at}"),
                agent: Err(NoAnswer::new(NoAnswer::NO_AGENT, "")),
                object: None,
            };
            (0..number).map(agent).collect()
        };
        let counts = |packets: &[u64]| -> Vec<(String, Counts)> {
            let count = |packets: &u64| json!({ "drops": [{ "packets": packets }] });
            let all = packets.iter().map(|packets| serde_json::from_value(count(packets)).unwrap());
            all.enumerate().map(|(at, counts)| (format!("n{at}"), counts)).collect()
        };
        let mut before = RoundMemory::default();
        assert_eq!(before.watched(agents(5), &counts(&[0; 4])).len(), 4, "n4 did not answer");
        let mut before = RoundMemory::default();
        assert!(before.watched(agents(30), &counts(&[7; 30])).is_empty());
        let mut risen = [7; 30];
        (risen[3], risen[9], risen[20]) = (8, 90, 1);
        let watched = before.watched(agents(30), &counts(&risen));
        let names: Vec<&str> = watched.iter().map(|node_agent| &*node_agent.node).collect();
        assert_eq!(names, ["n9", "n3"]);
    }
}
