//! `explain` of a service whose endpoints are on two other nodes than its client, beside real
//! connections.

use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use denizen_tests::agent::Objects;
use denizen_tests::node::manifest::{self, Port};
use denizen_tests::node::pod::{Pod, Wiring};
use denizen_tests::node::two_nodes::NodeHost;
use denizen_tests::node::world::ip;
use denizen_tests::packets::probe::{Outcome, Probe, Protocol, SILENCE};
use denizen_tests::packets::server::Server;
use denizen_tests::peers::api::Api;
use denizen_tests::workstation::agent_program;
use serde_json::{Value, json};

use super::explain::Shop;

const HTTP: Port = Port::tcp("http", 80, 8080);
const BOTH: &str = "172.30.0.30";

/// The second node's pod, and the third one's.
struct ThreeNodes {
    shop: Shop,
    third: NodeHost,
    pod: Pod,
    _server: Server,
}

/// Of a pod, who ends a connection to it: a column of the matrix, and what its reason contains.
type EndedBy = Option<(&'static str, &'static str)>;

impl ThreeNodes {
    fn new() -> Result<Self> {
        let shop = Shop::with("explain-three", &[])?;
        let mut third = shop.nodes.third()?;
        let name = "default/third";
        let chain = third.chain(Wiring::Routed);
        let pod = Pod::attach(&third.netns, shop.nodes.sandbox(name)?, name, chain)?;
        let address = SocketAddr::new(pod.addresses[0], HTTP.target);
        let _server = Server::at(&pod.netns, Protocol::Tcp, address)?;
        third.start_agent(Objects::Manifests(shop.nodes.manifests.folder().to_owned()), &[])?;
        let three = Self { shop, third, pod, _server };
        three.put_objects()?;
        Ok(three)
    }

    fn put_objects(&self) -> Result<()> {
        let Self { shop, third, pod, .. } = self;
        let ends = [(shop.far.addresses[0], "node-2"), (pod.addresses[0], "node-3")];
        let object = Shop::pod_object(&third.node.name, "third", pod);
        let service = manifest::service("both", &[ip(BOTH)], &[HTTP]);
        let objects = [object, service, manifest::slice("both", &[HTTP], &ends)];
        shop.nodes.manifests.put("third", &objects)?;
        shop.workstation.api.put_all(&objects)?;
        let mut containers = Vec::new();
        for host in shop.nodes.hosts.iter().chain([third]) {
            let name = &host.node.name;
            shop.workstation.node(name, &host.node.addresses[0].to_string())?;
            let flags = [format!("--run-dir={}", host.run_dir.display())];
            shop.workstation.agent(name, &json!({ "running": {} }), &flags)?;
            containers.push((name.clone(), host.netns.path()));
        }
        shop.workstation.execute_on_nodes(agent_program()?, containers);
        Ok(())
    }

    /// These policies hold on all nodes.
    fn hold(&self, policies: &[Value]) -> Result<()> {
        self.shop.nodes.manifests.put("policies", policies)?;
        let expected = |pods: &[&str]| {
            let is_of = |policy: &&Value| {
                let app = &policy["spec"]["podSelector"]["matchLabels"]["app"];
                pods.iter().any(|pod| app == pod)
            };
            policies.iter().filter(is_of).count()
        };
        let of_node = [expected(&["client", "near"]), expected(&["far"]), expected(&["third"])];
        let is_settled = |node: usize, status: &Value| {
            status["networkPolicy"]["policies"] == of_node[node]
                && status["services"] == 2
                && status["endpoints"] == 4
        };
        self.shop.nodes.settled(is_settled)?;
        self.third.settled(|status| is_settled(2, status))
    }

