//! Taking over from a kube-proxy in iptables mode under load, in place, while it still writes; and
//! what is left of any of its modes is removed.

mod nftables;

use std::net::SocketAddr;
use std::process::{Child, Command};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use denizen_tests::agent::Agent;
use denizen_tests::binary;
use denizen_tests::eventually::eventually;
use denizen_tests::for_each_variant;
use denizen_tests::kernel::iptables::Variant;
use denizen_tests::node::fixture::{Fixture, Host, PORT, service_ips};
use denizen_tests::node::netns::{Netns, checked};
use denizen_tests::node::world::ip;
use denizen_tests::packets::http::{fetch, url};
use denizen_tests::packets::load::Load;
use denizen_tests::packets::long_connection::{self, ECHO, LongConnection};
use denizen_tests::packets::probe::Protocol;
use denizen_tests::peers::kube_proxy::{KubeProxy, NOBODY, Served};

/// The backend looks every ten seconds; what has not happened by then never will.
const TIMEOUT: Duration = Duration::from_secs(90);

/// What every pod but the node's own serves, by the same names and addresses as kube-proxy has it.
struct TakeoverContext {
    fixture: Fixture,
    variant: Variant,
    services: Vec<Served>,
}

impl TakeoverContext {
    fn new(label: &str, variant: Variant) -> Result<Self> {
        let fixture = long_connection::fixture(label)?;
        let at = |number, port| SocketAddr::new(service_ips(number)[0], port);
        let endpoint =
            |who, port| Ok(SocketAddr::new(fixture.address(who, service_ips(10)[0])?, port));
        let web = long_connection::MEMBERS
            .iter()
            .map(|who| endpoint(*who, PORT))
            .collect::<Result<_>>()?;
        let services = vec![
            Served { name: "default/web:tcp".to_owned(), at: at(10, 80), endpoints: web },
            Served {
                name: "default/echo:echo".to_owned(),
                at: at(11, 7),
                endpoints: vec![endpoint(Host::Routed, ECHO)?],
            },
        ];
        Ok(Self { fixture, variant, services })
    }

    fn node(&self) -> &Netns {
        &self.fixture.cluster.world.node
    }

    fn kube_proxy(&self) -> KubeProxy<'_> {
        KubeProxy {
            node: self.node(),
            variant: self.variant,
            services: self.services.clone(),
            cluster_cidr: NOBODY,
        }
    }

    fn start(&self, flags: Vec<String>) -> Result<Agent> {
        self.fixture.cluster.start_agent_with(flags)
    }

    fn lasting(&self) -> Result<[LongConnection; 2]> {
        let open = |who| LongConnection::open(self.fixture.place(who).0, self.services[1].at);
        Ok([open(Host::Bridged)?, open(Host::Outside)?])
    }

    /// Connections to the web service, all the time.
    fn load(&self) -> Result<Load> {
        self.fixture.cluster.world.forget_quickly()?;
        let mut load = Load::default();
        for who in [Host::Bridged, Host::Routed, Host::Outside] {
            let targets = vec![(self.services[0].at, Protocol::Tcp)];
            load.client(self.fixture.place(who).0, targets, |outcome| {
                outcome.endpoint().is_some()
            })?;
        }
        Ok(load)
    }

    fn rules(&self) -> Result<String> {
        self.variant.dump(self.node())
    }

    /// Whether the web service's chain has the words that denizen writes.
    fn is_denizens(&self) -> Result<bool> {
        let rules = self.rules()?;
        let chosen =
            |line: &str| line.contains("default/web:tcp -> 1") && line.contains("one endpoint");
        Ok(rules.lines().any(chosen))
    }
}

fn nftables() -> Vec<String> {
    vec!["--backend=nftables".to_owned()]
}

/// Does `what` while clients connect; none of them may notice.
fn unnoticed<T>(
    context: &TakeoverContext,
    streams: &mut [LongConnection],
    what: &str,
    work: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let load = context.load()?;
    let done = work().with_context(|| what.to_owned());
    let tally = load.stop()?;
    let done = done?;
    ensure!(tally.failed == 0, "{what}: {tally:?}");
    streams.iter_mut().try_for_each(LongConnection::still_alive)?;
    Ok(done)
}

