//! From another engine of NetworkPolicy to denizen and back, as conf/MIGRATION-POLICY.md says.

use std::net::SocketAddr;
use std::process::Command;

use anyhow::{Result, ensure};
use denizen_tests::agent::Agent;
use denizen_tests::conf::folder;
use denizen_tests::for_each_variant;
use denizen_tests::kernel::iptables::Variant;
use denizen_tests::node::fixture::{Fixture, Host, PORT, service_ips};
use denizen_tests::node::netns::{Netns, checked};
use denizen_tests::packets::load::Load;
use denizen_tests::packets::probe::Protocol;
use denizen_tests::policy::{LabelSelector, NetworkPolicy, PolicyPeer, PolicyRule, PolicyWorld};

/// The rules of kube-router's firewall for a pod at `WEB` that `CLIENT` may reach.
const KUBE_ROUTER: &str = r#"*filter
:KUBE-ROUTER-INPUT - [0:0]
:KUBE-ROUTER-FORWARD - [0:0]
:KUBE-ROUTER-OUTPUT - [0:0]
:KUBE-NWPLCY-COMMON - [0:0]
:KUBE-NWPLCY-DEFAULT - [0:0]
:KUBE-NWPLCY-5TKVWCWY3DHWVK5T - [0:0]
:KUBE-POD-FW-WTJSQKJBFHGLXZGS - [0:0]
-I INPUT -m comment --comment "kube-router netpol - 4IA2OSFRMVNDXBVV" -j KUBE-ROUTER-INPUT
-I FORWARD -m comment --comment "kube-router netpol - TEMCG2JMHZYE7H7T" -j KUBE-ROUTER-FORWARD
-I OUTPUT -m comment --comment "kube-router netpol - VEAAIY32XVBHCSCY" -j KUBE-ROUTER-OUTPUT
-A KUBE-NWPLCY-COMMON -m conntrack --ctstate INVALID -j DROP
-A KUBE-NWPLCY-COMMON -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A KUBE-NWPLCY-COMMON -p icmp -m icmp --icmp-type 8 -j ACCEPT
-A KUBE-NWPLCY-DEFAULT -j MARK --set-xmark 0x10000/0x10000
-A KUBE-NWPLCY-5TKVWCWY3DHWVK5T -p tcp -m set --match-set KUBE-SRC-PXDWGRLFEXQEO7R7 src -m set --match-set KUBE-DST-Q6YEQO43FXWRLVKZ dst -m tcp --dport 8080 -j MARK --set-xmark 0x10000/0x10000
-A KUBE-NWPLCY-5TKVWCWY3DHWVK5T -m mark --mark 0x10000/0x10000 -j RETURN
-A KUBE-POD-FW-WTJSQKJBFHGLXZGS -j KUBE-NWPLCY-COMMON
-A KUBE-POD-FW-WTJSQKJBFHGLXZGS -d WEB -m addrtype --src-type LOCAL -j ACCEPT
-A KUBE-POD-FW-WTJSQKJBFHGLXZGS -d WEB -j KUBE-NWPLCY-5TKVWCWY3DHWVK5T
-A KUBE-POD-FW-WTJSQKJBFHGLXZGS -s WEB -j KUBE-NWPLCY-DEFAULT
-A KUBE-POD-FW-WTJSQKJBFHGLXZGS -m mark ! --mark 0x10000/0x10000 -j REJECT --reject-with icmp-port-unreachable
-A KUBE-POD-FW-WTJSQKJBFHGLXZGS -j MARK --set-xmark 0x0/0x10000
-A KUBE-POD-FW-WTJSQKJBFHGLXZGS -j MARK --set-xmark 0x20000/0x20000
-A KUBE-ROUTER-FORWARD -d WEB -j KUBE-POD-FW-WTJSQKJBFHGLXZGS
-A KUBE-ROUTER-FORWARD -s WEB -j KUBE-POD-FW-WTJSQKJBFHGLXZGS
-A KUBE-ROUTER-FORWARD -m mark --mark 0x20000/0x20000 -j ACCEPT
-A KUBE-ROUTER-OUTPUT -d WEB -j KUBE-POD-FW-WTJSQKJBFHGLXZGS
-A KUBE-ROUTER-INPUT -s WEB -j KUBE-POD-FW-WTJSQKJBFHGLXZGS
COMMIT
"#;

