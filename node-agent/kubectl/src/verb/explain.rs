//! `explain A B`: a connection's way across nodes. The sender's agent says which endpoints it may go
//! to and what egress policies say; the agent of each endpoint's node says what ingress policies say
//! of the source that arrives there.
//!
//! | file | knows |
//! | --- | --- |
//! | `ends` | names, addresses, and which node they are on |
//! | `way` | what the agents' answers come to. Pure |

mod ends;
mod way;

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use clap::Args;
use serde::Serialize;

use self::ends::{Destination, Place, Places, Sender};
use self::way::{Explanation, Side, Verdict, Way};
use super::only;
use crate::cluster::{Api, Member};
use crate::output::{Body, Level, Report, table};
use crate::session::NoAnswer;
use crate::session::request::{Explain, Request};
use crate::survey::{Limits, Unanswered, ask};
use denizen_text::Printable;

#[derive(Debug, Clone, Args)]
pub struct ExplainArgs {
    /// Who connects: a pod, or an address
    #[arg(value_name = "[NAMESPACE/]POD|ADDR")]
    from: String,
    /// To what: a service or a pod and its port, or an address and a port; for a ping, /icmp or
    /// /icmpv6 in place of the port
    #[arg(value_name = "[NAMESPACE/]NAME:PORT[/PROTO]|ADDR:PORT[/PROTO]")]
    to: String,
    /// The node that gets the packets of a sender outside the cluster
    #[arg(long, value_name = "NODE")]
    via: Option<String>,
}

/// What is found on the way.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterExplanation {
    from: String,
    to: String,
    /// The node where the packet is decided on first.
    node: String,
    verdict: Verdict,
    #[serde(skip_serializing_if = "Option::is_none")]
    service: Option<String>,
    /// What the first node's agent says; missing if it did not answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    sent: Option<Explanation>,
    /// One for each endpoint; empty if the packet gets no further than the first node.
    ways: Vec<Way>,
}

/// What the agents say so far.
struct Asking<'a> {
    api: &'a Api,
    limits: Limits,
    members: &'a [Member],
    places: Places,
    sender: Sender,
    unanswered: Vec<Unanswered>,
}

pub async fn explain(
    api: &Api,
    limits: Limits,
    args: &ExplainArgs,
) -> anyhow::Result<Report<ClusterExplanation>> {
    let members = api.members().await?;
    let sender = Sender::find(api, &members.all, &args.from, args.via.as_deref(), &args.to).await?;
    let destination = Destination::find(api, &sender, &args.to).await?;
    let places = Places::of(api, &destination).await?;
    let mut asking =
        Asking { api, limits, members: &members.all, places, sender, unanswered: Vec::new() };
    let body = asking.body(args, &destination).await?;
    let nodes: std::collections::BTreeSet<&String> =
        body.ways.iter().filter_map(|way| way.node.as_ref()).chain([&body.node]).collect();
    Ok(Report { nodes: nodes.len(), unanswered: asking.unanswered, notes: members.notes, body })
}

