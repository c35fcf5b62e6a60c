//! `test`: pods of our own image reach each other, services and node ports, and a NetworkPolicy
//! holds. All of it is in a namespace that is deleted in the end.
//!
//! | file | knows |
//! | --- | --- |
//! | `plan` | which pods probe which targets, and the expected outcomes. Pure |
//! | `manifest` | the objects that a test makes. Pure |
//! | `rights` | what the operator may do |
//! | `namespace` | the namespace of a run, and those that interrupted runs left |
//! | `pods` | pods, until they run |
//! | `probe` | probes, executed in pods |
//! | `report` | the results of the probes. Pure |
//! | `reasons` | why a probe failed: `explain`, and `trace` of another attempt |
//! | `interrupt` | signals |

#![expect(clippy::disallowed_methods, reason = "a test never takes longer than it may")]

mod interrupt;
mod manifest;
mod namespace;
mod plan;
mod pods;
mod probe;
mod reasons;
mod report;
mod rights;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::pin::pin;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use clap::Args;
use serde_json::Value;
use tokio::time::{Instant, sleep, timeout};

use self::interrupt::Interrupt;
use self::namespace::{DELETE_TIMEOUT, NamespaceRemoval, TestNamespace};
use self::plan::{CheckKind, Newcomer, ServiceEnds, TestFacts, TestPod};
use self::pods::StartedPods;
use self::probe::ProbeRunner;
use self::report::{ConnectivityReport, ProbeSummary, summary};
use super::ui::QueryOptions;
use crate::cluster::{Api, NodeAgent, NodeAgents};
use crate::no_answer::NoAnswer;
use crate::objects;
use crate::output::{self, ClusterReport, Format, INCOMPLETE, Level, PrintedAnswer, described};
use crate::survey::{Limits, Unanswered};
use denizen_text::{eprint_line, printable_lines};

/// Time in addition to the time limit, for reporting the results.
const REPORT_TIME: Duration = Duration::from_secs(5);

/// The pause between two reads of a service that has no address yet.
const POLL_PAUSE: Duration = Duration::from_millis(100);

#[derive(Debug, Clone, Args)]
pub struct TestArgs {
    /// Delete the namespaces of all tests, such as those that killed ones left, and test nothing
    #[arg(long, conflicts_with_all = ["nodes", "skip", "external"])]
    cleanup: bool,
    /// Only these nodes
    #[arg(long, value_name = "NODE", value_delimiter = ',')]
    nodes: Vec<String>,
    /// Leave these out
    #[arg(long, value_name = "CHECK", value_enum, value_delimiter = ',')]
    skip: Vec<CheckKind>,
    /// Connect to this outside of the cluster too, by TCP. Without it nothing outside is asked
    #[arg(long, value_name = "HOST:PORT", value_parser = external)]
    external: Vec<String>,
}

fn external(text: &str) -> Result<String, String> {
    let port = text.rsplit_once(':').filter(|(host, _)| !host.is_empty());
    let is_port = port.is_some_and(|(_, port)| port.parse::<u16>().is_ok_and(|port| port > 0));
    // It becomes a word of a command, and must not be a flag.
    match is_port && !text.starts_with('-') && !text.contains('/') {
        true => Ok(text.to_owned()),
        false => Err(format!("{text:?} is no HOST:PORT")),
    }
}

/// The nodes that are tested, and their images.
struct TestNodes {
    agents: Vec<NodeAgent>,
    /// By node.
    images: BTreeMap<String, String>,
    unanswered: Vec<Unanswered>,
    notes: Vec<String>,
}