/// kube-proxy serves; denizen comes, in place; kube-proxy writes once more and ends; then the
/// nftables backend, then back.
fn taken_over(label: &str, variant: Variant) -> Result<()> {
    let context = TakeoverContext::new(label, variant)?;
    let kube_proxy = context.kube_proxy();
    kube_proxy.start()?;
    let mut streams = context.lasting()?;
    let write = || kube_proxy.sync(&context.services[..1]);
    unnoticed(&context, &mut streams, "kube-proxy writes", write)?;
    let begin = || context.start(variant.flags());
    let agent = unnoticed(&context, &mut streams, "adopted", begin)?;
    ensure!(context.is_denizens()?, "adopted");
    ensure!(kube_proxy.jumps_stand()?, "{}", context.rules()?);
    ensure!(kube_proxy.canaries_live()?, "kube-proxy would think that all was flushed");
    unnoticed(&context, &mut streams, "both write", || {
        write()?;
        ensure!(!context.is_denizens()?, "written over: {}", context.rules()?);
        eventually("repaired", TIMEOUT, || Ok(agent.status()?["driftRepaired"] == 1))
    })?;
    ensure!(kube_proxy.canaries_live()?, "kube-proxy would think that all was flushed");
    let agent = unnoticed(&context, &mut streams, "into nftables", || {
        agent.terminate()?;
        let agent = context.start(nftables())?;
        eventually("denizen's chains are gone", TIMEOUT, || {
            Ok(!context.rules()?.contains("KUBE-SVC-"))
        })?;
        Ok(agent)
    })?;
    let _agent = unnoticed(&context, &mut streams, "back", || {
        agent.terminate()?;
        context.start(variant.flags())
    })?;
    ensure!(context.is_denizens()?, "back");
    Ok(())
}

for_each_variant!(taken_over_in_place_and_into_nftables_and_back = taken_over, "take");

/// Into nftables while kube-proxy's own rules stay: the priority before theirs decides.
#[test]
fn nftables_takes_over_beside_kube_proxys_rules() -> Result<()> {
    let context = TakeoverContext::new("take-beside", Variant::Nft)?;
    let kube_proxy = context.kube_proxy();
    kube_proxy.start()?;
    let mut streams = context.lasting()?;
    let load = context.load()?;
    let _agent = context.start(nftables())?;
    let mut wrong = kube_proxy.services.clone();
    // Nobody listens there: whoever follows kube-proxy's rules now is refused.
    wrong[0].endpoints.iter_mut().for_each(|at| at.set_port(1));
    KubeProxy { services: wrong.clone(), ..context.kube_proxy() }.sync(&wrong)?;
    streams.iter_mut().try_for_each(LongConnection::still_alive)?;
    let outcome = context.fixture.probe(Host::Bridged, context.services[0].at, Protocol::Tcp)?;
    ensure!(outcome.endpoint().is_some(), "{outcome:?}");
    let tally = load.stop()?;
    ensure!(tally.failed == 0, "{tally:?}");
    Ok(())
}

/// A process that is called kube-proxy. It ends with this value.
struct Namesake {
    child: Child,
    _folder: tempfile::TempDir,
}

impl Namesake {
    fn start(node: &Netns) -> Result<Self> {
        let folder = denizen_tests::node::netns::folder()?;
        let program = folder.path().join("kube-proxy");
        std::fs::copy("/bin/sleep", &program)?;
        let child = node.run(|| Command::new(&program).arg("600").spawn())??;
        Ok(Self { child, _folder: folder })
    }
}

