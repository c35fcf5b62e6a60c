//! A cold start, and then one change after the other.

use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

use denizen_model::Event;
use denizen_tests::bench::timing::{Samples, text};
use denizen_tests::node::cni::Namespace;

use crate::cluster::{Cluster, LOCAL, REPLICAS};
use crate::engine::{Cost, Engine, firewall};
use crate::memory::{kernel, resident};

/// How often each change is made.
const TIMES: u32 = 101;
/// How often the kernel's tables are read back.
const RESYNCS: u32 = 11;
/// Nodes on which the kernel's memory is measured. Other programs change it too, hence a median.
const NODES: usize = 9;

/// Measures and prints it.
pub fn report(cluster: Cluster) {
    let Cluster { policies, tiers, remote, namespaces } = cluster;
    println!(
        "\n## {LOCAL} local pods, {policies} policies, {tiers} ClusterNetworkPolicies, {remote} \
         remote pods, {namespaces} namespaces\n"
    );
    let engine = Namespace::new().run(move || measured(cluster));
    kernel_memory(engine);
}

fn measured(cluster: Cluster) -> Engine {
    let mut engine = Engine::new();
    let facts = cluster.facts();
    let before = resident();
    shown("cold start", vec![engine.change(facts)]);
    line("resident memory of model, plan and firewall", format!("{:.1} MB", resident() - before));
    let firewall = engine.planner.plan().firewall().expect("it is on");
    line("policies in force", firewall.policies_in_force().to_string());
    line("ClusterNetworkPolicies in force", firewall.tiers_in_force().to_string());
    line("identities", firewall.identity_count().to_string());
    let report = engine.firewall.report(engine.planner.plan());
    line("elements", report.elements.to_string());
    remote_pods(&mut engine, cluster);
    local_facts(&mut engine, cluster);
    for (what, is_disturbed) in
        [("a look while nobody else commits", false), ("a look after others' changes", true)]
    {
        let samples: Samples = (0..RESYNCS).map(|_| engine.resync(is_disturbed)).collect();
        line(what, text(samples.median()));
    }
    engine
}

fn remote_pods(engine: &mut Engine, cluster: Cluster) {
    let at = cluster.remote;
    many(engine, "one remote pod more", |n| vec![cluster.remote_pod(0, at + n)]);
    many(engine, "one remote pod fewer", |n| {
        vec![Event::ClusterPod(cluster.pod_name("remote", 0, at + n), None)]
    });
    let new = at.div_ceil(REPLICAS);
    many(engine, "one remote pod more, the first of its Deployment", |n| {
        vec![cluster.remote_pod(new + n, at + n)]
    });
    // Both Deployments are in the same namespace.
    let others = [cluster.namespaces, 0];
    many(engine, "one remote pod's labels", |n| {
        vec![cluster.remote_pod(others[n as usize % 2], 7)]
    });
}

fn local_facts(engine: &mut Engine, cluster: Cluster) {
    many(engine, "one local pod more or fewer", |n| {
        vec![cluster.recorded(LOCAL + (n + 1) % 2, u64::from(n) + 2)]
    });
    // The policy selects the first Deployment's pods.
    let another = cluster.policies.next_multiple_of(3 * cluster.namespaces);
    many(engine, "one policy more or fewer", |n| match n % 2 {
        0 => vec![cluster.policy(another)],
        _ => vec![Event::NetworkPolicy(cluster.policy_name(another), None)],
    });
    if cluster.tiers > 0 {
        let another = cluster.tiers;
        many(engine, "one ClusterNetworkPolicy more or fewer", |n| match n % 2 {
            0 => vec![cluster.tier_policy(another)],
            _ => vec![Event::ClusterNetworkPolicy(format!("tier-{another}").into(), None)],
        });
    }
}

fn many(engine: &mut Engine, what: &str, change: impl Fn(u32) -> Vec<Event>) {
    shown(what, (0..TIMES).map(|n| engine.change(change(n))).collect());
}

fn shown(what: &str, costs: Vec<Cost>) {
    let of =
        |part: fn(&Cost) -> Duration| text(costs.iter().map(part).collect::<Samples>().median());
    line(what, format!("{}, of it written in {}", of(|cost| cost.whole), of(|cost| cost.written)));
}

fn line(what: &str, value: String) {
    println!("{what:<50}{value}");
}

/// What the tables take in the kernel: the median of several nodes. Their network namespaces are
/// made before the first measurement.
fn kernel_memory(engine: Engine) {
    let Engine { planner, firewall: programmed } = engine;
    drop(programmed);
    let planner = Arc::new(planner);
    let nodes: Vec<Namespace> = (0..NODES).map(|_| Namespace::new()).collect();
    let added = nodes.iter().map(|node| {
        let (before, planner) = (settled(), planner.clone());
        node.run(move || firewall().sync(planner.plan()).map(drop)).expect("the kernel takes it");
        settled() - before
    });
    let mut added: Vec<f64> = added.collect();
    added.sort_by(f64::total_cmp);
    line("kernel memory of the tables", format!("{:.1} MB", added[NODES / 2]));
}

/// The kernel's memory, a second later: the kernel frees replaced objects with a delay.
fn settled() -> f64 {
    sleep(Duration::from_secs(1));
    kernel()
}