/// Tests, and deletes what the test made, however it ends.
///
/// # Errors
/// Something is not permitted, or the API server does not do what it is asked.
pub async fn test(
    api: &Api,
    options: QueryOptions,
    args: &TestArgs,
    (format, fail_on): (Format, Level),
) -> anyhow::Result<PrintedAnswer> {
    if args.cleanup {
        return output::printed(&namespace::cleanup(api).await?, format, fail_on);
    }
    let mut interrupt = Interrupt::listen()?;
    let limits = Limits::new(options.parallel, options.timeout);
    let prepared = tokio::select! {
        prepared = timeout(options.timeout, TestNodes::find(api, args)) => {
            prepared.context("the API server does not answer in time")??
        }
        () = interrupt.next() => return Ok(interrupted()),
    };
    // Not interrupted: nobody would know whether a request that was given up made the namespace.
    let namespace = TestNamespace::create(api, options.timeout + DELETE_TIMEOUT).await?;
    let run = TestRun { api, args, namespace: &namespace, limits, timeout: options.timeout };
    let result = tokio::select! {
        result = timeout(options.timeout + REPORT_TIME, run.tested(prepared)) => {
            let late = || format!("not over after {:?}: see --timeout", options.timeout);
            Some(result.with_context(late).and_then(|result| result))
        }
        () = interrupt.next() => None,
    };
    let is_left = !is_removed(api, &namespace, &mut interrupt, result.is_none()).await;
    let Some(result) = result else { return Ok(interrupted()) };
    let mut report = result?;
    report.body.deleted = !is_left;
    let mut printed = report.printed(format, fail_on)?;
    if is_left && printed.code == 0 {
        printed.code = INCOMPLETE;
    }
    Ok(printed)
}

/// Deletes the namespace, unless a second signal ends that too. Returns whether the namespace is
/// gone or being deleted.
async fn is_removed(
    api: &Api,
    namespace: &TestNamespace,
    interrupt: &mut Interrupt,
    mut is_interrupted: bool,
) -> bool {
    let mut removing = pin!(namespace.remove(api));
    let removed = loop {
        tokio::select! {
            removed = &mut removing => break removed,
            () = interrupt.next() => match is_interrupted {
                true => break Err(anyhow::anyhow!("interrupted again")),
                false => is_interrupted = true,
            },
        }
    };
    let name = &namespace.name;
    match &removed {
        Ok(NamespaceRemoval::Gone) => {}
        Ok(NamespaceRemoval::Terminating) => {
            eprint_line(format_args!("namespace {name} is being deleted"))
        }
        Err(error) => {
            let why = printable_lines(&described(error));
            eprint_line(format_args!("namespace {name} could not be deleted: {why}"));
            eprint_line("to delete it: kubectl denizen test --cleanup");
        }
    }
    removed.is_ok()
}

fn interrupted() -> PrintedAnswer {
    eprint_line("interrupted: the test is not over");
    PrintedAnswer { text: String::new(), code: INCOMPLETE }
}

impl TestNodes {
    async fn find(api: &Api, args: &TestArgs) -> anyhow::Result<Self> {
        rights::check(api).await?;
        let NodeAgents { mut all, mut notes } = api.node_agents().await?;
        for node in &args.nodes {
            let is_known = all.iter().any(|node_agent| node_agent.node == *node);
            ensure!(is_known, "there is no node {node}");
        }
        if !args.nodes.is_empty() {
            all.retain(|node_agent| args.nodes.contains(&node_agent.node));
        }
        let (mut images, mut unanswered) = (BTreeMap::new(), Vec::new());
        for NodeAgent { node, agent, .. } in &all {
            match agent {
                Ok(agent) => drop(images.insert(node.clone(), agent.image.clone())),
                Err(why) => {
                    let (node, why) = (node.clone(), why.clone().and("; so it is not tested"));
                    unanswered.push(Unanswered { node, why });
                }
            }
        }
        if images.is_empty() {
            bail!("no agent runs, so there is no node to test and no image for it");
        }
        let left = namespace::left_over(api).await.unwrap_or_default();
        if !left.is_empty() {
            let left = left.join(", ");
            notes.push(format!("interrupted tests left {left}: kubectl denizen test --cleanup"));
        }
        Ok(Self { agents: all, images, unanswered, notes })
    }

