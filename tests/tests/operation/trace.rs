//! `denizen-agent trace`: what it follows, what it leaves alone, and what it says when a packet
//! goes another way than `explain` says. That it agrees with `explain` where all is well, the flow
//! table shows for every row.

use anyhow::{Context, Result, ensure};
use denizen_tests::agent::trace::{TraceCommand, TraceReport};
use denizen_tests::agent::{Agent, programmed};
use denizen_tests::binary;
use denizen_tests::eventually::eventually;
use denizen_tests::node::fixture::{Fixture, Host, PORT, service_ips};
use denizen_tests::node::manifest::Port;
use denizen_tests::oracle::flows::table::Backend;
use denizen_tests::packets::probe::{Outcome, Probe, Protocol, SILENCE};
use denizen_tests::policy::{LabelSelector, NetworkPolicy, PolicyPeer, PolicyRule, PolicyWorld};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

/// What has not taken effect by then never will.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The service of number 10, `web`, which the routed pod serves.
fn to_web() -> SocketAddr {
    SocketAddr::new(service_ips(10)[0], 80)
}

fn context(label: &str, flags: &[&str]) -> Result<(Fixture, Agent)> {
    let fixture = Fixture::new(label)?;
    let ports = [Port::tcp("http", 80, PORT)];
    let web = fixture.service("web", 10, &ports, &[Host::Routed])?;
    fixture.cluster.manifests.put("services", &web)?;
    let agent = fixture.cluster.start_agent_with(flags.iter().copied())?;
    Ok((fixture, agent))
}

/// Follows the next packet of `who` to the service.
fn follow(fixture: &Fixture, agent: &Agent, who: Host) -> Result<(TraceCommand, std::net::IpAddr)> {
    let source = fixture.address(who, to_web().ip())?;
    let (from, to) = (source.to_string(), to_web().to_string());
    let arguments = ["--from", &from, "--to", &to];
    Ok((TraceCommand::start(&fixture.cluster.world.node, agent, &arguments)?, source))
}

fn traced(fixture: &Fixture, agent: &Agent, who: Host) -> Result<(TraceReport, Outcome)> {
    let (tracing, source) = follow(fixture, agent, who)?;
    let probe = Probe::tcp(to_web()).from(source).timeout(SILENCE);
    let outcome = probe.send_in(fixture.place(who).0);
    Ok((tracing.end()?, outcome))
}

fn tables(fixture: &Fixture) -> Result<String> {
    fixture.cluster.world.node.output("nft", &["list", "tables"])
}

#[test]
fn what_is_asked_for_is_followed_and_nothing_is_left() -> Result<()> {
    let (fixture, agent) = context("trace-only", &[])?;
    let before = tables(&fixture)?;
    let (tracing, source) = follow(&fixture, &agent, Host::Outside)?;
    ensure!(tables(&fixture)?.contains("denizen-trace-"), "no table");
    // Others' packets to the same service, and the same host's to another port.
    for who in [Host::Remote, Host::Bridged, Host::ThisNode] {
        let outcome = fixture.probe(who, to_web(), Protocol::Tcp)?;
        ensure!(outcome.endpoint().is_some(), "{who:?}: {outcome:?}");
    }
    let elsewhere = Probe::tcp(SocketAddr::new(to_web().ip(), 81)).from(source);
    elsewhere.send_in(fixture.place(Host::Outside).0);
    Probe::tcp(to_web()).from(source).send_in(fixture.place(Host::Outside).0);
    let traced = tracing.end()?;
    traced.ensure_as_predicted()?;
    let [packet] = traced.packets() else { anyhow::bail!("{:#}", traced.0) };
    let came = packet["source"]["address"].as_str().context("an address")?;
    ensure!(came.starts_with(&format!("{source}:")), "{packet:#}");
    ensure!(packet["service"] == "default/web:http", "{packet:#}");
    ensure!(
        packet["hooks"].to_string().contains("protocol and port name the service"),
        "{packet:#}"
    );
    assert_eq!(tables(&fixture)?, before);
    let (tracing, _) = follow(&fixture, &agent, Host::Outside)?;
    tracing.kill()?;
    assert_eq!(tables(&fixture)?, before, "after SIGKILL");
    Ok(())
}