    /// What is said of both endpoints, and what becomes of connections to them, directly and
    /// through the service.
    fn agree(&self, expected: [EndedBy; 2]) -> Result<()> {
        let workstation = &self.shop.workstation;
        let verdict = match expected.map(|ended| ended.is_some()) {
            [false, false] => "permitted",
            [true, true] => "refused",
            _ => "partly",
        };
        let code = i32::from(verdict != "permitted");
        let json = workstation.json(&["explain", "client", "both:80"], code)?.json()?;
        ensure!(json["verdict"] == verdict && json["node"] == "node-1", "{json:#}");
        ensure!(json["ways"].as_array().map(Vec::len) == Some(2), "{json:#}");
        let pods = [(&self.shop.far, "node-2"), (&self.pod, "node-3")];
        let mut answering = Vec::new();
        for ((pod, node), ended) in pods.into_iter().zip(expected) {
            let address = SocketAddr::new(pod.addresses[0], HTTP.target);
            let ways = json["ways"].as_array().into_iter().flatten();
            let way = ways.into_iter().find(|way| way["node"] == node).context("no way")?;
            let columns = ["egress", "route", "ingress", "wayBack"];
            let ends = |column: &&str| {
                ["refused", "missing"].iter().any(|result| way[*column]["result"] == *result)
            };
            let column = columns.into_iter().find(ends);
            ensure!(column == ended.map(|(column, _)| column), "{node}: {ended:?}: {way:#}");
            let word = if ended.is_none() { "permitted" } else { "refused" };
            ensure!(way["verdict"] == word, "{way:#}");
            if let Some((column, words)) = ended {
                let why = way[column]["why"].as_str().context("no reason")?;
                ensure!(why.contains(words), "{why}: not {words}");
            } else {
                answering.push(address);
            }
            let outcome = self.ask(address);
            ensure!(outcome.endpoint().is_some() == ended.is_none(), "{node}: {outcome:?}");
        }
        // Whichever endpoint it is that a connection goes to.
        for _ in 0..4 {
            let outcome = self.ask(SocketAddr::new(ip(BOTH), HTTP.port));
            let is_right = match outcome.endpoint() {
                Some(endpoint) => answering.contains(&endpoint),
                None => answering.len() < 2,
            };
            ensure!(is_right, "{outcome:?}, but of {answering:?}");
        }
        Ok(())
    }

    fn ask(&self, to: SocketAddr) -> Outcome {
        Probe::tcp(to).timeout(SILENCE).send_in(&self.shop.client.netns)
    }
}

/// A policy for the pods of this app, in one direction.
fn policy(name: &str, app: &str, spec: Value) -> Value {
    let mut policy = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": { "namespace": "default", "name": name }, "spec": spec,
    });
    policy["spec"]["podSelector"] = json!({ "matchLabels": { "app": app } });
    policy
}

#[test]
fn each_endpoint_has_the_node_and_the_rule_that_refuse_it() -> Result<()> {
    let three = ThreeNodes::new()?;
    three.hold(&[])?;
    three.agree([None, None])?;

    let far = json!([{ "podSelector": { "matchLabels": { "app": "far" } } }]);
    let some = json!({ "policyTypes": ["Egress"], "egress": [{ "to": far }] });
    three.hold(&[policy("far-alone", "client", some)])?;
    let egress = "egress of default/client: no rule of default/far-alone permits it";
    three.agree([None, Some(("egress", egress))])?;

    three.hold(&[policy("closed", "far", json!({ "policyTypes": ["Ingress"] }))])?;
    let ingress = "ingress of default/far: no rule of default/closed permits it";
    three.agree([Some(("ingress", ingress)), None])?;

    three.hold(&[])?;
    let client = &three.shop.nodes.hosts[0].netns;
    client.ip("route del 10.11.3.0/24")?;
    three.agree([None, Some(("route", "no route to 10.11.3."))])?;
    client.ip("route add 10.11.3.0/24 via 192.168.0.3")?;

    three.third.netns.ip("route del 10.11.1.0/24")?;
    three.agree([None, Some(("wayBack", "no route to 10.11.1."))])?;
    three.third.netns.ip("route add 10.11.1.0/24 via 192.168.0.1")?;
    three.agree([None, None])
}
