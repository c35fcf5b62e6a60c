//! The connections of the quick start, and their expected outcomes.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use anyhow::Result;

use super::node::QuickstartNode;
use super::page::{Line, Page};
use crate::agent::{Explanation, ExplanationStep};
use crate::node::fixture::Host;
use crate::node::world::ip;
use crate::packets::probe::{Outcome, Probe, Protocol};

/// How many connections show the even spread over endpoints.
const SPREAD: usize = 300;

/// A connection to make.
struct ConnectionRow {
    from: Host,
    what: &'static str,
    to: SocketAddr,
    protocol: Protocol,
    expect: Expect,
}

/// The expected outcome of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Expect {
    /// One of these pods answers; `masquerade` says whether it sees the node as the source.
    Answer {
        by: &'static [Host],
        masquerade: bool,
    },
    Refused,
}

/// The addresses of the example services, in one family.
struct Services {
    web: IpAddr,
    dns: IpAddr,
    shop: IpAddr,
    lonely: IpAddr,
    node: IpAddr,
    remote: IpAddr,
}

fn services() -> [Services; 2] {
    let family =
        |base: &str, [web, dns, shop, lonely]: [&str; 4], node: &str, remote: &str| Services {
            web: ip(&format!("{base}{web}")),
            dns: ip(&format!("{base}{dns}")),
            shop: ip(&format!("{base}{shop}")),
            lonely: ip(&format!("{base}{lonely}")),
            node: ip(node),
            remote: ip(remote),
        };
    let last = ["10", "53", "20", "99"];
    [
        family("172.30.0.", last, "192.168.0.2", "192.168.77.10"),
        family("fd00:172:30::", last, "2001:db8::1", "fd00:77::10"),
    ]
}

fn rows(at: &Services) -> Vec<ConnectionRow> {
    use Host::{Bridged, Outside, Remote, Routed, ThisNode};
    use Protocol::{Tcp, Udp};
    let to = |address, port, protocol| (SocketAddr::new(address, port), protocol);
    let answer = |by, masquerade| Expect::Answer { by, masquerade };
    let web = to(at.web, 80, Tcp);
    let (dns, dns_tcp) = (to(at.dns, 53, Udp), to(at.dns, 53, Tcp));
    let (shop, node_port) = (to(at.shop, 80, Tcp), to(at.node, 30080, Tcp));
    let (lonely, pod) = (to(at.lonely, 80, Tcp), to(at.remote, 8080, Tcp));
    const ALL: &[Host] = &[Bridged, Routed, Remote];
    let rows = [
        (Bridged, "web", web, answer(ALL, false)),
        (Routed, "web", web, answer(ALL, false)),
        (Remote, "web", web, answer(ALL, true)),
        (Outside, "web", web, answer(ALL, true)),
        (ThisNode, "web", web, answer(ALL, true)),
        (Bridged, "dns", dns, answer(&[Routed], false)),
        (Outside, "dns", dns, answer(&[Routed], true)),
        (Bridged, "dns", dns_tcp, answer(&[Routed], false)),
        (Outside, "shop node port", node_port, answer(&[Bridged], true)),
        (Routed, "shop node port", node_port, answer(&[Bridged], true)),
        (Routed, "shop", shop, answer(&[Bridged], false)),
        (Bridged, "shop (itself)", shop, answer(&[Bridged], true)),
        (Bridged, "lonely", lonely, Expect::Refused),
        (Outside, "lonely", lonely, Expect::Refused),
        (Bridged, "no service", pod, answer(&[Remote], false)),
    ];
    rows.into_iter()
        .map(|(from, what, (to, protocol), expect)| ConnectionRow {
            from,
            what,
            to,
            protocol,
            expect,
        })
        .collect()
}

/// Sends all connections of both families and puts them on the page.
pub(super) fn run(node: &QuickstartNode, page: &mut Page) -> Result<()> {
    let mut lines = Vec::new();
    for family in services() {
        for row in rows(&family) {
            lines.push(send(node, &row)?);
        }
    }
    page.table(&lines);
    page.title("Two of them in full");
    explain_in_full(node, page)?;
    page.title("Three endpoints share the connections");
    for family in services() {
        spread(
            node,
            SocketAddr::new(family.web, 80),
            &[Host::Bridged, Host::Routed, Host::Remote],
            page,
        )?;
    }
    Ok(())
}

