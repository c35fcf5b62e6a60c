//! Hosts whose own firewall drops what is forwarded: it is found and said; where the operator asks
//! for it, services' connections are let through and nothing else; and cleanup leaves that firewall
//! as it was.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use denizen_tests::agent::Agent;
use denizen_tests::binary;
use denizen_tests::eventually::{eventually, observed};
use denizen_tests::node::fixture::{Fixture, Host, PORT, every_protocol, every_way};
use denizen_tests::node::netns::{Netns, checked};
use denizen_tests::node::world::ip;
use denizen_tests::oracle::flows::table::Backend;
use denizen_tests::packets::probe::{Outcome, Probe, Protocol, SILENCE};
use serde_json::Value;

/// Longer than a look at the forward hook is away on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(20);

const SENDERS: [Host; 4] = [Host::Bridged, Host::Routed, Host::Remote, Host::Outside];

/// One way to drop by default, and how to look at it.
#[derive(Clone, Copy)]
struct Firewall {
    label: &'static str,
    /// Commands that set it up.
    up: &'static [&'static [&'static str]],
    /// Commands that show all of it, without what merely counts.
    show: &'static [&'static [&'static str]],
    /// What the agent calls it.
    output: [&'static str; 2],
}

const POLICY: Firewall = Firewall {
    label: "fwpolicy",
    up: &[&[
        "nft",
        "add table inet filter; \
         add chain inet filter forward { type filter hook forward priority 0; policy drop; }",
    ]],
    show: &[&["nft", "-s", "list", "table", "inet", "filter"]],
    output: ["table inet filter, chain forward"; 2],
};

/// As firewalld and RHEL have it: the policy accepts, and the last rule refuses. What comes before
/// lets others through.
const LAST_RULE: Firewall = Firewall {
    label: "fwrule",
    up: &[
        &[
            "nft",
            "add table inet fw; add chain inet fw others; \
             add chain inet fw last { type filter hook forward priority 10; }",
        ],
        &["nft", "add rule inet fw others ip daddr 192.0.2.0/24 accept"],
        &["nft", "add rule inet fw last jump others; add rule inet fw last counter reject"],
    ],
    show: &[&["nft", "-s", "list", "table", "inet", "fw"]],
    output: ["table inet fw, chain last"; 2],
};

const IPTABLES_NFT: Firewall = Firewall {
    label: "fwiptnft",
    up: &[
        &["iptables-nft", "-P", "FORWARD", "DROP"],
        &["ip6tables-nft", "-P", "FORWARD", "DROP"],
        &["iptables-nft", "-A", "FORWARD", "-d", "192.0.2.0/24", "-j", "ACCEPT"],
    ],
    show: &[&["iptables-nft", "-S"], &["ip6tables-nft", "-S"]],
    output: ["table ip filter, chain FORWARD", "table ip6 filter, chain FORWARD"],
};

const IPTABLES_LEGACY: Firewall = Firewall {
    label: "fwiptleg",
    up: &[
        &["iptables-legacy", "-w", "-P", "FORWARD", "DROP"],
        &["ip6tables-legacy", "-w", "-P", "FORWARD", "DROP"],
    ],
    show: &[&["iptables-legacy", "-w", "-S"], &["ip6tables-legacy", "-w", "-S"]],
    output: ["the filter table of iptables-legacy", "the filter table of ip6tables-legacy"],
};

/// What drops packets for this node itself, through which IPVS's pass.
const INPUT: Firewall = Firewall {
    label: "fwinput",
    up: &[
        &[
            "nft",
            "add table inet filter; \
             add chain inet filter entry { type filter hook input priority 0; policy drop; }; \
             add rule inet filter entry iif lo accept",
        ],
        &["iptables-legacy", "-w", "-A", "INPUT", "-i", "lo", "-j", "ACCEPT"],
        &["iptables-legacy", "-w", "-P", "INPUT", "DROP"],
    ],
    show: &[&["nft", "-s", "list", "table", "inet", "filter"], &["iptables-legacy", "-w", "-S"]],
    output: ["table inet filter, chain entry", "iptables-legacy, chain INPUT"],
};

impl Firewall {
    /// Whether all of it is complained of.
    fn is_reported(&self, output: &[String]) -> bool {
        self.output.iter().all(|name| output.iter().any(|text| text.contains(name)))
    }

    fn put_up(&self, node: &Netns) -> Result<()> {
        self.up.iter().try_for_each(|words| node.output(words[0], &words[1..]).map(drop))
    }

    /// Without the chains of services, where these are in the same table.
    fn shown(&self, node: &Netns) -> Result<String> {
        let mut all = String::new();
        for words in self.show {
            let text = node.output(words[0], &words[1..])?;
            let lines = text.lines().filter(|line| !line.contains("KUBE-"));
            lines.for_each(|line| all += &format!("{line}\n"));
        }
        Ok(all)
    }
}

/// Errors and warnings.
fn complaints(agent: &Agent) -> Result<Vec<String>> {
    let status = agent.status()?;
    let all = ["errors", "warnings"].into_iter().filter_map(|which| status[which].as_array());
    Ok(all.flatten().filter_map(Value::as_str).map(str::to_owned).collect())
}

/// Waits until what the agent complains of is as `right` says.
fn wait_complaints(agent: &Agent, right: impl Fn(&[String]) -> bool) -> Result<()> {
    observed("said", TIMEOUT, || complaints(agent), |now| right(now)).map(drop)
}

fn run(fixture: &Fixture, backend: Backend) -> Result<Agent> {
    fixture.cluster.start_agent_with(backend.flags())
}

fn opening(fixture: &Fixture, backend: Backend) -> Result<Agent> {
    let flags = backend.flags().into_iter().chain(["--open-forward".to_owned()]);
    fixture.cluster.start_agent_with(flags)
}

/// Waits until everyone can reach the service in every way; several datagrams before the first
/// answer too.
fn everyone_is_served(fixture: &Fixture) -> Result<()> {
    for (to, protocol) in every_way(10) {
        for who in SENDERS {
            let is_served = |outcome: &Outcome| outcome.endpoint().is_some();
            observed("served", TIMEOUT, || fixture.probe(who, to, protocol), is_served)
                .with_context(|| format!("{who:?} to {to}/{protocol}"))?;
        }
    }
    Ok(())
}

/// Translates a connection to another node's pod, as a port mapping does, behind everybody's
/// services.
const MAPPING: &str = "table ip mapping { chain in { type nat hook prerouting priority -90; \
    ip daddr 192.0.2.77 tcp dport 80 counter dnat to 192.168.77.10:8080; }; }";

/// What is no service's connection: straight to another node's pod, and what somebody else has
/// translated.
fn is_dropped_otherwise(fixture: &Fixture) -> Result<()> {
    let node = &fixture.cluster.world.node;
    node.nft(MAPPING)?;
    let mapped = Probe::tcp((ip("192.0.2.77"), 80).into()).timeout(SILENCE);
    let outcome = mapped.send_in(fixture.place(Host::Bridged).0);
    let seen = node.output("nft", &["list", "table", "ip", "mapping"])?;
    ensure!(!seen.contains("packets 0 "), "{seen}");
    ensure!(outcome.endpoint().is_none(), "somebody else's: {outcome:?}");
    node.nft("delete table ip mapping")?;
    for (to, _) in every_way(10) {
        let pod = (fixture.address(Host::Remote, to.ip())?, PORT).into();
        let probe = Probe::tcp(pod).timeout(SILENCE);
        let outcome = probe.send_in(fixture.place(Host::Bridged).0);
        ensure!(outcome.endpoint().is_none(), "{pod}: {outcome:?}");
    }
    Ok(())
}

fn start(firewall: Firewall, backend: Backend) -> Result<(Fixture, String)> {
    let fixture = Fixture::new(&format!("{}-{}", firewall.label, backend as u8))?;
    let web = fixture.service("web", 10, &every_protocol(), &[Host::Remote])?;
    fixture.cluster.manifests.put("web", &web)?;
    let node = &fixture.cluster.world.node;
    firewall.put_up(node)?;
    let before = firewall.shown(node)?;
    Ok((fixture, before))
}

fn found_opened_and_cleaned_up(firewall: Firewall, backend: Backend) -> Result<()> {
    let (fixture, before) = start(firewall, backend)?;
    let node = &fixture.cluster.world.node;
    let agent = run(&fixture, backend)?;
    wait_complaints(&agent, |output| firewall.is_reported(output))?;
    for (to, _) in every_way(10) {
        let probe = Probe::tcp(to).timeout(SILENCE);
        // A pod's, whose source is kept: KUBE-FORWARD accepts what is masqueraded.
        let outcome = probe.send_in(fixture.place(Host::Bridged).0);
        assert!(
            matches!(outcome, Outcome::Dropped | Outcome::Refused | Outcome::Unreachable),
            "{outcome:?}"
        );
    }
    assert_eq!(firewall.shown(node)?, before, "nothing was asked for");
    assert!(agent.terminate()?.success());

    let agent = opening(&fixture, backend)?;
    everyone_is_served(&fixture)?;
    is_dropped_otherwise(&fixture)?;
    wait_complaints(&agent, <[String]>::is_empty)?;
    let opened = firewall.shown(node)?;
    assert_eq!(opened.matches("denizen: ").count(), 2 * firewall.show.len(), "{opened}");
    assert!(agent.terminate()?.success());
    let agent = opening(&fixture, backend)?;
    everyone_is_served(&fixture)?;
    assert_eq!(firewall.shown(node)?, opened, "a restart changes nothing");
    assert!(agent.terminate()?.success());

    let mut cleanup = Command::new(binary::ours("denizen-agent")?);
    node.run(|| checked(cleanup.arg("cleanup")))??;
    assert_eq!(firewall.shown(node)?, before, "cleanup leaves it as it was");
    Ok(())
}

/// Every firewall beside every backend; those of iptables also in the tables that its own services
/// are in.
fn beside_every_backend(firewall: Firewall) -> Result<()> {
    for backend in Backend::ALL {
        found_opened_and_cleaned_up(firewall, backend).with_context(|| format!("{backend:?}"))?;
    }
    Ok(())
}

#[test]
fn nft_policy_drop() -> Result<()> {
    beside_every_backend(POLICY)
}

#[test]
fn nft_last_rule() -> Result<()> {
    beside_every_backend(LAST_RULE)
}

#[test]
fn iptables_nft() -> Result<()> {
    beside_every_backend(IPTABLES_NFT)
}

#[test]
fn iptables_legacy() -> Result<()> {
    beside_every_backend(IPTABLES_LEGACY)
}

/// The flag taken away again takes the rules away; and a firewall that is reloaded is opened again.
#[test]
fn a_reload_is_opened_again_and_without_the_flag_all_is_as_before() -> Result<()> {
    let (fixture, before) = start(POLICY, Backend::Nftables)?;
    let node = &fixture.cluster.world.node;
    let agent = opening(&fixture, Backend::Nftables)?;
    everyone_is_served(&fixture)?;
    node.nft("flush chain inet filter forward")?;
    assert_eq!(POLICY.shown(node)?, before);
    everyone_is_served(&fixture)?;
    // A firewall that comes later is found, too.
    LAST_RULE.put_up(node)?;
    everyone_is_served(&fixture)?;
    assert!(agent.terminate()?.success());
    let agent = fixture.cluster.start_agent()?;
    wait_complaints(&agent, |output| output.len() == 2)?;
    assert_eq!(POLICY.shown(node)?, before);
    assert!(!LAST_RULE.shown(node)?.contains("denizen"));
    let warned = agent.status()?["warnings"].as_array().context("warnings")?.len();
    assert_eq!(warned, 1, "whether what the second accepts is enough cannot be known");
    Ok(())
}

/// Without IPVS in the kernel nothing passes there yet, and it is opened all the same.
#[test]
fn what_ipvs_carries_is_let_through_the_input_hook() -> Result<()> {
    let (fixture, before) = start(INPUT, Backend::Nftables)?;
    let node = &fixture.cluster.world.node;
    let by_ipvs = || "--backend=ipvs".to_owned();
    let agent = fixture.cluster.start_agent_with([by_ipvs()])?;
    wait_complaints(&agent, |output| INPUT.is_reported(output))?;
    assert_eq!(INPUT.shown(node)?, before, "nothing was asked for");
    assert!(agent.terminate()?.success());
    let agent = fixture.cluster.start_agent_with([by_ipvs(), "--open-forward".to_owned()])?;
    let is_open = |shown: &String| shown.matches("denizen: ").count() == INPUT.show.len();
    observed("opened", TIMEOUT, || INPUT.shown(node), is_open)?;
    assert!(agent.terminate()?.success());
    // Other backends' connections do not pass there.
    let agent = opening(&fixture, Backend::Nftables)?;
    observed("closed", TIMEOUT, || INPUT.shown(node), |shown| *shown == before)?;
    wait_complaints(&agent, <[String]>::is_empty)
}

/// A datagram that follows before the first is answered is no less the service's.
#[test]
fn the_second_packet_before_the_first_answer_is_let_through() -> Result<()> {
    let (fixture, _) = start(POLICY, Backend::Nftables)?;
    let node = &fixture.cluster.world.node;
    let _agent = opening(&fixture, Backend::Nftables)?;
    everyone_is_served(&fixture)?;
    // The remote pod is struck dumb: no answer comes that would make the connection established.
    fixture.cluster.world.remote.nft(
        "table inet dumb { counter came {}; chain in { type filter hook input priority 0; \
         udp dport 8080 counter name came drop; }; }",
    )?;
    for (to, _) in every_way(10).filter(|(_, protocol)| *protocol == Protocol::Udp) {
        fixture.place(Host::Bridged).0.run(|| -> Result<()> {
            let socket =
                std::net::UdpSocket::bind(if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" })?;
            socket.connect(to)?;
            (0..3).try_for_each(|_| socket.send(b"who?").map(drop))?;
            Ok(())
        })??;
    }
    let came = || -> Result<bool> {
        let text = fixture
            .cluster
            .world
            .remote
            .output("nft", &["list", "counter", "inet", "dumb", "came"])?;
        Ok(text.contains("packets 6 "))
    };
    eventually("all datagrams came", TIMEOUT, came)
        .with_context(|| node.output("nft", &["list", "ruleset"]).unwrap_or_default())
}
