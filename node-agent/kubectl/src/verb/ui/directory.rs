//! Which workload, service or node has an address, as the API tells it.

use std::collections::BTreeMap;
use std::net::IpAddr;

use anyhow::Context;
use kube::Error;
use serde::de::DeserializeOwned;

use super::participant::Participant;
use crate::cluster::{Api, NodeAgent};
use crate::objects::{self, PodObject, ServiceObject, SliceObject};
use crate::workload::Workload;

/// What is known of a box.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ParticipantFacts {
    /// `Deployment`, `Service`, …
    pub kind: String,
    /// The pods of a workload.
    pub pods: usize,
    /// What is wrong with it, if something is.
    pub mark: Option<String>,
}

/// Addresses and names of everything that has a box.
#[derive(Debug, Default)]
pub struct Directory {
    by_ip: BTreeMap<IpAddr, Participant>,
    by_pod: BTreeMap<String, Participant>,
    pub participants: BTreeMap<Participant, ParticipantFacts>,
    /// What could not be read, and what that means.
    pub notes: Vec<String>,
}

/// The participant of an address that nothing in the cluster has.
const OUTSIDE: Participant = Participant::Outside { is_client: true };

/// The label of an EndpointSlice that names its service.
const SERVICE_NAME: &str = "kubernetes.io/service-name";

impl Directory {
    pub async fn read(api: &Api, node_agents: &[NodeAgent]) -> anyhow::Result<Self> {
        let mut notes = Vec::new();
        let pods: Vec<PodObject> = permitted(api, "/api/v1/pods", "pods", &mut notes).await?;
        let services = permitted(api, "/api/v1/services", "services", &mut notes).await?;
        let path = "/apis/discovery.k8s.io/v1/endpointslices";
        let slices = permitted(api, path, "endpointslices", &mut notes).await?;
        Ok(Self { notes, ..Self::of(node_agents, &pods, &services, &slices) })
    }

    pub fn of(
        node_agents: &[NodeAgent],
        pods: &[PodObject],
        services: &[ServiceObject],
        slices: &[SliceObject],
    ) -> Self {
        let mut directory = Self::default();
        // Pods first: if an address is claimed twice, a service or a node overrides a pod.
        directory.add_pods(pods);
        directory.add_services(services, slices);
        directory.add_nodes(node_agents);
        directory
    }

    fn add_pods(&mut self, pods: &[PodObject]) {
        let has_ended = |pod: &PodObject| ["Succeeded", "Failed"].contains(&&*pod.status.phase);
        for pod in pods.iter().filter(|pod| !has_ended(pod)) {
            let namespace = pod.metadata.namespace.clone();
            let pod_name = format!("{namespace}/{}", pod.metadata.name);
            if pod.spec.host_network {
                self.by_pod.insert(pod_name, Participant::Node(pod.spec.node_name.clone()));
                continue;
            }
            let Workload { kind, name, .. } = Workload::of(&pod.metadata);
            let workload = Participant::Workload { namespace, name };
            self.by_ip.extend(pod.ips().map(|ip| (ip, workload.clone())));
            self.by_pod.insert(pod_name, workload.clone());
            let facts = self.participants.entry(workload).or_default();
            facts.pods += 1;
            facts.kind = kind;
        }
    }

    fn add_services(&mut self, services: &[ServiceObject], slices: &[SliceObject]) {
        // By service: its endpoints, and how many of them are ready.
        let mut endpoints: BTreeMap<(&str, &str), (usize, usize)> = BTreeMap::new();
        for slice in slices {
            let Some(name) = slice.metadata.labels.get(SERVICE_NAME) else { continue };
            let (all, ready) = endpoints.entry((&slice.metadata.namespace, name)).or_default();
            *all += slice.endpoints.len();
            *ready += slice.endpoints.iter().filter(|endpoint| endpoint.is_ready()).count();
        }
        for service in services.iter().filter(|service| service.has_frontend()) {
            let (namespace, name) = (&service.metadata.namespace, &service.metadata.name);
            let mark = match endpoints.get(&(&**namespace, &**name)).copied().unwrap_or_default() {
                (0, _) => Some("no endpoint".to_owned()),
                (_, 0) => Some("no ready endpoint".to_owned()),
                (all, ready) if ready < all => {
                    Some(format!("{} of {all} endpoints not ready", all - ready))
                }
                (_, _) => None,
            };
            let participant =
                Participant::Service { namespace: namespace.clone(), name: name.clone() };
            self.by_ip.extend(service.ips().map(|ip| (ip, participant.clone())));
            let facts = ParticipantFacts { kind: "Service".to_owned(), pods: 0, mark };
            self.participants.insert(participant, facts);
        }
    }

    fn add_nodes(&mut self, node_agents: &[NodeAgent]) {
        for node_agent in node_agents {
            let participant = Participant::Node(node_agent.node.clone());
            let object = node_agent.object.as_ref();
            let ips = object.into_iter().flat_map(|node| node.internal_ips());
            self.by_ip.extend(ips.map(|ip| (ip, participant.clone())));
            let mark = match object.and_then(|node| node.is_ready()) {
                Some(false) => Some("not Ready".to_owned()),
                Some(true) | None => None,
            };
            self.participants
                .insert(participant, ParticipantFacts { kind: "Node".to_owned(), pods: 0, mark });
        }
    }