fn send(node: &QuickstartNode, row: &ConnectionRow) -> Result<Line> {
    let (source, interface) =
        (node.fixture.address(row.from, row.to.ip())?, node.fixture.place(row.from).1);
    let outcome = node.fixture.probe(row.from, row.to, row.protocol)?;
    let explained = node.agent.explain(source, interface, row.to, row.protocol)?;
    let (answered, saw, masqueraded) = if let Outcome::Answered { endpoint, seen } = &outcome {
        let who = format!("{} {endpoint}", node.owner(endpoint.ip()));
        let masqueraded = was_masqueraded(row, seen.ip(), source);
        (who, seen.ip().to_string(), if masqueraded { "yes" } else { "no" })
    } else {
        (format!("{outcome:?}").to_lowercase(), "-".to_owned(), "-")
    };
    // A step that contains an address is particular to this connection; the others are shared
    // reasons.
    let general = explained
        .steps
        .iter()
        .filter(|step| !step.what.contains(|character: char| character.is_ascii_digit()));
    let mut why: Vec<_> = general.map(reason).collect();
    if why.is_empty() {
        why.extend(explained.steps.last().map(|step| step.why.clone()));
    }
    Ok(Line {
        from: node.owner(source).to_owned(),
        to: format!("{} {}/{}", row.what, row.to, row.protocol),
        answered,
        saw,
        masqueraded,
        why,
        wrong: wrong(node, row, &outcome, source)?.or_else(|| disagreement(row, &explained)),
    })
}

fn reason(step: &ExplanationStep) -> String {
    format!("{}: {}", step.what, step.why)
}

/// Shows the full explanation of two connections.
fn explain_in_full(node: &QuickstartNode, page: &mut Page) -> Result<()> {
    let rows = rows(&services()[0]);
    for row in rows
        .iter()
        .filter(|row| row.from == Host::Routed && row.what == "shop" || row.from == Host::Remote)
    {
        let (source, interface) =
            (node.fixture.address(row.from, row.to.ip())?, node.fixture.place(row.from).1);
        let explained = node.agent.explain(source, interface, row.to, row.protocol)?;
        let at = interface.map(|name| format!("@{name}")).unwrap_or_default();
        page.say(format_args!(
            "denizen-agent explain --from {source}{at} --to {}/{}",
            row.to, row.protocol
        ));
        for step in &explained.steps {
            page.say(format_args!("    · {}", reason(step)));
        }
    }
    Ok(())
}

/// Whether a connection was masqueraded. One that starts on the node has its address in any case.
fn was_masqueraded(row: &ConnectionRow, seen: IpAddr, source: IpAddr) -> bool {
    seen != source
        || (row.from == Host::ThisNode
            && matches!(row.expect, Expect::Answer { masquerade: true, .. }))
}

fn wrong(
    node: &QuickstartNode,
    row: &ConnectionRow,
    outcome: &Outcome,
    source: IpAddr,
) -> Result<Option<String>> {
    let right = match (&row.expect, outcome) {
        (Expect::Refused, outcome) => *outcome == Outcome::Refused,
        (Expect::Answer { by, masquerade }, Outcome::Answered { endpoint, seen }) => {
            let addresses = by
                .iter()
                .map(|who| node.fixture.address(*who, row.to.ip()))
                .collect::<Result<Vec<_>>>()?;
            let nodes = node.fixture.cluster.world.node_addresses()?;
            // A pod that reaches itself is masqueraded in any case.
            let masquerade = *masquerade || endpoint.ip() == source;
            let source_is_right =
                if masquerade { nodes.contains(&seen.ip()) } else { seen.ip() == source };
            addresses.contains(&endpoint.ip()) && source_is_right
        }
        (Expect::Answer { .. }, _) => false,
    };
    Ok((!right).then(|| format!("{outcome:?} instead of {:?}", row.expect)))
}

/// How `explain` disagrees with the expected outcome.
fn disagreement(row: &ConnectionRow, explained: &Explanation) -> Option<String> {
    let service = explained.service.is_some();
    let expected = match &row.expect {
        Expect::Refused => ("reject", false),
        Expect::Answer { .. } if !service => ("untouched", false),
        Expect::Answer { masquerade, .. } => ("forward", *masquerade),
    };
    let agrees = (explained.verdict.as_str(), explained.masquerade) == expected;
    (!agrees)
        .then(|| format!("explain says {}, masquerade {}", explained.verdict, explained.masquerade))
}

/// Makes many connections of the bridged pod to `to`: all of `by` should answer about equally
/// often.
pub(super) fn spread(
    node: &QuickstartNode,
    to: SocketAddr,
    by: &[Host],
    page: &mut Page,
) -> Result<()> {
    let (netns, _) = node.fixture.place(Host::Bridged);
    let outcomes = netns.run(|| (0..SPREAD).map(|_| Probe::tcp(to).send()).collect::<Vec<_>>())?;
    let mut counts: BTreeMap<IpAddr, usize> = BTreeMap::new();
    for endpoint in outcomes.iter().filter_map(Outcome::endpoint) {
        *counts.entry(endpoint.ip()).or_default() += 1;
    }
    let texts = counts
        .iter()
        .map(|(address, count)| format!("{count} by {address} ({})", node.owner(*address)));
    let texts = texts.collect::<Vec<_>>().join(", ");
    page.say(format_args!("{SPREAD} connections of the bridged pod to {to}: {texts}"));
    let expected =
        by.iter().map(|who| node.fixture.address(*who, to.ip())).collect::<Result<Vec<_>>>()?;
    let only = expected.len() == counts.len()
        && expected.iter().all(|address| counts.contains_key(address));
    let all = counts.values().sum::<usize>() == SPREAD;
    page.check(
        (!only || !all).then_some("not every connection was answered, or not by exactly these"),
    );
    Ok(())
}
