//! What the pod firewall costs: `cargo bench -p denizen-tests --bench network_policy`, as root.
//!
//! 250 pods of this node, 100 policies, 10,000 pods of other nodes, through the agent's own plan
//! and firewall, in a network namespace that is made here; next to kube-router's rules (a chain for
//! each pod and each policy, with a set for each selector) through `ipset restore` and
//! `iptables-restore`, which it executes for every change. How long a connection takes through the
//! rules of both. The same with 100 ClusterNetworkPolicies of 25 rules in each direction, and
//! connections through them. One policy of 20,000 ranges. And the largest cluster that Kubernetes
//! documents, with 10,000 policies.
//!
//! It prints, and asserts no time. Words behind `--` choose parts.

#![expect(
    clippy::disallowed_methods,
    reason = "a bench reads the clock and executes the programs that it compares with"
)]

mod changes;
mod cluster;
mod connect;
mod engine;
mod kube_router;
mod memory;
mod ranges;
mod tiers;

use std::process::ExitCode;

use denizen_tests::bench::Bench;

use crate::cluster::Cluster;

const USUAL: Cluster = Cluster { namespaces: 25, policies: 100, tiers: 0, remote: 10_000 };
const TIERED: Cluster = Cluster { tiers: 100, ..USUAL };
const LARGEST: Cluster = Cluster { namespaces: 499, policies: 10_000, tiers: 0, remote: 150_000 };

/// The parts, by the words that choose them.
const PARTS: [(&str, fn()); 6] = [
    ("usual", || changes::report(USUAL)),
    ("tiers", || changes::report(TIERED)),
    ("kube-router", || kube_router::report(USUAL)),
    ("connect", || connect::report(USUAL)),
    ("ranges", ranges::report),
    ("largest", || changes::report(LARGEST)),
];

fn main() -> ExitCode {
    Bench { parts: &PARTS.map(|(part, _)| part), ..Bench::default() }.run(|chosen| {
        PARTS.iter().filter(|(part, _)| chosen.has(part)).for_each(|(_, report)| report());
        Ok(())
    })
}
