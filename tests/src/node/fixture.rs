//! The usual fixture of a kernel test: a bridged and a routed pod of the node, another node's pod,
//! a host outside, and the node itself. Each may start a connection, the pods also serve.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::agent::{Agent, Explanation};
use crate::node::cluster::{Cluster, NODE, OTHER_NODE, serve};
use crate::node::manifest::{self, Port};
use crate::node::netns::Netns;
use crate::node::pod::{Pod, Wiring};
use crate::node::world::ip;
use crate::packets::probe::{Outcome, Probe, Protocol};
use crate::packets::server::Server;
use crate::policy::{self, Labels, ObjectMeta, PodIp, PodSpec, PodStatus};

/// What every pod listens at.
pub const PORT: u16 = 8080;

/// The protocols that every pod answers.
pub const PROTOCOLS: [Protocol; 3] = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];

/// A host of the fixture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Host {
    /// A pod of the node behind its bridge.
    Bridged,
    /// A pod of the node with a veth of its own.
    Routed,
    /// A pod of another node.
    Remote,
    /// A host outside the cluster.
    Outside,
    /// The node itself.
    ThisNode,
}

/// Everyone who may start a connection.
pub const EVERYONE: [Host; 5] =
    [Host::Bridged, Host::Routed, Host::Remote, Host::Outside, Host::ThisNode];

/// Gives the Service among these objects the load balancer IPs [`service_ips`] of `number`.
pub fn put_load_balancer(objects: &mut [Value], number: u8) {
    objects[0]["spec"]["type"] = "LoadBalancer".into();
    let ingress = service_ips(number).map(|ip| json!({ "ip": ip }));
    objects[0]["status"]["loadBalancer"]["ingress"] = json!(ingress);
}

/// The two pods of a node, and the node with its surroundings.
#[derive(Debug)]
pub struct Fixture {
    /// The servers, as long as this value lives. They end before their hosts do.
    pub servers: Vec<Server>,
    /// The bridged pod.
    pub bridged: Pod,
    /// The routed pod.
    pub routed: Pod,
    /// The node, its surroundings and its chains.
    pub cluster: Cluster,
}

impl Fixture {
    /// Attaches the two pods. No server is started yet.
    pub fn on(cluster: Cluster) -> Result<Self> {
        let bridged = cluster.add_pod("bridged", Wiring::Bridged)?;
        let routed = cluster.add_pod("routed", Wiring::Routed)?;
        Ok(Self { bridged, routed, cluster, servers: Vec::new() })
    }

    /// A cluster of its own for one test, without an agent yet; the pods serve at [`PORT`] over
    /// every protocol.
    pub fn new(label: &str) -> Result<Self> {
        let mut fixture = Self::on(Cluster::new(label, &Value::Null)?)?;
        let ports = PROTOCOLS.map(|protocol| (protocol, PORT));
        let world = &fixture.cluster.world;
        fixture.servers = vec![
            serve(&fixture.bridged.netns, &fixture.bridged.addresses, &ports)?,
            serve(&fixture.routed.netns, &fixture.routed.addresses, &ports)?,
            serve(&world.remote, &world.addresses().remote, &ports)?,
        ];
        Ok(fixture)
    }

    /// Replaces the pods. The new ones serve as the old ones did.
    pub fn replace_pods(&mut self, bridged: Pod, routed: Pod) -> Result<()> {
        let ports = PROTOCOLS.map(|protocol| (protocol, PORT));
        let pods = [(&mut self.bridged, bridged), (&mut self.routed, routed)];
        for (server, (pod, next)) in self.servers.iter_mut().zip(pods) {
            *server = serve(&next.netns, &next.addresses, &ports)?;
            std::mem::replace(pod, next).detach(&self.cluster.world.node)?;
        }
        Ok(())
    }

    /// The namespace of `who`, and the interface through which the node sees packets of `who` come
    /// in.
    pub fn place(&self, who: Host) -> (&Netns, Option<&str>) {
        match who {
            Host::Bridged => (&self.bridged.netns, Some(&self.bridged.input_interface)),
            Host::Routed => (&self.routed.netns, Some(&self.routed.input_interface)),
            Host::Remote => (&self.cluster.world.remote, Some("eth0")),
            Host::Outside => (&self.cluster.world.client, Some("eth0")),
            Host::ThisNode => (&self.cluster.world.node, None),
        }
    }

    /// The address of `who` of the same family as `like`.
    pub fn address(&self, who: Host, like: IpAddr) -> Result<IpAddr> {
        let own = self.cluster.world.addresses();
        let all = match who {
            Host::Bridged => &self.bridged.addresses,
            Host::Routed => &self.routed.addresses,
            Host::Remote => &own.remote,
            Host::Outside => &own.client,
            Host::ThisNode => &own.node,
        };
        let found = all.iter().copied().find(|address| address.is_ipv4() == like.is_ipv4());
        found.with_context(|| format!("{who:?} has no address of the family of {like}"))
    }

