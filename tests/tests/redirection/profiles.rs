//! Connections of pods with each kind of proxy: which port answers, which rule counts, and what
//! `explain` says.

use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use denizen_state::redirect::RedirectBackend;
use denizen_tests::peers::sidecar::{CLIENT_UID, fetch, serve};
use serde_json::json;
use socket2::{Domain, Socket, Type};

use super::context::{BY_PROXY, From, Mesh, TAKEN_IN, TAKEN_OUT, nft};

/// To whom.
#[derive(Debug, Clone, Copy)]
enum To {
    Node,
    /// Another address of the node, which is excluded.
    Excluded,
    Pod,
    Localhost,
    /// That of a service, before anything on the node translates it.
    ClusterIp,
}

/// A connection: what it is, who makes it, to which port of whom, the port that answers, and the
/// rule that decides, as `explain` names it.
type Case<'a> = (&'a str, From, To, u16, u16, &'a str);

const CLIENT: From = From::Pod(CLIENT_UID);

const EXCLUDED: [&str; 2] = ["10.85.1.1", "fd00:85:1::1"];
const EXCLUDED_V4: &str = "outbound proxy-init/ignore-subnet-10.85.1.1/32";

const OUT: Case<'static> = ("out", CLIENT, To::Node, 8080, 15001, TAKEN_OUT);
const TO_ITSELF: &str = "outbound proxy-init/ignore-loopback";

const EXCLUDED_PORT: Case<'static> = (
    "a port that is excluded",
    CLIENT,
    To::Node,
    9000,
    9000,
    "outbound proxy-init/ignore-port-9000",
);
const EXCLUDED_CIDR: Case<'static> =
    ("a CIDR that is excluded", CLIENT, To::Excluded, 8080, 8080, EXCLUDED_V4);

const EXCLUDED_V6: &str = "outbound proxy-init/ignore-subnet-fd00:85:1::1/128";

/// Rules that iptables makes one of, or writes in another way.
const IN_IPTABLES: [(&str, &str); 3] = [
    ("inbound proxy-init/ignore-port-4191", "inbound proxy-init/ignore-port-4190,4191,4567:4568"),
    (
        "inbound proxy-init/ignore-port-4567-4568",
        "inbound proxy-init/ignore-port-4190,4191,4567:4568",
    ),
    ("outbound proxy-init/ignore-port-4567-4568", "outbound proxy-init/ignore-port-4567:4568,9000"),
];

