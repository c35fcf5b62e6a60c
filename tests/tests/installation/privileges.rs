//! What `conf/kubernetes` grants is enough, and less is not: the programs with exactly the
//! capabilities of their containers, in a process namespace of their own, under read-only kernel
//! settings.

use std::fs;
use std::net::SocketAddr;
use std::process::Output;

use anyhow::{Context, Result, ensure};
use denizen_tests::agent::wrapped::{SETTINGS, WrappedAgent, container};
use denizen_tests::binary;
use denizen_tests::conf::{
    DAEMON_SET, UNINSTALL, built_with, capabilities, containers_of, granted,
};
use denizen_tests::kernel::iptables::{self, Variant};
use denizen_tests::kernel::ruleset::{beside_firewall, tables};
use denizen_tests::node::cluster::{Cluster, serve};
use denizen_tests::node::fixture::{
    Fixture, Host, PORT, PROTOCOLS, every_protocol, is_local, service_ips,
};
use denizen_tests::node::manifest::Port;
use denizen_tests::node::netns::checked;
use denizen_tests::node::pod::{Pod, Wiring};
use denizen_tests::packets::http::{fetch, url};
use denizen_tests::packets::probe::Protocol;
use serde_json::{Value, json};

/// The number of each capability (linux/capability.h).
const NUMBERS: [(&str, u32); 2] = [("NET_ADMIN", 12), ("NET_RAW", 13)];

/// A pod from before denizen, and what its runtime remembers of it.
fn earlier(cluster: &Cluster) -> Result<Pod> {
    let pod = cluster.add_pod_without_denizen("earlier", Wiring::Routed)?;
    cluster.remember(&pod)?;
    Ok(pod)
}

#[test]
fn the_agents_capabilities_are_enough_for_all_it_does() -> Result<()> {
    let granted = capabilities(DAEMON_SET, "agent")?;
    let cluster = Cluster::new("caps", &json!({ "timeout": "30s", "onTimeout": "fail" }))?;
    let remote = &cluster.world.remote;
    let remotes = &cluster.world.addresses().remote;
    let ports = PROTOCOLS.map(|protocol| (protocol, PORT));
    let _remote = serve(remote, remotes, &ports)?;
    let earlier = earlier(&cluster)?;
    cluster.world.node.sysctl("net.bridge.bridge-nf-call-iptables", "0")?;
    let agent = WrappedAgent::start_with(&cluster, container(&granted), &[SETTINGS.to_owned()])?;
    agent.until("programmed", |status| status["synced"] == true)?;
    let expected = NUMBERS.iter().filter(|(name, _)| granted.contains(&(*name).to_owned()));
    let expected: u64 = expected.map(|(_, number)| 1 << number).sum();
    assert_eq!(agent.effective_capabilities()?, expected, "{granted:?} and nothing else");
    // A pod that comes, whose ADD waits for its rules; services; the kernel's word of a foreign
    // change.
    let fixture = Fixture::on(cluster)?;
    let web = fixture.service("web", 10, &every_protocol(), &[Host::Remote])?;
    fixture.cluster.manifests.put("web", &web)?;
    agent.until("served", |status| status["services"] == 1)?;
    assert!(is_local(&fixture.bridged) && is_local(&fixture.routed), "attached while it ran");
    assert!(is_local(&earlier), "adopted");
    let late = fixture.cluster.add_pod_without_denizen("late", Wiring::Bridged)?;
    fixture.cluster.remember(&late)?;
    agent.until("found late", |_| is_local(&late))?;
    node_renames(&fixture, &agent)?;
    fixture.cluster.world.node.nft("delete table ip denizen\n")?;
    agent.until("repaired", |status| status["driftRepaired"] == 1)?;
    for who in [Host::Bridged, Host::Outside, Host::ThisNode] {
        for ip in service_ips(10) {
            let outcome = fixture.probe(who, SocketAddr::new(ip, 80), Protocol::Tcp)?;
            assert!(outcome.endpoint().is_some(), "{who:?} to {ip}: {outcome:?}");
        }
    }
    assert_eq!(agent.status()?["errors"], json!([]));
    Ok(())
}