    fn nodes(&self) -> Vec<String> {
        self.images.keys().cloned().collect()
    }

    /// The `wanted` pods that run. The nodes of the other pods are noted as unanswered.
    fn running<T>(
        &mut self,
        wanted: Vec<T>,
        mut started: StartedPods,
        of: impl Fn(&mut T) -> (&str, &str, &mut Vec<IpAddr>),
    ) -> Vec<T> {
        let mut running = Vec::new();
        for mut pod in wanted {
            let (name, node, ips) = of(&mut pod);
            match started.remove(name) {
                Some(Ok(object)) => {
                    *ips = object.ips().collect();
                    running.push(pod);
                }
                Some(Err(why)) => note(&mut self.unanswered, node, why),
                None => {}
            }
        }
        running
    }
}

fn note(unanswered: &mut Vec<Unanswered>, node: &str, why: NoAnswer) {
    if !unanswered.iter().any(|noted| noted.node == node) {
        unanswered.push(Unanswered { node: node.to_owned(), why });
    }
}

/// A test that is going on.
struct TestRun<'a> {
    api: &'a Api,
    args: &'a TestArgs,
    namespace: &'a TestNamespace,
    limits: Limits,
    timeout: Duration,
}

impl TestRun<'_> {
    async fn tested(
        &self,
        mut participants: TestNodes,
    ) -> anyhow::Result<ClusterReport<ConnectivityReport>> {
        self.make_policy_and_services().await?;
        // The other half of the time is for the probes.
        let waiting = self.limits.deadline - self.timeout / 2;
        let servers = plan::servers(&participants.nodes());
        let manifests = servers.iter().map(|server| {
            let image = participants.images.get(&server.node).map_or("", String::as_str);
            manifest::server(server, image, self.lifetime())
        });
        let started = self.start(manifests.collect(), waiting).await?;
        let servers = participants.running(servers, started, |pod: &mut TestPod| {
            let TestPod { name, node, ips, .. } = pod;
            (name, node, ips)
        });
        let newcomers = self.newcomers(&mut participants, &servers, waiting).await?;
        let mut facts = TestFacts {
            newcomers,
            service: self.ends_of(manifest::SERVICE, waiting).await?,
            local: self.ends_of(manifest::LOCAL, waiting).await?,
            external: self.args.external.clone(),
            ..TestFacts::default()
        };
        for node_agent in &participants.agents {
            let ips = node_agent.object.iter().flat_map(|object| object.internal_ips()).collect();
            facts.nodes.insert(node_agent.node.clone(), first_of_each_family(ips));
        }
        facts.servers = servers;
        self.probed(participants, &facts).await
    }

    async fn newcomers(
        &self,
        participants: &mut TestNodes,
        servers: &[TestPod],
        deadline: Instant,
    ) -> anyhow::Result<Vec<Newcomer>> {
        if self.args.skip.contains(&CheckKind::Policy) {
            return Ok(Vec::new());
        }
        let newcomers = plan::newcomers(servers);
        if newcomers.is_empty() {
            participants.notes.push("policies are not tested: too few servers run".to_owned());
        }
        let manifests = newcomers.iter().map(|newcomer| {
            let image = participants.images.get(&newcomer.node).map_or("", String::as_str);
            manifest::newcomer(newcomer, image, self.lifetime())
        });
        let started = self.start(manifests.collect(), deadline).await?;
        Ok(participants.running(newcomers, started, |pod: &mut Newcomer| {
            let Newcomer { name, node, ips, .. } = pod;
            (name, node, ips)
        }))
    }

    async fn start(&self, pods: Vec<Value>, deadline: Instant) -> anyhow::Result<StartedPods> {
        pods::start(self.api, self.namespace, pods, self.limits.parallel, deadline).await
    }

    /// Longer than the test: pods that nobody deletes end then.
    fn lifetime(&self) -> Duration {
        self.timeout + DELETE_TIMEOUT
    }

    async fn make_policy_and_services(&self) -> anyhow::Result<()> {
        let client = &self.api.client;
        let name = &self.namespace.name;
        let path = format!("/apis/networking.k8s.io/v1/namespaces/{name}/networkpolicies");
        let made = objects::create::<Value>(client, &path, &manifest::policy()).await;
        made.map_err(|error| {
            rights::with_need(error, "cannot make a policy", "create networkpolicies")
        })?;
        for service in manifest::services() {
            let path = self.namespace.path("services");
            let made = objects::create::<Value>(client, &path, &service).await;
            made.map_err(|error| {
                rights::with_need(error, "cannot make a service", "create services")
            })?;
        }
        Ok(())
    }

    /// How a service is reached, once it has addresses.
    async fn ends_of(&self, service: &str, deadline: Instant) -> anyhow::Result<ServiceEnds> {
        let path = self.namespace.path(&format!("services/{service}"));
        loop {
            let found: Result<objects::ServiceObject, _> =
                objects::get(&self.api.client, &path).await;
            let found = found.map_err(|error| {
                rights::with_need(error, "cannot read a service", "get services")
            })?;
            if found.has_frontend() {
                let node_ports = ["tcp", "udp"].map(|name| found.node_port(name));
                let ips: BTreeSet<IpAddr> = found.ips().collect();
                return Ok(ServiceEnds { ips: ips.into_iter().collect(), node_ports });
            }
            ensure!(Instant::now() < deadline, "service {service} has no address");
            sleep(POLL_PAUSE).await;
        }
    }

    async fn probed(
        &self,
        participants: TestNodes,
        facts: &TestFacts,
    ) -> anyhow::Result<ClusterReport<ConnectivityReport>> {
        let Self { api, namespace, limits, .. } = *self;
        let Limits { parallel, deadline } = limits;
        let patience = probe::patience(self.timeout);
        let probing = ProbeRunner { api, namespace, parallel, deadline, patience };
        let mut numbers = RandomNumbers::new()?;
        let mut probes = facts.probes(|below| numbers.below(below));
        probes.retain(|probe| !self.args.skip.contains(&probe.kind));
        let first = futures_util::future::join_all(
            facts.newcomers.iter().map(|newcomer| probing.first_of(newcomer)),
        );
        let (mut probed, first) = tokio::join!(probing.all(probes), first);
        probed.extend(first.into_iter().flatten());
        let mut ips = BTreeMap::new();
        for server in &facts.servers {
            ips.insert(server.name.clone(), server.ips.iter().copied().collect());
        }
        let ProbeSummary { mut report, unanswered, notes } =
            summary(namespace.name.clone(), probed, &ips);
        let mut participants = participants;
        for Unanswered { node, why } in unanswered {
            note(&mut participants.unanswered, &node, why);
        }
        participants.notes.extend(notes);
        reasons::add(probing, limits, &mut report.failures).await;
        let TestNodes { agents, unanswered, notes, .. } = participants;
        Ok(ClusterReport { body: report, nodes: agents.len(), unanswered, notes })
    }
}

fn first_of_each_family(ips: Vec<IpAddr>) -> Vec<IpAddr> {
    let first = |is_ipv4| ips.iter().copied().find(|ip: &IpAddr| ip.is_ipv4() == is_ipv4);
    [true, false].into_iter().filter_map(first).collect()
}

/// Random numbers, good enough to choose whom to ask.
struct RandomNumbers(u64);

impl RandomNumbers {
    fn new() -> anyhow::Result<Self> {
        let mut bytes = [0; 8];
        getrandom::fill(&mut bytes)
            .map_err(|error| anyhow::anyhow!("no random numbers: {error}"))?;
        Ok(Self(u64::from_le_bytes(bytes)))
    }

    /// SplitMix64.
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % limit.max(1) as u64) as usize
    }
}
