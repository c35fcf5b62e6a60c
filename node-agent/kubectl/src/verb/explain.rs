//! `explain A B`: a connection's path across nodes. The sender's agent says which endpoints the
//! connection may go to and what egress policies say; the agent of each endpoint's node says what
//! ingress policies say of the source that arrives there. Both say how packets to the other end
//! leave their node.
//!
//! | file | knows |
//! | --- | --- |
//! | `ends` | names, addresses, and which node they are on |
//! | `path` | combines the agents' answers to paths. Pure |

mod ends;
mod path;

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use clap::Args;
use serde::Serialize;

use self::ends::{AddressOwners, Destination, Sender};
use self::path::{ConnectionVerdict, EndpointPath, Explanation, RouteAnswer};
use super::only;
use crate::cluster::{Api, NodeAgent};
use crate::no_answer::NoAnswer;
use crate::output::{Body, ClusterReport, Level, table};
use crate::session::Answers;
use crate::session::request::{ExplainQuery, Request};
use crate::survey::{Limits, Unanswered, ask};
use denizen_text::Printable;

#[derive(Debug, Clone, Args)]
pub struct ExplainArgs {
    /// Who connects: a pod, or an address
    #[arg(value_name = "[NAMESPACE/]POD|ADDR")]
    pub from: String,
    /// To what: a service or a pod and its port, or an address and a port; for a ping, /icmp or
    /// /icmpv6 in place of the port
    #[arg(value_name = "[NAMESPACE/]NAME:PORT[/PROTO]|ADDR:PORT[/PROTO]")]
    pub to: String,
    /// The node that gets the packets of a sender outside the cluster
    #[arg(long, value_name = "NODE")]
    pub via: Option<String>,
}

/// The paths of a connection, and its verdict.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterExplanation {
    pub from: String,
    pub to: String,
    /// What the first node's agent is asked.
    #[serde(skip)]
    pub query: ExplainQuery,
    /// The node where the packet is decided on first.
    pub node: String,
    verdict: ConnectionVerdict,
    #[serde(skip_serializing_if = "Option::is_none")]
    service: Option<String>,
    /// What the first node's agent says; missing if it did not answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    sent: Option<Explanation>,
    /// One path for each endpoint; empty if the packet gets no further than the first node.
    #[serde(rename = "ways")]
    pub paths: Vec<EndpointPath>,
}

/// The facts and answers so far, and whom to ask.
struct ExplainSession<'a> {
    api: &'a Api,
    limits: Limits,
    node_agents: &'a [NodeAgent],
    owners: AddressOwners,
    sender: Sender,
    unanswered: Vec<Unanswered>,
}

pub async fn explain(
    api: &Api,
    limits: Limits,
    args: &ExplainArgs,
) -> anyhow::Result<ClusterReport<ClusterExplanation>> {
    let node_agents = api.node_agents().await?;
    let sender =
        Sender::find(api, &node_agents.all, &args.from, args.via.as_deref(), &args.to).await?;
    let destination = Destination::find(api, &sender, &args.to).await?;
    let owners = AddressOwners::of(api, &destination).await?;
    let mut session = ExplainSession {
        api,
        limits,
        node_agents: &node_agents.all,
        owners,
        sender,
        unanswered: Vec::new(),
    };
    let body = session.body(args, &destination).await?;
    let nodes: std::collections::BTreeSet<&String> =
        body.paths.iter().filter_map(|path| path.node.as_ref()).chain([&body.node]).collect();
    Ok(ClusterReport {
        nodes: nodes.len(),
        unanswered: session.unanswered,
        notes: node_agents.notes,
        body,
    })
}

