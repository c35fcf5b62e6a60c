//! `trace A B`: real packets, followed through the rules of the sender's node and of the receivers'
//! nodes at once. Each agent's `trace` follows what passes its own node. Packets of two nodes are
//! matched by their headers, so no clock is compared.
//!
//! | file | knows |
//! | --- | --- |
//! | `followed` | combines the nodes' reports. Pure |

mod followed;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use clap::{Args, value_parser};
use futures_util::future::join_all;
use tokio::sync::{oneshot, watch};

pub use self::followed::ClusterTrace;
use self::followed::{NodeTrace, TracedPackets, pair_reports};
use super::explain::{ExplainArgs, explain};
use crate::cluster::{Api, NodeAgent};
use crate::no_answer::NoAnswer;
use crate::output::ClusterReport;
use crate::session;
use crate::survey::{Limits, Unanswered};
use denizen_text::{duration, eprint_line};

/// Maximum number of endpoints that are followed: each costs its node a process.
const ENDPOINTS: usize = 16;

/// A receiver's node follows at least this many packets: before the sender's node has begun, other
/// senders may use the same endpoints.
const MOST: u16 = 1000;

/// A packet that has left the sender's node arrives within this time.
const ARRIVAL: Duration = Duration::from_millis(500);

/// Additional time, for beginning and for printing the answer in the end.
pub const EXTRA_TIME: Duration = Duration::from_secs(15);

#[derive(Debug, Clone, Args)]
pub struct TraceArgs {
    #[command(flatten)]
    pub ends: ExplainArgs,
    /// Stop after this many packets. Of TCP and SCTP connections, only the first packets count
    #[arg(long, value_name = "N", default_value = "1",
        value_parser = value_parser!(u16).range(1..=1000))]
    pub count: u16,
    /// Stop after this time
    #[arg(long = "for", value_name = "DURATION", default_value = "10s", value_parser = duration)]
    pub time: Duration,
}

/// What the agent of one node is to follow.
struct FollowedEnds {
    node: String,
    from: String,
    to: String,
    count: u16,
}

/// Follows packets until `count` of them have left the sender's node, or the time is over. Says so
/// on standard error.
///
/// # Errors
/// The ends cannot be found out. Nodes that do not answer are in the report.
pub async fn trace(
    api: &Api,
    limits: Limits,
    args: &TraceArgs,
) -> anyhow::Result<ClusterReport<ClusterTrace>> {
    trace_after(api, limits, args, || {
        eprint_line(format_args!("following packets for at most {:?}", args.time))
    })
    .await
}

/// As [`trace()`]; `begins` is called once it is known whom to follow.
pub async fn trace_after(
    api: &Api,
    limits: Limits,
    args: &TraceArgs,
    begins: impl FnOnce(),
) -> anyhow::Result<ClusterReport<ClusterTrace>> {
    let explained = explain(api, limits, &args.ends).await?;
    let ClusterReport { body: explanation, mut unanswered, mut notes, .. } = explained;
    let node_agents = api.node_agents().await?.all;
    let sender = FollowedEnds {
        node: explanation.node.clone(),
        from: explanation.query.from.clone(),
        to: explanation.query.to.clone(),
        count: args.count,
    };
    let away = explanation.paths.iter().filter(|path| path.node.as_ref() != Some(&sender.node));
    let away =
        away.filter_map(|path| Some((path.node.clone()?, path.source?, path.endpoint.clone())));
    let all = away.map(|(node, source, to)| FollowedEnds {
        node,
        from: source.to_string(),
        to,
        count: MOST.max(args.count),
    });
    let mut receivers: Vec<FollowedEnds> = all.collect();
    if receivers.len() > ENDPOINTS {
        let more = receivers.split_off(ENDPOINTS).len();
        notes.push(format!("packets to {more} more endpoints are not followed on their nodes"));
    }
    begins();
    let (sent, received) = collect_reports(api, &node_agents, &sender, &receivers, args.time).await;
    let mut reports = Vec::new();
    let mut endpoints = BTreeMap::new();
    let receiving = receivers.iter().zip(received);
    for (ends, packets) in [(&sender, sent)].into_iter().chain(receiving) {
        let node = &ends.node;
        match packets {
            Ok(packets) => {
                let of_node = packets.packets.into_iter();
                reports.extend(of_node.map(|report| NodeTrace { node: node.clone(), report }));
                if *node != sender.node {
                    endpoints.insert(ends.to.clone(), node.clone());
                }
            }
            Err(_) if unanswered.iter().any(|noted| noted.node == *node) => {}
            Err(why) => unanswered.push(Unanswered { node: node.clone(), why }),
        }
    }
    let nodes = receivers.iter().map(|ends| &ends.node).chain([&sender.node]);
    let nodes = nodes.collect::<BTreeSet<_>>().len();
    let body = pair_reports([explanation.from, explanation.to, sender.node], reports, &endpoints);
    Ok(ClusterReport { body, nodes, unanswered, notes })
}

type Packets = Result<TracedPackets, NoAnswer>;

/// The receivers begin before the sender, and end after it.
async fn collect_reports(
    api: &Api,
    node_agents: &[NodeAgent],
    sender: &FollowedEnds,
    receivers: &[FollowedEnds],
    time: Duration,
) -> (Packets, Vec<Packets>) {
    let (over, _) = watch::channel(false);
    let (begun, following): (Vec<_>, Vec<_>) = receivers
        .iter()
        .map(|ends| {
            let (begun, is_begun) = oneshot::channel();
            let mut over = over.subscribe();
            let until = async move { drop(over.wait_for(|over| *over).await) };
            let limit = time + EXTRA_TIME;
            (is_begun, follow_packets(api, node_agents, ends, limit, begun, until))
        })
        .unzip();
    let sending = async {
        // A receiver's node that fails does not begin, and is not waited for.
        join_all(begun).await;
        let (begun, _) = oneshot::channel();
        let packets =
            follow_packets(api, node_agents, sender, time, begun, std::future::pending::<()>())
                .await;
        #[expect(clippy::disallowed_methods, reason = "no message says that nothing comes")]
        tokio::time::sleep(ARRIVAL).await;
        over.send_replace(true);
        packets
    };
    tokio::join!(sending, join_all(following))
}

/// Follows packets on one node.
async fn follow_packets(
    api: &Api,
    node_agents: &[NodeAgent],
    ends: &FollowedEnds,
    time: Duration,
    begun: oneshot::Sender<()>,
    until: impl Future<Output = ()>,
) -> Packets {
    let FollowedEnds { node, from, to, count } = ends;
    let node_agent = node_agents.iter().find(|node_agent| node_agent.node == *node);
    let node_agent =
        node_agent.ok_or_else(|| NoAnswer::new(NoAnswer::NO_AGENT, "no such node is known"))?;
    let agent = node_agent.agent.as_ref().map_err(Clone::clone)?;
    // Each flag and its value are one word, so that no name is taken for another flag.
    let words = [
        "trace".to_owned(),
        "--output=json".to_owned(),
        "--until-input".to_owned(),
        format!("--from={from}"),
        format!("--to={to}"),
        format!("--count={count}"),
        format!("--timeout={}ms", time.as_millis()),
    ];
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let text = session::follow(&api.client, agent, &words, begun, until, time + EXTRA_TIME).await?;
    serde_json::from_str(&text)
        .map_err(|error| NoAnswer::new(NoAnswer::FAILED, format!("unknown answer: {error}")))
}