/// Adds the pod, and makes every connection in both versions of IP. In place of the proxy, servers
/// say at which of its ports a connection arrived: it must not connect on.
fn check_cases(mesh: &Mesh, served: &[u16], cases: &[Case<'_>]) {
    for address in ["10.85.1.1/32", "fd00:85:1::1/128"] {
        mesh.base.node.ip(&format!("addr add {address} dev lo"));
    }
    let result = mesh.add().unwrap();
    mesh.ours("CHECK", &result).unwrap();
    let pods = Mesh::addresses(&result);
    let is_iptables = mesh.record().redirect.unwrap().backend == RedirectBackend::Iptables;
    for port in [4567, 8080, 9000] {
        serve(&mesh.base.node, port);
    }
    for port in served {
        serve(&mesh.base.pod, *port);
    }
    let ip = |text: &str| text.parse::<IpAddr>().unwrap();
    let others = [
        ["10.85.0.1", EXCLUDED[0], "127.0.0.1", "10.96.0.10"],
        ["fd00:85::1", EXCLUDED[1], "::1", "fd00:96::10"],
    ];
    for (pod, [node, excluded, localhost, service]) in pods.into_iter().zip(others) {
        for (name, from, to, port, answer, rule) in cases {
            let to = match to {
                To::Node => ip(node),
                To::Excluded => ip(excluded),
                To::Pod => pod,
                To::Localhost => ip(localhost),
                To::ClusterIp => ip(service),
            };
            let rule = match pod {
                IpAddr::V6(_) if *rule == EXCLUDED_V4 => EXCLUDED_V6,
                IpAddr::V4(_) | IpAddr::V6(_) => rule,
            };
            let (to, name) = (SocketAddr::new(to, *port), format!("{name}: {to} {port}"));
            let in_iptables = IN_IPTABLES.iter().filter(|_| is_iptables);
            let same = in_iptables.filter(|(of, _)| *of == rule).map(|(_, same)| *same).next();
            counted(mesh, same.unwrap_or(rule), &name, || {
                let output = match from {
                    From::Pod(uid) => fetch(&mesh.base.pod, *uid, to),
                    From::Node => fetch(&mesh.base.node, CLIENT_UID, to),
                };
                assert_eq!(output, Some(answer.to_string()), "{name}");
            });
            let source = match from {
                From::Pod(CLIENT_UID) => pod,
                // `explain` speaks of users that no rule asks for.
                From::Pod(_) => continue,
                From::Node => ip(node),
            };
            let port = (answer != port).then_some(u64::from(*answer));
            let explained = mesh.explained(&source.to_string(), to);
            assert_eq!(explained, [(rule.to_owned(), port)], "{name}");
        }
    }
}

/// Does it, which this rule alone must count, once.
fn counted(mesh: &Mesh, rule: &str, name: &str, does: impl FnOnce()) {
    let before = mesh.counts();
    does();
    let rise = |(rule, count): (String, u64)| {
        let rise = count - before.get(&rule).unwrap_or(&0);
        (rise > 0).then_some((rule, rise))
    };
    let rises = Vec::from_iter(mesh.counts().into_iter().filter_map(rise));
    assert_eq!(rises, [(rule.to_owned(), 1)], "{name}");
}

/// Connects to `to` from the pod with a socket that was prepared, and returns what is said there.
fn fetch_with(
    mesh: &Mesh,
    to: SocketAddr,
    prepare: impl FnOnce(&Socket) + Send + 'static,
) -> String {
    mesh.base.pod.run(move || {
        let mut socket = Socket::new(Domain::for_address(to), Type::STREAM, None).unwrap();
        prepare(&socket);
        socket.connect(&to.into()).unwrap();
        let mut output = String::new();
        socket.read_to_string(&mut output).unwrap();
        output
    })
}

const PROXY: From = From::Pod(1337);

const ISTIO: [Case<'static>; 12] = [
    OUT,
    ("a service", CLIENT, To::ClusterIp, 80, 15001, TAKEN_OUT),
    EXCLUDED_PORT,
    EXCLUDED_CIDR,
    ("the proxy's own", PROXY, To::Node, 8080, 8080, BY_PROXY),
    ("to itself", CLIENT, To::Pod, 8080, 8080, TO_ITSELF),
    ("to localhost", CLIENT, To::Localhost, 8080, 8080, TO_ITSELF),
    (
        "the proxy to the pod",
        PROXY,
        To::Pod,
        8080,
        15006,
        "outbound denizen/redirect-hairpin-to-proxy-port",
    ),
    (
        "the proxy to its own port",
        PROXY,
        To::Pod,
        15021,
        15021,
        "outbound denizen/ignore-hairpin-port-15021",
    ),
    ("the proxy to localhost", PROXY, To::Localhost, 8080, 8080, BY_PROXY),
    ("in", From::Node, To::Pod, 8080, 15006, TAKEN_IN),
    ("probes", From::Node, To::Pod, 15021, 15021, "inbound proxy-init/ignore-port-15021"),
];

#[test]
fn istio_s_pods_are_redirected() {
    let annotations = [
        ("sidecar.istio.io/status", r#"{"initContainers":["istio-validation"]}"#),
        ("traffic.sidecar.istio.io/excludeInboundPorts", "15020,15021"),
        ("traffic.sidecar.istio.io/excludeOutboundPorts", "15020,9000"),
        ("traffic.sidecar.istio.io/excludeOutboundIPRanges", "10.85.1.1/32,fd00:85:1::1/128"),
    ];
    let mesh = Mesh::bridged(&json!({ "profile": "istio" }), &annotations);
    check_cases(&mesh, &[8080, 15001, 15006, 15021], &ISTIO);
    // What Envoy passes on has a source of its own.
    for (passed_on, pod) in ["127.0.0.6:0", "[::6]:0"].into_iter().zip(mesh.record().ips) {
        let from: SocketAddr = passed_on.parse().unwrap();
        if from.is_ipv6() {
            mesh.base.pod.ip("addr add ::6/128 dev lo nodad");
        }
        counted(&mesh, "outbound denizen/ignore-passed-on", passed_on, || {
            let output = fetch_with(&mesh, SocketAddr::new(pod, 8080), move |socket| {
                socket.bind(&from.into()).unwrap();
            });
            assert_eq!(output, "8080");
        });
    }
}

const CONSUL_PROXY: From = From::Pod(5995);

const CONSUL: [Case<'static>; 11] = [
    OUT,
    ("a service", CLIENT, To::ClusterIp, 80, 15001, TAKEN_OUT),
    EXCLUDED_PORT,
    EXCLUDED_CIDR,
    (
        "a user that is excluded",
        From::Pod(5996),
        To::Node,
        8080,
        8080,
        "outbound denizen/ignore-user-id-5996",
    ),
    ("the proxy's own", CONSUL_PROXY, To::Node, 8080, 8080, BY_PROXY),
    ("to itself", CLIENT, To::Pod, 8080, 15001, TAKEN_OUT),
    ("to localhost", CLIENT, To::Localhost, 8080, 8080, "outbound denizen/ignore-loopback-address"),
    ("DNS", CLIENT, To::Localhost, 53, 8600, "outbound denizen/redirect-dns-to-port-8600"),
    ("in", From::Node, To::Pod, 8080, 20000, TAKEN_IN),
    ("probes", From::Node, To::Pod, 20200, 20200, "inbound proxy-init/ignore-port-20200"),
];

#[test]
fn consul_s_pods_are_redirected() {
    let config = json!({
        "ConsulDNSIP": "127.0.0.1", "ConsulDNSPort": 8600, "ProxyUserID": "5995",
        "ProxyInboundPort": 20000, "ProxyOutboundPort": 15001, "ExcludeInboundPorts": ["20200"],
        "ExcludeOutboundPorts": ["9000"], "ExcludeUIDs": ["5996"],
        "ExcludeOutboundCIDRs": ["10.85.1.1", "fd00:85:1::1"],
    });
    let config = config.to_string();
    let annotations = [
        ("consul.hashicorp.com/redirect-traffic-config", config.as_str()),
        ("consul.hashicorp.com/transparent-proxy-status", "enabled"),
        ("consul.hashicorp.com/dual-stack", "true"),
    ];
    let mesh = Mesh::bridged(&json!({ "profile": "consul" }), &annotations);
    check_cases(&mesh, &[8080, 8600, 15001, 20000, 20200], &CONSUL);
    for loopback in [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()] {
        let rule = "outbound denizen/redirect-dns-to-port-8600";
        counted(&mesh, rule, "DNS over UDP", || resolve(&mesh, loopback));
    }
}

/// What every other proxy needs; `custom` says it all.
const PLAIN: [Case<'static>; 9] = [
    ("out", CLIENT, To::Node, 8080, 4140, TAKEN_OUT),
    ("a service", CLIENT, To::ClusterIp, 80, 4140, TAKEN_OUT),
    EXCLUDED_CIDR,
    ("the proxy's own", From::Pod(2102), To::Node, 8080, 8080, BY_PROXY),
    ("to itself", CLIENT, To::Pod, 8080, 8080, TO_ITSELF),
    ("to localhost", CLIENT, To::Localhost, 8080, 8080, TO_ITSELF),
    ("in", From::Node, To::Pod, 8080, 4143, TAKEN_IN),
    ("probes", From::Node, To::Pod, 4191, 4191, "inbound proxy-init/ignore-port-4191"),
    ("skipped", From::Node, To::Pod, 4567, 4567, "inbound proxy-init/ignore-port-4567-4568"),
];

const SKIPPED: Case<'static> =
    ("a range", CLIENT, To::Node, 4567, 4567, "outbound proxy-init/ignore-port-4567-4568");

#[test]
fn other_proxies_get_what_is_asked_for() {
    let custom = json!({
        "profile": "custom", "select": { "annotation": "example.com/proxy", "value": "yes" },
        "inboundPort": 4143, "outboundPort": 4140, "proxyUid": 2102, "skipOutboundPorts": [9000],
        "skipOutboundCidrs": EXCLUDED, "alwaysSkipInboundPorts": [4191],
        "skipInboundPorts": ["4567-4568"],
    });
    let mesh = Mesh::bridged(&custom, &[("example.com/proxy", "yes")]);
    check_cases(
        &mesh,
        &[4140, 4143, 4191, 4567, 8080],
        &[&PLAIN as &[_], &[EXCLUDED_PORT]].concat(),
    );
}

#[test]
fn linkerd_s_pods_are_redirected_by_iptables() {
    let linkerd = json!({
        "profile": "linkerd", "backend": "iptables", "skipOutboundPorts": ["4567-4568", 9000],
        "skipOutboundCidrs": EXCLUDED,
    });
    let mesh = Mesh::bridged(&linkerd, &[]);
    check_cases(&mesh, &[4140, 4143, 4191, 4567, 8080], &[&PLAIN as &[_], &[SKIPPED]].concat());
}

/// Asks at port 53 over UDP, and is answered from there by who listens at port 8600.
fn resolve(mesh: &Mesh, loopback: IpAddr) {
    mesh.base.pod.run(move || {
        let [server, client] = [8600, 0].map(|port| UdpSocket::bind((loopback, port)).unwrap());
        for socket in [&server, &client] {
            socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        }
        client.connect((loopback, 53)).unwrap();
        client.send(b"?").unwrap();
        let (_, asker) = server.recv_from(&mut [0]).unwrap();
        server.send_to(b"!", asker).unwrap();
        client.recv(&mut [0]).unwrap();
    });
}

/// Only what Istio's annotations list goes to the proxy, and it is tried with one of these.
#[test]
fn listed_networks_and_ports_alone_are_redirected() {
    let annotations = [
        ("sidecar.istio.io/status", r#"{"initContainers":["istio-validation"]}"#),
        ("traffic.sidecar.istio.io/includeOutboundIPRanges", "10.85.1.0/24,fd00:85:1::/64"),
        ("traffic.sidecar.istio.io/includeOutboundPorts", "9000"),
    ];
    let mesh = Mesh::bridged(&json!({ "profile": "istio" }), &annotations);
    let port = "outbound proxy-init/redirect-port-9000-to-proxy-port";
    mesh.base.node.ip("addr add 10.85.1.1/32 dev lo");
    mesh.add().unwrap();
    serve(&mesh.base.pod, 15001);
    serve(&mesh.base.node, 8080);
    let ask = |to: &str| fetch(&mesh.base.pod, CLIENT_UID, to.parse().unwrap());
    counted(&mesh, "outbound denizen/redirect-subnet-10.85.1.0/24-to-proxy-port", "CIDR", || {
        assert_eq!(ask("10.85.1.1:8080").as_deref(), Some("15001"));
    });
    counted(&mesh, port, "port", || {
        assert_eq!(ask("10.85.0.1:9000").as_deref(), Some("15001"));
    });
    let before = mesh.counts();
    assert_eq!(ask("10.85.0.1:8080").as_deref(), Some("8080"));
    assert_eq!(mesh.counts(), before);
}

#[test]
fn marked_connections_pass_the_proxy_by() {
    let redirect = json!({ "profile": "linkerd", "skipMark": "0x500/0xf00" });
    let mesh = Mesh::bridged(&redirect, &[]);
    mesh.add().unwrap();
    serve(&mesh.base.pod, 4140);
    serve(&mesh.base.node, 8080);
    let to: SocketAddr = "10.85.0.1:8080".parse().unwrap();
    for (mark, answer, rule) in [
        (0x539, "8080", "outbound denizen/ignore-mark-0x500/0xf00"),
        (0x239, "4140", TAKEN_OUT),
        (0, "4140", TAKEN_OUT),
    ] {
        counted(&mesh, rule, &format!("{mark:#x}"), || {
            let output = fetch_with(&mesh, to, move |socket| socket.set_mark(mark).unwrap());
            assert_eq!(output, answer, "{mark:#x}");
        });
    }
}

/// A chain that drops what is invalid is there when it should be, and gone when it should not.
#[test]
fn what_is_invalid_is_dropped_if_that_is_asked_for() {
    let mut mesh = Mesh::bridged(&json!({ "profile": "linkerd", "dropInvalid": true }), &[]);
    let result = mesh.add().unwrap();
    let list = ["list", "chain", "inet", "denizen-redirect", "invalid"];
    let text = nft(&mesh.base.pod, &list).unwrap();
    assert!(text.contains("type filter hook prerouting priority mangle; policy accept;"), "{text}");
    assert!(text.contains("ct state invalid counter"), "{text}");
    mesh.ours("CHECK", &result).unwrap();
    mesh.chain.plugins[1]["redirect"]["dropInvalid"] = false.into();
    let result = mesh.ours("ADD", &result).unwrap();
    mesh.ours("CHECK", &result).unwrap();
    let chain = nft(&mesh.base.pod, &list);
    assert!(chain.is_err(), "{chain:?}");
}
