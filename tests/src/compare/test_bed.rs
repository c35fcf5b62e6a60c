//! What one contender is measured on: a node, a client, the endpoints of the last service, and an
//! API server, each in a network namespace of its own.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::node::manifest::{self, Port};
use crate::node::netns::Netns;
use crate::packets::probe::Protocol;
use crate::packets::server::{Listen, Server};
use crate::peers::api::{AGENT, Api, ApiServer, RealServer};
use crate::peers::kube_proxy::Served;

/// Endpoints of each service but the last.
pub const ENDPOINTS: usize = 4;
/// The node's name.
pub const NODE: &str = "node-1";

/// The API versions of EndpointSlices. kube-proxy before 1.21 knows only the second. A real server
/// serves the same objects in both.
const SLICES: [&str; 2] = ["discovery.k8s.io/v1", "discovery.k8s.io/v1beta1"];
const HTTP: [Port; 1] = [Port::tcp("http", 80, 8080)];
const API: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(203, 0, 113, 66)), 6443);
/// The links from the node to each of the others, with the addresses at both ends.
const LINKS: [(&str, &str, &str); 3] = [
    ("client", "192.0.2.1/24", "192.0.2.2/24"),
    ("pods", "10.64.0.1/24", "10.64.0.10/24"),
    ("api", "203.0.113.1/24", "203.0.113.66/24"),
];
/// The addresses that the last service's only endpoint alternates between.
const ANSWERING: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 64, 0, 10), Ipv4Addr::new(10, 64, 0, 11)];

/// What one contender is measured on. All of it ends with the value.
#[derive(Debug)]
pub struct TestBed {
    /// The API server that the contender follows.
    pub api: Box<dyn Api>,
    _answers: Server,
    /// Where the contender runs.
    pub node: Netns,
    /// Where connections come from.
    pub client: Netns,
    _others: [Netns; 2],
    services: usize,
    /// The API versions in which slices are written.
    versions: Vec<&'static str>,
    /// The folder for the contender's files.
    pub folder: TempDir,
}

impl TestBed {
    /// Makes services, and an API server that has them: the real one of this program, or the tests'
    /// own.
    pub fn new(services: usize, apiserver: Option<&Path>) -> Result<Self> {
        let [node, client, pods, server] =
            ["node", "client", "pods", "api"].map(|label| Netns::new(&format!("cmp-{label}")));
        let (node, client, pods, server) = (node?, client?, pods?, server?);
        node.sysctl("net.ipv4.ip_forward", "1")?;
        for ((name, ours, theirs), peer) in LINKS.iter().zip([&client, &pods, &server]) {
            node.ip(&format!(
                "link add {name} type veth peer name eth0 netns {}\n\
                 address add {ours} dev {name}\nlink set {name} up",
                peer.name()
            ))?;
            let gateway = ours.split('/').next().context("an address")?;
            peer.ip(&format!(
                "address add {theirs} dev eth0\nlink set eth0 up\nroute add default via {gateway}"
            ))?;
        }
        pods.ip(&format!("address add {}/24 dev eth0", ANSWERING[1]))?;
        let listens = ANSWERING.map(|at| Listen {
            protocol: Protocol::Tcp,
            address: SocketAddr::new(at.into(), 8080),
        });
        let answers = Server::start(&pods, &listens)?;
        let folder = tempfile::tempdir()?;
        let (api, versions): (Box<dyn Api>, _) = match apiserver {
            None => (Box::new(ApiServer::start(&server, API, folder.path())?), SLICES.to_vec()),
            Some(program) => {
                let assets = program.parent().context("a program lies in a folder")?;
                let real = RealServer::start(assets, &server, API, folder.path())?;
                real.put_roles(&[kube_proxys_rights()])?;
                let versions = vec![real.slices()];
                (Box::new(real), versions)
            }
        };
        let _others = [pods, server];
        let test_bed =
            Self { api, _answers: answers, node, client, _others, services, versions, folder };
        test_bed.api.put(&node_object())?;
        let objects = (0..services)
            .map(|number| [vec![service(number)], test_bed.slices(number, 0)].concat());
        test_bed.api.put_all(&objects.collect::<Vec<_>>().concat())?;
        Ok(test_bed)
    }

