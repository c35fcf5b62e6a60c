//! The settings of the kernel without which rules are not enough: the agent sets them, or says that
//! it cannot.

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use denizen_backend::sysctl::{BridgeFilter, CheckScope, HairpinMode, HairpinPorts};
use denizen_tests::agent::Agent;
use denizen_tests::binary;
use denizen_tests::eventually::observed;
use denizen_tests::node::fixture::{Fixture, Host, every_protocol, service_ips};
use denizen_tests::node::netns::{Netns, checked};
use denizen_tests::node::pod::Wiring;
use denizen_tests::packets::probe::{ANSWER_TIMEOUT, Outcome, Probe, Protocol, SILENCE};
use serde_json::Value;

const BRIDGE_FILTERS: [&str; 2] = ["bridge-nf-call-iptables", "bridge-nf-call-ip6tables"];

/// Longer than a start takes on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(20);

fn read(node: &Netns, key: &str) -> Result<String> {
    let path = Path::new("/proc/sys/net").join(key);
    Ok(node.run(|| fs::read_to_string(path))??.trim().to_owned())
}

fn turn_off(node: &Netns) -> Result<()> {
    BRIDGE_FILTERS.iter().try_for_each(|key| node.sysctl(&format!("net.bridge.{key}"), "0"))
}

/// The agent's process in the node's namespace, with what it needs and `flags`.
fn command(fixture: &Fixture, program: &[&str], flags: &[&str]) -> Result<Command> {
    let settings = fixture.cluster.settings();
    let ours = binary::ours("denizen-agent")?;
    let mut words = program.iter().map(Into::into).chain([ours.into_os_string()]);
    let mut command = Command::new(words.next().context("a program")?);
    command.args(words).arg("run").args(flags);
    command.arg("--manifests").arg(fixture.cluster.manifests.folder());
    command.arg("--run-dir").arg(settings.run_dir);
    command.args(["--node-name", &settings.node_name]);
    Ok(command)
}

#[test]
fn a_service_on_the_clients_own_bridge_works_though_the_bridge_was_not_filtered() -> Result<()> {
    let fixture = Fixture::new("bridgenf")?;
    let web = fixture.service("web", 10, &every_protocol(), &[Host::Bridged])?;
    fixture.cluster.manifests.put("web", &web)?;
    let neighbour = fixture.cluster.add_pod("neighbour", Wiring::Bridged)?;
    let node = &fixture.cluster.world.node;
    turn_off(node)?;
    let agent = fixture.cluster.start_agent()?;
    for key in BRIDGE_FILTERS {
        assert_eq!(read(node, &format!("bridge/{key}"))?, "1", "{key}");
    }
    assert_eq!(agent.status()?["errors"], serde_json::json!([]));
    let ask = |timeout| {
        service_ips(10).map(|ip| {
            let probe = Probe::tcp(SocketAddr::new(ip, 80)).timeout(timeout);
            probe.send_in(&neighbour.netns)
        })
    };
    for outcome in ask(ANSWER_TIMEOUT) {
        assert!(outcome.endpoint().is_some(), "{outcome:?}");
    }
    // That it was needed: without it the answers are bridged past the translation.
    turn_off(node)?;
    assert_eq!(ask(SILENCE), [Outcome::Dropped, Outcome::Dropped]);
    Ok(())
}

/// Ends its process, by its id, when it is dropped.
struct ForeignProcess(Child);

impl Drop for ForeignProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What the agent says of itself once everything is programmed.
fn status_of(fixture: &Fixture) -> Result<Value> {
    let ask = || -> Result<Option<Value>> {
        let mut ask = Command::new(binary::ours("denizen-agent")?);
        ask.args(["status", "--output", "json", "--run-dir"]);
        let output = checked(ask.arg(fixture.cluster.run_dir())).ok();
        Ok(output.map(|output| serde_json::from_slice(&output.stdout)).transpose()?)
    };
    let is_synced =
        |status: &Option<Value>| status.as_ref().is_some_and(|status| status["synced"] == true);
    observed("synced", TIMEOUT, ask, is_synced)?.context("a status")
}

