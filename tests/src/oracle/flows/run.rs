//! Runs cases: every packet as real connections, `explain` asked about each, and the first packet
//! of each followed by `trace` where the rules are nf_tables'.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};
use std::thread;

use anyhow::{Result, bail, ensure};

use super::context::FlowContext;
use super::table::{Backend, FlowCase, FlowRow, FlowSource, FlowVerdict, Nobody};
use crate::agent::trace::TraceCommand;
use crate::node::netns::Netns;
use crate::node::pod::Wiring;
use crate::packets::probe::{ANSWER_TIMEOUT, Outcome, Probe, SILENCE};
use crate::peers::kube_proxy::ipvs::taken_if_there;
use crate::test_length::in_full;

/// Connections to try for each endpoint before an endpoint that was never chosen is reported: with
/// four to choose from, one in 10^14 such series misses an endpoint by chance.
const TRIES_AN_ENDPOINT: usize = 30;

/// Connections of one client that must all reach the same endpoint, with session affinity.
const STICKY_TRIES: usize = 20;

/// Runs the cases with pods attached as `wiring` says. Cases whose nodes have the same addresses
/// share a node, and an agent if it is configured alike, unless tests run in full length: then each
/// has its own. Fails with every case and every packet that went another way than the table says,
/// or that `explain` predicts otherwise. Returns how many connections IPVS carried.
pub fn run_cases(cases: &[FlowCase], backend: Backend, wiring: Wiring) -> Result<u64> {
    let (mut by_ipvs, mut failures) = (0, Vec::new());
    for group in groups(cases) {
        let mut context = FlowContext::new(&group[0].node.ips, backend, wiring)?;
        for case in group {
            if let Err(error) = run_case(&mut context, case) {
                failures.push(format!("{}, {backend:?}, pods {wiring:?}: {error:#}", case.name));
            }
        }
        by_ipvs += taken_if_there(&context.world.node)?;
    }
    ensure!(failures.is_empty(), "{} cases failed\n{}", failures.len(), failures.join("\n"));
    Ok(by_ipvs)
}

/// Groups of cases that share a node. Within a group, cases with the same agent are adjacent.
fn groups(cases: &[FlowCase]) -> Vec<Vec<&FlowCase>> {
    let mut groups: BTreeMap<_, Vec<&FlowCase>> = BTreeMap::new();
    for (index, case) in cases.iter().enumerate() {
        let own = in_full(index, 0);
        groups.entry((own, &case.node.ips)).or_default().push(case);
    }
    let mut groups: Vec<_> = groups.into_values().collect();
    groups.iter_mut().for_each(|group| group.sort_by_key(|case| case.agent_options()));
    groups
}

fn run_case(context: &mut FlowContext, case: &FlowCase) -> Result<()> {
    context.enter(case)?;
    let node = context.world.node_addresses()?;
    let results =
        case.flows.chunks(context.at_once).flat_map(|some| together(context, some, &node));
    let failures: Vec<_> =
        results.filter_map(|(flow, result)| Some((flow, result.err()?))).collect();
    if failures.is_empty() {
        return Ok(());
    }
    let mut report = format!("{} of {} flows went wrong\n", failures.len(), case.flows.len());
    for (flow, error) in failures {
        writeln!(report, "- {}: {error:#}", flow.name)?;
    }
    bail!("{report}{}\n{}", context.rules()?, context.agent()?.log())
}

/// Runs these flows at once; returns the result of each.
fn together<'a>(
    context: &FlowContext,
    flows: &'a [FlowRow],
    node: &[IpAddr],
) -> Vec<(&'a FlowRow, Result<()>)> {
    thread::scope(|scope| {
        let start = |flow| (flow, scope.spawn(move || one(context, flow, node)));
        let started: Vec<_> = flows.iter().map(start).collect();
        let joined = started.into_iter();
        joined.map(|(flow, thread)| (flow, thread.join().expect("a flow's thread"))).collect()
    })
}

