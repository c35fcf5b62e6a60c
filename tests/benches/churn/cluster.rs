//! A cluster's Services and EndpointSlices, with all that the API keeps about them and denizen does
//! not.

use std::net::{IpAddr, Ipv4Addr};

use denizen_tests::node::manifest::{self, Port};
use serde_json::{Value, json};

/// The node that the agent is on: one of [`NODES`].
pub const NODE: &str = "node-0";

const NODES: usize = 5_000;
const ENDPOINTS: usize = 4;
const PORT: [Port; 1] = [Port::tcp("http", 80, 8080)];

/// What changes.
#[derive(Debug)]
pub struct ChangingCluster {
    slices: Vec<Value>,
}

fn address(network: [u8; 4], number: usize) -> IpAddr {
    let first = u32::from_be_bytes(network);
    Ipv4Addr::from(first + u32::try_from(number).expect("fewer than addresses")).into()
}

/// The address that change `number` brings, which no endpoint had before: four bytes that are
/// nowhere else.
pub fn fresh(number: usize) -> [u8; 4] {
    let number = u16::try_from(number).expect("fewer changes than addresses").to_be_bytes();
    [10, 160, number[0], number[1]]
}

/// As the API keeps for every object who wrote which field; about as much as an EndpointSlice has.
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

    /// Everything.
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

    /// Change `number`: a pod of some service is replaced by one with another address. The slice,
    /// as it is then.
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
