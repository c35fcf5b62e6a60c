//! Changes while the agent runs, and how long each took from the change to the first connection
//! that the kernel treats according to it.

use std::net::{IpAddr, SocketAddr};
use std::slice;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::node::{QuickstartNode, listens};
use super::page::Page;
use super::{rows, serve};
use crate::node::fixture::Host;
use crate::node::manifest::{self, Port};
use crate::node::netns::Netns;
use crate::node::pod::{Pod, Wiring};
use crate::node::world::ip;
use crate::packets::probe::{Outcome, Probe};

/// How long a change may take to have an effect.
const TIMEOUT: Duration = Duration::from_secs(5);

/// So many connections in a row miss one of three endpoints by chance only once in 10^10 series.
const ENOUGH: usize = 60;

const LATE: [Port; 1] = [Port::tcp("http", 80, 8080)];
const LATE_IP: &str = "172.30.0.30";

pub(super) fn run(node: &mut QuickstartNode, page: &mut Page) -> Result<()> {
    let pod = add_pod(node, page)?;
    let late = SocketAddr::new(ip(LATE_IP), 80);
    let address = pod.address_like(late.ip()).context("the new pod has an IPv4 address")?;
    appear_and_vanish(node, page, late, address)?;
    remove_from_web(node, page)?;
    let started = Instant::now();
    pod.detach(&node.fixture.cluster.world.node)?;
    page.say(format_args!("the pod is removed by DEL, which took {}", millis(started.elapsed())));
    Ok(())
}

/// Adds a pod, whose first packet must already count as a local pod's.
fn add_pod(node: &QuickstartNode, page: &mut Page) -> Result<Pod> {
    let pod = node.fixture.cluster.add_pod("late", Wiring::Bridged)?;
    serve::start(&pod.netns, &listens(&pod.addresses))?;
    let web = SocketAddr::new(ip("172.30.0.10"), 80);
    let outcome = Probe::tcp(web).send_in(&pod.netns);
    let parts: Vec<_> =
        pod.took().iter().map(|(plugin, took)| format!("{plugin} {}", millis(*took))).collect();
    page.say(format_args!(
        "a pod is added through the CNI chain in {}: {}",
        millis(pod.took().iter().map(|(_, took)| *took).sum()),
        parts.join(", ")
    ));
    page.say("    denizen's part ends when the agent has answered that the kernel knows the pod");
    let seen = outcome.seen();
    let own = pod.address_like(web.ip());
    page.say(format_args!("    web saw its first packet's source as {}", shown(seen)));
    page.check((seen != own).then_some("its first packet was not treated as a local pod's"));
    Ok(pod)
}

/// Gives a service its first endpoint and removes it: refused, answered, refused.
fn appear_and_vanish(
    node: &QuickstartNode,
    page: &mut Page,
    late: SocketAddr,
    endpoint: IpAddr,
) -> Result<()> {
    let (netns, _) = node.fixture.place(Host::Routed);
    let object = manifest::service("late", &[late.ip()], &LATE);
    let slices = manifest::slice("late", &LATE, &[(endpoint, "node-1")]);
    let refused = |outcome: &Outcome| *outcome == Outcome::Refused;
    let answered = |outcome: &Outcome| outcome.endpoint().is_some_and(|by| by.ip() == endpoint);
    let mut measure = |what: &str,
                       change: &dyn Fn() -> Result<()>,
                       now: &dyn Fn(&Outcome) -> bool|
     -> Result<()> {
        let started = Instant::now();
        change()?;
        let took = until(netns, late, now, started)?;
        page.say(format_args!("{what} after {}", took.map_or_else(|| "never".to_owned(), millis)));
        page.check(took.is_none().then_some("it did not take effect"));
        Ok(())
    };
    let manifests = &node.fixture.cluster.manifests;
    measure(
        "a service without endpoints is added: connections are refused",
        &|| manifests.put("late", slice::from_ref(&object)),
        &refused,
    )?;
    measure(
        "it gets the new pod as its endpoint: connections are answered",
        &|| manifests.put("late-slice", slice::from_ref(&slices)),
        &answered,
    )?;
    measure(
        "the endpoint is removed: connections are refused",
        &|| manifests.remove("late-slice"),
        &refused,
    )?;
    page.say(
        "    each from the rename (or removal) of the file to the first connection that went the new way",
    );
    Ok(())
}

/// Removes one of three endpoints of a service in use.
fn remove_from_web(node: &QuickstartNode, page: &mut Page) -> Result<()> {
    let web = SocketAddr::new(ip("172.30.0.10"), 80);
    let text = std::fs::read_to_string(node.fixture.cluster.manifests.folder().join("web.yaml"))?;
    let entry =
        "  - addresses: [10.10.0.2]\n    nodeName: node-1\n    conditions: { ready: true }\n";
    let without = text.replace(entry, "");
    anyhow::ensure!(without != text, "conf/examples/web.yaml no longer lists the bridged pod");
    let removed = node.fixture.address(Host::Bridged, web.ip())?;
    let (netns, _) = node.fixture.place(Host::Routed);
    node.fixture.cluster.manifests.put_text("web", &without)?;
    let started = Instant::now();
    let mut without_it = 0;
    while without_it < ENOUGH && started.elapsed() < TIMEOUT {
        let reached = Probe::tcp(web)
            .send_in(netns)
            .endpoint()
            .is_some_and(|endpoint| endpoint.ip() == removed);
        without_it = if reached { 0 } else { without_it + 1 };
    }
    page.say("the bridged pod is removed from web's endpoints:");
    rows::spread(node, web, &[Host::Routed, Host::Remote], page)
}

/// Connects until `now` accepts the outcome; returns how long after `started` that connection
/// began.
fn until(
    netns: &Netns,
    to: SocketAddr,
    now: &dyn Fn(&Outcome) -> bool,
    started: Instant,
) -> Result<Option<Duration>> {
    while started.elapsed() < TIMEOUT {
        let began = started.elapsed();
        let outcome = Probe::tcp(to).timeout(Duration::from_millis(200)).send_in(netns);
        if now(&outcome) {
            return Ok(Some(began));
        }
    }
    Ok(None)
}

fn millis(duration: Duration) -> String {
    format!("{:.1} ms", duration.as_secs_f64() * 1000.0)
}

fn shown(address: Option<IpAddr>) -> String {
    address.map_or_else(|| "nowhere".to_owned(), |known| known.to_string())
}