#[test]
fn names_stand_for_addresses_and_are_shown() -> Result<()> {
    let (fixture, agent) = context("trace-names", &[])?;
    for (who, pod) in [(Host::Bridged, "bridged"), (Host::Routed, "routed")] {
        let from = format!("default/{pod}");
        let arguments = ["--from", &from, "--to", "default/web:http"];
        let tracing = TraceCommand::start(&fixture.cluster.world.node, &agent, &arguments)?;
        let outcome = fixture.probe(who, to_web(), Protocol::Tcp)?;
        ensure!(outcome.endpoint().is_some(), "{who:?}: {outcome:?}");
        let traced = tracing.end()?;
        traced.ensure_as_predicted()?;
        let packet = &traced.packets()[0];
        ensure!(packet["source"]["name"] == from.as_str(), "{packet:#}");
        ensure!(packet["lastDestination"]["name"] == "default/routed", "{packet:#}");
        let output = packet["output"].as_str().context("an interface")?;
        ensure!(output == fixture.routed.input_interface, "{packet:#}");
        // What the bridge's tables do comes first.
        let first = packet["hooks"][0]["hook"] == "bridge prerouting";
        ensure!(first == (who == Host::Bridged), "{packet:#}");
    }
    Ok(())
}

/// The backends whose rules are nf_tables'.
const TRACED: [Backend; 2] = [Backend::Nftables, Backend::IptablesNft];

fn context_of(label: &str, backend: Backend) -> Result<(Fixture, Agent)> {
    let flags = backend.flags();
    context(label, &flags.iter().map(String::as_str).collect::<Vec<_>>())
}

/// What another program adds, and the words for the rule of its that drops.
const OTHERS: [(&str, &[&str], [&str; 3]); 2] = [
    (
        "nft",
        &["add table inet strict { chain forward { type filter hook forward priority -5; \
           tcp dport 8080 counter drop comment \"no web\"; }; }"],
        ["table inet strict, chain forward", "th dport 8080 drop", "no web"],
    ),
    (
        "iptables-nft",
        &["-I", "FORWARD", "-p", "tcp", "-m", "comment", "--comment", "no web", "-j", "DROP"],
        ["table ip filter, chain FORWARD", "drop", "no web"],
    ),
];

#[test]
fn who_drops_a_packet_is_named() -> Result<()> {
    for backend in TRACED {
        for (program, arguments, words) in OTHERS {
            let (fixture, agent) = context_of("trace-drop", backend)?;
            fixture.cluster.world.node.output(program, arguments)?;
            let (traced, outcome) = traced(&fixture, &agent, Host::Outside)?;
            assert_eq!(outcome, Outcome::Dropped);
            let packet = &traced.packets()[0];
            let [difference] = &traced.differences()[..] else { anyhow::bail!("{packet:#}") };
            for part in ["should be forwarded", "was dropped by"].iter().chain(&words) {
                ensure!(difference.contains(part), "no {part:?}, {backend:?}: {packet:#}");
            }
            ensure!(packet["fate"] == "dropped", "{packet:#}");
        }
    }
    Ok(())
}

/// The reasons of the rules that each followed packet of `who` matched.
fn reasons(fixture: &Fixture, agent: &Agent, who: Host) -> Result<Vec<Vec<String>>> {
    const PACKETS: usize = 24;
    let (from, to) = (fixture.address(who, to_web().ip())?.to_string(), to_web().to_string());
    let count = PACKETS.to_string();
    let arguments = ["--from", &from, "--to", &to, "--count", &count];
    let tracing = TraceCommand::start(&fixture.cluster.world.node, agent, &arguments)?;
    for _ in 0..PACKETS {
        let outcome = Probe::tcp(to_web()).from(from.parse()?).send_in(fixture.place(who).0);
        ensure!(outcome.endpoint().is_some(), "{who:?}: {outcome:?}");
        // No faster than packets are marked.
        std::thread::sleep(Duration::from_millis(100));
    }
    let traced = tracing.end()?;
    traced.ensure_as_predicted()?;
    let of_packet = |packet: &Value| {
        let hooks = packet["hooks"].as_array().into_iter().flatten();
        let rules = hooks.flat_map(|hook| hook["rules"].as_array().into_iter().flatten());
        rules.filter_map(|rule| rule["reason"].as_str().map(str::to_owned)).collect()
    };
    Ok(traced.packets().iter().map(of_packet).collect())
}