impl Drop for Namesake {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_kube_proxy_that_goes_on_writing_is_noticed_and_named() -> Result<()> {
    let context = TakeoverContext::new("take-fight", Variant::Nft)?;
    let kube_proxy = context.kube_proxy();
    kube_proxy.start()?;
    let namesake = Namesake::start(context.node())?;
    let load = context.load()?;
    let agent = context.start(Variant::Nft.flags())?;
    let health = || {
        Ok::<_, anyhow::Error>(
            fetch(context.node(), &url(ip("127.0.0.1"), 10256, "/healthz"), &[])?.status,
        )
    };
    ensure!(health()? == 200, "well before");
    for round in 1..=3 {
        kube_proxy.sync(&context.services)?;
        eventually("seen", TIMEOUT, || {
            let status = agent.status()?;
            Ok(if round < 3 {
                context.is_denizens()?
            } else {
                !status["errors"].as_array().is_none_or(Vec::is_empty)
            })
        })?;
    }
    let errors = agent.status()?["errors"].to_string();
    ensure!(errors.contains("kube-proxy (process"), "{errors}");
    ensure!(errors.contains(&namesake.child.id().to_string()), "{errors}");
    eventually("health is red", TIMEOUT, || Ok(health()? == 503))?;
    ensure!(agent.status()?["driftRepaired"] == 2, "{}", agent.status()?);
    let tally = load.stop()?;
    ensure!(tally.failed == 0, "kube-proxy's rules serve: {tally:?}");
    // kube-proxy has it back: what it writes now stays.
    ensure!(!context.is_denizens()?, "repair has stopped");
    Ok(())
}

#[test]
fn cleanup_removes_what_each_mode_of_kube_proxy_left() -> Result<()> {
    let context = TakeoverContext::new("take-clean", Variant::Legacy)?;
    let node = context.node();
    context.kube_proxy().start()?;
    KubeProxy { variant: Variant::Nft, ..context.kube_proxy() }.start()?;
    let ipvs = "*nat\n:KUBE-LOAD-BALANCER - [0:0]\n:KUBE-SERVICES - [0:0]\n-A KUBE-SERVICES -m set \
                --match-set KUBE-CLUSTER-IP dst,dst -j KUBE-LOAD-BALANCER\nCOMMIT\n";
    node.output("ipset", &["create", "KUBE-CLUSTER-IP", "hash:ip,port"])?;
    node.output("ipset", &["create", "KUBE-6-LOOP-BACK", "hash:ip,port,ip", "family", "inet6"])?;
    node.output("ipset", &["create", "theirs", "hash:ip"])?;
    Variant::Legacy.restore(node, "iptables", ipvs)?;
    // The kernel of the tests has no dummy devices; the name is what counts.
    node.ip("link add kube-ipvs0 type bridge")?;
    node.nft(
        "table ip kube-proxy { map service-ips { type ipv4_addr : verdict; }\nchain c { }\n}\n\
         table ip6 kube-proxy { }\ntable ip theirs { }",
    )?;
    Variant::Legacy.run(node, "-t filter -N KUBE-FIREWALL")?;
    let agent = context.start(Variant::Legacy.flags())?;
    agent.terminate()?;
    let binary = binary::ours("denizen-agent")?;
    let output =
        node.run(|| checked(Command::new(&binary).args(["cleanup", "--kube-proxy"])))??;
    eprintln!("{}", String::from_utf8_lossy(&output.stdout));
    for variant in Variant::BOTH {
        let left = variant.dump(node)?;
        let left: Vec<&str> = left.lines().filter(|line| line.contains("KUBE-")).collect();
        let kubelets = match variant {
            Variant::Legacy => vec!["iptables filter: :KUBE-FIREWALL -"],
            Variant::Nft => vec![],
        };
        assert_eq!(left, kubelets, "{variant:?}");
    }
    assert_eq!(node.output("ipset", &["list", "-n"])?.trim(), "theirs");
    let tables = node.output("nft", &["list", "tables"])?;
    ensure!(!tables.contains("kube-proxy") && !tables.contains("denizen"), "{tables}");
    ensure!(tables.contains("table ip theirs"), "{tables}");
    let links = node.output("ip", &["-brief", "link"])?;
    ensure!(!links.contains("kube-ipvs0"), "{links}");
    let again = node.run(|| checked(Command::new(&binary).args(["cleanup", "--kube-proxy"])))?;
    again.context("there is nothing left to remove")?;
    Ok(())
}
