//! The suites with packets, in both families at once.

use anyhow::Result;
use denizen_tests::node::pod::Wiring;
use denizen_tests::policy::PolicyWorld;
use denizen_tests::test_length::in_full;

use crate::case::Case;
use crate::play::{Via, play};
use crate::{cyclonus, e2e};

const BOTH_VIAS: [Via; 2] = [Via::PodIp, Via::ClusterIp];

fn e2e_cases(world: &PolicyWorld) -> Vec<(Case, Vec<Via>)> {
    e2e::cases(world).into_iter().map(|case| (case, BOTH_VIAS.into())).collect()
}

#[test]
fn kubernetes_own_suite_between_bridged_pods() -> Result<()> {
    play("e2e-bridged", |_| Wiring::Bridged, e2e_cases)
}

#[test]
fn kubernetes_own_suite_between_routed_pods() -> Result<()> {
    play("e2e-routed", |_| Wiring::Routed, e2e_cases)
}

/// On each node one half of the pods is bridged.
pub fn half(number: usize) -> Wiring {
    if (number / 2).is_multiple_of(2) { Wiring::Bridged } else { Wiring::Routed }
}

#[test]
fn cyclonus() -> Result<()> {
    play("cyclonus", half, |world| {
        let cases = cyclonus::groups(world).into_iter().flat_map(|(_, cases)| cases);
        let vias = |number: usize| match number.is_multiple_of(in_full(1, BY_CLUSTER_IP)) {
            true => BOTH_VIAS.into(),
            false => vec![Via::PodIp],
        };
        cases.enumerate().map(|(number, case)| (case, vias(number))).collect()
    })
}

/// Unless tests run in full length, pods ask by cluster IP too in every fourth of its cases:
/// Kubernetes' own suite does in all of its own, and what a policy permits is decided behind the
/// translation.
const BY_CLUSTER_IP: usize = 4;

/// Without policies everything arrives, so that silence means something.
#[test]
fn without_policies_everybody_reaches_everybody() -> Result<()> {
    play("no-policy", half, |_| {
        let nothing = crate::case::Change::Delete { namespace: "x".into(), policy: "none".into() };
        let case = Case::new("no policy").then(nothing).expect_oracle();
        vec![(case, BOTH_VIAS.into())]
    })
}