/// A reason is read as what the rule found of the packet that matched it.
#[test]
fn reasons_are_true_of_the_packets_that_match_their_rules() -> Result<()> {
    for backend in TRACED {
        let (fixture, agent) = context_of("trace-reasons", backend)?;
        let ports = [Port::tcp("http", 80, PORT)];
        let everybody = [Host::Bridged, Host::Routed, Host::Remote];
        let web = fixture.service("web", 10, &ports, &everybody)?;
        fixture.cluster.manifests.put("services", &web)?;
        agent.until("endpoints", TIMEOUT, |status| status["endpoints"] == 3)?;
        for (who, is_pod) in [(Host::Bridged, true), (Host::Routed, true), (Host::Outside, false)] {
            let all = reasons(&fixture, &agent, who)?;
            for reasons in &all {
                let printed = |part: &str| reasons.iter().any(|reason| reason.contains(part));
                let context = || format!("{backend:?}, {who:?}: {reasons:#?}");
                ensure!(printed("not a local pod: ") != is_pod, "{}", context());
                // It is a cluster IP's, and its service has no policy.
                ensure!(!printed("traffic from outside goes only"), "{}", context());
                // It was forwarded, so a slot was found.
                ensure!(!printed("no endpoint in that slot"), "{}", context());
            }
            let is_later = |reason: &String| reason.starts_with("earlier draws found no endpoint");
            let later = all.iter().filter(|reasons| reasons.iter().any(is_later)).count();
            let are_drawn = backend == Backend::Nftables;
            ensure!((later > 0 && later < all.len()) == are_drawn, "{later} of {all:#?}");
        }
    }
    Ok(())
}

/// What falsifies a plan in the kernel, whose packets differ then, and how.
const FALSIFIED: [(Backend, &str, &[&str], Host, &str); 4] = [
    (
        Backend::Nftables,
        "nft",
        &["flush map ip denizen services"],
        Host::Routed,
        "it should be forwarded, and was refused by table ip denizen",
    ),
    (
        Backend::Nftables,
        "nft",
        &["flush chain ip denizen postrouting"],
        Host::Outside,
        "its source should become the node's address",
    ),
    (
        Backend::IptablesNft,
        "iptables-nft",
        &["-t", "nat", "-F", "KUBE-SERVICES"],
        Host::Routed,
        "it should go to",
    ),
    (
        Backend::IptablesNft,
        "iptables-nft",
        &["-t", "nat", "-F", "KUBE-POSTROUTING"],
        Host::Outside,
        "its source should become the node's address",
    ),
];

/// The agent would repair what is falsified, so it is stopped meanwhile.
#[test]
fn rules_that_are_not_the_plans_are_found() -> Result<()> {
    for backend in TRACED {
        let (fixture, agent) = context_of("trace-false", backend)?;
        let signal = |signal| kill(Pid::from_raw(agent.pid().cast_signed()), signal);
        let of_it = FALSIFIED.iter().filter(|(of, ..)| *of == backend);
        for (_, program, arguments, who, difference) in of_it {
            let (tracing, source) = follow(&fixture, &agent, *who)?;
            signal(Signal::SIGSTOP)?;
            fixture.cluster.world.node.output(program, arguments)?;
            let probe = Probe::tcp(to_web()).from(source).timeout(SILENCE);
            probe.send_in(fixture.place(*who).0);
            let traced = tracing.end()?;
            signal(Signal::SIGCONT)?;
            let differences = traced.differences();
            ensure!(
                differences.iter().any(|found| found.contains(difference)),
                "no {difference:?}, {backend:?}: {:#}",
                traced.packets()[0]
            );
        }
    }
    Ok(())
}

/// The one packet of a pod whose policy forbids it ends at the policy's rule, as explain says.
#[test]
fn a_policys_drop_is_traced_as_predicted() -> Result<()> {
    let (fixture, agent) = context("trace-policy", &["--network-policy=on"])?;
    let manifests = &fixture.cluster.manifests;
    manifests.put("pods", &fixture.pod_objects("client", "web"))?;
    let friends = PolicyRule::from([PolicyPeer::pods(LabelSelector::label("role", "friend"))]);
    let policy = NetworkPolicy::new("default", "only-friends", LabelSelector::label("role", "web"));
    let policies =
        PolicyWorld { policies: vec![policy.ingress([friends])], ..PolicyWorld::default() };
    let change = || manifests.put("policies", &policies.manifests());
    programmed(&agent, change, || {})?;
    let (traced, outcome) = traced(&fixture, &agent, Host::Bridged)?;
    assert_eq!(outcome, Outcome::Dropped);
    traced.ensure_as_predicted()?;
    let packet = &traced.packets()[0];
    ensure!(packet["fate"] == "dropped", "{packet:#}");
    let by = packet["by"].as_str().context("who dropped it")?;
    for part in ["ip denizen-firewall", "no policy permits this to reach the pod"] {
        ensure!(by.contains(part), "no {part:?}: {packet:#}");
    }
    ensure!(packet["lastDestination"]["name"] == "default/routed", "{packet:#}");
    // A peer that is permitted is sent on.
    manifests.put("pods", &fixture.pod_objects("friend", "web"))?;
    eventually("it may", TIMEOUT, || {
        let probe = Probe::tcp(to_web()).timeout(SILENCE);
        Ok(probe.send_in(fixture.place(Host::Bridged).0).endpoint().is_some())
    })?;
    let (traced, outcome) = self::traced(&fixture, &agent, Host::Bridged)?;
    ensure!(outcome.endpoint().is_some(), "{outcome:?}");
    traced.ensure_as_predicted()
}