/// The routed pod's interface gets another name, and is followed.
fn node_renames(fixture: &Fixture, agent: &WrappedAgent) -> Result<()> {
    let name = fixture.routed.host_interface();
    fixture.cluster.world.node.ip(&format!("link set {name} name renamed0"))?;
    agent.until("followed", |_| is_local(&fixture.routed))?;
    Ok(())
}

/// What the agent is granted with the component for iptables.
fn with_iptables() -> Result<Vec<String>> {
    let built = built_with("iptables")?;
    let daemon_set = built.iter().find(|object| object["kind"] == "DaemonSet");
    granted(&containers_of(daemon_set.context("no DaemonSet")?), "agent")
}

/// Pods from before and pods that come, services, node ports, 127.0.0.1 included, repair; and
/// nothing is warned of.
fn iptables_works(label: &str, variant: Variant) -> Result<()> {
    let cluster = Cluster::new(label, &json!({ "timeout": "30s", "onTimeout": "fail" }))?;
    let ports = PROTOCOLS.map(|protocol| (protocol, PORT));
    let _remote = serve(&cluster.world.remote, &cluster.world.addresses().remote, &ports)?;
    let earlier = earlier(&cluster)?;
    let flags = [variant.flags(), vec![SETTINGS.to_owned()]].concat();
    let agent = WrappedAgent::start_with(&cluster, container(&with_iptables()?), &flags)?;
    agent.until("programmed", |status| status["synced"] == true)?;
    let fixture = Fixture::on(cluster)?;
    let recorded = iptables::sets(&fixture.cluster.world.node)?;
    for ip in fixture.bridged.addresses.iter().chain(&earlier.addresses) {
        ensure!(
            recorded.contains(&ip.to_string()),
            "attached while it ran, or adopted: {ip}: {recorded}"
        );
    }
    let http = [Port::tcp("http", 80, PORT).at_node(30080)];
    let web = fixture.service("web", 10, &http, &[Host::Remote])?;
    fixture.cluster.manifests.put("web", &web)?;
    agent.until("served", |status| status["services"] == 1 && status["endpoints"] == 1)?;
    let node = &fixture.cluster.world.node;
    agent.until("in the kernel", |_| {
        variant.dump(node).is_ok_and(|rules| rules.contains("KUBE-SEP-"))
    })?;
    variant.run(node, "-t nat -F KUBE-SERVICES")?;
    let is_served = || {
        let outcome =
            fixture.probe(Host::Bridged, SocketAddr::new(service_ips(10)[0], 80), Protocol::Tcp);
        outcome.is_ok_and(|outcome| outcome.endpoint().is_some())
    };
    let status = agent.until("repaired", |status| status["driftRepaired"] == 1 && is_served())?;
    let at_node = &fixture.cluster.world.addresses().node;
    let frontends = service_ips(10).map(|ip| SocketAddr::new(ip, 80)).into_iter();
    for to in frontends.chain(at_node.iter().map(|ip| SocketAddr::new(*ip, 30080))) {
        for who in [Host::Bridged, Host::Outside, Host::ThisNode] {
            let outcome = fixture.probe(who, to, Protocol::Tcp)?;
            assert!(outcome.endpoint().is_some(), "{who:?} to {to}: {outcome:?}");
        }
    }
    let outcome = fixture.probe(Host::ThisNode, "127.0.0.1:30080".parse()?, Protocol::Tcp)?;
    assert!(outcome.endpoint().is_some(), "on loopback: {outcome:?}");
    assert_eq!((&status["errors"], &status["warnings"]), (&json!([]), &json!([])));
    Ok(())
}

#[test]
fn nft_iptables_works_with_what_its_component_grants() -> Result<()> {
    iptables_works("caps-ipt-n", Variant::Nft)
}

#[test]
fn legacy_iptables_works_with_what_its_component_grants() -> Result<()> {
    iptables_works("caps-ipt-l", Variant::Legacy)
}