/// What Felix writes, in part: each table has chains, and FORWARD has rules beside the jump.
const CALICO: &str = r#"*filter
:cali-FORWARD - [0:0]
:cali-from-wl-dispatch - [0:0]
-I FORWARD -m comment --comment "cali:wUHhoiAYhphO9Mso" -j cali-FORWARD
-A FORWARD -m comment --comment "cali:S93hcgKJrXEqnTfs" -m comment --comment "Policy explicitly accepted packet." -m mark --mark 0x10000/0x10000 -j ACCEPT
-A cali-FORWARD -i cali+ -j cali-from-wl-dispatch
-A cali-FORWARD -m set --match-set cali40masq-ipam-pools src -j MARK --set-xmark 0x10000/0x10000
-A cali-from-wl-dispatch -m comment --comment "Unknown interface" -j DROP
COMMIT
*nat
:cali-POSTROUTING - [0:0]
-A POSTROUTING -m comment --comment "cali:O3lYWMrLQYEMJtB5" -j cali-POSTROUTING
COMMIT
*mangle
:cali-PREROUTING - [0:0]
-A PREROUTING -m comment --comment "cali:6gwbT8clXdHdC1b1" -j cali-PREROUTING
COMMIT
*raw
:cali-PREROUTING - [0:0]
-A PREROUTING -m comment --comment "cali:XFX5xbM8B9qR10JG" -j cali-PREROUTING
COMMIT
"#;

/// What is nobody's business: kube-router's service proxy has a chain with its name too.
const OTHERS: &str = r#"*filter
:KUBE-SERVICES - [0:0]
:KUBE-ROUTER-SERVICES - [0:0]
-A INPUT -m comment --comment "handle traffic to IPVS service IPs" -j KUBE-ROUTER-SERVICES
-A FORWARD -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A KUBE-SERVICES -m set --match-set theirs src -j RETURN
COMMIT
"#;

const SETS: [&str; 2] = ["KUBE-SRC-PXDWGRLFEXQEO7R7", "KUBE-DST-Q6YEQO43FXWRLVKZ"];

struct Migration {
    fixture: Fixture,
    variant: Variant,
}

impl Migration {
    /// Of the pods, the bridged one is a client of the routed one.
    fn new(label: &str, variant: Variant) -> Result<Self> {
        let fixture = Fixture::new(label)?;
        let clients = PolicyRule::from([PolicyPeer::pods(LabelSelector::label("role", "client"))]);
        let policy = NetworkPolicy::new("default", "clients", LabelSelector::label("role", "web"));
        let world =
            PolicyWorld { policies: vec![policy.ingress([clients])], ..PolicyWorld::default() };
        fixture.cluster.manifests.put("policies", &world.manifests())?;
        fixture.cluster.manifests.put("pods", &fixture.pod_objects("client", "web"))?;
        others(&fixture.cluster.world.node, variant)?;
        Ok(Self { fixture, variant })
    }

    fn node(&self) -> &Netns {
        &self.fixture.cluster.world.node
    }

    fn address(&self, who: Host) -> Result<String> {
        Ok(self.fixture.address(who, service_ips(0)[0])?.to_string())
    }

    /// kube-router synchronises.
    fn kube_router(&self) -> Result<()> {
        let (client, web) = (self.address(Host::Bridged)?, self.address(Host::Routed)?);
        for (set, member) in SETS.iter().zip([&client, &web]) {
            self.node().output("ipset", &["create", set, "hash:ip", "-exist"])?;
            self.node().output("ipset", &["add", set, member, "-exist"])?;
        }
        self.variant.restore(self.node(), "iptables", &KUBE_ROUTER.replace("WEB", &web))
    }

    fn start(&self, mode: &str) -> Result<Agent> {
        self.fixture.cluster.start_agent_with([format!("--network-policy={mode}")])
    }

