//! A cluster's Services and EndpointSlices, with the metadata that the API keeps about them and
//! denizen ignores.

use std::net::{IpAddr, Ipv4Addr};

use denizen_tests::node::manifest::{self, Port};
use serde_json::{Value, json};

/// The node that the agent is on: one of [`NODES`].
pub const NODE: &str = "node-0";

const NODES: usize = 5_000;
const ENDPOINTS: usize = 4;
const PORT: [Port; 1] = [Port::tcp("http", 80, 8080)];

/// The cluster as it is after the changes so far.
#[derive(Debug)]
pub struct ChangingCluster {
    slices: Vec<Value>,
}

fn address(network: [u8; 4], number: usize) -> IpAddr {
    let first = u32::from_be_bytes(network);
    Ipv4Addr::from(first + u32::try_from(number).expect("fewer than addresses")).into()
}

/// The address that change `number` brings. No endpoint had it before, and its four bytes occur
/// nowhere else in the kernel's notifications.
pub fn fresh(number: usize) -> [u8; 4] {
    let number = u16::try_from(number).expect("fewer changes than addresses").to_be_bytes();
    [10, 160, number[0], number[1]]
}

/// `managedFields`: which client wrote which field. About as large as on a real EndpointSlice.
fn managed_fields(endpoints: usize) -> Value {
    let fields: serde_json::Map<String, Value> = (0..8 * endpoints)
        .map(|n| (format!("f:field-{n}"), json!({ ".": {}, "f:value": {} })))
        .collect();
    json!([{ "manager": "kube-controller-manager", "operation": "Update", "apiVersion": "v1",
             "time": "2026-11-01T12:00:00Z", "fieldsType": "FieldsV1", "fieldsV1": fields }])
}

impl ChangingCluster {
    /// With so many services.
    pub fn new(services: usize) -> Self {
        let slice = |service: usize| {
            let endpoint = |n| address([10, 128, 0, 1], service * ENDPOINTS + n);
            let nodes: Vec<String> =
                (0..ENDPOINTS).map(|n| node_of(service * ENDPOINTS + n)).collect();
            let endpoints: Vec<(IpAddr, &str)> =
                nodes.iter().enumerate().map(|(n, node)| (endpoint(n), node.as_str())).collect();
            let mut slice = manifest::slice(&name(service), &PORT, &endpoints);
            slice["metadata"]["managedFields"] = managed_fields(ENDPOINTS);
            for n in 0..ENDPOINTS {
                slice["endpoints"][n]["targetRef"] = target(service, n);
            }
            slice
        };
        Self { slices: (0..services).map(slice).collect() }
    }

    /// All Services and EndpointSlices.
    pub fn objects(&self) -> Vec<Value> {
        let service = |service| {
            let mut object =
                manifest::service(&name(service), &[address([10, 96, 0, 1], service)], &PORT);
            object["metadata"]["managedFields"] = managed_fields(1);
            object
        };
        let node = manifest::node(NODE, &[address([192, 168, 0, 2], 0)], "");
        let services = (0..self.slices.len()).map(service);
        services.chain(self.slices.iter().cloned()).chain([node]).collect()
    }

    /// Change `number`: a pod of some service is replaced by one with another address. Returns the
    /// changed slice.
    pub fn change(&mut self, number: usize) -> Value {
        // 7,919 is prime: one after the other, all services change.
        let service = number * 7_919 % self.slices.len();
        let endpoint = &mut self.slices[service]["endpoints"][number % ENDPOINTS];
        endpoint["addresses"] = json!([Ipv4Addr::from(fresh(number))]);
        endpoint["nodeName"] = node_of(number).into();
        endpoint["targetRef"] = target(service, ENDPOINTS + number);
        self.slices[service].clone()
    }
}

fn name(service: usize) -> String {
    format!("service-{service}")
}

fn node_of(pod: usize) -> String {
    format!("node-{}", pod % NODES)
}

fn target(service: usize, pod: usize) -> Value {
    json!({ "kind": "Pod", "namespace": "default", "name": format!("service-{service}-{pod}"),
            "uid": format!("00000000-0000-0000-{service:04x}-{pod:012}") })
}