#[test]
fn iptables_with_less_says_what_it_takes_and_leaves_all_as_it_was() -> Result<()> {
    for variant in Variant::BOTH {
        let fixture = Fixture::new(&format!("caps-raw-{variant:?}"))?;
        let put = |who| {
            let web = fixture.service("web", 10, &every_protocol(), &[who])?;
            fixture.cluster.manifests.put("web", &web)
        };
        put(Host::Remote)?;
        fixture.cluster.start_agent_with(variant.flags())?.terminate()?;
        put(Host::Routed)?;
        let granted = capabilities(DAEMON_SET, "agent")?;
        let agent =
            WrappedAgent::start_with(&fixture.cluster, container(&granted), &variant.flags())?;
        let says =
            |status: &Value| status["errors"].to_string().contains("CAP_NET_RAW is needed too");
        agent.until("said", says)?;
        assert_eq!(agent.status()?["driftRepaired"], 0, "nobody else is blamed");
        let outcome =
            fixture.probe(Host::Bridged, SocketAddr::new(service_ips(10)[0], 80), Protocol::Tcp)?;
        ensure!(outcome.endpoint().is_some(), "by the rules that were there: {outcome:?}");
    }
    Ok(())
}

#[test]
fn without_them_it_says_what_it_may_not() -> Result<()> {
    let cluster = Cluster::new("caps-none", &Value::Null)?;
    let mut command = container(&[]);
    command.args(["timeout", "60"]).arg(binary::ours("denizen-agent")?);
    command.args(["run", "--node-name", "node", "--cni-cache-dir="]);
    command.arg("--manifests").arg(cluster.manifests.folder());
    command.arg("--run-dir").arg(cluster.run_dir());
    let output = cluster.world.node.run(|| command.output())??;
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && output.status.code() != Some(124), "{printed}");
    assert!(printed.contains("Operation not permitted"), "{printed}");
    assert!(printed.contains("CAP_NET_ADMIN"), "{printed}");
    Ok(())
}

#[test]
fn taking_away_needs_no_more() -> Result<()> {
    let fixture = Fixture::new("caps-clean")?;
    let node = &fixture.cluster.world.node;
    fixture.cluster.start_agent()?.terminate()?;
    assert_eq!(tables(node)?, beside_firewall(&["table ip denizen", "table ip6 denizen"]));
    let mut command = container(&capabilities(UNINSTALL, "rules")?);
    command.arg(binary::ours("denizen-agent")?).arg("cleanup");
    let output = node.run(|| checked(&mut command))??;
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(printed.contains("removed 5 nftables tables\n"), "{output:?}");
    assert_eq!(tables(node)?, [""; 0]);
    Ok(())
}

#[test]
fn the_plugin_is_installed_and_taken_out_without_any() -> Result<()> {
    let installs = capabilities(DAEMON_SET, "install-cni")?;
    let removes = capabilities(UNINSTALL, "cni")?;
    assert!(installs.is_empty() && removes.is_empty());
    let folder = tempfile::tempdir()?;
    let (conf, bin) = (folder.path().join("net.d"), folder.path().join("bin"));
    fs::create_dir(&conf)?;
    fs::create_dir(&bin)?;
    let list = r#"{ "cniVersion": "1.0.0", "name": "pods", "plugins": [ { "type": "bridge" } ] }"#;
    let text = format!("{list}\n");
    let list = conf.join("10-pods.conflist");
    fs::write(&list, &text)?;
    let run = |capabilities: &[String], flag: &str| -> Result<Output> {
        let mut command = container(capabilities);
        command.arg(binary::ours("denizen-agent")?).args(["install-cni", flag]);
        command.arg("--cni-conf-dir").arg(&conf);
        checked(command.arg("--cni-bin-dir").arg(&bin))
    };
    run(&installs, "--once")?;
    assert!(fs::read_to_string(&list)?.contains("denizen"));
    assert!(bin.join("denizen").is_file());
    run(&removes, "--uninstall")?;
    assert_eq!(fs::read_to_string(&list)?, text);
    Ok(())
}