    fn enforces(&self) -> Result<bool> {
        let tables = self.node().output("nft", &["list", "tables"])?;
        Ok(tables.contains("denizen-firewall"))
    }

    /// The client, which is answered all the time, and a host outside, which never is.
    fn load(&self) -> Result<Load> {
        self.fixture.cluster.world.forget_quickly()?;
        let web = SocketAddr::new(self.fixture.address(Host::Routed, service_ips(0)[0])?, PORT);
        let mut load = Load::default();
        for (who, is_client) in [(Host::Bridged, true), (Host::Outside, false)] {
            load.client(self.fixture.place(who).0, vec![(web, Protocol::Tcp)], move |outcome| {
                outcome.endpoint().is_some() == is_client
            })?;
        }
        Ok(load)
    }
}

/// The rules and the set of others.
fn others(node: &Netns, variant: Variant) -> Result<()> {
    node.output("ipset", &["create", "theirs", "hash:ip"])?;
    variant.restore(node, "iptables", OTHERS)
}

fn remove_leftovers(node: &Netns, engine: &str) -> Result<()> {
    let script = folder().join("remove-policy-leftovers");
    let done = node.run(|| checked(Command::new(&script).arg(engine)))??;
    ensure!(done.stderr.is_empty(), "{}", String::from_utf8_lossy(&done.stderr));
    Ok(())
}

fn migrated(label: &str, variant: Variant) -> Result<()> {
    let context = Migration::new(label, variant)?;
    let before = variant.dump(context.node())?;
    context.kube_router()?;
    let load = context.load()?;
    let agent = context.start("auto")?;
    assert_eq!(agent.status()?["networkPolicyEngine"], "kube-router");
    ensure!(!context.enforces()?, "auto leaves it to kube-router");
    agent.terminate()?;
    let agent = context.start("on")?;
    ensure!(context.enforces()?, "both do");
    remove_leftovers(context.node(), "kube-router")?;
    let services = |rules: String| -> Vec<String> {
        let lines = rules.lines().filter(|line| !line.contains("denizen"));
        lines.map(str::to_owned).collect()
    };
    assert_eq!(services(variant.dump(context.node())?), services(before));
    assert_eq!(context.node().output("ipset", &["list", "-n"])?.trim(), "theirs");
    agent.terminate()?;
    let agent = context.start("auto")?;
    assert_eq!(agent.status()?["networkPolicyEngine"], "Denizen");
    // And back.
    context.kube_router()?;
    agent.terminate()?;
    let agent = context.start("auto")?;
    assert_eq!(agent.status()?["networkPolicyEngine"], "kube-router");
    ensure!(!context.enforces()?, "nothing is left");
    let tally = load.stop()?;
    ensure!(tally.failed == 0 && tally.answered > 0, "{tally:?}");
    Ok(())
}

for_each_variant!(from_kube_routers_firewall_and_back_without_a_window = migrated, "mig-kr");

#[test]
fn what_calico_left_is_removed_and_nothing_else() -> Result<()> {
    for variant in Variant::BOTH {
        let node = Netns::new("mig-calico")?;
        others(&node, variant)?;
        let before = variant.dump(&node)?;
        node.output("ipset", &["create", "cali40masq-ipam-pools", "hash:net"])?;
        node.nft("table ip calico { }\ntable ip6 calico { }\ntable ip theirs { }")?;
        variant.restore(&node, "iptables", CALICO)?;
        for _ in 0..2 {
            remove_leftovers(&node, "calico")?;
        }
        let rules = |dump: String| -> Vec<String> {
            // The kernel's own chains come with the first rule.
            let is_somebodys = |line: &&str| line.contains(": -A ") || line.ends_with(" -");
            dump.lines().filter(is_somebodys).map(str::to_owned).collect()
        };
        assert_eq!(rules(variant.dump(&node)?), rules(before), "{variant:?}");
        assert_eq!(node.output("ipset", &["list", "-n"])?.trim(), "theirs");
        let tables = node.output("nft", &["list", "tables"])?;
        ensure!(tables.contains("theirs") && !tables.contains("calico"), "{tables}");
    }
    Ok(())
}