impl ExplainSession<'_> {
    async fn body(
        &mut self,
        args: &ExplainArgs,
        destination: &Destination,
    ) -> anyhow::Result<ClusterExplanation> {
        let node = self.sender.node.clone();
        let query = ExplainQuery { from: self.sender.query.clone(), to: destination.query.clone() };
        let mut answers = self.ask(&node, vec![Request::Explain(query.clone())]).await;
        let sent: Option<Explanation> =
            answers.pop().and_then(Result::ok).and_then(|answer| only(answer).ok());
        let mut body = ClusterExplanation {
            from: args.from.clone(),
            to: args.to.clone(),
            query,
            node,
            verdict: ConnectionVerdict::Unknown,
            service: sent.as_ref().and_then(|sent| sent.service.clone()),
            sent,
            paths: Vec::new(),
        };
        if let Some(sent) = &body.sent {
            match sent.targets(destination.address()) {
                Ok(targets) => body.paths = self.paths(sent, destination, &targets).await?,
                Err(verdict) => body.verdict = verdict,
            }
            if !body.paths.is_empty() {
                body.verdict =
                    ConnectionVerdict::of_all(body.paths.iter().map(|path| path.verdict));
            }
        }
        Ok(body)
    }

    /// The path to each of `targets`, after asking the receivers' nodes.
    async fn paths(
        &mut self,
        sent: &Explanation,
        destination: &Destination,
        targets: &[SocketAddr],
    ) -> anyhow::Result<Vec<EndpointPath>> {
        let mut paths = Vec::new();
        for target in targets {
            let owner = self.owners.find(self.api, self.node_agents, target.ip()).await?;
            paths.push(EndpointPath::new(sent, destination.text_of(*target), *target, owner));
        }
        self.ask_routes(sent, &mut paths).await;
        self.ask_frontend_route(sent, destination, &mut paths).await;
        let mut by_node = BTreeMap::<String, Vec<&mut EndpointPath>>::new();
        for path in &mut paths {
            if let Some(node) = path.node.clone() {
                by_node.entry(node).or_default().push(path);
            }
        }
        for (node, paths) in by_node {
            match node == self.sender.node {
                // The sender's agent has said all.
                true => paths.into_iter().for_each(|path| path.note_ingress(sent)),
                false => self.ask_receivers(&node, paths).await,
            }
        }
        Ok(paths)
    }

    /// Asks for the route to the service's address, if the node itself sends: the kernel looks for
    /// that route before rules translate the address. For packets of pods, rules translate it
    /// first.
    async fn ask_frontend_route(
        &mut self,
        sent: &Explanation,
        destination: &Destination,
        paths: &mut [EndpointPath],
    ) {
        let frontend = destination.frontend(&self.sender);
        let is_needed = sent.service.is_some() && self.sender.is_in_node_network;
        let Some(frontend) = frontend.filter(|_| is_needed) else { return };
        let node = self.sender.node.clone();
        let answer = self.ask(&node, vec![Request::Route(frontend)]).await.pop();
        if let Some(answer) = answer.map(|answer| answer.and_then(only::<RouteAnswer>)) {
            paths
                .iter_mut()
                .for_each(|path| path.note_missing_frontend_route(answer.clone(), frontend));
        }
    }

    /// How packets to other nodes leave the sender's node, and with which source.
    async fn ask_routes(&mut self, sent: &Explanation, paths: &mut [EndpointPath]) {
        let own = self.sender.node.clone();
        let mut leaving: Vec<&mut EndpointPath> =
            paths.iter_mut().filter(|path| path.node.as_ref() != Some(&own)).collect();
        let requests = leaving.iter().map(|path| Request::Route(path.target.ip())).collect();
        let answers = self.ask(&own, requests).await;
        for (path, answer) in leaving.iter_mut().zip(answers) {
            path.note_route(answer.and_then(only));
        }
        for path in paths {
            let is_masqueraded = sent.is_masqueraded(path.target);
            let known = if is_masqueraded { path.own_source() } else { None };
            path.source = known.or_else(|| self.source_at(is_masqueraded, path.target));
        }
    }

    /// Asks the agent of the receivers' node about these paths.
    async fn ask_receivers(&mut self, node: &str, paths: Vec<&mut EndpointPath>) {
        let passing = paths.into_iter().filter(|path| !path.is_refused());
        let arriving: Vec<(IpAddr, &mut EndpointPath)> =
            passing.filter_map(|path| Some((path.source?, path))).collect();
        let requests = arriving.iter().flat_map(|(source, path)| {
            let query = ExplainQuery { from: source.to_string(), to: path.endpoint.clone() };
            [Request::Explain(query), Request::Route(*source)]
        });
        let requests = requests.collect();
        let mut answers = self.ask(node, requests).await.into_iter();
        for (_, path) in arriving {
            match answers.next().map(|answer| answer.and_then(only)) {
                Some(Ok(explanation)) => path.note_ingress(&explanation),
                Some(Err(why)) => path.note_unknown_ingress(&why),
                None => {}
            }
            if let Some(answer) = answers.next() {
                path.note_return_route(answer.and_then(only::<RouteAnswer>));
            }
        }
    }

    /// The source that the target sees, as far as the API tells it.
    fn source_at(&self, is_masqueraded: bool, target: SocketAddr) -> Option<IpAddr> {
        let is_same = |ip: &IpAddr| ip.is_ipv4() == target.is_ipv4();
        if !is_masqueraded {
            return self.sender.ips.iter().copied().find(is_same);
        }
        let node =
            self.node_agents.iter().find(|node_agent| node_agent.node == self.sender.node)?;
        node.object.as_ref()?.internal_ips().find(is_same)
    }

    /// Asks one node. One answer for each request; a node that does not answer is noted.
    async fn ask(&mut self, node: &str, requests: Vec<Request>) -> Vec<Result<Answers, NoAnswer>> {
        if requests.is_empty() {
            return Vec::new();
        }
        let node_agent = self.node_agents.iter().find(|node_agent| node_agent.node == node);
        let answers = match node_agent {
            Some(node_agent) => {
                ask(&self.api.client, node_agent, self.limits.deadline, &requests).await
            }
            None => Err(NoAnswer::new(NoAnswer::NO_AGENT, "no such node is known")),
        };
        let failed = |error: &String| NoAnswer::new(NoAnswer::FAILED, error.clone());
        let why = match answers {
            Err(why) => why,
            Ok(answers) => {
                // A refusal to explain counts as no answer. A refused route does not: older agents
                // know none.
                let explained = answers.answers.iter().zip(&requests).find_map(|of| match of {
                    (Err(error), Request::Explain(_)) => Some(failed(error)),
                    (Ok(_) | Err(_), _) => None,
                });
                self.note(node, explained);
                return answers.split().map(Ok).collect();
            }
        };
        self.note(node, Some(why.clone()));
        requests.iter().map(|_| Err(why.clone())).collect()
    }

    fn note(&mut self, node: &str, why: Option<NoAnswer>) {
        let is_noted = self.unanswered.iter().any(|noted| noted.node == node);
        if let Some(why) = why.filter(|_| !is_noted) {
            self.unanswered.push(Unanswered { node: node.to_owned(), why });
        }
    }
}