/// Whoever goes from iptables to nftables has neither `NET_RAW` nor a use for it. What is somebody
/// else's stays, but for a rule that leads to a chain that goes.
#[test]
fn leaving_iptables_takes_no_more_than_nftables_does() -> Result<()> {
    let fixture = Fixture::new("caps-leave")?;
    let (cluster, node) = (&fixture.cluster, &fixture.cluster.world.node);
    let http = [Port::tcp("http", 80, PORT).at_node(30080)];
    let web = fixture.service("web", 10, &http, &[Host::Remote])?;
    cluster.manifests.put("web", &web)?;
    cluster.start_agent_with(Variant::Nft.flags())?.terminate()?;
    Variant::Nft.run(node, "-t nat -N CNI-HOSTPORT")?;
    Variant::Nft.run(node, "-t nat -A CNI-HOSTPORT -p tcp --dport 9 -j RETURN")?;
    Variant::Nft.run(node, "-t nat -A CNI-HOSTPORT -p tcp -j KUBE-SERVICES")?;
    Variant::Nft.run(node, "-t nat -A PREROUTING -j CNI-HOSTPORT")?;
    Variant::Nft.run(node, "-t filter -N KUBE-FIREWALL")?;
    Variant::Nft.run(node, "-t filter -A INPUT -j KUBE-FIREWALL")?;
    node.output("ipset", &["create", "theirs", "hash:ip"])?;
    ensure!(Variant::Nft.dump(node)?.contains("KUBE-SEP-"), "there is much to remove");
    cluster.manifests.remove("web")?;
    let agent = WrappedAgent::start(cluster, container(&capabilities(DAEMON_SET, "agent")?))?;
    agent.until("removed", |_| {
        node.output("ipset", &["list", "-n"]).is_ok_and(|sets| sets.trim() == "theirs")
    })?;
    let left = Variant::Nft.dump(node)?;
    let mut left: Vec<&str> = left.lines().filter(|line| line.contains(": -A ")).collect();
    left.sort_unstable();
    let theirs = [
        "iptables filter: -A INPUT -j KUBE-FIREWALL",
        "iptables nat: -A CNI-HOSTPORT -p tcp -m tcp --dport 9 -j RETURN",
        "iptables nat: -A PREROUTING -j CNI-HOSTPORT",
    ];
    assert_eq!(left, theirs);
    let status = agent.status()?;
    assert_eq!((&status["errors"], &status["backend"]), (&json!([]), &json!("nftables")));
    let at_node = SocketAddr::new(cluster.world.addresses().node[0], 30080);
    let outcome = fixture.probe(Host::Outside, at_node, Protocol::Tcp)?;
    ensure!(outcome.endpoint().is_none(), "the service is gone: {outcome:?}");
    Ok(())
}

/// Legacy iptables has no netlink: its program needs `NET_RAW`. Until it has it, `status` reports
/// what is left.
#[test]
fn what_legacy_iptables_left_is_reported_until_it_is_removed() -> Result<()> {
    let fixture = Fixture::new("caps-old")?;
    let (cluster, node) = (&fixture.cluster, &fixture.cluster.world.node);
    let web = fixture.service("web", 10, &every_protocol(), &[Host::Remote])?;
    cluster.manifests.put("web", &web)?;
    cluster.start_agent_with(Variant::Legacy.flags())?.terminate()?;
    let agent = WrappedAgent::start(cluster, container(&capabilities(DAEMON_SET, "agent")?))?;
    let words = ["CAP_NET_RAW is needed too", "denizen-agent cleanup"];
    let status = agent.until("said", |status| {
        let errors = status["errors"].to_string();
        words.iter().all(|words| errors.contains(words))
    })?;
    assert_eq!(status["backend"], "nftables", "it serves all the same: {status}");
    let fetched = |port, path| fetch(node, &url("127.0.0.1".parse()?, port, path), &[]);
    let metrics = fetched(10249, "/metrics")?.body;
    let problems = metrics.lines().find_map(|line| line.strip_prefix("denizen_problems "));
    ensure!(problems.is_some_and(|problems| problems != "0"), "{problems:?}");
    agent.until("health says so", |_| {
        fetched(10256, "/healthz").is_ok_and(|healthz| {
            healthz.status == 200 && healthz.body.contains("rules of a previous backend")
        })
    })?;
    drop(agent);
    ensure!(Variant::Legacy.dump(node)?.contains("KUBE-SEP-"), "nothing could be removed");
    let agent = WrappedAgent::start(cluster, container(&with_iptables()?))?;
    agent.until("removed", |_| {
        let sets = node.output("ipset", &["list", "-n"]);
        sets.is_ok_and(|sets| sets.is_empty())
    })?;
    let left = Variant::Legacy.dump(node)?;
    ensure!(!left.contains("KUBE-"), "{left}");
    agent.until("well", |status| status["errors"] == json!([]))?;
    Ok(())
}
