//! What a redirected pod has besides TCP through its own interface: other protocols, containers
//! within it, other networks, a user namespace, no IPv6, no default route.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use denizen_tests::eventually::eventually;
use denizen_tests::node::cni::{Call, Namespace, PluginContext};
use denizen_tests::peers::sidecar::{CLIENT_UID, PROXY_UID, Redirected, Sidecar, fetch, serve};
use serde_json::{Value, json};
use socket2::{Domain, Protocol, Socket, Type};

use super::context::{BY_PROXY, Mesh, TAKEN_IN, bridge, nft};

const INBOUND: u16 = 4143;
const OUTBOUND: u16 = 4140;
const WEB: u16 = 8080;

/// The node's addresses, as its pods see it.
const NODE: [&str; 2] = ["10.85.0.1", "fd00:85::1"];

/// What has not happened by then never will.
const TIMEOUT: Duration = Duration::from_secs(10);

fn linkerd() -> Value {
    json!({ "profile": "linkerd" })
}

fn web(ip: &str) -> SocketAddr {
    SocketAddr::new(ip.parse().unwrap(), WEB)
}

/// Writes a setting of `namespace`, named as below `/proc/sys/net`.
fn set(namespace: &Namespace, setting: &str, value: &'static str) {
    let path = format!("/proc/sys/net/{setting}");
    namespace.run(move || fs::write(path, value)).unwrap();
}

/// Does it, which no rule must count.
fn uncounted<T>(mesh: &Mesh, does: impl FnOnce() -> T) -> T {
    let before = mesh.counts();
    let done = does();
    assert_eq!(mesh.counts(), before);
    done
}

/// A datagram from the pod arrives, and a ping is answered.
#[test]
fn what_is_not_tcp_is_left_alone() {
    let mesh = Mesh::bridged(&linkerd(), &[]);
    let pods = Mesh::addresses(&mesh.add().unwrap());
    for (node, pod) in NODE.into_iter().zip(pods) {
        let to = web(node);
        let server = mesh.base.node.run(move || UdpSocket::bind(to)).unwrap();
        server.set_read_timeout(Some(TIMEOUT)).unwrap();
        uncounted(&mesh, || {
            let client = mesh.base.pod.run(move || UdpSocket::bind((pod, 0))).unwrap();
            client.send_to(b"?", to).unwrap();
            let (_, from) = server.recv_from(&mut [0]).unwrap();
            assert_eq!(from, client.local_addr().unwrap());
            ping(&mesh.base.pod, to.ip());
        });
    }
}

fn ping(from: &Namespace, to: IpAddr) {
    // For whoever, without raw sockets.
    set(from, "ipv4/ping_group_range", "0 2147483647");
    from.run(move || {
        let (domain, protocol, echo) = match to {
            IpAddr::V4(_) => (Domain::IPV4, Protocol::ICMPV4, 8),
            IpAddr::V6(_) => (Domain::IPV6, Protocol::ICMPV6, 128),
        };
        let mut socket = Socket::new(domain, Type::DGRAM, Some(protocol)).unwrap();
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        socket.send_to(&[echo, 0, 0, 0, 0, 0, 0, 1], &SocketAddr::new(to, 0).into()).unwrap();
        assert!(socket.read(&mut [0; 64]).unwrap() > 0);
    });
}

/// As a pod in which Docker runs has it: containers behind a bridge of the pod's own. And a second
/// network.
#[test]
fn containers_within_the_pod_and_its_other_networks_are_left_alone() {
    let mesh = Mesh::bridged(&linkerd(), &[]);
    let pod = Mesh::addresses(&mesh.add().unwrap())[0];
    let sidecar = Sidecar::run(&mesh.base.pod, &[INBOUND, OUTBOUND]);
    let (container, neighbour) = (Namespace::new(), Namespace::new());
    let inside = &mesh.base.pod;
    inside.ip("link add docker0 type bridge");
    inside
        .ip(&format!("link add v0 type veth peer name eth0 netns {}", container.path().display()));
    inside.ip("link set v0 up master docker0");
    inside.ip(&format!(
        "link add eth1 type veth peer name eth0 netns {}",
        neighbour.path().display()
    ));
    for (own, subnet, other) in
        [("docker0", "172.18.0", &container), ("eth1", "172.19.0", &neighbour)]
    {
        inside.ip(&format!("addr add {subnet}.1/24 dev {own}"));
        inside.ip(&format!("link set {own} up"));
        other.ip(&format!("addr add {subnet}.2/24 dev eth0"));
        other.ip("link set eth0 up");
        other.ip(&format!("route add default via {subnet}.1"));
        mesh.base.node.ip(&format!("route add {subnet}.0/24 via {pod}"));
    }
    set(inside, "ipv4/ip_forward", "1");
    for namespace in [&mesh.base.node, inside, &container, &neighbour] {
        serve(namespace, WEB);
    }
    for (from, to) in [
        (&container, NODE[0]),
        (&container, "172.18.0.1"),
        (inside, "172.18.0.2"),
        (&neighbour, "172.19.0.1"),
        (inside, "172.19.0.2"),
    ] {
        let output = uncounted(&mesh, || fetch(from, CLIENT_UID, web(to)));
        assert_eq!(output, Some(WEB.to_string()), "to {to}");
    }
    assert_eq!(sidecar.taken(), []);
}

