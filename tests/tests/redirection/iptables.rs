//! The backend `iptables`: linkerd-init's rules, and what they do to packets.

use std::net::{IpAddr, SocketAddr};

use denizen_tests::node::cni::Namespace;
use denizen_tests::peers::linkerd_init::{DEFAULT, InitRule, linkerd_init};
use denizen_tests::peers::sidecar::{CLIENT_UID, PROXY_UID, Redirected, Sidecar, fetch, serve};
use serde_json::{Value, json};

use super::context::{Mesh, nft, run};

pub fn with_iptables(mut redirect: Value) -> Value {
    redirect["profile"] = "linkerd".into();
    redirect["backend"] = "iptables".into();
    redirect
}

/// The rules that translate addresses in `pod`, of both versions of IP.
fn rules(pod: &Namespace) -> [Vec<String>; 2] {
    listed(pod, ["iptables-save", "ip6tables-save"])
}

fn listed(pod: &Namespace, programs: [&str; 2]) -> [Vec<String>; 2] {
    programs.map(|program| {
        let text = run(pod, program, &["-t", "nat"]);
        text.lines().filter(|line| line.starts_with("-A")).map(str::to_owned).collect()
    })
}

/// With listed ports, a group, and more ports than one rule takes.
const LISTED: [InitRule<'static>; 13] = [
    ("-N PROXY_INIT_REDIRECT", ""),
    (
        "-A PROXY_INIT_REDIRECT -p tcp --match multiport \
         --dports 4190,4191,1,2,3,4,5,6,7,8,9,10,11,12 -j RETURN",
        "ignore-port-4190,4191,1,2,3,4,5,6,7,8,9,10,11,12",
    ),
    (
        "-A PROXY_INIT_REDIRECT -p tcp --match multiport --dports 20:30 -j RETURN",
        "ignore-port-20:30",
    ),
    (
        "-A PROXY_INIT_REDIRECT -p tcp --destination-port 80 -j REDIRECT --to-port 4143",
        "redirect-port-80-to-proxy-port",
    ),
    (
        "-A PROXY_INIT_REDIRECT -p tcp --destination-port 443 -j REDIRECT --to-port 4143",
        "redirect-port-443-to-proxy-port",
    ),
    ("-A PREROUTING -j PROXY_INIT_REDIRECT", "install-proxy-init-prerouting"),
    ("-N PROXY_INIT_OUTPUT", ""),
    DEFAULT[5],
    ("-A PROXY_INIT_OUTPUT -m owner --gid-owner 2103 -j RETURN", "ignore-proxy-group-id"),
    DEFAULT[6],
    DEFAULT[7],
    DEFAULT[8],
    DEFAULT[9],
];