#[test]
fn a_packet_that_goes_elsewhere_differs() -> Result<()> {
    let (fixture, agent) = context("trace-differs", &[])?;
    let elsewhere = fixture.address(Host::Remote, to_web().ip())?;
    fixture.cluster.world.node.nft(&format!(
        "table ip thief {{ chain steal {{ type nat hook prerouting priority -150; \
         ip daddr {} tcp dport 80 dnat to {elsewhere}:{PORT}; }}; }}",
        to_web().ip()
    ))?;
    let (traced, outcome) = traced(&fixture, &agent, Host::Routed)?;
    assert_eq!(outcome.endpoint(), Some(SocketAddr::new(elsewhere, PORT)));
    let packet = &traced.packets()[0];
    let differences = traced.differences();
    let endpoint = SocketAddr::new(fixture.address(Host::Routed, elsewhere)?, PORT);
    let expected = format!("should go to {endpoint}, and went to {elsewhere}:{PORT}");
    ensure!(
        differences.iter().any(|difference| difference.contains(&expected)),
        "no {expected:?}: {packet:#}"
    );
    ensure!(packet["hooks"].to_string().contains(&format!("dnat to {elsewhere}")), "{packet:#}");
    Ok(())
}

#[test]
fn what_cannot_be_followed_is_refused_with_the_reason() -> Result<()> {
    let (fixture, agent) = context("trace-refused", &[])?;
    let node = &fixture.cluster.world.node;
    let cases = [
        (["0.0.0.0", "172.30.0.10:80"], "stands for many"),
        (["10.0.0.0/8", "172.30.0.10:80"], "expected an address"),
        (["224.0.0.1", "172.30.0.10:80"], "stands for many"),
        (["203.0.113.2", "0.0.0.0:80"], "stands for many"),
        (["default/nobody", "default/web:http"], "no pod of this node is called default/nobody"),
        (["default/routed", "default/nothing:http"], "no service has this name and port"),
        (["default/routed", "default/web:81"], "no service has this name and port"),
    ];
    for ([from, to], reason) in cases {
        let refused = TraceCommand::start(node, &agent, &["--from", from, "--to", to]);
        let error = refused.err().with_context(|| format!("{from} to {to} was followed"))?;
        ensure!(error.to_string().contains(reason), "{from} to {to}: {error:#}");
        // The agent has answered, and its answer was read.
        ensure!(!error.to_string().contains("cannot be read"), "{from} to {to}: {error:#}");
    }
    Ok(())
}

/// The agent's reason, and nothing about its answer.
#[test]
fn explain_says_of_a_pod_that_does_not_exist_that_it_does_not() -> Result<()> {
    let (fixture, agent) = context("explain-refused", &[])?;
    let mut explain = Command::new(binary::ours("denizen-agent")?);
    explain.arg("explain").arg("--run-dir").arg(agent.run_dir());
    explain.args(["--from", "demo/nope", "--to", "default/web:http"]);
    let output = fixture.cluster.world.node.run(|| explain.output())??;
    let printed = String::from_utf8(output.stderr)?;
    ensure!(printed == "denizen-agent: no pod of this node is called demo/nope\n", "{printed}");
    Ok(())
}

#[test]
fn rules_outside_nf_tables_are_refused_with_the_reason() -> Result<()> {
    let flags = ["--backend=iptables", "--iptables-variant=legacy"];
    let (fixture, agent) = context("trace-legacy", &flags)?;
    let refused = follow(&fixture, &agent, Host::Outside).err().context("it was followed")?;
    ensure!(refused.to_string().contains("tables of ip_tables"), "{refused:#}");
    Ok(())
}
