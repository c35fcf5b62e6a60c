//! The bit of the mark by which the bridge's table tells the IP tables of a pod's port: it is for
//! them alone.

mod beside;

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use denizen_tests::agent::{Agent, Objects, Settings};
use denizen_tests::binary;
use denizen_tests::eventually::{eventually, observed};
use denizen_tests::kernel::iptables::{self, Variant};
use denizen_tests::kernel::ruleset::{self, beside_firewall};
use denizen_tests::node::fixture::{Fixture, Host, every_protocol, service_ips};
use denizen_tests::node::netns::Netns;
use denizen_tests::oracle::flows::table::Backend;
use denizen_tests::packets::load::Load;
use denizen_tests::packets::probe::{Outcome, Protocol};
use serde_json::{Value, json};

const PORT_EXACT: &str = "pod-state=port-exact";

/// A repair that has not come by then never will.
const TIMEOUT: Duration = Duration::from_secs(60);

fn settings(fixture: &Fixture, backend: Backend, mode: &str) -> Settings {
    let flags = backend.flags().into_iter().chain([format!("--detect-local={mode}")]);
    fixture.cluster.settings_with(flags)
}

fn start(fixture: &Fixture, backend: Backend, mode: &str) -> Result<Agent> {
    Agent::start(&fixture.cluster.world.node, settings(fixture, backend, mode))
}

/// What an agent with these flags leaves in the kernel when it ends: tables of denizen's, chains
/// and elements of sets.
fn left(fixture: &Fixture, backend: Backend, mode: &str) -> Result<Vec<String>> {
    start(fixture, backend, mode)?.terminate()?;
    in_kernel(&fixture.cluster.world.node)
}

fn in_kernel(node: &Netns) -> Result<Vec<String>> {
    let tables = node.output("nft", &["list", "tables"])?;
    let tables = tables.lines().filter(|table| table.ends_with(" denizen"));
    let mut found: Vec<String> = tables.map(str::to_owned).collect();
    for variant in Variant::BOTH {
        let rules = variant.dump(node)?;
        found.extend(rules.contains("KUBE-SERVICES").then(|| format!("{variant:?}")));
        found.extend(rules.contains("--mark 0x40/0x40").then(|| "its bit".to_owned()));
    }
    let sets = iptables::sets(node)?;
    for set in ["DENIZEN-PODS-4", "DENIZEN-BRIDGED-4"] {
        let elements = sets.lines().filter(|line| line.contains(set)).count();
        found.extend((elements > 0).then(|| format!("{elements} in {set}")));
    }
    Ok(found)
}

/// Another mode needs no table of the bridge family, and takes away what an earlier run's needed;
/// so does another backend. Meanwhile pods keep their address, whatever was there before.
#[test]
fn another_mode_or_backend_leaves_nothing_behind() -> Result<()> {
    const V4: &str = "table ip denizen";
    const V6: &str = "table ip6 denizen";
    const BRIDGE: &str = "table bridge denizen";
    const PODS: &str = "2 in DENIZEN-PODS-4";
    const BRIDGED: &str = "1 in DENIZEN-BRIDGED-4";
    let fixture = Fixture::new("bit-switch")?;
    let manifests = &fixture.cluster.manifests;
    manifests.put("web", &fixture.service("web", 10, &every_protocol(), &[Host::Remote])?)?;
    let (nftables, legacy, nft) =
        (Backend::Nftables, Backend::IptablesLegacy, Backend::IptablesNft);
    let mut load = None;
    let steps: [(Backend, &str, &[&str]); 11] = [
        (nftables, "pod-state", &[V4, V6]),
        (nftables, PORT_EXACT, &[BRIDGE, V4, V6]),
        (nftables, "pod-state", &[V4, V6]),
        (nftables, "bridge-port", &[BRIDGE, V4, V6]),
        (nftables, PORT_EXACT, &[BRIDGE, V4, V6]),
        (legacy, PORT_EXACT, &[BRIDGE, "Legacy", "its bit", PODS, BRIDGED]),
        (legacy, "pod-state", &["Legacy", PODS]),
        (legacy, PORT_EXACT, &[BRIDGE, "Legacy", "its bit", PODS, BRIDGED]),
        (nftables, PORT_EXACT, &[BRIDGE, V4, V6]),
        (nft, PORT_EXACT, &[BRIDGE, "Nft", "its bit", PODS, BRIDGED]),
        (nftables, "pod-state", &[V4, V6]),
    ];
    for (number, (backend, mode, expected)) in steps.into_iter().enumerate() {
        let found = left(&fixture, backend, mode)?;
        let mut found: Vec<&str> = found.iter().map(String::as_str).collect();
        found.sort_by_key(|what| expected.iter().position(|known| known == what));
        assert_eq!(found, expected, "{number}: {backend:?} {mode}");
        // From a mode that has it to another that has it.
        match number {
            4 => load = Some(local_load(&fixture)?),
            9 => {
                let tally = load.take().context("begun above")?.stop()?;
                assert!(tally.answered > 0 && tally.failed == 0, "{tally:?}");
            }
            _ => {}
        }
    }
    Ok(())
}