/// A network namespace that belongs to a user namespace, as a pod's with `hostUsers: false` does.
struct Unprivileged(Child);

/// The user of the machine that is its root.
const ITS_ROOT: u32 = 100_000;

impl Unprivileged {
    fn start() -> Self {
        let mut command = Command::new("unshare");
        command.args(["--user", "--net", "sleep", "600"]).stdin(Stdio::null());
        let process = Self(command.spawn().unwrap());
        let users = |of: &str| fs::read_link(format!("/proc/{of}/ns/user"));
        let id = process.0.id().to_string();
        eventually("it has its own", TIMEOUT, || Ok(users(&id)? != users("self")?)).unwrap();
        for map in ["uid_map", "gid_map"] {
            fs::write(format!("/proc/{id}/{map}"), format!("0 {ITS_ROOT} 65536")).unwrap();
        }
        process
    }

    fn mesh(&self, redirect: &Value) -> Mesh {
        let path = format!("/proc/{}/ns/net", self.0.id());
        let mut base = PluginContext::new();
        base.pod = Namespace::at(path.as_ref());
        Mesh::on(base, bridge(), redirect, &[])
    }
}

impl Drop for Unprivileged {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The users are those that the pod's processes know.
#[test]
fn a_pod_with_users_of_its_own_is_redirected() {
    let process = Unprivileged::start();
    let mesh = process.mesh(&linkerd());
    mesh.add().unwrap();
    serve(&mesh.base.node, WEB);
    serve(&mesh.base.pod, OUTBOUND);
    for node in NODE {
        for (user, port) in [(CLIENT_UID, OUTBOUND), (PROXY_UID, WEB)] {
            let output = fetch(&mesh.base.pod, ITS_ROOT + user, web(node));
            assert_eq!(output, Some(port.to_string()), "user {user}, {node}");
        }
    }
}

/// Its module for users takes no rule from outside the user namespace.
#[test]
fn iptables_cannot_redirect_a_pod_with_users_of_its_own() {
    let process = Unprivileged::start();
    let mesh = process.mesh(&json!({ "profile": "linkerd", "backend": "iptables" }));
    let refusal = mesh.add().unwrap_err();
    let why = refusal["msg"].as_str().unwrap();
    assert!(why.contains("hostUsers: false"), "{why}");
    assert!(!mesh.base.run_dir().exists() || mesh.base.records().is_empty());
}

/// A process that connects since before: what it begins after the ADD's answer is redirected.
#[test]
fn nothing_passes_once_an_add_has_answered() {
    const REFUSALS: usize = 100;
    let mesh = Mesh::bridged(&json!({ "profile": "linkerd", "verify": "none" }), &[]);
    let result = mesh.chain.clone().without_denizen().add(&mesh.base.node, &mesh.call).unwrap();
    serve(&mesh.base.node, WEB);
    let (passed, answered, pod) = (AtomicUsize::new(0), AtomicBool::new(false), &mesh.base.pod);
    std::thread::scope(|scope| {
        let client = scope.spawn(|| {
            let mut refused = 0;
            while refused < REFUSALS {
                let begun_late = answered.load(Ordering::SeqCst);
                match fetch(pod, CLIENT_UID, web(NODE[0])) {
                    Some(_) if begun_late => return Err("it passed the proxy by"),
                    Some(_) => drop(passed.fetch_add(1, Ordering::SeqCst)),
                    // Nobody listens at the proxy's port.
                    None => refused += 1,
                }
            }
            Ok(())
        });
        let passes = || Ok(passed.load(Ordering::SeqCst) > 10);
        eventually("it connects", TIMEOUT, passes).unwrap();
        mesh.ours("ADD", &result).unwrap();
        answered.store(true, Ordering::SeqCst);
        assert_eq!(client.join().unwrap(), Ok(()));
    });
}

/// It is the proxy's to refuse, and the proxy is asked once.
#[test]
fn a_connection_to_the_proxy_s_own_port_is_no_loop() {
    let mesh = Mesh::bridged(&linkerd(), &[]);
    let pods = Mesh::addresses(&mesh.add().unwrap());
    let sidecar = Sidecar::run(&mesh.base.pod, &[INBOUND]);
    for (pod, node) in pods.into_iter().zip(NODE) {
        let before = mesh.counts();
        let to = SocketAddr::new(pod, INBOUND);
        assert_eq!(fetch(&mesh.base.node, CLIENT_UID, to), None);
        let source = node.parse().unwrap();
        assert_eq!(sidecar.taken(), [Redirected { port: INBOUND, source, to }]);
        let rises = |rule: &str| {
            let count =
                |counts: &BTreeMap<String, u64>| counts.get(rule).copied().unwrap_or_default();
            count(&mesh.counts()) - count(&before)
        };
        assert_eq!([TAKEN_IN, BY_PROXY].map(rises), [1, 0]);
    }
}

#[test]
fn a_pod_without_ipv6_is_redirected() {
    let mut mesh = Mesh::bridged(&linkerd(), &[]);
    let ipam = &mut mesh.chain.plugins[0]["ipam"];
    ipam["routes"] = json!([{ "dst": "0.0.0.0/0" }]);
    ipam["ranges"].as_array_mut().unwrap().truncate(1);
    for scope in ["all", "default"] {
        set(&mesh.base.pod, &format!("ipv6/conf/{scope}/disable_ipv6"), "1");
    }
    mesh.add().unwrap();
    serve(&mesh.base.node, WEB);
    serve_v4(&mesh.base.pod, OUTBOUND);
    assert_eq!(fetch(&mesh.base.pod, CLIENT_UID, web(NODE[0])), Some("4".to_owned()));
}

/// A proxy that knows IPv4 alone: it listens at `0.0.0.0`.
fn serve_v4(pod: &Namespace, port: u16) {
    let at = (Ipv4Addr::UNSPECIFIED, port);
    let listener = pod.run(move || TcpListener::bind(at)).unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.write_all(b"4");
        }
    });
}

