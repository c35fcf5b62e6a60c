//! `--services=off`: another program serves services, and denizen enforces NetworkPolicies beside
//! it.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, ensure};
use denizen_tests::agent::Agent;
use denizen_tests::eventually::eventually;
use denizen_tests::for_each_variant;
use denizen_tests::kernel::iptables::Variant;
use denizen_tests::node::fixture::{Fixture, Host, PORT, service_ips};
use denizen_tests::node::manifest::Port;
use denizen_tests::node::netns::Netns;
use denizen_tests::oracle::flows::table::Backend;
use denizen_tests::packets::load::Load;
use denizen_tests::packets::long_connection::{self, ECHO, LongConnection};
use denizen_tests::packets::probe::{Probe, Protocol, SILENCE};
use denizen_tests::peers::kube_proxy::{KubeProxy, NOBODY, Served};
use denizen_tests::policy::{LabelSelector, NetworkPolicy, PolicyPeer, PolicyRule, PolicyWorld};
use serde_json::json;

/// What has not come about by then never will: a thread removes what another backend left.
const TIMEOUT: Duration = Duration::from_secs(60);

const OFF: [&str; 2] = ["--services=off", "--network-policy=on"];

/// The routed pod serves `web`, and a policy permits friends alone to reach it.
struct Beside {
    fixture: Fixture,
    variant: Variant,
}

impl Beside {
    fn new(label: &str, variant: Variant) -> Result<Self> {
        let fixture = Fixture::new(label)?;
        let echo = fixture.routed.addresses.iter();
        echo.copied().try_for_each(|at| long_connection::serve(&fixture.routed.netns, at))?;
        let context = Self { fixture, variant };
        let friends = PolicyRule::from([PolicyPeer::pods(LabelSelector::label("role", "friend"))]);
        let policies = vec![
            NetworkPolicy::new("default", "friends", LabelSelector::label("role", "web"))
                .ingress([friends]),
        ];
        let policies = PolicyWorld { policies, ..PolicyWorld::default() }.manifests();
        context.fixture.cluster.manifests.put("policies", &policies)?;
        context.the_bridged_pod_is("friend")?;
        Ok(context)
    }

    fn node(&self) -> &Netns {
        &self.fixture.cluster.world.node
    }

    fn web() -> SocketAddr {
        SocketAddr::new(service_ips(10)[0], 80)
    }

    fn echo() -> SocketAddr {
        SocketAddr::new(service_ips(11)[0], 7)
    }

    fn endpoint(&self, port: u16) -> Result<SocketAddr> {
        Ok(SocketAddr::new(self.fixture.address(Host::Routed, Self::web().ip())?, port))
    }

    fn kube_proxy(&self) -> Result<KubeProxy<'_>> {
        let served = |name: &str, at, port| {
            let endpoints = vec![self.endpoint(port)?];
            anyhow::Ok(Served { name: name.to_owned(), at, endpoints })
        };
        let services = vec![
            served("default/web:tcp", Self::web(), PORT)?,
            served("default/echo:echo", Self::echo(), ECHO)?,
        ];
        Ok(KubeProxy { node: self.node(), variant: self.variant, services, cluster_cidr: NOBODY })
    }

    fn the_bridged_pod_is(&self, role: &str) -> Result<()> {
        self.fixture.cluster.manifests.put("pods", &self.fixture.pod_objects(role, "web"))
    }

    /// What denizen serves when services are on.
    fn write_services(&self) -> Result<()> {
        let port = |name, at: SocketAddr, target| [Port::tcp(name, at.port(), target)];
        let (web, echo) = (port("tcp", Self::web(), PORT), port("echo", Self::echo(), ECHO));
        let manifests = &self.fixture.cluster.manifests;
        manifests.put("web", &self.fixture.service("web", 10, &web, &[Host::Routed])?)?;
        manifests.put("echo", &self.fixture.service("echo", 11, &echo, &[Host::Routed])?)
    }

    fn start(&self, flags: impl IntoIterator<Item = String>) -> Result<Agent> {
        self.fixture.cluster.start_agent_with(flags)
    }

    fn start_off(&self) -> Result<Agent> {
        self.start(OFF.map(str::to_owned))
    }

    fn is_answered(&self, who: Host) -> Result<bool> {
        let probe = Probe::tcp(Self::web()).timeout(SILENCE);
        let answer = probe.send_in(self.fixture.place(who).0).endpoint();
        ensure!(answer.is_none_or(|by| self.endpoint(PORT).is_ok_and(|ours| by == ours)));
        Ok(answer.is_some())
    }

    /// The friend is answered, and nobody else.
    fn is_enforced(&self) -> Result<()> {
        ensure!(self.is_answered(Host::Bridged)?, "the friend");
        ensure!(!self.is_answered(Host::Outside)?, "a host outside");
        ensure!(!self.is_answered(Host::Remote)?, "another pod");
        Ok(())
    }

    fn tables(&self) -> Result<String> {
        self.node().output("nft", &["list", "tables"])
    }
}

/// Whether services' tables are there. The firewall's are called otherwise.
fn has_services(tables: &str) -> bool {
    tables.lines().any(|line| line.ends_with(" denizen"))
}

