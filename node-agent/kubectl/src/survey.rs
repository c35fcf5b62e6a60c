//! Asks all nodes the same questions: a limited number at once, until the deadline.

#![expect(clippy::disallowed_methods, reason = "a deadline for all nodes together")]

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;
use kube::Client;
use serde::Serialize;
use tokio::time::Instant;

use crate::cluster::{NodeAgent, NodeAgents};
use crate::no_answer::NoAnswer;
use crate::session::request::Request;
use crate::session::{self, Answers};

/// How many are asked at once, and how long.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    pub parallel: usize,
    pub deadline: Instant,
}

impl Limits {
    /// Limits that begin now.
    pub fn new(parallel: usize, timeout: Duration) -> Self {
        Self { parallel, deadline: Instant::now() + timeout }
    }
}

/// A node that did not answer, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Unanswered {
    pub node: String,
    #[serde(flatten)]
    pub why: NoAnswer,
}

/// The answers of all nodes, sorted by node.
#[derive(Debug)]
pub struct Survey<T> {
    pub answered: Vec<(String, T)>,
    pub unanswered: Vec<Unanswered>,
    pub notes: Vec<String>,
}

impl<T> Survey<T> {
    pub fn nodes(&self) -> usize {
        self.answered.len() + self.unanswered.len()
    }
}

/// Asks the agents of all nodes. `read` extracts from an answer what is kept.
pub async fn survey<T>(
    client: &Client,
    node_agents: NodeAgents,
    limits: Limits,
    requests: &[Request],
    read: impl Fn(&str, Answers) -> Result<T, NoAnswer>,
) -> Survey<T> {
    let one = async |node_agent: NodeAgent| {
        let answer = ask(client, &node_agent, limits.deadline, requests).await;
        let read = answer.and_then(|answers| read(&node_agent.node, answers));
        (node_agent.node, read)
    };
    let mut answers: Vec<_> =
        stream::iter(node_agents.all).map(one).buffer_unordered(limits.parallel).collect().await;
    answers.sort_by(|(one, _), (other, _)| one.cmp(other));
    let mut survey =
        Survey { answered: Vec::new(), unanswered: Vec::new(), notes: node_agents.notes };
    for (node, read) in answers {
        match read {
            Ok(answer) => survey.answered.push((node, answer)),
            Err(why) => survey.unanswered.push(Unanswered { node, why }),
        }
    }
    survey
}

/// Asks the agent of one node.
pub async fn ask(
    client: &Client,
    node_agent: &NodeAgent,
    deadline: Instant,
    requests: &[Request],
) -> Result<Answers, NoAnswer> {
    let agent = node_agent.agent.as_ref().map_err(Clone::clone)?;
    let left = deadline.saturating_duration_since(Instant::now()).min(session::NODE);
    if left.is_zero() {
        let why = "it was not asked: the time for all nodes was over (see --timeout)";
        return Err(NoAnswer::new(NoAnswer::TIMED_OUT, why));
    }
    let answer = session::ask(client, agent, requests, left).await;
    answer.map_err(|why| match node_agent.object.as_ref().and_then(|node| node.is_ready()) {
        Some(false) => why.and("; the node is not Ready"),
        Some(true) | None => why,
    })
}
