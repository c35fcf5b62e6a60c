//! Any interleaving of ADD, DEL and GC ends as some serial order would.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use denizen_tests::node::cni::{PluginContext, denizen, finish, start};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::json;

const NETWORKS: [&str; 2] = ["pods", "storage"];
const CONTAINERS: [&str; 3] = ["a", "b", "c"];

/// One call. Numbers are places in the lists above.
#[derive(Debug, Clone)]
enum PluginCall {
    /// With an address that no other has, so that each ADD can be recognised.
    Add {
        container: usize,
        network: usize,
        address: u8,
    },
    Del {
        container: usize,
    },
    Gc {
        network: usize,
        valid: BTreeSet<usize>,
    },
}

/// What is recorded: container, then network and address.
type Records = BTreeMap<&'static str, (&'static str, IpAddr)>;

impl PluginCall {
    /// What it means, when it is alone.
    fn apply(&self, records: &mut Records) {
        match self {
            PluginCall::Add { container, network, address } => {
                records.insert(
                    CONTAINERS[*container],
                    (NETWORKS[*network], IpAddr::from([10, 0, 0, *address])),
                );
            }
            PluginCall::Del { container } => drop(records.remove(CONTAINERS[*container])),
            PluginCall::Gc { network, valid } => {
                let valid: Vec<_> = valid.iter().map(|container| CONTAINERS[*container]).collect();
                records.retain(|container, (of, _)| {
                    *of != NETWORKS[*network] || valid.contains(container)
                });
            }
        }
    }

    fn run(&self, context: &PluginContext) {
        let mut configuration = context.configuration("1.1.0");
        let (command, container) = match self {
            PluginCall::Add { container, network, address } => {
                configuration["name"] = json!(NETWORKS[*network]);
                configuration["prevResult"]["ips"] =
                    json!([{ "address": format!("10.0.0.{address}/24") }]);
                ("ADD", CONTAINERS[*container])
            }
            PluginCall::Del { container } => ("DEL", CONTAINERS[*container]),
            PluginCall::Gc { network, valid } => {
                let valid = valid
                    .iter()
                    .map(|c| json!({ "containerID": CONTAINERS[*c], "ifname": "eth0" }));
                configuration["name"] = json!(NETWORKS[*network]);
                configuration["cni.dev/valid-attachments"] = valid.collect();
                ("GC", "")
            }
        };
        let variables = context.variables(command, container);
        finish(start(&context.node, &denizen(), variables, configuration.to_string().as_bytes()))
            .unwrap();
    }
}

/// What two or three callers do at the same time, each one thing after the other.
fn callers() -> impl Strategy<Value = Vec<Vec<PluginCall>>> {
    let op = prop_oneof![
        3 => (0..3_usize, 0..2_usize)
            .prop_map(|(container, network)| PluginCall::Add { container, network, address: 0 }),
        2 => (0..3_usize).prop_map(|container| PluginCall::Del { container }),
        1 => (0..2_usize, prop::collection::btree_set(0..3_usize, 0..3))
            .prop_map(|(network, valid)| PluginCall::Gc { network, valid }),
    ];
    prop::collection::vec(prop::collection::vec(op, 1..4), 2..4).prop_map(|mut callers| {
        for (number, op) in (1..).zip(callers.iter_mut().flatten()) {
            if let PluginCall::Add { address, .. } = op {
                *address = number;
            }
        }
        callers
    })
}

/// Every end that a serial order of what `rest` still has to do leads to.
fn serial_ends(records: &Records, rest: &[&[PluginCall]], ends: &mut Vec<Records>) {
    if rest.iter().all(|ops| ops.is_empty()) && !ends.contains(records) {
        ends.push(records.clone());
    }
    for (caller, ops) in rest.iter().enumerate() {
        if let Some((first, later)) = ops.split_first() {
            let mut records = records.clone();
            first.apply(&mut records);
            let mut rest = rest.to_vec();
            rest[caller] = later;
            serial_ends(&records, &rest, ends);
        }
    }
}

fn recorded(context: &PluginContext) -> Records {
    let named = |list: &[&'static str], name: &str| {
        list.iter().copied().find(|known| *known == name).unwrap()
    };
    let attachments = context.state().attachments.into_values();
    attachments
        .map(|record| {
            (
                named(&CONTAINERS, &record.container_id),
                (named(&NETWORKS, &record.network), record.ips[0]),
            )
        })
        .collect()
}

#[test]
fn any_interleaving_ends_as_some_serial_order_would() {
    let context = PluginContext::new();
    let run_dir = context.run_dir();
    let mut runner =
        TestRunner::new(Config { cases: 100, failure_persistence: None, ..Config::default() });
    let held = runner.run(&callers(), |callers| {
        if run_dir.exists() {
            std::fs::remove_dir_all(&run_dir).unwrap();
        }
        context.add("first");
        context.call(context.variables("DEL", "first"), &context.configuration("1.1.0")).unwrap();
        std::thread::scope(|scope| {
            for ops in &callers {
                scope.spawn(|| ops.iter().for_each(|op| op.run(&context)));
            }
        });
        let mut ends = Vec::new();
        serial_ends(
            &Records::new(),
            &callers.iter().map(Vec::as_slice).collect::<Vec<_>>(),
            &mut ends,
        );
        let end = recorded(&context);
        prop_assert!(ends.contains(&end), "{:?} ended as {:?}", callers, end);
        Ok(())
    });
    held.unwrap();
}