/// IPv6 is refused, as nobody listens, and does not pass the proxy by.
#[test]
fn a_proxy_without_ipv6_is_not_passed_by() {
    let mesh = Mesh::bridged(&linkerd(), &[]);
    mesh.add().unwrap();
    serve(&mesh.base.node, WEB);
    serve_v4(&mesh.base.pod, OUTBOUND);
    assert_eq!(fetch(&mesh.base.pod, CLIENT_UID, web(NODE[0])), Some("4".to_owned()));
    assert_eq!(fetch(&mesh.base.pod, CLIENT_UID, web(NODE[1])), None);
}

/// While the kernel looks for a duplicate, nobody can connect from or to the address. So IPv6 is
/// not tried, and it is redirected.
#[test]
fn a_pod_whose_ipv6_address_is_tentative_is_redirected() {
    let mesh = Mesh::bridged(&linkerd(), &[]);
    let result = mesh.chain.clone().without_denizen().add(&mesh.base.node, &mesh.call).unwrap();
    let pod = Mesh::addresses(&result).into_iter().find(IpAddr::is_ipv6).unwrap();
    let inside = &mesh.base.pod;
    inside.ip(&format!("addr del {pod}/64 dev eth0"));
    set(inside, "ipv6/conf/eth0/accept_dad", "1");
    inside.ip(&format!("addr add {pod}/64 dev eth0"));
    mesh.ours("ADD", &result).unwrap();
    assert!(inside.ip("addr show dev eth0 tentative").contains(&pod.to_string()));
    let sidecar = Sidecar::run(inside, &[INBOUND]);
    serve(inside, WEB);
    let to = SocketAddr::new(pod, WEB);
    let output = || Ok(fetch(&mesh.base.node, CLIENT_UID, to) == Some(WEB.to_string()));
    eventually("answered", TIMEOUT, output).unwrap();
    let source = NODE[1].parse().unwrap();
    assert_eq!(sidecar.taken(), [Redirected { port: INBOUND, source, to }]);
}

#[test]
fn a_pod_without_a_default_route_is_redirected() {
    let mut mesh = Mesh::bridged(&linkerd(), &[]);
    mesh.chain.plugins[0]["ipam"]["routes"] = json!([]);
    mesh.add().unwrap();
    serve(&mesh.base.pod, OUTBOUND);
    for node in NODE {
        let output = fetch(&mesh.base.pod, CLIENT_UID, web(node));
        assert_eq!(output, Some(OUTBOUND.to_string()));
    }
    // Nobody has a route to it, so nothing is sent that could be redirected.
    let nowhere = SocketAddr::new(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 7).into(), WEB);
    uncounted(&mesh, || assert_eq!(fetch(&mesh.base.pod, CLIENT_UID, nowhere), None));
}

/// As many as a pod can have, by the API's limit of 256 KiB for all of them.
#[test]
fn a_pod_may_have_many_annotations() {
    let long = "x".repeat(1_000);
    let names: Vec<_> = (0..255).map(|number| format!("example.com/note-{number}")).collect();
    let annotations: Vec<_> = names.iter().map(|name| (name.as_str(), long.as_str())).collect();
    let mesh = Mesh::bridged(&linkerd(), &annotations);
    mesh.add().unwrap();
    assert!(mesh.has_table());
    assert!(mesh.base.text().len() < 10_000, "the record holds what matters alone");
}

/// A runtime passes what it has of a pod without annotations as null (containerd) or as an empty
/// object (CRI-O).
#[test]
fn a_pod_without_annotations_is_not_selected() {
    for none in [Value::Null, json!({})] {
        let mut mesh = Mesh::bridged(&linkerd(), &[]);
        mesh.call = Call::new("web-0", &mesh.base.pod);
        mesh.chain.plugins[1]["runtimeConfig"]["io.kubernetes.cri.pod-annotations"] = none;
        mesh.add().unwrap();
        assert!(!mesh.has_table());
        assert!(nft(&mesh.base.pod, &["list", "ruleset"]).unwrap().is_empty());
    }
}
