//! The bit of the mark by which the bridge's table tells the IP tables of a pod's port: it is for them alone.

#![allow(
    clippy::disallowed_methods,
    reason = "tests read clocks and files; denizen does not"
)]

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use denizen_tests::agent::{Agent, Objects};
use denizen_tests::cast::{Cast, Who, every_protocol, service_ips};
use denizen_tests::flows::table::Backend;
use denizen_tests::iptables::{self, Variant};
use denizen_tests::load::Load;
use denizen_tests::netns::Netns;
use denizen_tests::pod::Wiring;
use denizen_tests::probe::{Outcome, Probe, Protocol};
use serde_json::json;

/// The default bit's mark, and somebody else's beside it.
const BIT: &str = "0x40";
const PORT_EXACT: &str = "pod-state=port-exact";

/// A repair that has not come by then never will.
const BOUND: Duration = Duration::from_secs(60);

/// Rules of somebody else: what they count is not for them. `eth0`'s packets they mark with the bit themselves,
/// and a bridge's with a bit of their own. `leak` stands where the bit must be gone: right behind nat prerouting, or (`later`) only
/// behind iptables' filter table. (Only TCP behind routing: the kernel's own multicast reports come there with `cni0` as
/// input interface and a number of another meaning where the mark is, `reserved_tailroom`.)
fn others(later: bool) -> String {
    let leak = r#"iifname "cni0" meta mark & 0x40 == 0x40 counter comment "leak""#;
    let (priority, prerouting) = if later { (1, "") } else { (-300, leak) };
    format!(
        r#"
table bridge others {{
    chain prerouting {{
        type filter hook prerouting priority -400
        meta mark set meta mark | 0x2
    }}
    chain forward {{
        type filter hook forward priority 0
        meta mark & 0x40 == 0x40 counter comment "leak"
        meta mark & 0x2 == 0 counter comment "loss"
    }}
}}
table inet others {{
    chain early {{
        type filter hook prerouting priority -300
        iifname "eth0" meta mark set meta mark | 0x40
        iifname "cni0" meta mark & 0x40 == 0x40 counter comment "told"
    }}
    chain prerouting {{
        type filter hook prerouting priority -98
        {prerouting}
        iifname "cni0" meta mark & 0x2 == 0 counter comment "loss"
        iifname "eth0" meta mark & 0x40 == 0 counter comment "loss"
    }}
    chain input {{
        type filter hook input priority {priority}
        {leak}
    }}
    chain forward {{
        type filter hook forward priority {priority}
        {leak}
        iifname "eth0" meta mark & 0x40 == 0 counter comment "loss"
    }}
    chain postrouting {{
        type filter hook postrouting priority -300
        meta l4proto tcp {leak}
    }}
}}
"#
    )
}

/// How many packets the rules of this comment counted.
fn counted(node: &Netns, comment: &str) -> Result<u64> {
    let listed = node.output("nft", &["list", "ruleset"])?;
    let end = format!("comment \"{comment}\"");
    let lines = listed.lines().filter(|line| line.ends_with(&end));
    let counts = lines.map(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        let at = words
            .iter()
            .position(|word| *word == "packets")
            .context("no counter")?;
        Ok(words.get(at + 1).context("no count")?.parse::<u64>()?)
    });
    counts.sum()
}