    /// The participant at an end with this address. `name`: what the agent calls it, if it does.
    pub fn participant(&self, ip: IpAddr, name: Option<&str>) -> Participant {
        let named = name.and_then(|name| match name.strip_prefix("node ") {
            Some(node) => Some(Participant::Node(node.to_owned())),
            None => self.by_pod.get(name).cloned(),
        });
        named.or_else(|| self.by_ip.get(&ip.to_canonical()).cloned()).unwrap_or(OUTSIDE)
    }

    pub fn pods(&self) -> usize {
        self.by_pod.len()
    }

    /// Whether what an agent calls by this name has a box here.
    pub fn knows(&self, name: &str) -> bool {
        !name.contains('/') || self.by_pod.contains_key(name)
    }

    /// `NAMESPACE/NAME:PORT` as a box and a port.
    pub fn service_port(service: &str) -> Option<(Participant, &str)> {
        let (namespace, rest) = service.split_once('/')?;
        let (name, port) = rest.split_once(':').unwrap_or((rest, ""));
        Some((
            Participant::Service { namespace: namespace.to_owned(), name: name.to_owned() },
            port,
        ))
    }
}

/// All objects of a list; none where the user may not read them, which is noted.
async fn permitted<T: DeserializeOwned>(
    api: &Api,
    path: &str,
    what: &str,
    notes: &mut Vec<String>,
) -> anyhow::Result<Vec<T>> {
    match objects::list(&api.client, path, &[]).await {
        Err(Error::Api(status)) if status.code == 403 => {
            let needs = format!("(needs: list {what} of all namespaces)");
            notes.push(format!("{what} have no names here: {} {needs}", status.message));
            Ok(Vec::new())
        }
        listed => listed.with_context(|| format!("cannot list {what}")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read<T: DeserializeOwned>(objects: Value) -> Vec<T> {
        serde_json::from_value(objects).unwrap()
    }

    fn pod(name: &str, ip: &str, owner: Value) -> Value {
        let labels = json!({ "pod-template-hash": "5d8f" });
        json!({
            "metadata": { "namespace": "shop", "name": name, "labels": labels,
                "ownerReferences": owner },
            "status": { "podIPs": [{ "ip": ip }] },
        })
    }

    #[test]
    fn pods_are_their_owners() {
        let owner =
            |kind: &str, name: &str| json!([{ "kind": kind, "name": name, "controller": true }]);
        let cases = [
            (owner("ReplicaSet", "web-5d8f"), "web"),
            (owner("ReplicaSet", "web-other"), "web-other"),
            (owner("StatefulSet", "db"), "db"),
            (json!([]), "alone"),
        ];
        for (owner, expected) in cases {
            let pods = read(json!([pod("alone", "10.0.0.1", owner)]));
            let directory = Directory::of(&[], &pods, &[], &[]);
            let ip = "10.0.0.1".parse().unwrap();
            assert_eq!(directory.participant(ip, None).to_string(), format!("shop/{expected}"));
            assert_eq!(
                directory.participant(ip, Some("shop/alone")),
                directory.participant(ip, None)
            );
            let mapped = "::ffff:10.0.0.1".parse().unwrap();
            assert_eq!(directory.participant(mapped, None), directory.participant(ip, None));
        }
    }

    #[test]
    fn a_service_without_ready_endpoints_is_marked() {
        let service = |name: &str, ip: &str| {
            json!({ "metadata": { "namespace": "shop", "name": name },
            "spec": { "clusterIP": ip, "clusterIPs": [ip] } })
        };
        let slice = |name: &str, ready: &[bool]| {
            let ends: Vec<Value> =
                ready.iter().map(|ready| json!({ "conditions": { "ready": ready } })).collect();
            json!({ "metadata": { "namespace": "shop", "labels": { SERVICE_NAME: name } },
                "endpoints": ends })
        };
        let services = read(json!([
            service("good", "10.96.0.1"),
            service("none", "10.96.0.2"),
            service("dead", "10.96.0.3"),
            service("half", "10.96.0.4"),
            service("headless", "None"),
        ]));
        let slices = read(json!([
            slice("good", &[true]),
            slice("dead", &[false]),
            slice("half", &[true]),
            slice("half", &[false, true]),
        ]));
        let directory = Directory::of(&[], &[], &services, &slices);
        let marks: Vec<(String, Option<&str>)> = directory
            .participants
            .iter()
            .map(|(participant, facts)| (participant.to_string(), facts.mark.as_deref()))
            .collect();
        let expected = [
            ("dead", Some("no ready endpoint")),
            ("good", None),
            ("half", Some("1 of 3 endpoints not ready")),
            ("none", Some("no endpoint")),
        ];
        assert_eq!(marks, expected.map(|(name, mark)| (format!("service shop/{name}"), mark)));
        assert_eq!(directory.participant("192.0.2.1".parse().unwrap(), None), OUTSIDE);
    }
}
