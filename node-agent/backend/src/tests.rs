//! Figures of what is programmed.

use std::collections::BTreeSet;

use super::iptables::DesiredRules;
use super::nftables::Nftables;
use super::{BackendName, SetSize};
use denizen_fixture::{pods, range};
use denizen_model::Event;
use denizen_plan::fixture::policy;
use denizen_plan::{Detector, PlanChanges, Planner, Policy};

/// Two sizes of one set would be one time series with two values.
#[test]
fn each_set_has_one_size() {
    let detectors = [
        Detector::PodState,
        Detector::PodPort,
        Detector::Bridge(vec!["cni0".into()]),
        Detector::BridgePort,
        Detector::InterfacePrefix(vec!["veth".into()]),
        Detector::NodeCidr(Some(vec![range("10.1.2.0/24")])),
    ];
    for detector in detectors {
        for backend in [BackendName::Nftables, BackendName::Iptables] {
            let sizes = sizes(backend, detector.clone());
            let sets: BTreeSet<_> =
                sizes.iter().map(|SetSize { family, set, .. }| (*family, set)).collect();
            assert_eq!(sets.len(), sizes.len(), "{backend}, {detector}: {sizes:?}");
            assert!(!sets.is_empty(), "{backend}, {detector}");
        }
    }
}

fn sizes(backend: BackendName, detector: Detector) -> Vec<SetSize> {
    let mut planner = Planner::new(Policy { detector, ..policy() }, backend.capabilities());
    planner.apply(vec![Event::Pods(pods(
        1,
        &[("10.1.2.3", "cni0/veth1"), ("fd00::3", "cni0/veth2")],
    ))]);
    planner.update();
    let plan = planner.plan();
    let changes = PlanChanges::from_nothing(plan);
    match backend {
        BackendName::Nftables => {
            let mut nftables = Nftables::offline();
            nftables.update(plan, &changes);
            nftables.sizes()
        }
        BackendName::Iptables => {
            let mut wanted = DesiredRules::offline();
            wanted.update(plan, &changes);
            wanted.sizes()
        }
        BackendName::Ipvs | BackendName::None => Vec::new(),
    }
}