#[test]
fn what_may_not_be_set_is_said_and_everything_else_goes_on() -> Result<()> {
    let fixture = Fixture::new("readonly")?;
    let web = fixture.service("web", 10, &every_protocol(), &[Host::Remote])?;
    fixture.cluster.manifests.put("web", &web)?;
    let node = &fixture.cluster.world.node;
    turn_off(node)?;
    // As in a container whose runtime mounts the kernel's settings read-only.
    let read_only =
        "mount --bind /proc/sys /proc/sys && mount -o remount,ro,bind /proc/sys && exec \"$@\"";
    let program = ["unshare", "--mount", "sh", "-c", read_only, "sh"];
    let mut command = command(&fixture, &program, &[])?;
    let _agent = ForeignProcess(node.run(|| command.spawn())??);
    let status = status_of(&fixture)?;
    let errors: Vec<_> = status["errors"].as_array().context("errors")?.iter().collect();
    for key in BRIDGE_FILTERS {
        let printed = format!(
            "net/bridge/{key} is 0 and cannot be set to 1: a connection to a service hangs"
        );
        let found = errors.iter().filter_map(|error| error.as_str());
        assert!(found.clone().any(|error| error.starts_with(&printed)), "{errors:?}");
        assert_eq!(read(node, &format!("bridge/{key}"))?, "0", "{key}");
    }
    let to = SocketAddr::new(service_ips(10)[0], 80);
    let outcome = fixture.probe(Host::Bridged, to, Protocol::Tcp)?;
    assert!(outcome.endpoint().is_some(), "{outcome:?}");
    Ok(())
}

/// As in the DaemonSet: the container sees /proc/sys read-only, and the host's /proc/sys/net at
/// another path.
#[test]
fn a_mount_of_the_hosts_settings_is_enough_where_proc_sys_is_read_only() -> Result<()> {
    let fixture = Fixture::new("sysctldir")?;
    let node = &fixture.cluster.world.node;
    turn_off(node)?;
    let host = fixture.cluster.world.subfolder("host-sys")?;
    fs::create_dir(host.join("net"))?;
    let host = host.to_str().context("a path that is text")?;
    let contained = format!(
        "mount --bind /proc/sys/net {host}/net && mount --bind /proc/sys /proc/sys \
         && mount -o remount,ro,bind /proc/sys && exec \"$@\""
    );
    let program = ["unshare", "--mount", "sh", "-c", &contained, "sh"];
    let flag = format!("--sysctl-dir={host}");
    let flags = [&flag, "--conntrack-udp-timeout=43s", "--nodeport-addresses=all,localhost"];
    let mut command = command(&fixture, &program, &flags)?;
    let _agent = ForeignProcess(node.run(|| command.spawn())??);
    let status = status_of(&fixture)?;
    for key in BRIDGE_FILTERS {
        assert_eq!(read(node, &format!("bridge/{key}"))?, "1", "{key}");
    }
    assert_eq!(read(node, "netfilter/nf_conntrack_udp_timeout")?, "43");
    assert_eq!(read(node, "ipv4/conf/all/route_localnet")?, "1");
    assert_eq!(status["errors"], serde_json::json!([]));
    assert_eq!(status["warnings"], serde_json::json!([]));
    Ok(())
}

#[test]
fn a_folder_without_settings_is_named() -> Result<()> {
    let fixture = Fixture::new("nosysctl")?;
    let mut command = command(&fixture, &["timeout", "60"], &["--sysctl-dir=/nowhere"])?;
    let output = fixture.cluster.world.node.run(|| command.output())??;
    let printed = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.code() == Some(1)
            && printed.contains("--sysctl-dir /nowhere: /nowhere/net does not exist"),
        "{output:?}"
    );
    Ok(())
}