    /// The host that has this address.
    pub fn owner(&self, address: IpAddr) -> Option<Host> {
        let is_nodes = || self.cluster.is_nodes(address).unwrap_or(false).then_some(Host::ThisNode);
        EVERYONE
            .into_iter()
            .find(|who| self.address(*who, address).is_ok_and(|own| own == address))
            .or_else(is_nodes)
    }

    /// In a service's objects, makes the endpoints of `leaving` terminate: they still serve, and
    /// get no new connections.
    pub fn drain(&self, objects: &mut [Value], leaving: &[Host]) -> Result<()> {
        for slice in &mut objects[1..] {
            for endpoint in slice["endpoints"].as_array_mut().context("endpoints")? {
                let at = endpoint["addresses"][0].as_str().context("an address")?.parse()?;
                if self.owner(at).is_some_and(|who| leaving.contains(&who)) {
                    endpoint["conditions"] =
                        json!({ "ready": false, "serving": true, "terminating": true });
                }
            }
        }
        Ok(())
    }

    /// Connects from `who` and its own address to `to`.
    pub fn probe(&self, who: Host, to: SocketAddr, protocol: Protocol) -> Result<Outcome> {
        let probe = Probe { protocol, ..Probe::tcp(to) };
        Ok(probe.from(self.address(who, to.ip())?).send_in(self.place(who).0))
    }

    /// What `explain` says of a connection from `who` and its own address.
    pub fn explain(
        &self,
        agent: &Agent,
        who: Host,
        to: SocketAddr,
        protocol: Protocol,
    ) -> Result<Explanation> {
        agent.explain(self.address(who, to.ip())?, self.place(who).1, to, protocol)
    }

    /// Whether an answered connection of `who` was masqueraded: the endpoint saw the node's
    /// address. An error if it saw neither this nor the client's own.
    pub fn was_masqueraded(&self, who: Host, outcome: &Outcome) -> Result<bool> {
        let seen = outcome.seen().with_context(|| format!("{who:?} got {outcome:?}"))?;
        if seen == self.address(who, seen)? {
            return Ok(false);
        }
        anyhow::ensure!(
            self.cluster.is_nodes(seen)?,
            "{who:?} was seen as {seen}, which is nobody's"
        );
        Ok(true)
    }

    /// The API's objects of the bridged and the routed pod, with these values of the label `role`.
    pub fn pod_objects(&self, bridged: &str, routed: &str) -> Vec<Value> {
        let object = |name: &str, pod: &Pod, role: &str| policy::PodObject {
            metadata: ObjectMeta {
                namespace: "default".to_owned(),
                name: name.to_owned(),
                uid: format!("uid-{}", pod.netns.name()),
                labels: Labels::from([("role".to_owned(), role.to_owned())]),
                ..ObjectMeta::default()
            },
            spec: PodSpec { node_name: NODE.to_owned(), ..PodSpec::default() },
            status: PodStatus {
                phase: "Running".to_owned(),
                pod_ips: pod.addresses.iter().map(|ip| PodIp { ip: *ip }).collect(),
            },
        };
        let pods =
            [object("bridged", &self.bridged, bridged), object("routed", &self.routed, routed)];
        policy::PolicyWorld { pods: pods.into(), ..policy::PolicyWorld::default() }.manifests()
    }

    /// A dual-stack service at [`service_ips`] of `number`, and its slices; `members` serve it.
    pub fn service(
        &self,
        name: &str,
        number: u8,
        ports: &[Port],
        members: &[Host],
    ) -> Result<Vec<Value>> {
        let ips = service_ips(number);
        let mut objects = vec![manifest::service(name, &ips, ports)];
        for like in ips {
            let node = |who: &Host| if *who == Host::Remote { OTHER_NODE } else { NODE };
            let member = |who: &Host| Ok((self.address(*who, like)?, node(who)));
            let members = members.iter().map(member).collect::<Result<Vec<_>>>()?;
            if !members.is_empty() {
                objects.push(manifest::slice(name, ports, &members));
            }
        }
        Ok(objects)
    }
}

/// Port 80 of a service over every protocol, at [`PORT`] of its endpoints.
pub fn every_protocol() -> Vec<Port> {
    let named = ["tcp", "udp", "sctp"].into_iter().zip(PROTOCOLS);
    named.map(|(name, protocol)| Port::tcp(name, 80, PORT).over(protocol)).collect()
}

/// All ports of [`every_protocol`] at the cluster IPs of `number`.
pub fn every_way(number: u8) -> impl Iterator<Item = (SocketAddr, Protocol)> {
    let both = service_ips(number).into_iter();
    both.flat_map(|ip| PROTOCOLS.map(|protocol| (SocketAddr::new(ip, 80), protocol)))
}

/// The cluster IPs of a test's service, of both families.
pub fn service_ips(number: u8) -> [IpAddr; 2] {
    [ip(&format!("172.30.0.{number}")), ip(&format!("fd00:172:30::{number}"))]
}

/// Whether the node treats `pod` as local: its first packets to service 10 keep their source.
pub fn is_local(pod: &Pod) -> bool {
    service_ips(10).into_iter().all(|service| {
        let seen = Probe::tcp(SocketAddr::new(service, 80)).send_in(&pod.netns).seen();
        seen.is_some() && seen == pod.address_like(service)
    })
}