impl Body for ClusterExplanation {
    fn level(&self) -> Level {
        match self.verdict {
            ConnectionVerdict::Permitted => Level::Good,
            ConnectionVerdict::Unknown => Level::Warning,
            ConnectionVerdict::Partly | ConnectionVerdict::Refused => Level::Failure,
        }
    }
}

const HEAD: [&str; 9] = [
    "ENDPOINT",
    "POD",
    "NODE",
    "EGRESS",
    "ROUTE",
    "SOURCE THERE",
    "INGRESS",
    "WAY BACK",
    "VERDICT",
];

impl fmt::Display for ClusterExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { from, to, query: _, node, verdict, service, sent, paths } = self;
        let line = format!("{from} to {to}: {verdict}");
        writeln!(f, "{}", Printable(&line))?;
        if let Some(service) = service {
            writeln!(f, "service {}", Printable(service))?;
        }
        if !paths.is_empty() {
            table(f, &HEAD, &paths.iter().map(EndpointPath::cells).collect::<Vec<_>>())?;
        }
        for path in paths {
            for why in path.reasons() {
                let line = format!("{}: {why}", path.endpoint);
                writeln!(f, "{}", Printable(&line))?;
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
            "what is between the nodes, and what other programs do to packets, is not looked at"
        )
    }
}
