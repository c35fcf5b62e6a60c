//! A redirected pod as a client of services that the agent programs.

use std::net::{IpAddr, SocketAddr};

use denizen_tests::agent::{Agent, Objects, Settings};
use denizen_tests::node::cluster::NODE;
use denizen_tests::node::fixture::service_ips;
use denizen_tests::node::manifest::{self, Manifests, Port};
use denizen_tests::node::netns::Netns;
use denizen_tests::peers::sidecar::{CLIENT_UID, Redirected, Sidecar, fetch, serve};
use serde_json::json;

use super::context::Mesh;

const GATEWAYS: [&str; 2] = ["10.85.0.1", "fd00:85::1"];
const PORTS: [Port; 1] = [Port::tcp("http", 80, 8080)];

/// The proxy's own connection to a cluster IP goes where the agent sends it: to the node's server,
/// or back to the pod, where it is redirected once more, inbound, and that is the end of it.
#[test]
fn the_proxy_reaches_services_and_the_pod_through_its_own() {
    let mesh = Mesh::new(json!({ "type": "ptp" }), &json!({ "profile": "linkerd" }), &[]);
    let pods = Mesh::addresses(&mesh.add().unwrap());
    let node = Netns::of(mesh.base.node.path()).unwrap();
    let manifests = Manifests::in_folder(&mesh.base.folder().join("manifests")).unwrap();
    let gateways: Vec<IpAddr> = GATEWAYS.iter().map(|ip| ip.parse().unwrap()).collect();
    let mut objects = vec![manifest::node(NODE, &gateways, "")];
    for (name, number, endpoints) in [("itself", 10, &pods), ("node", 11, &gateways)] {
        objects.push(manifest::service(name, &service_ips(number), &PORTS));
        let slices = endpoints.iter().map(|ip| manifest::slice(name, &PORTS, &[(*ip, NODE)]));
        objects.extend(slices);
    }
    manifests.put("all", &objects).unwrap();
    let settings = Settings {
        program: None,
        objects: Objects::Manifests(manifests.folder().to_owned()),
        run_dir: mesh.base.run_dir(),
        node_name: NODE.to_owned(),
        flags: Vec::new(),
    };
    let _agent = Agent::start(&node, settings).unwrap();
    let sidecar = Sidecar::run(&mesh.base.pod, &[4143, 4140]);
    serve(&mesh.base.pod, 8080);
    serve(&mesh.base.node, 8080);
    for (pod, gateway) in pods.into_iter().zip(gateways) {
        let at = |number| {
            let ips = service_ips(number).into_iter();
            ips.map(|ip| SocketAddr::new(ip, 80)).find(|to| to.is_ipv4() == pod.is_ipv4()).unwrap()
        };
        let out = |to| Redirected { port: 4140, source: pod, to };
        let back = Redirected { port: 4143, source: gateway, to: SocketAddr::new(pod, 8080) };
        for (to, taken) in [(at(10), vec![out(at(10)), back]), (at(11), vec![out(at(11))])] {
            assert_eq!(fetch(&mesh.base.pod, CLIENT_UID, to), Some("8080".to_owned()), "{to}");
            assert_eq!(sidecar.taken(), taken, "{to}");
        }
    }
}