/// Connections of every kind under `mode`, in a world where others look at, and set, the bit.
fn kept_to_itself(label: &str, backend: Backend, mode: &str, bridge_netfilter: &str) -> Result<()> {
    let (cast, _servers) = Cast::new(label)?;
    let members = [Who::Remote];
    cast.cluster
        .manifests
        .put("web", &cast.service("web", 10, &every_protocol(), &members)?)?;
    let beside = cast.service("beside", 12, &every_protocol(), &[Who::Bridged])?;
    cast.cluster.manifests.put("beside", &beside)?;
    let neighbour = cast.cluster.add_pod("near", Wiring::Bridged)?;
    let node = &cast.cluster.world.node;
    let agent = start(&cast, backend, mode)?;
    node.nft(&others(backend != Backend::Nftables))?;
    for tables in ["iptables", "ip6tables"] {
        node.sysctl(&format!("net.bridge.bridge-nf-call-{tables}"), bridge_netfilter)?;
    }
    for like in service_ips(10) {
        let service = SocketAddr::new(like, 80);
        for who in [Who::Bridged, Who::Routed, Who::Remote, Who::Outside] {
            let outcome = cast.ask(who, service, Protocol::Tcp)?;
            // What comes in through eth0 has the bit, and is no pod's for that.
            let local = who == Who::Bridged || (who == Who::Routed && mode.starts_with("pod-state"));
            assert_eq!(
                cast.was_masqueraded(who, &outcome)?,
                !local,
                "{who:?}: {outcome:?}"
            );
        }
        // Only bridged; to the node itself; past every service.
        let pod = SocketAddr::new(cast.address(Who::Bridged, like)?, denizen_tests::cast::PORT);
        let outcome = Probe::tcp(pod).ask_in(&neighbour.netns);
        assert_eq!(outcome.endpoint(), Some(pod), "{outcome:?}");
        let remote = SocketAddr::new(cast.address(Who::Remote, like)?, denizen_tests::cast::PORT);
        let outcome = Probe::tcp(remote).ask_in(&neighbour.netns);
        assert_eq!(outcome.endpoint(), Some(remote), "{outcome:?}");
        // Through a service to the same bridge: bridged, past the rules, it would find no way back.
        if bridge_netfilter == "1" {
            let beside = service_ips(12)[usize::from(like.is_ipv6())];
            let outcome = Probe::tcp(SocketAddr::new(beside, 80)).ask_in(&neighbour.netns);
            assert_eq!(outcome.endpoint(), Some(pod), "{outcome:?}");
            assert_eq!(outcome.seen(), neighbour.address_like(like), "{outcome:?}");
        }
        let closed = SocketAddr::new(cast.address(Who::ThisNode, like)?, 9);
        Probe::tcp(closed).ask_in(&neighbour.netns);
    }
    let listed = [
        ["list", "table", "bridge", "others"],
        ["list", "table", "inet", "others"],
    ]
    .map(|words| node.output("nft", &words).unwrap_or_default())
    .concat();
    assert!(counted(node, "told")? > 0, "nobody set {BIT}:\n{listed}");
    assert_eq!(counted(node, "leak")?, 0, "others saw {BIT}:\n{listed}");
    assert_eq!(counted(node, "loss")?, 0, "others' bits were lost:\n{listed}");
    drop(agent);
    Ok(())
}

#[test]
fn port_exact_beside_others() -> Result<()> {
    kept_to_itself("bit-exact", Backend::Nftables, PORT_EXACT, "1")
}

#[test]
fn port_exact_beside_others_without_bridge_netfilter() -> Result<()> {
    kept_to_itself("bit-exact-no", Backend::Nftables, PORT_EXACT, "0")
}

#[test]
fn port_exact_beside_others_iptables_legacy() -> Result<()> {
    kept_to_itself("bit-exact-l", Backend::IptablesLegacy, PORT_EXACT, "1")
}

#[test]
fn port_exact_beside_others_iptables_nft_without_bridge_netfilter() -> Result<()> {
    kept_to_itself("bit-exact-n", Backend::IptablesNft, PORT_EXACT, "0")
}

#[test]
fn bridge_port_beside_others() -> Result<()> {
    kept_to_itself("bit-port", Backend::Nftables, "bridge-port", "1")
}

#[test]
fn bridge_port_beside_others_without_bridge_netfilter() -> Result<()> {
    kept_to_itself("bit-port-no", Backend::Nftables, "bridge-port", "0")
}

fn start(cast: &Cast, backend: Backend, mode: &str) -> Result<Agent> {
    let mut settings = cast.cluster.settings();
    settings.flags = backend.flags();
    settings.flags.push(format!("--detect-local={mode}"));
    Agent::start(&cast.cluster.world.node, settings)
}

