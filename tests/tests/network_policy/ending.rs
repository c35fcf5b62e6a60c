//! A namespace that is being deleted.

use anyhow::Result;
use denizen_tests::node::pod::{Pod, Wiring};
use denizen_tests::policy::{LabelSelector, NetworkPolicy, PolicyWorld};
use serde_json::json;

use crate::newcomers::{Newcomer, Newcomers, namespace, nothing_wrong, policies};

/// The API deletes a namespace's policies before its pods have ended.
#[test]
fn policies_of_a_namespace_that_is_being_deleted_hold_until_it_is_gone() -> Result<()> {
    let wait = json!({ "timeout": "10s", "onTimeout": "isolate" });
    let newcomers = Newcomers::new("np-ending", &wait)?;
    let netns = newcomers.nodes.sandbox("new/pod")?;
    newcomers.announce("new/pod", netns.name(), "new")?;
    let host = &newcomers.nodes.hosts[0];
    let pod = Pod::attach(&host.netns, netns, "new/pod", host.chain(Wiring::Bridged))?;
    let newcomer = Newcomer::start(pod)?;
    nothing_wrong(1, &newcomers.first_packets(&newcomer)?)?;
    let put = |policies: Vec<NetworkPolicy>| {
        newcomers.put("policies", &PolicyWorld { policies, ..PolicyWorld::default() })
    };
    let in_force = |number: usize| {
        newcomers
            .nodes
            .settled(|node, status| node != 0 || status["networkPolicy"]["policies"] == number)
    };
    let mut ending = namespace("new");
    ending.metadata.deletion_timestamp = Some("2026-01-01T00:00:00Z".to_owned());
    newcomers.put_namespaces(&[ending])?;
    // Whoever knows of this policy knows that the namespace ends.
    let last = NetworkPolicy::new("new", "last", LabelSelector::default()).ingress([]);
    put([policies(), vec![last]].concat())?;
    in_force(3)?;
    put(Vec::new())?;
    // The one of another namespace is gone.
    in_force(2)?;
    nothing_wrong(1, &newcomers.first_packets(&newcomer)?)?;
    newcomers.put_namespaces(&[])?;
    in_force(0)?;
    nothing_wrong(1, &newcomers.verify(&newcomer, |_| true)?)
}