fn judged(label: &str, variant: Variant) -> Result<()> {
    let context = Beside::new(label, variant)?;
    context.kube_proxy()?.start()?;
    ensure!(context.is_answered(Host::Outside)?, "kube-proxy serves everybody");
    let rules = variant.dump(context.node())?;
    let agent = context.start_off()?;
    context.is_enforced()?;
    context.the_bridged_pod_is("foe")?;
    eventually("it is a friend no more", TIMEOUT, || Ok(!context.is_answered(Host::Bridged)?))?;
    context.the_bridged_pod_is("friend")?;
    eventually("it is a friend again", TIMEOUT, || context.is_answered(Host::Bridged))?;
    let tables = context.tables()?;
    ensure!(tables.contains("table ip denizen-firewall") && !has_services(&tables), "{tables}");
    assert_eq!(variant.dump(context.node())?, rules, "kube-proxy's rules are kube-proxy's");
    let status = agent.status()?;
    assert_eq!((&status["backend"], &status["errors"]), (&json!("none"), &json!([])));
    assert_eq!((&status["services"], &status["pods"]), (&json!(0), &json!(2)));
    ensure!(status["networkPolicy"]["dropped"]["ingress"].as_u64() > Some(0), "{status}");
    explains(&context, &agent)
}

/// A service's address is not decided here; its endpoint is.
fn explains(context: &Beside, agent: &Agent) -> Result<()> {
    let explain = |who, to| context.fixture.explain(agent, who, to, Protocol::Tcp);
    let service = explain(Host::Bridged, Beside::web())?;
    let output =
        service.steps.iter().any(|step| step.why.contains("services are not decided here"));
    ensure!(output && service.verdict == "untouched", "{service:?}");
    let endpoint = context.endpoint(PORT)?;
    assert_eq!(explain(Host::Bridged, endpoint)?.verdict, "untouched");
    assert_eq!(explain(Host::Remote, endpoint)?.verdict, "drop");
    Ok(())
}

for_each_variant!(policies_judge_what_kube_proxy_has_translated = judged, "off-judge");

/// Denizen serves; kube-proxy comes and denizen leaves services to it; denizen serves again. The
/// friend does not notice, and policies are enforced all the time.
fn switched(label: &str, backend: Backend) -> Result<()> {
    let variant = match backend {
        Backend::IptablesLegacy => Variant::Legacy,
        Backend::Nftables | Backend::IptablesNft | Backend::Ipvs => Variant::Nft,
    };
    let context = Beside::new(label, variant)?;
    context.write_services()?;
    let on = || context.start([backend.flags(), vec!["--network-policy=on".to_owned()]].concat());
    let agent = on()?;
    context.fixture.cluster.world.forget_quickly()?;
    let friend = context.fixture.place(Host::Bridged).0;
    let mut stream = LongConnection::open(friend, Beside::echo())?;
    let mut load = Load::default();
    load.client(friend, vec![(Beside::web(), Protocol::Tcp)], |outcome| {
        outcome.endpoint().is_some()
    })?;
    context.is_enforced()?;
    agent.terminate()?;
    let kube_proxy = context.kube_proxy()?;
    match backend {
        Backend::Nftables | Backend::Ipvs => kube_proxy.start()?,
        // It takes over the chains in place.
        Backend::IptablesLegacy | Backend::IptablesNft => kube_proxy.sync(&kube_proxy.services)?,
    }
    let agent = context.start_off()?;
    let is_gone = || Ok(!has_services(&context.tables()?) && sets(context.node())?.is_empty());
    eventually("nothing is left", TIMEOUT, is_gone)?;
    context.is_enforced()?;
    stream.still_alive()?;
    assert_eq!(agent.status()?["errors"], json!([]));
    agent.terminate()?;
    let agent = on()?;
    context.is_enforced()?;
    stream.still_alive()?;
    assert_eq!(agent.status()?["services"], 2);
    let is_served = match backend {
        Backend::Nftables | Backend::Ipvs => has_services(&context.tables()?),
        Backend::IptablesLegacy | Backend::IptablesNft => !sets(context.node())?.is_empty(),
    };
    ensure!(is_served, "denizen serves again");
    let tally = load.stop()?;
    ensure!(tally.failed == 0 && tally.answered > 0, "{tally:?}");
    Ok(())
}

/// The iptables backend's sets, which no rule refers to when they are gone.
fn sets(node: &Netns) -> Result<String> {
    node.output("ipset", &["list", "-n"])
}

#[test]
fn services_are_left_to_kube_proxy_and_taken_back_nftables() -> Result<()> {
    switched("off-switch-nft", Backend::Nftables)
}

#[test]
fn services_are_left_to_kube_proxy_and_taken_back_iptables_legacy() -> Result<()> {
    switched("off-switch-l", Backend::IptablesLegacy)
}

#[test]
fn services_are_left_to_kube_proxy_and_taken_back_iptables_nft() -> Result<()> {
    switched("off-switch-n", Backend::IptablesNft)
}

/// Openings in other firewalls' chains were for services.
#[test]
fn openings_in_other_firewalls_are_closed() -> Result<()> {
    let context = Beside::new("off-open", Variant::Nft)?;
    let node = context.node();
    node.nft(
        "add table ip theirs\n\
         add chain ip theirs f { type filter hook forward priority 10; policy drop; }\n\
         add rule ip theirs f tcp dport 7 accept\n",
    )?;
    let opened =
        || Ok::<_, anyhow::Error>(node.output("nft", &["list", "ruleset"])?.contains("denizen:"));
    let agent = context.start(["--open-forward".to_owned()])?;
    eventually("opened", TIMEOUT, opened)?;
    agent.terminate()?;
    let agent = context.start_off()?;
    eventually("closed", TIMEOUT, || Ok(!opened()?))?;
    let status = agent.status()?;
    assert_eq!((&status["warnings"], &status["errors"]), (&json!([]), &json!([])));
    Ok(())
}