#[test]
fn connection_tracking_is_set_up_as_kube_proxy_does() -> Result<()> {
    let fixture = Fixture::new("conntrack")?;
    let node = &fixture.cluster.world.node;
    let value = |name: &str| read(node, &format!("netfilter/nf_conntrack_{name}"));
    let untouched = [value("udp_timeout")?, value("udp_timeout_stream")?, value("tcp_be_liberal")?];
    let agent = fixture.cluster.start_agent()?;
    assert_eq!(value("tcp_timeout_established")?, "86400");
    assert_eq!(value("tcp_timeout_close_wait")?, "3600");
    let now = [value("udp_timeout")?, value("udp_timeout_stream")?, value("tcp_be_liberal")?];
    assert_eq!(now, untouched);
    assert!(agent.terminate()?.success());
    let mut settings = fixture.cluster.settings();
    let flags = "--conntrack-tcp-timeout-established=2h --conntrack-tcp-timeout-close-wait=0 \
                 --conntrack-udp-timeout=40s --conntrack-udp-timeout-stream=1m30s \
                 --conntrack-tcp-be-liberal --conntrack-max-per-core=100000000";
    settings.flags.extend(flags.split_whitespace().map(str::to_owned));
    let agent = Agent::start(node, settings)?;
    let expected = [
        ("tcp_timeout_established", "7200"),
        ("tcp_timeout_close_wait", "3600"),
        ("udp_timeout", "40"),
        ("udp_timeout_stream", "90"),
        ("tcp_be_liberal", "1"),
    ];
    for (name, wanted) in expected {
        assert_eq!(value(name)?, wanted, "{name}");
    }
    // The limit is the host's own affair: not to be set from a namespace, and no reason to stop.
    assert!(agent.log().contains("nf_conntrack_max is"), "{}", agent.log());
    assert_eq!(agent.status()?["errors"], serde_json::json!([]));
    Ok(())
}

#[test]
fn an_init_container_sets_everything_up_and_programs_nothing() -> Result<()> {
    let fixture = Fixture::new("initonly")?;
    let node = &fixture.cluster.world.node;
    turn_off(node)?;
    let flags = ["--init-only", "--conntrack-udp-timeout=41s", "--backend=iptables"];
    let mut command = command(&fixture, &[], &flags)?;
    let output = node.run(|| command.output())??;
    assert!(output.status.success(), "{output:?}");
    assert_eq!(read(node, "netfilter/nf_conntrack_udp_timeout")?, "41");
    assert_eq!(read(node, "netfilter/nf_conntrack_tcp_timeout_established")?, "86400");
    for key in BRIDGE_FILTERS {
        assert_eq!(read(node, &format!("bridge/{key}"))?, "1", "{key}");
    }
    // For node ports on 127.0.0.1, which iptables serves by default.
    assert_eq!(read(node, "ipv4/conf/all/route_localnet")?, "1");
    assert_eq!(node.output("nft", &["list", "tables"])?, "");
    Ok(())
}

#[test]
fn frames_of_one_bridge_are_filtered_and_what_cannot_be_is_named() -> Result<()> {
    let node = Netns::new("bridge")?;
    node.ip("link add br0 type bridge")?;
    node.ip("link add br1 type bridge")?;
    node.ip("link add veth0 type veth peer name veth1")?;
    turn_off(&node)?;
    let run_dir = tempfile::tempdir()?;
    let mut filter = BridgeFilter::new(Path::new("/proc/sys"), run_dir.path());
    let mut keep = |bridges: &[&str], check| {
        let bridges: BTreeSet<Arc<str>> = bridges.iter().map(|name| (*name).into()).collect();
        node.run(|| filter.keep(bridges, check))?;
        Ok::<_, anyhow::Error>(filter.unfiltered_bridges().clone())
    };
    assert!(keep(&["br0"], CheckScope::Changed)?.is_empty());
    assert_eq!(node.bridge_switches("br0")?, [1, 1]);
    assert_eq!(node.bridge_switches("br1")?, [0, 0], "another bridge is not ours to change");
    node.ip("link set br0 type bridge nf_call_ip6tables 0")?;
    keep(&["br0"], CheckScope::Changed)?;
    assert_eq!(node.bridge_switches("br0")?, [1, 0], "nothing says that it changed");
    keep(&["br0"], CheckScope::All)?;
    assert_eq!(node.bridge_switches("br0")?, [1, 1]);

    let problems = keep(&["absent", "br1", "veth0"], CheckScope::Changed)?;
    assert_eq!(node.bridge_switches("br1")?, [1, 1]);
    let names: Vec<_> = problems.keys().map(|name| &**name).collect();
    assert_eq!(names, ["absent", "veth0"]);
    assert!(problems["absent"].contains("No such device"), "{problems:?}");
    assert!(problems["veth0"].contains("not a bridge"), "{problems:?}");
    node.ip("link add absent type bridge")?;
    assert_eq!(keep(&["absent"], CheckScope::Changed)?.len(), 0, "what failed is tried again");

    let empty = tempfile::tempdir()?;
    let mut filter = BridgeFilter::new(empty.path(), run_dir.path());
    filter.keep(["br0".into()].into(), CheckScope::Changed);
    assert!(
        filter.unfiltered_bridges()["br0"].contains("br_netfilter"),
        "{:?}",
        filter.unfiltered_bridges()
    );
    Ok(())
}