/// Rules wait for the API, pods do not: by the rules of the mode before, they are local pods still.
fn no_pod_is_a_stranger_while_the_api_is_silent(label: &str, backend: Backend) -> Result<()> {
    let fixture = Fixture::new(label)?;
    let node = &fixture.cluster.world.node;
    let manifests = &fixture.cluster.manifests;
    manifests.put("web", &fixture.service("web", 10, &every_protocol(), &[Host::Remote])?)?;
    let mut settings = fixture.cluster.settings();
    settings.objects = Objects::Kubeconfig(nobodys_kubeconfig(&fixture)?);
    for (before, after) in [("pod-state", PORT_EXACT), (PORT_EXACT, "pod-state")] {
        left(&fixture, backend, before)?;
        let (pods, clients) = (by_port(node, backend)?, local_load(&fixture)?);
        settings.flags = backend.flags();
        settings.flags.push(format!("--detect-local={after}"));
        let agent = Agent::spawn(node, settings.clone())?;
        eventually("pods are programmed", TIMEOUT, || Ok(by_port(node, backend)? != pods))?;
        for (who, like) in [Host::Bridged, Host::Routed].into_iter().zip(service_ips(10)) {
            let outcome = fixture.probe(who, SocketAddr::new(like, 80), Protocol::Tcp)?;
            assert!(!fixture.was_masqueraded(who, &outcome)?, "{after}: {who:?}: {outcome:?}");
        }
        let tally = clients.stop()?;
        assert!(tally.answered > 0 && tally.failed == 0, "{after}: {tally:?}");
        ensure!(agent.status()?["synced"] == false, "the API answered");
        agent.terminate()?;
    }
    Ok(())
}

#[test]
fn no_pod_is_a_stranger_while_the_api_is_silent_nftables() -> Result<()> {
    no_pod_is_a_stranger_while_the_api_is_silent("bit-silent", Backend::Nftables)
}

#[test]
fn no_pod_is_a_stranger_while_the_api_is_silent_iptables() -> Result<()> {
    no_pod_is_a_stranger_while_the_api_is_silent("bit-silent-l", Backend::IptablesLegacy)
}

/// The set of pods whose port must be right.
fn by_port(node: &Netns, backend: Backend) -> Result<String> {
    match backend {
        Backend::Nftables | Backend::Ipvs => {
            node.output("nft", &["list", "set", "ip", "denizen", "bridged-pods"])
        }
        Backend::IptablesLegacy | Backend::IptablesNft => iptables::sets(node),
    }
}

/// Leads to an API that nobody serves.
fn nobodys_kubeconfig(fixture: &Fixture) -> Result<PathBuf> {
    let path = fixture.cluster.run_dir().join("kubeconfig");
    let text = json!({
        "clusters": [{ "name": "test", "cluster": { "server": "http://127.0.0.1:1" } }],
        "contexts": [{ "name": "test", "context": { "cluster": "test", "user": "test" } }],
        "users": [{ "name": "test", "user": {} }],
        "current-context": "test",
    });
    fs::write(&path, text.to_string())?;
    Ok(path)
}

/// A bridged and a routed pod's connections, which count only with the pod's own address.
fn local_load(fixture: &Fixture) -> Result<Load> {
    fixture.cluster.world.forget_quickly()?;
    let mut load = Load::default();
    for who in [Host::Bridged, Host::Routed] {
        let own = service_ips(10)
            .map(|like| fixture.address(who, like))
            .into_iter()
            .collect::<Result<Vec<_>>>()?;
        let targets = service_ips(10).map(|service| (SocketAddr::new(service, 80), Protocol::Tcp));
        let kept = move |outcome: &Outcome| outcome.seen().is_some_and(|seen| own.contains(&seen));
        load.client(fixture.place(who).0, targets.into(), kept)?;
    }
    Ok(load)
}

/// With iptables the kernel's word comes at once too, and `cleanup` takes all of it away.
#[test]
fn what_others_do_to_the_bridges_table_is_repaired_with_iptables() -> Result<()> {
    let fixture = Fixture::new("bit-drift")?;
    let node = &fixture.cluster.world.node;
    let agent = start(&fixture, Backend::IptablesNft, PORT_EXACT)?;
    let table = || node.output("nft", &["list", "table", "bridge", "denizen"]);
    let expected = table()?;
    let element =
        format!("{} . {}", fixture.bridged.host_interface(), fixture.bridged.addresses[0]);
    let harms = [
        "add rule bridge denizen prerouting meta mark set 0x40".to_owned(),
        format!("delete element bridge denizen pod-ports {{ {element} }}"),
        "flush table bridge denizen".to_owned(),
        "delete table bridge denizen".to_owned(),
    ];
    for (harm, count) in harms.into_iter().zip(1..) {
        node.nft(&harm)?;
        let state = || Ok((table().unwrap_or_default(), agent.status()?["driftRepaired"].clone()));
        let repaired = |(now, count_now): &(String, Value)| *now == expected && *count_now == count;
        observed(&format!("repaired: {harm}"), TIMEOUT, state, repaired)?;
    }
    agent.terminate()?;
    let tables = ruleset::tables(node)?;
    let ours: Vec<_> = tables.into_iter().filter(|table| table.contains("denizen")).collect();
    assert_eq!(ours, beside_firewall(&["table bridge denizen"]));
    let program = binary::ours("denizen-agent")?;
    let output = node.output(&program.display().to_string(), &["cleanup"])?;
    ensure!(output.contains("removed 4 nftables tables\n"), "{output}");
    assert_eq!(in_kernel(node)?, [""; 0]);
    let tables = ruleset::tables(node)?;
    ensure!(tables.iter().all(|table| !table.contains("denizen")), "{tables:?}");
    ensure!(node.output("ipset", &["list", "-n"])?.is_empty(), "sets are left");
    Ok(())
}