fn one(context: &FlowContext, flow: &FlowRow, node: &[IpAddr]) -> Result<()> {
    let (agent, (netns, interface)) = (context.agent()?, context.origin(flow)?);
    let to = SocketAddr::new(flow.dest_ip, flow.dest_port);
    let follow = || {
        let from = flow.from.to_string();
        let to = format!("{to}/{}", flow.protocol);
        TraceCommand::start(&context.world.node, agent, &["--from", &from, "--to", &to])
    };
    let traced = context.is_traced.then(follow).transpose()?;
    let count = || taken_if_there(&context.world.node);
    let before = count()?;
    let connections = connect(netns, flow, node)?;
    let by_ipvs = count()? - before;
    if let Some(traced) = traced {
        traced.end()?.ensure_as_predicted()?;
    }
    let explained = agent.explain(flow.from, interface, to, flow.protocol)?;
    let (verdict, endpoints) = match &flow.expect.endpoints {
        FlowVerdict::Forward(endpoints) => ("forward", endpoints.as_slice()),
        FlowVerdict::Nobody(Nobody::Reject) => ("reject", [].as_slice()),
        FlowVerdict::Nobody(Nobody::Drop) => ("drop", [].as_slice()),
        FlowVerdict::Nobody(Nobody::None | Nobody::Accept) => ("untouched", [].as_slice()),
    };
    ensure!(
        explained.verdict == verdict,
        "the packet was as it should be, but explain says {explained:?}"
    );
    if verdict == "forward" {
        let set = |endpoints: &[SocketAddr]| endpoints.iter().copied().collect::<BTreeSet<_>>();
        ensure!(
            set(&explained.endpoints) == set(endpoints),
            "explain names other endpoints: {explained:?}"
        );
        ensure!(
            explained.masquerade == flow.expect.masq,
            "explain is wrong about masquerade: {explained:?}"
        );
    }
    ensure!(
        explained.local == (flow.from_kind == FlowSource::LocalPod),
        "explain is wrong about the source: {explained:?}"
    );
    let expected = if explained.virtual_server.is_some() { connections } else { 0 };
    ensure!(by_ipvs == expected, "IPVS took {by_ipvs} of {connections}, but {explained:?}");
    Ok(())
}

/// Connects as often as needed. Returns the number of connections.
fn connect(netns: &Netns, flow: &FlowRow, node: &[IpAddr]) -> Result<u64> {
    let to = SocketAddr::new(flow.dest_ip, flow.dest_port);
    let probe = Probe {
        protocol: flow.protocol,
        from: Some(flow.from),
        timeout: ANSWER_TIMEOUT,
        ..Probe::tcp(to)
    };
    match &flow.expect.endpoints {
        FlowVerdict::Forward(endpoints) => netns.run(|| forwarded(probe, flow, endpoints, node))?,
        FlowVerdict::Nobody(Nobody::Reject) => expect(&probe.send_in(netns), &Outcome::Refused),
        FlowVerdict::Nobody(Nobody::Drop) => {
            expect(&probe.timeout(SILENCE).send_in(netns), &Outcome::Dropped)
        }
        FlowVerdict::Nobody(Nobody::None | Nobody::Accept) => {
            let outcome = probe.send_in(netns);
            ensure!(outcome.endpoint() == Some(to), "touched: {outcome:?}");
            ensure!(outcome.seen() == Some(flow.from), "its source was changed: {outcome:?}");
            Ok(1)
        }
    }
}

fn expect(outcome: &Outcome, expected: &Outcome) -> Result<u64> {
    ensure!(outcome == expected, "{outcome:?} instead of {expected:?}");
    Ok(1)
}

/// Connects until every endpoint has answered, no other host has, and each saw the right source.
/// Returns the number of connections.
fn forwarded(
    probe: Probe,
    flow: &FlowRow,
    endpoints: &[SocketAddr],
    node: &[IpAddr],
) -> Result<u64> {
    let sticky = flow.expect.sticky.is_some();
    let wanted: BTreeSet<_> = endpoints.iter().copied().collect();
    let tries = if sticky { STICKY_TRIES } else { TRIES_AN_ENDPOINT * wanted.len() };
    let mut answered = BTreeSet::new();
    for connections in 1..=tries {
        let outcome = probe.send();
        let (Some(endpoint), Some(seen)) = (outcome.endpoint(), outcome.seen()) else {
            bail!("{outcome:?} instead of one of {wanted:?}");
        };
        ensure!(wanted.contains(&endpoint), "{endpoint} answered, which is none of {wanted:?}");
        // A pod that reaches itself is masqueraded in any case.
        let masquerade = flow.expect.masq || endpoint.ip() == flow.from;
        let right = if masquerade { node.contains(&seen) } else { seen == flow.from };
        ensure!(right, "{endpoint} saw {seen}, masquerade expected: {masquerade}");
        answered.insert(endpoint);
        if answered == wanted && !sticky {
            return Ok(connections as u64);
        }
    }
    let never: Vec<_> = wanted.difference(&answered).collect();
    ensure!(sticky || never.is_empty(), "never answered in {tries} connections: {never:?}");
    ensure!(
        !sticky || answered.len() == 1,
        "one client, yet several endpoints answered: {answered:?}"
    );
    Ok(tries as u64)
}