#[test]
fn the_rules_are_linkerd_init_s() {
    let ports = json!([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, "20-30"]);
    let listed =
        json!({ "skipInboundPorts": ports, "onlyInboundPorts": [80, 443], "proxyGid": 2103 });
    let cases: [(Value, &[InitRule<'_>]); 2] = [(json!({}), &DEFAULT), (listed, &LISTED)];
    for (redirect, commands) in cases {
        let ours = Mesh::bridged(&with_iptables(redirect), &[]);
        let result = ours.add().unwrap();
        let theirs = Mesh::bridged(&json!({ "profile": "custom" }), &[]);
        theirs.add().unwrap();
        linkerd_init(&theirs.base.pod, commands);
        let rules_of_ours = rules(&ours.base.pod);
        assert_eq!(rules_of_ours, rules(&theirs.base.pod));
        ours.ours("CHECK", &result).unwrap();
        ours.ours("ADD", &result).unwrap();
        assert_eq!(rules(&ours.base.pod), rules_of_ours, "a repeated ADD changes nothing");
    }
}

/// A node may have the legacy one.
#[test]
fn legacy_iptables_gets_the_same_rules() {
    let meshes = [false, true].map(|legacy| {
        let mesh = Mesh::bridged(&with_iptables(json!({})), &[]);
        if legacy {
            mesh.base.node.replace("/usr/sbin/xtables-nft-multi", "/usr/sbin/xtables-legacy-multi");
        }
        mesh.add().unwrap();
        mesh
    });
    let [nft, legacy] = meshes.each_ref().map(|mesh| &mesh.base.pod);
    let legacy_rules = listed(legacy, ["iptables-legacy-save", "ip6tables-legacy-save"]);
    assert_eq!(legacy_rules, rules(nft));
    assert_eq!(rules(legacy), [const { Vec::<String>::new() }; 2]);
}

/// A connection of this user of the pod, or of the node, to the node or to the pod.
pub type Connection = (Option<u32>, bool, u16);

/// Where somebody listens.
pub const PORTS: [u16; 5] = [8080, 4191, 4567, 4568, 9000];

const CONNECTIONS: [Connection; 12] = [
    (Some(CLIENT_UID), true, 8080),
    (Some(0), true, 8080),
    (Some(PROXY_UID), true, 8080),
    (Some(1000), true, 8080),
    (Some(CLIENT_UID), true, 4567),
    (Some(CLIENT_UID), true, 4568),
    (Some(CLIENT_UID), false, 8080),
    (Some(PROXY_UID), false, 8080),
    (None, false, 8080),
    (None, false, 4191),
    (None, false, 4567),
    (None, false, 9000),
];

/// What becomes of each connection: what is said, and what the proxy sees.
pub fn outcomes(
    mesh: &Mesh,
    pods: &[IpAddr],
    connections: &[Connection],
) -> Vec<(Option<String>, Vec<Redirected>)> {
    let sidecar = Sidecar::run(&mesh.base.pod, &[4143, 4140]);
    for port in PORTS {
        serve(&mesh.base.node, port);
        serve(&mesh.base.pod, port);
    }
    let mut outcomes = Vec::new();
    for (pod, node) in pods.iter().zip(["10.85.0.1", "fd00:85::1"]) {
        for (user, to_node, port) in connections.iter().copied() {
            let to = if to_node { node.parse().unwrap() } else { *pod };
            let to = SocketAddr::new(to, port);
            let output = match user {
                Some(user) => fetch(&mesh.base.pod, user, to),
                None => fetch(&mesh.base.node, CLIENT_UID, to),
            };
            outcomes.push((output, sidecar.taken()));
        }
    }
    outcomes
}

#[test]
fn packets_go_where_they_go_with_nftables_and_with_linkerd_init() {
    let cases = [
        json!({}),
        json!({ "skipOutboundCidrs": ["10.85.0.0/25"], "skipOutboundUids": [1000] }),
        json!({ "skipInboundCidrs": ["fd00:85::/64"], "onlyInboundPorts": [8080, 4567] }),
        json!({ "ipv6": "bypass", "skipInboundPorts": [], "proxyGid": 7 }),
    ];
    for redirect in cases {
        let mut nftables = redirect.clone();
        nftables["profile"] = "linkerd".into();
        let [nftables, iptables] = [nftables, with_iptables(redirect.clone())].map(|redirect| {
            let mesh = Mesh::bridged(&redirect, &[]);
            let result = mesh.add().unwrap();
            outcomes(&mesh, &Mesh::addresses(&result), &CONNECTIONS)
        });
        assert!(nftables.iter().any(|(_, taken)| !taken.is_empty()), "{redirect}");
        assert_eq!(nftables, iptables, "{redirect}");
        if redirect == json!({}) {
            let theirs = Mesh::bridged(&json!({ "profile": "custom" }), &[]);
            let result = theirs.add().unwrap();
            linkerd_init(&theirs.base.pod, &DEFAULT);
            assert_eq!(nftables, outcomes(&theirs, &Mesh::addresses(&result), &CONNECTIONS));
        }
    }
}

#[test]
fn check_names_rules_of_iptables() {
    let mesh = Mesh::bridged(&with_iptables(json!({})), &[]);
    let result = mesh.add().unwrap();
    let changes = [
        (
            "-D PROXY_INIT_OUTPUT -o lo -m comment --comment proxy-init/ignore-loopback -j RETURN",
            "is missing: -A PROXY_INIT_OUTPUT -o lo",
        ),
        (
            "-A PROXY_INIT_OUTPUT -p udp -j RETURN",
            "has a foreign rule: -A PROXY_INIT_OUTPUT -p udp",
        ),
        ("-F PREROUTING", "install-proxy-init-prerouting"),
    ];
    for (change, why) in changes {
        let mut arguments = vec!["-t", "nat"];
        arguments.extend(change.split(' '));
        run(&mesh.base.pod, "iptables", &arguments);
        let refusal = mesh.ours("CHECK", &result).unwrap_err();
        assert!(refusal["msg"].as_str().unwrap().contains(why), "{refusal}");
        mesh.ours("ADD", &result).unwrap();
        mesh.ours("CHECK", &result).unwrap();
    }
}

/// Where both are, whatever ours does not redirect, linkerd-init's rules are asked about.
#[test]
fn linkerd_init_on_top_changes_nothing() {
    let [alone, before, after] =
        [(false, false), (true, false), (false, true)].map(|(before, after)| {
            let mesh = Mesh::bridged(&json!({ "profile": "linkerd" }), &[]);
            if before {
                linkerd_init(&mesh.base.pod, &DEFAULT);
            }
            let pods = Mesh::addresses(&mesh.add().unwrap());
            if after {
                linkerd_init(&mesh.base.pod, &DEFAULT);
            }
            outcomes(&mesh, &pods, &CONNECTIONS)
        });
    assert_eq!(before, alone);
    assert_eq!(after, alone);
}

/// The second version of IP fails: a table that iptables cannot use.
const AGAINST: &str = "table ip6 nat { chain PREROUTING { type filter hook input priority 5; }; }";

#[test]
fn what_iptables_refuses_leaves_nothing() {
    let mesh = Mesh::bridged(&with_iptables(json!({})), &[]);
    nft(&mesh.base.pod, &[AGAINST]).unwrap();
    let refusal = mesh.add().unwrap_err();
    assert!(refusal["msg"].as_str().unwrap().contains("ip6tables-"), "{refusal}");
    let text = run(&mesh.base.pod, "iptables-save", &["-t", "nat"]);
    assert!(!text.contains("PROXY_INIT"), "{text}");
    let recorded = mesh.base.run_dir().exists() && !mesh.base.records().is_empty();
    assert!(!recorded);
}

/// A repeated ADD that fails leaves the rules of the first one.
#[test]
fn what_a_repeated_add_cannot_do_leaves_the_rules() {
    let mut mesh = Mesh::bridged(&with_iptables(json!({})), &[]);
    let result = mesh.add().unwrap();
    let before = rules(&mesh.base.pod);
    let ours = &mut mesh.chain.plugins[1];
    ours["redirect"]["outboundPort"] = 5140.into();
    ours["waitForAgent"] = json!({ "timeout": "50ms", "onTimeout": "fail" });
    mesh.ours("ADD", &result).unwrap_err();
    assert_eq!(rules(&mesh.base.pod), before);
    mesh.ours("CHECK", &result).unwrap();
}
