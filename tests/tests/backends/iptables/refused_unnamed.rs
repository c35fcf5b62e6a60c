//! Rules that the kernel refuses, and ip_tables only with their whole table: they are found and
//! left out, everything else is written, and they are tried again.
//!
//! Somebody's rule leads from POSTROUTING to a service's chain, and no kernel translates
//! destinations there: that chain cannot have its rules until somebody's is gone.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use denizen_tests::agent::Agent;
use denizen_tests::for_each_variant;
use denizen_tests::kernel::iptables::Variant;
use denizen_tests::node::fixture::{Fixture, Host, PORT, service_ips};
use denizen_tests::node::manifest::Port;
use denizen_tests::node::world::ip;
use denizen_tests::packets::http::{fetch, url};
use denizen_tests::packets::probe::Protocol;
use denizen_tests::peers::kube_proxy::{KubeProxy, NOBODY, Served, service_chain};
use serde_json::{Value, json};

const HTTP: [Port; 1] = [Port::tcp("http", 80, PORT)];
/// A service of its own for each number.
const NUMBERS: std::ops::Range<u8> = 10..26;
/// Those of them whose chains are held.
const HELD: [u8; 2] = [14, 21];
/// The programs of both families, and an address that nobody has.
const FAMILIES: [(&str, &str); 2] = [("iptables", "203.0.113.9"), ("ip6tables", "2001:db8::9")];
/// It looks every ten seconds, and tries again at looks.
const TIMEOUT: Duration = Duration::from_secs(90);

struct RefusedContext {
    fixture: Fixture,
    variant: Variant,
}

fn name(number: u8) -> String {
    format!("s{number}")
}

impl RefusedContext {
    fn new(label: &str, variant: Variant) -> Result<Self> {
        let fixture = Fixture::new(label)?;
        for number in NUMBERS {
            let objects =
                fixture.service(&name(number), number, &HTTP, &[Host::Routed, Host::Remote])?;
            fixture.cluster.manifests.put(&name(number), &objects)?;
        }
        Ok(Self { fixture, variant })
    }

    fn in_nat(&self, rules: impl Fn(&str, &str) -> String) -> Result<()> {
        FAMILIES.iter().try_for_each(|(family, address)| {
            let lines: String = HELD.map(|number| rules(address, &chain(number))).concat();
            let input = format!("*nat\n{lines}COMMIT\n");
            self.variant.restore(&self.fixture.cluster.world.node, family, &input)
        })
    }

    /// Keeps the chains of [`HELD`] from what they are for.
    fn hold(&self) -> Result<()> {
        self.in_nat(|to, chain| format!(":{chain} - [0:0]\n-A POSTROUTING -d {to} -g {chain}\n"))
    }

    fn free(&self) -> Result<()> {
        self.in_nat(|to, chain| format!("-D POSTROUTING -d {to} -g {chain}\n"))
    }

    fn start(&self) -> Result<Agent> {
        self.fixture.cluster.start_agent_with(self.variant.flags())
    }

    /// Whether each service is served in both families, by a real connection.
    fn are_served(&self, numbers: impl IntoIterator<Item = u8>) -> Result<Vec<(u8, bool)>> {
        let ways = numbers.into_iter().flat_map(|n| service_ips(n).map(|ip| (n, ip)));
        let ask = |(n, ip)| {
            let outcome =
                self.fixture.probe(Host::Bridged, SocketAddr::new(ip, 80), Protocol::Tcp)?;
            Ok((n, outcome.endpoint().is_some()))
        };
        ways.map(ask).collect()
    }

    fn all_but_held_are_served(&self) -> Result<()> {
        let served = self.are_served(NUMBERS)?;
        ensure!(served.iter().all(|(number, is)| *is != HELD.contains(number)), "{served:?}");
        Ok(())
    }
}

fn chain(number: u8) -> String {
    service_chain(&format!("default/{}:http", name(number)))
}

