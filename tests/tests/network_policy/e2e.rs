//! The 48 cases of Kubernetes' own suite, `test/e2e/network/netpol/network_policy.go`, under its
//! names, each with the pairs that it expects to be denied.

mod changes;
mod directions;
mod egress;
mod ingress;
mod protocols;

use anyhow::Result;
use denizen_tests::packets::probe::Protocol;
use denizen_tests::policy::{LabelSelector, NetworkPolicy, PolicyPeer, PolicyRule, PolicyWorld};

use crate::case::Case;
use crate::hosts::{OnPaper, nine};

/// All of them, for these pods.
pub fn cases(world: &PolicyWorld) -> Vec<Case> {
    let parts = [
        ingress::cases(),
        egress::cases(world),
        changes::cases(),
        directions::cases(),
        protocols::cases(),
    ];
    parts.into_iter().flatten().collect()
}

/// A case of one policy and one probe, over TCP at port 80.
fn one(name: &str, policy: NetworkPolicy, denied: &str) -> Case {
    Case::new(name).put(policy).expect(Protocol::Tcp, 80, denied)
}

/// A policy of namespace x for the pods that `pod` selects.
fn x(pod: LabelSelector) -> NetworkPolicy {
    named("x", "policy", pod)
}

fn named(namespace: &str, name: &str, pod: LabelSelector) -> NetworkPolicy {
    NetworkPolicy::new(namespace, name, pod)
}

/// Pod a of namespace x receives from these peers alone.
fn a_from(peers: impl IntoIterator<Item = PolicyPeer>) -> NetworkPolicy {
    x(pod("a")).ingress([PolicyRule::from(peers)])
}

/// Pod a of namespace x sends to these peers alone.
fn a_to(peers: impl IntoIterator<Item = PolicyPeer>) -> NetworkPolicy {
    x(pod("a")).egress([PolicyRule::to(peers)])
}

fn all() -> LabelSelector {
    LabelSelector::default()
}

fn pod(name: &str) -> LabelSelector {
    LabelSelector::label("pod", name)
}

fn ns(name: &str) -> LabelSelector {
    LabelSelector::label("ns", name)
}

#[test]
fn the_oracle_agrees_with_all_48() -> Result<()> {
    let cases = cases(&nine(&mut OnPaper::default())?);
    assert_eq!(cases.len(), 48);
    for case in cases {
        let mut hosts = OnPaper::default();
        let mut world = nine(&mut hosts)?;
        for (number, step) in case.steps.iter().enumerate() {
            for change in &step.changes {
                change.apply(&mut world, &mut hosts)?;
            }
            for expected in &step.expected {
                let mut evaluated = expected.clone();
                evaluated.denied = None;
                for (from, to) in (0..9).flat_map(|from| (0..9).map(move |to| (from, to))) {
                    for family in 0..2 {
                        assert_eq!(
                            evaluated.holds(&world, from, to, family),
                            expected.holds(&world, from, to, family),
                            "{}, step {number}: {from} -> {to}, {expected:?}",
                            case.name
                        );
                    }
                }
            }
        }
    }
    Ok(())
}