impl Asking<'_> {
    async fn body(
        &mut self,
        args: &ExplainArgs,
        destination: &Destination,
    ) -> anyhow::Result<ClusterExplanation> {
        let node = self.sender.node.clone();
        let query = Explain { from: self.sender.asked.clone(), to: destination.asked.clone() };
        let mut answers = self.ask(&node, vec![query]).await;
        let sent = answers.pop().and_then(Result::ok);
        let mut body = ClusterExplanation {
            from: args.from.clone(),
            to: args.to.clone(),
            node,
            verdict: Verdict::Unknown,
            service: sent.as_ref().and_then(|sent| sent.service.clone()),
            sent,
            ways: Vec::new(),
        };
        if let Some(sent) = &body.sent {
            match sent.targets(destination.address()) {
                Ok(targets) => body.ways = self.ways(sent, destination, &targets).await?,
                Err(verdict) => body.verdict = verdict,
            }
            if !body.ways.is_empty() {
                body.verdict = Verdict::of_all(body.ways.iter().map(|way| way.verdict));
            }
        }
        Ok(body)
    }

    /// The way to each of these, the receivers' nodes asked.
    async fn ways(
        &mut self,
        sent: &Explanation,
        destination: &Destination,
        targets: &[SocketAddr],
    ) -> anyhow::Result<Vec<Way>> {
        let (mut ways, mut by_node) = (Vec::new(), BTreeMap::<String, Vec<usize>>::new());
        for target in targets {
            let place = self.places.find(self.api, self.members, target.ip()).await?;
            let source = self.source_at(sent, *target);
            if let Place { node: Some(node), .. } = &place {
                by_node.entry(node.clone()).or_default().push(ways.len());
            }
            ways.push(Way::new(sent, destination.text_of(*target), *target, place, source));
        }
        for (node, at) in by_node {
            if node == self.sender.node {
                // Its agent has said all.
                at.iter().for_each(|at| ways[*at].arrives(sent));
                continue;
            }
            let is_known = |at: &&usize| ways[**at].source.is_some() && !ways[**at].is_refused();
            let at: Vec<usize> = at.iter().filter(is_known).copied().collect();
            let query = |at: &usize| Explain {
                from: ways[*at].source.map(|source| source.to_string()).unwrap_or_default(),
                to: ways[*at].endpoint.clone(),
            };
            let queries: Vec<Explain> = at.iter().map(query).collect();
            if queries.is_empty() {
                continue;
            }
            for (at, answer) in at.into_iter().zip(self.ask(&node, queries).await) {
                match answer {
                    Ok(explanation) => ways[at].arrives(&explanation),
                    Err(why) => ways[at].does_not_say(&why),
                }
            }
        }
        Ok(ways)
    }

    /// The source that is seen where this target is.
    fn source_at(&self, sent: &Explanation, target: SocketAddr) -> Option<IpAddr> {
        let is_same = |ip: &&IpAddr| ip.is_ipv4() == target.is_ipv4();
        let of_node = || {
            let node = self.members.iter().find(|member| member.node == self.sender.node)?;
            node.object.as_ref()?.internal_ips().find(|ip| ip.is_ipv4() == target.is_ipv4())
        };
        match sent.is_masqueraded(target) {
            true => of_node(),
            false => self.sender.ips.iter().find(is_same).copied(),
        }
    }

    /// Asks one node. One answer for each query; a node that does not answer is noted.
    async fn ask(
        &mut self,
        node: &str,
        queries: Vec<Explain>,
    ) -> Vec<Result<Explanation, NoAnswer>> {
        let member = self.members.iter().find(|member| member.node == node);
        let requests: Vec<Request> = queries.into_iter().map(Request::Explain).collect();
        let asked = match member {
            Some(member) => ask(&self.api.client, member, self.limits.deadline, &requests).await,
            None => Err(NoAnswer::new(NoAnswer::NO_AGENT, "no such node is known")),
        };
        let answers: Vec<Result<Explanation, NoAnswer>> = match asked {
            Ok(answers) => answers.split().map(only).collect(),
            Err(why) => requests.iter().map(|_| Err(why.clone())).collect(),
        };
        if let Some(why) = answers.iter().find_map(|answer| answer.as_ref().err()) {
            self.unanswered.push(Unanswered { node: node.to_owned(), why: why.clone() });
        }
        answers
    }
}

impl Body for ClusterExplanation {
    fn level(&self) -> Level {
        match self.verdict {
            Verdict::Permitted => Level::Good,
            Verdict::Unknown => Level::Warning,
            Verdict::Partly | Verdict::Refused => Level::Failure,
        }
    }
}

const HEAD: [&str; 7] = ["ENDPOINT", "POD", "NODE", "EGRESS", "SOURCE THERE", "INGRESS", "VERDICT"];

impl fmt::Display for ClusterExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { from, to, node, verdict, service, sent, ways } = self;
        let line = format!("{from} to {to}: {verdict}");
        writeln!(f, "{}", Printable(&line))?;
        if let Some(service) = service {
            writeln!(f, "service {}", Printable(service))?;
        }
        if !ways.is_empty() {
            table(f, &HEAD, &ways.iter().map(Way::cells).collect::<Vec<_>>())?;
        }
        for way in ways {
            for side in [&way.egress, &way.ingress] {
                if let Side { why: Some(why), .. } = side {
                    let line = format!("{}: {why}", way.endpoint);
                    writeln!(f, "{}", Printable(&line))?;
                }
            }
        }
        if let Some(sent) = sent {
            writeln!(f, "on node {}:", Printable(node))?;
            for step in &sent.steps {
                writeln!(f, "  {}", Printable(&format!("{}: {}", step.what, step.why)))?;
            }
        }
        writeln!(
            f,
            "routes between nodes, and what other programs do to packets, are not looked at"
        )
    }
}