/// The held chains of both families are named, and nothing else is wrong.
fn are_named(status: &Value, held: &[u8]) -> bool {
    let errors: Vec<&str> =
        status["errors"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let names = |error: &&str, number: &u8| {
        error.contains(&chain(*number))
            && error.contains(&format!("default/{}:http", name(*number)))
    };
    errors.len() == 2 * held.len()
        && held.iter().all(|number| errors.iter().filter(|error| names(error, number)).count() == 2)
}

/// At a cold start, after a restart, and when it is tried again.
fn the_others_are_served(label: &str, variant: Variant) -> Result<()> {
    let context = RefusedContext::new(label, variant)?;
    context.hold()?;
    let agent = context.start()?;
    agent.until("named", TIMEOUT, |status| are_named(status, &HELD))?;
    context.all_but_held_are_served()?;
    let healthz = url(ip("127.0.0.1"), 10256, "/healthz");
    let health = fetch(&context.fixture.cluster.world.node, &healthz, &[])?;
    ensure!(health.status == 200 && health.body.contains("rejects some rules"), "{health:?}");
    agent.terminate()?;
    context.all_but_held_are_served()?;
    let agent = context.start()?;
    agent.until("named anew", TIMEOUT, |status| are_named(status, &HELD))?;
    context.all_but_held_are_served()?;
    // A service that comes, and one that goes.
    let more = context.fixture.service("more", 30, &HTTP, &[Host::Remote])?;
    context.fixture.cluster.manifests.put("more", &more)?;
    context.fixture.cluster.manifests.remove(&name(10))?;
    agent.until("one comes, one goes", TIMEOUT, |status| {
        let served = context.are_served([10, 30]).unwrap_or_default();
        are_named(status, &HELD)
            && served.iter().all(|(n, is)| *is == (*n == 30))
            && served.len() == 4
    })?;
    let output = |what: &str| agent.log().matches(what).count();
    let (reported, taken) = (output("everything else is written"), output("accepted now"));
    context.free()?;
    let status = agent.until("taken", TIMEOUT, |status| status["errors"] == json!([]))?;
    ensure!(status["driftRepaired"] == 0, "{status}");
    let served = context.are_served(HELD)?;
    ensure!(served.iter().all(|(_, is)| *is), "{served:?}");
    ensure!(output("everything else is written") == reported, "it is reported once");
    ensure!(output("accepted now") == taken + 2 * HELD.len(), "and that it is over");
    Ok(())
}

for_each_variant!(the_others_are_served, "unn-all");

/// With other chains it is served; the one that it had stays until nobody leads to it.
fn an_update_heals(label: &str, variant: Variant) -> Result<()> {
    let context = RefusedContext::new(label, variant)?;
    context.hold()?;
    let agent = context.start()?;
    agent.until("named", TIMEOUT, |status| are_named(status, &HELD))?;
    let number = HELD[0];
    let renamed = [Port::tcp("web", 80, PORT)];
    let objects =
        context.fixture.service(&name(number), number, &renamed, &[Host::Routed, Host::Remote])?;
    context.fixture.cluster.manifests.put(&name(number), &objects)?;
    let gone = format!("-X {}", chain(number));
    agent.until("served", TIMEOUT, |status| {
        let served = context.are_served([number]).unwrap_or_default();
        !served.is_empty()
            && served.iter().all(|(_, is)| *is)
            && status["errors"].to_string().matches(&gone).count() == 2
    })?;
    context.free()?;
    agent.until("no errors", TIMEOUT, |status| status["errors"] == json!([]))?;
    let rules = variant.dump(&context.fixture.cluster.world.node)?;
    ensure!(!rules.contains(&chain(number)), "{rules}");
    let served = context.are_served(NUMBERS)?;
    ensure!(served.iter().all(|(_, is)| *is), "{served:?}");
    Ok(())
}

for_each_variant!(an_update_heals, "unn-upd");

/// What kube-proxy serves is served at every moment while denizen takes over and finds what is
/// refused.
fn taken_over_in_place(label: &str, variant: Variant) -> Result<()> {
    let context = RefusedContext::new(label, variant)?;
    let node = &context.fixture.cluster.world.node;
    let others: Vec<u8> = NUMBERS.filter(|number| !HELD.contains(number)).collect();
    let served = |number: &u8| {
        let at = SocketAddr::new(service_ips(*number)[0], 80);
        let endpoint =
            |who| anyhow::Ok(SocketAddr::new(context.fixture.address(who, at.ip())?, PORT));
        Ok(Served {
            name: format!("default/{}:http", name(*number)),
            at,
            endpoints: vec![endpoint(Host::Routed)?, endpoint(Host::Remote)?],
        })
    };
    let services = others.iter().map(served).collect::<Result<_>>()?;
    let kube_proxy = KubeProxy { node, variant, services, cluster_cidr: NOBODY };
    kube_proxy.start()?;
    context.hold()?;
    let is_lost = |number: &u8| {
        let to = SocketAddr::new(service_ips(*number)[0], 80);
        let outcome = context.fixture.probe(Host::Bridged, to, Protocol::Tcp);
        !outcome.is_ok_and(|outcome| outcome.endpoint().is_some())
    };
    let mut settings = context.fixture.cluster.settings();
    settings.flags = variant.flags();
    let agent = Agent::spawn(node, settings)?;
    let started = Instant::now();
    while !agent.status().is_ok_and(|status| are_named(&status, &HELD)) {
        let lost: Vec<_> = others.iter().filter(|number| is_lost(number)).collect();
        ensure!(lost.is_empty(), "while it is taken over: {lost:?}");
        ensure!(started.elapsed() < TIMEOUT, "never named");
    }
    context.all_but_held_are_served()?;
    context.free()?;
    agent.until("taken", TIMEOUT, |status| status["errors"] == json!([]))?;
    let served = context.are_served(NUMBERS)?;
    ensure!(served.iter().all(|(_, is)| *is), "{served:?}");
    Ok(())
}

for_each_variant!(taken_over_in_place, "unn-take");