#[test]
fn hairpin_mode_is_turned_on_at_new_ports_and_checked_from_time_to_time() -> Result<()> {
    let node = Netns::new("hairpin-ports")?;
    node.ip("link add br0 type bridge")?;
    node.ip("link add port type veth peer name pod")?;
    node.ip("link add routed type veth peer name other")?;
    node.ip("link set port master br0")?;
    let hairpin = || -> Result<bool> {
        let shown = node.output("ip", &["-d", "-j", "link", "show", "port"])?;
        let links: Value = serde_json::from_str(&shown)?;
        links[0]["linkinfo"]["info_slave_data"]["hairpin"].as_bool().context("a port")
    };
    let turn_off = || node.ip("link set port type bridge_slave hairpin off");
    let mut ports = HairpinPorts::new(HairpinMode::HairpinVeth);
    let mut keep = |names: &[&str], check| {
        let names: BTreeSet<Arc<str>> = names.iter().map(|name| (*name).into()).collect();
        node.run(|| ports.keep(names, check))?;
        Ok::<_, anyhow::Error>(ports.off().clone())
    };
    // Neither a pod that is gone nor a routed one needs it.
    assert!(keep(&["absent", "port", "routed"], CheckScope::Changed)?.is_empty());
    assert!(hairpin()?);
    turn_off()?;
    keep(&["port"], CheckScope::Changed)?;
    assert!(!hairpin()?, "nothing says that it changed");
    keep(&["port"], CheckScope::All)?;
    assert!(hairpin()?);

    turn_off()?;
    let mut ports = HairpinPorts::new(HairpinMode::None);
    let names = || ["port", "routed"].map(Arc::from).into();
    node.run(|| ports.keep(names(), CheckScope::Changed))?;
    assert!(!hairpin()?);
    assert_eq!(ports.off().keys().map(|name| &**name).collect::<Vec<_>>(), ["port"]);
    node.ip("link set port type bridge_slave hairpin on")?;
    node.run(|| ports.keep(names(), CheckScope::Changed))?;
    assert_eq!(ports.off().len(), 1, "nothing says that it changed");
    node.run(|| ports.keep(names(), CheckScope::All))?;
    assert!(ports.off().is_empty());
    Ok(())
}

/// A restart in between forgets nothing, and what somebody else turned on is not ours to turn off.
#[test]
fn bridges_get_back_what_they_had() -> Result<()> {
    let node = Netns::new("bridge-back")?;
    for bridge in [
        "off",
        "half nf_call_iptables 1",
        "on nf_call_iptables 1 nf_call_ip6tables 1",
        "gone",
        "other",
    ] {
        let (name, switches) = bridge.split_once(' ').unwrap_or((bridge, ""));
        node.ip(&format!("link add {name} type bridge {switches}"))?;
    }
    turn_off(&node)?;
    let run_dir = tempfile::tempdir()?;
    let filter = || BridgeFilter::new(Path::new("/proc/sys"), run_dir.path());
    let all = ["off", "half", "on", "gone", "other"];
    for _ in 0..2 {
        let bridges = all.map(Arc::from).into();
        node.run(|| filter().keep(bridges, CheckScope::All))?;
        for bridge in all {
            assert_eq!(node.bridge_switches(bridge)?, [1, 1], "{bridge}");
        }
        // Somebody turns it off, and the next run on again.
        node.ip("link set half type bridge nf_call_iptables 0")?;
    }
    node.ip("link del gone")?;
    node.ip("link del other")?;
    node.ip("link add other type bridge nf_call_iptables 1")?;
    assert_eq!(node.run(|| filter().set_back())?, ["half", "off"]);
    let expected = [("off", [0, 0]), ("half", [1, 0]), ("on", [1, 1]), ("other", [1, 0])];
    for (bridge, expected) in expected {
        assert_eq!(node.bridge_switches(bridge)?, expected, "{bridge}");
    }
    node.ip("link set off type bridge nf_call_iptables 1")?;
    assert_eq!(node.run(|| filter().set_back())?, [""; 0], "denizen has nothing on it any more");
    assert_eq!(node.bridge_switches("off")?, [1, 0]);
    Ok(())
}