/// What an agent with these flags leaves in the kernel when it ends: tables of denizen's, chains and elements of sets.
fn left(cast: &Cast, backend: Backend, mode: &str) -> Result<Vec<String>> {
    start(cast, backend, mode)?.terminate()?;
    in_kernel(&cast.cluster.world.node)
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

/// Another mode needs no table of the bridge family, and takes away what an earlier run's needed; so does another
/// backend. Meanwhile pods keep their address, whatever was there before.
#[test]
fn another_mode_or_backend_leaves_nothing_behind() -> Result<()> {
    const V4: &str = "table ip denizen";
    const V6: &str = "table ip6 denizen";
    const BRIDGE: &str = "table bridge denizen";
    const PODS: &str = "2 in DENIZEN-PODS-4";
    const BRIDGED: &str = "1 in DENIZEN-BRIDGED-4";
    let (cast, _servers) = Cast::new("bit-switch")?;
    let manifests = &cast.cluster.manifests;
    manifests.put(
        "web",
        &cast.service("web", 10, &every_protocol(), &[Who::Remote])?,
    )?;
    let (nftables, legacy, nft) = (Backend::Nftables, Backend::IptablesLegacy, Backend::IptablesNft);
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
        let found = left(&cast, backend, mode)?;
        let mut found: Vec<&str> = found.iter().map(String::as_str).collect();
        found.sort_by_key(|what| expected.iter().position(|it| it == what));
        assert_eq!(found, expected, "{number}: {backend:?} {mode}");
        // From a mode that has it to another that has it.
        match number {
            4 => load = Some(local_load(&cast)?),
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
    let (cast, _servers) = Cast::new(label)?;
    let node = &cast.cluster.world.node;
    let manifests = &cast.cluster.manifests;
    manifests.put(
        "web",
        &cast.service("web", 10, &every_protocol(), &[Who::Remote])?,
    )?;
    let mut settings = cast.cluster.settings();
    settings.objects = Objects::Kubeconfig(nobodys_kubeconfig(&cast)?);
    for (before, after) in [("pod-state", PORT_EXACT), (PORT_EXACT, "pod-state")] {
        left(&cast, backend, before)?;
        let (pods, clients) = (by_port(node, backend)?, local_load(&cast)?);
        settings.flags = backend.flags();
        settings.flags.push(format!("--detect-local={after}"));
        let agent = Agent::spawn(node, settings.clone())?;
        let began = Instant::now();
        while by_port(node, backend)? == pods {
            ensure!(
                began.elapsed() < BOUND,
                "pods were not programmed: {}",
                agent.log()
            );
        }
        for (who, like) in [Who::Bridged, Who::Routed].into_iter().zip(service_ips(10)) {
            let outcome = cast.ask(who, SocketAddr::new(like, 80), Protocol::Tcp)?;
            assert!(
                !cast.was_masqueraded(who, &outcome)?,
                "{after}: {who:?}: {outcome:?}"
            );
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
        Backend::Nftables => node.output("nft", &["list", "set", "ip", "denizen", "bridged-pods"]),
        Backend::IptablesLegacy | Backend::IptablesNft => iptables::sets(node),
    }
}

/// Leads to an API that nobody serves.
fn nobodys_kubeconfig(cast: &Cast) -> Result<PathBuf> {
    let path = cast.cluster.run_dir().join("kubeconfig");
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
fn local_load(cast: &Cast) -> Result<Load> {
    cast.cluster.world.forget_quickly()?;
    let mut load = Load::default();
    for who in [Who::Bridged, Who::Routed] {
        let own = service_ips(10)
            .map(|like| cast.address(who, like))
            .into_iter()
            .collect::<Result<Vec<_>>>()?;
        let targets = service_ips(10).map(|service| (SocketAddr::new(service, 80), Protocol::Tcp));
        let kept = move |outcome: &Outcome| outcome.seen().is_some_and(|seen| own.contains(&seen));
        load.client(cast.place(who).0, targets.into(), kept)?;
    }
    Ok(load)
}

/// With iptables the kernel's word comes at once too, and `cleanup` takes all of it away.
#[test]
fn what_others_do_to_the_bridges_table_is_repaired_with_iptables() -> Result<()> {
    let (cast, _servers) = Cast::new("bit-drift")?;
    let node = &cast.cluster.world.node;
    let agent = start(&cast, Backend::IptablesNft, PORT_EXACT)?;
    let table = || node.output("nft", &["list", "table", "bridge", "denizen"]);
    let expected = table()?;
    let element = format!(
        "{} . {}",
        cast.bridged.host_interface(),
        cast.bridged.addresses[0]
    );
    let harms = [
        "add rule bridge denizen prerouting meta mark set 0x40".to_owned(),
        format!("delete element bridge denizen pod-ports {{ {element} }}"),
        "flush table bridge denizen".to_owned(),
        "delete table bridge denizen".to_owned(),
    ];
    for (harm, count) in harms.into_iter().zip(1..) {
        node.nft(&harm)?;
        let began = Instant::now();
        while table().unwrap_or_default() != expected || agent.status()?["driftRepaired"] != count {
            let (now, status) = (table(), agent.status()?);
            ensure!(began.elapsed() < BOUND, "{harm}: {now:?}, {status}");
        }
    }
    agent.terminate()?;
    let program = denizen_tests::binary::ours("denizen-agent")?;
    let said = node.output(&program.display().to_string(), &["cleanup"])?;
    ensure!(said.contains("removed 1 nftables table\n"), "{said}");
    assert_eq!(in_kernel(node)?, [""; 0]);
    ensure!(node.output("ipset", &["list", "-n"])?.is_empty(), "sets are left");
    Ok(())
}
