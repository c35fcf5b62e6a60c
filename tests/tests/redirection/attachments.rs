//! Two interfaces of one pod, both attached by chains that redirect.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::time::Duration;

use denizen_tests::node::cni::{Call, Chain, Refusal};
use denizen_tests::peers::sidecar::{CLIENT_UID, fetch, serve};
use serde_json::{Value, json};

use super::context::{Mesh, nft};

/// A pod with `eth0`, attached, and a second network for it, `storage`, with another `redirect`.
struct Two {
    mesh: Mesh,
    result: Value,
    second: Call,
    storage: Chain,
}

impl Two {
    fn new(first: &Value, second: &Value) -> Self {
        let mesh = Mesh::bridged(first, &[]);
        let result = mesh.add().unwrap();
        let second_call = Call { interface: "net1".to_owned(), ..mesh.call.clone() };
        let mut storage = mesh.chain.clone();
        storage.name = "storage".to_owned();
        let bridge = &mut storage.plugins[0];
        bridge["bridge"] = "cni1".into();
        bridge["ipam"]["ranges"] =
            json!([[{ "subnet": "10.86.0.0/24" }], [{ "subnet": "fd00:86::/64" }]]);
        bridge["ipam"].as_object_mut().unwrap().remove("routes");
        storage.plugins[1]["redirect"] = second.clone();
        Self { mesh, result, second: second_call, storage }
    }

    fn add_second(&self) -> Result<Value, Refusal> {
        self.storage.add(&self.mesh.base.node, &self.second)
    }

    /// A command of our plugin alone for the second interface.
    fn ours(&self, command: &str, result: &Value) -> Result<Value, Refusal> {
        let ours = &self.storage.plugins[1];
        self.storage.call(&self.mesh.base.node, &self.second, command, ours, Some(result))
    }

    fn check_both(&self, second: &Value) {
        self.mesh.ours("CHECK", &self.result).unwrap();
        self.ours("CHECK", second).unwrap();
    }

    /// Which port of the pod's, or of the node's, answers what the pod sends to each network, and
    /// what the node sends to each of the pod's interfaces.
    fn answers(&self, second: &Value) -> [Option<String>; 4] {
        let [eth0, net1] = [&self.result, second].map(|result| Mesh::addresses(result)[0]);
        let out = |ip: &str| {
            fetch(&self.mesh.base.pod, CLIENT_UID, SocketAddr::new(ip.parse().unwrap(), 8080))
        };
        let back = |ip: IpAddr| fetch(&self.mesh.base.node, CLIENT_UID, SocketAddr::new(ip, 8080));
        [out("10.85.0.1"), out("10.86.0.1"), back(eth0), back(net1)]
    }
}

fn ports_seen(ports: [u16; 4]) -> [Option<String>; 4] {
    ports.map(|port| Some(port.to_string()))
}

#[test]
fn each_interface_has_rules_of_its_own() {
    let other = json!({ "profile": "linkerd", "outboundPort": 5140, "inboundPort": 5143 });
    let mut two = Two::new(&json!({ "profile": "linkerd" }), &other);
    let second = two.add_second().unwrap();
    for port in [4140, 4143, 5140, 5143, 8080] {
        serve(&two.mesh.base.pod, port);
    }
    serve(&two.mesh.base.node, 8080);
    assert_eq!(two.answers(&second), ports_seen([4140, 5140, 4143, 5143]));
    two.check_both(&second);
    for (result, port) in [(&two.result, 4140), (&second, 5140)] {
        let from = Mesh::addresses(result)[0].to_string();
        let explained = two.mesh.explained(&from, "10.99.0.1:80".parse().unwrap());
        assert_eq!(explained[0].1, Some(port), "{from}");
    }

    // Either ADD again touches its own rules alone. At the proxies' ports somebody listens now.
    for chain in [&mut two.mesh.chain, &mut two.storage] {
        chain.plugins[1]["redirect"]["verify"] = "none".into();
    }
    two.mesh.ours("ADD", &two.result).unwrap();
    two.ours("ADD", &second).unwrap();
    assert_eq!(two.answers(&second), ports_seen([4140, 5140, 4143, 5143]));
    two.storage.plugins[1]["redirect"]["namespaces"] = json!({ "default": null });
    two.ours("ADD", &second).unwrap();
    assert_eq!(two.answers(&second), ports_seen([4140, 8080, 4143, 8080]));
    two.check_both(&second);
    let list = ["list", "table", "inet", "denizen-redirect-net1"];
    assert!(nft(&two.mesh.base.pod, &list).is_err());

    two.storage.del(&two.mesh.base.node, &two.second, Some(&second)).unwrap();
    assert_eq!(two.mesh.base.records(), ["web-0/eth0"]);
    let [out, _, back, _] = two.answers(&two.result);
    assert_eq!([out, back], [Some("4140".to_owned()), Some("4143".to_owned())]);
    two.mesh.ours("CHECK", &two.result).unwrap();
}

/// A runtime may attach both at the same time, and each tries its rules at the proxy's port.
#[test]
fn an_add_waits_until_another_one_has_tried_its_rules() {
    let linkerd = json!({ "profile": "linkerd" });
    let two = Two::new(&linkerd, &linkerd);
    let occupied = two.mesh.base.pod.run(|| TcpListener::bind("127.0.0.1:4140").unwrap());
    std::thread::scope(|scope| {
        let added = scope.spawn(|| two.add_second());
        std::thread::sleep(Duration::from_millis(300));
        drop(occupied);
        added.join().unwrap().unwrap();
    });
}

/// Its chains are the whole pod's.
#[test]
fn interfaces_share_the_rules_of_iptables() {
    let redirect = json!({ "profile": "linkerd", "backend": "iptables", "verify": "none" });
    let mut two = Two::new(&redirect, &redirect);
    let second = two.add_second().unwrap();
    two.check_both(&second);
    two.storage.plugins[1]["redirect"]["outboundPort"] = 5140.into();
    let refusal = two.ours("ADD", &second).unwrap_err();
    let why = "another interface of the pod has other ones";
    assert!(refusal["msg"].as_str().unwrap().contains(why), "{refusal}");
    two.check_both(&second);

    two.storage.plugins[1]["redirect"]["namespaces"] = json!({ "default": null });
    two.ours("ADD", &second).unwrap();
    two.check_both(&second);
    assert!(!two.mesh.counted_by_iptables().is_empty());
    two.mesh.redirect_as(&Value::Null);
    two.mesh.ours("ADD", &two.result).unwrap();
    assert!(two.mesh.counted_by_iptables().is_empty());
    two.check_both(&second);
}