    pub fn kubeconfig(&self) -> &Path {
        self.api.kubeconfig()
    }

    /// The frontend of the last service.
    pub fn last(&self) -> SocketAddr {
        SocketAddr::new(address(self.services - 1).into(), 80)
    }

    /// The endpoint that the last service has after this many changes.
    pub fn endpoint(&self, changes: usize) -> SocketAddr {
        SocketAddr::new(ANSWERING[changes % ANSWERING.len()].into(), 8080)
    }

    /// Gives the last service the endpoint that it has after this many changes.
    pub fn change(&self, changes: usize) -> Result<()> {
        self.api.put_all(&self.slices(self.services - 1, changes))
    }

    /// A service's slice, in each version.
    fn slices(&self, number: usize, changes: usize) -> Vec<Value> {
        let endpoints = self.endpoints(number, changes);
        let endpoints: Vec<_> =
            endpoints.into_iter().map(|endpoint| (endpoint, "node-2")).collect();
        let slice = manifest::slice(&name(number), &HTTP, &endpoints);
        let of_version = |version: &&str| {
            let mut slice = slice.clone();
            slice["apiVersion"] = (*version).into();
            slice
        };
        self.versions.iter().map(of_version).collect()
    }

    /// All services after this many changes, for a contender that has no API server.
    pub fn served(&self, changes: usize) -> Vec<Served> {
        let served = |number: usize| Served {
            name: format!("default/{}:http", name(number)),
            at: SocketAddr::new(address(number).into(), 80),
            endpoints: self
                .endpoints(number, changes)
                .into_iter()
                .map(|endpoint| SocketAddr::new(endpoint, 8080))
                .collect(),
        };
        (0..self.services).map(served).collect()
    }

    /// The bytes that the node has received from the API server, headers included.
    pub fn received(&self) -> Result<u64> {
        let text =
            self.node.output("ip", &["-statistics", "-json", "link", "show", "dev", "api"])?;
        let links: Value = serde_json::from_str(&text).context("`ip -json`")?;
        links[0]["stats64"]["rx"]["bytes"].as_u64().context("no count of bytes")
    }

    /// The node, the last service and its slice.
    pub fn last_objects(&self) -> Vec<Value> {
        let last = self.services - 1;
        [vec![node_object(), service(last)], self.slices(last, 0)].concat()
    }

    fn endpoints(&self, number: usize, changes: usize) -> Vec<IpAddr> {
        if number + 1 == self.services {
            return vec![self.endpoint(changes).ip()];
        }
        let first = u32::from(Ipv4Addr::new(10, 128, 0, 1));
        let of = |endpoint: usize| {
            let number = u32::try_from(number * ENDPOINTS + endpoint).expect("a few thousands");
            IpAddr::from(Ipv4Addr::from(first + number))
        };
        (0..ENDPOINTS).map(of).collect()
    }
}

/// Gives the agent's account kube-proxy's permissions.
fn kube_proxys_rights() -> Value {
    let group = "rbac.authorization.k8s.io";
    json!({
        "apiVersion": format!("{group}/v1"), "kind": "ClusterRoleBinding",
        "metadata": { "name": "kube-proxy" },
        "roleRef": { "apiGroup": group, "kind": "ClusterRole", "name": "system:node-proxier" },
        "subjects": [{ "apiGroup": group, "kind": "User", "name": AGENT }],
    })
}

fn node_object() -> Value {
    manifest::node(NODE, &[Ipv4Addr::new(192, 0, 2, 1).into()], "")
}

fn service(number: usize) -> Value {
    manifest::service(&name(number), &[address(number).into()], &HTTP)
}

fn name(number: usize) -> String {
    format!("service-{number}")
}

/// A cluster IP from the range of the tests' real API server.
fn address(number: usize) -> Ipv4Addr {
    let first = u32::from(Ipv4Addr::new(172, 30, 1, 0));
    Ipv4Addr::from(first + u32::try_from(number).expect("a few thousands"))
}
