//! Services of four endpoints, as `kubectl get -o yaml` would write them.

use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use denizen_model::{Event, Listing, NodeAddress};
use denizen_plan::{
    Detector, NodePortAddresses, NodeSide, PermittedRanges, Policy, Scheduler, Settings,
};
use denizen_source::Features;
use denizen_source::manifests::{ManifestsConfig, read};
use tempfile::TempDir;

/// Endpoints of each service.
pub const ENDPOINTS: usize = 4;

/// The node that the agent is on.
pub const NODE: &str = "node-0";

/// Pods of one node. The cluster has as many nodes as its pods need.
const PODS_OF_A_NODE: usize = 100;

/// Documents in one file.
const SERVICES_IN_A_FILE: usize = 250;

/// The policy of an agent on an ordinary node.
pub fn policy() -> Policy {
    Policy {
        settings: Settings {
            node_name: NODE.into(),
            masquerade_all: false,
            node_hints: false,
            permitted: PermittedRanges::default(),
        },
        detector: Detector::PodState,
        node_ports: NodePortAddresses::Primary,
        node_side: NodeSide::default(),
        services: true,
        pod_ranges: Vec::new(),
        firewall: None,
        host_ports: None,
        scheduler: Scheduler::default(),
    }
}

/// The cluster IP of a service, which has port 80.
pub fn service_ip(service: usize) -> Ipv4Addr {
    Ipv4Addr::from((u32::from_be_bytes([10, 96, 0, 0])) + service as u32 + 1)
}

/// The address of an endpoint, which has port 8080.
pub fn endpoint_ip(service: usize, endpoint: usize) -> Ipv4Addr {
    let number = service * ENDPOINTS + endpoint;
    Ipv4Addr::from(u32::from_be_bytes([10, 128, 0, 0]) + number as u32 + 1)
}

/// An address that no endpoint has at first.
pub fn spare_ip(number: usize) -> Ipv4Addr {
    Ipv4Addr::from(u32::from_be_bytes([10, 160, 0, 0]) + number as u32 + 1)
}

/// A folder with the manifests of this many services. It is deleted with the value.
pub fn folder(services: usize) -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let nodes = (services * ENDPOINTS).div_ceil(PODS_OF_A_NODE);
    for first in (0..services).step_by(SERVICES_IN_A_FILE) {
        let mut text = String::new();
        for service in first..(first + SERVICES_IN_A_FILE).min(services) {
            document(&mut text, service, nodes);
        }
        let path = folder.path().join(format!("services-{first:05}.yaml"));
        std::fs::write(path, text).expect("the temporary folder has room");
    }
    folder
}

fn document(text: &mut String, service: usize, nodes: usize) {
    let (namespace, ip) = (service % 50, service_ip(service));
    let metadata = format!(
        "  namespace: team-{namespace}\n  creationTimestamp: \"2026-11-01T12:00:00Z\"\n  \
         resourceVersion: \"{}\"\n  uid: 00000000-0000-0000-0000-{service:012}\n",
        100_000 + service
    );
    let written = write!(
        text,
        "---\napiVersion: v1\nkind: Service\nmetadata:\n  name: service-{service}\n{metadata}  labels:\n    \
         app: app-{service}\nspec:\n  type: ClusterIP\n  clusterIP: {ip}\n  clusterIPs:\n  - {ip}\n  \
         ipFamilies:\n  - IPv4\n  ipFamilyPolicy: SingleStack\n  internalTrafficPolicy: Cluster\n  \
         sessionAffinity: None\n  selector:\n    app: app-{service}\n  ports:\n  - name: http\n    \
         port: 80\n    protocol: TCP\n    targetPort: 8080\n\
         ---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  \
         name: service-{service}-x7k2p\n{metadata}  labels:\n    \
         kubernetes.io/service-name: service-{service}\naddressType: IPv4\nports:\n\
         - name: http\n  port: 8080\n  protocol: TCP\nendpoints:\n"
    );
    written.expect("text has room");
    for endpoint in 0..ENDPOINTS {
        let node = (service * ENDPOINTS + endpoint) % nodes;
        let ip = endpoint_ip(service, endpoint);
        let written = write!(
            text,
            "- addresses:\n  - {ip}\n  conditions:\n    ready: true\n    serving: true\n    \
             terminating: false\n  nodeName: node-{node}\n  targetRef:\n    kind: Pod\n    name: \
             app-{service}-{endpoint}\n    namespace: team-{namespace}\n"
        );
        written.expect("text has room");
    }
}

/// Adds a load balancer IP that admits only these source ranges, in front of the first service's
/// endpoints.
pub fn restrict(folder: &Path, ip: Ipv4Addr, sources: &[String]) {
    let sources: String = sources.iter().map(|range| format!("  - {range}\n")).collect();
    let endpoints: String =
        (0..ENDPOINTS).map(|n| format!("- addresses: [{}]\n", endpoint_ip(0, n))).collect();
    let text = format!(
        "apiVersion: v1\nkind: Service\nmetadata:\n  namespace: team-0\n  name: restricted\nspec:\n  \
         type: LoadBalancer\n  clusterIP: 10.111.0.1\n  clusterIPs: [10.111.0.1]\n  ipFamilies: [IPv4]\n  \
         ports:\n  - name: http\n    port: 80\n    protocol: TCP\n    targetPort: 8080\n  \
         loadBalancerSourceRanges:\n{sources}status:\n  loadBalancer:\n    ingress:\n    - ip: {ip}\n\
         ---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  namespace: team-0\n  \
         name: restricted-1\n  labels:\n    kubernetes.io/service-name: restricted\naddressType: IPv4\n\
         ports:\n- name: http\n  port: 8080\n  protocol: TCP\nendpoints:\n{endpoints}"
    );
    std::fs::write(folder.join("restricted.yaml"), text).expect("the temporary folder has room");
}

/// All that the agent must know before it programs anything: the folder's objects, and this node.
pub fn facts(folder: &Path) -> Vec<Event> {
    let config = ManifestsConfig {
        folder: folder.to_owned(),
        node_name: NODE.to_owned(),
        features: Features::default(),
    };
    let (mut events, problems) = read(&config).expect("the folder was just written");
    assert!(problems.is_empty(), "{problems:?}");
    events.push(Event::Pods(programmed_pods(0)));
    events.push(Event::Addresses(vec![NodeAddress {
        address: IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)),
        interface: "eth0".into(),
        dummy: false,
    }]));
    events.push(Event::Listed(Listing::Addresses));
    events
}

/// The usual number of this node's pods, and `more`.
pub fn programmed_pods(more: usize) -> denizen_model::PodSet {
    let pod = |number: usize| denizen_model::LocalPod {
        id: denizen_state::AttachmentId(format!("{number:064x}/eth0")),
        pod: Some(denizen_model::PodName {
            namespace: "team-0".into(),
            name: format!("pod-{number}").into(),
        }),
        uid: None,
        bridge: Some("cni0".into()),
        interface: "cni0".into(),
        port: Some(format!("veth{number}").into()),
        ips: vec![IpAddr::V4(spare_ip((1 << 19) + number))],
        vlan_port: None,
        mac: None,
        added_at: "2026-11-20T12:00:00Z".into(),
        adopted: false,
        host_ports: Vec::new(),
        redirect: None,
    };
    denizen_model::PodSet { version: None, pods: (0..PODS_OF_A_NODE + more).map(pod).collect() }
}
