//! Gauges. The time to count grows with the number of services and pods, so gauges are set only on
//! request.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use super::Metrics;
use super::like_kube_proxy::{ip_family, policy_labels};
use crate::status::Status;
use denizen_backend::{Figures, FullMapCounts, RestoreFailures, ServiceDropReason};
use denizen_model::{Family, ServicePortName};
use denizen_plan::{Frontend, FrontendKind, Outcome, Plan, ServicePlan};

/// Sets the gauges from a fresh `status` and the backend's figures.
pub fn set_gauges(metrics: &Metrics, status: &Status, figures: &Figures, plan: &Plan) {
    let own = &metrics.own;
    own.local_pods.set(gauge(status.pods));
    own.unrecorded_interfaces.set(gauge(status.unrecorded_interfaces));
    own.redirected_pods.set(gauge(status.redirected_pods));
    own.unredirected_pods.set(gauge(status.unredirected_pods));
    own.services.set(gauge(status.services));
    own.endpoints.set(gauge(status.endpoints));
    own.problems.set(gauge(status.errors.len()));
    own.drift_repaired.inner().store(status.drift_repaired, Ordering::Relaxed);
    own.missed_lookups.inner().store(status.missed_lookups, Ordering::Relaxed);
    for size in &figures.sizes {
        let labels = [("ip_family", size.family.to_string()), ("set", size.set.clone())];
        own.elements.get_or_create(&labels).set(gauge(size.elements));
    }
    for map in &status.affinity.clients {
        let labels = [("ip_family", map.family.clone()), ("set", map.map.clone())];
        own.elements.get_or_create(&labels).set(i64::from(map.clients));
    }
    if let Some(engine) = &status.network_policy_engine {
        metrics.network_policy.set_engine(engine);
    }
    if let Some(status) = &status.network_policy {
        metrics.network_policy.set(status);
    }
    if let Some(status) = &status.routing {
        metrics.routing.set(status);
    }
    if let Some(status) = &status.announcements {
        metrics.routing.set_announced(status);
        own.uncovered_pods.set(gauge(status.uncovered_pods));
    }
    if let Some(status) = &status.bgp {
        metrics.bgp.set(status);
    }
    if let Some(status) = &status.ipvs {
        metrics.ipvs.set(status);
    }
    if let Some(status) = &status.host_ports {
        metrics.host_ports.set(status);
    }
    metrics.services.set(&figures.connections, plan);
    metrics.api.set(&status.api);
    let FullMapCounts { reserved, briefly, not } = status.affinity.crowded;
    for (remembered, clients) in [("reserved", reserved), ("briefly", briefly), ("no", not)] {
        let counter = own.affinity_crowded.get_or_create(&[("remembered", remembered)]);
        counter.inner().store(clients, Ordering::Relaxed);
    }
    set_like_kube_proxy(metrics, figures, plan);
}

fn set_like_kube_proxy(metrics: &Metrics, figures: &Figures, plan: &Plan) {
    for family in Family::BOTH {
        let of_family = |drops: fn(&Frontend) -> bool| {
            without_local(plan, |frontend| frontend.key.family() == family && drops(frontend))
        };
        let dropped = [
            (
                "internal",
                of_family(|f| f.kind == FrontendKind::ClusterIp && f.inside == Outcome::Drop),
            ),
            ("external", of_family(|f| f.outside == Some(Outcome::Drop))),
        ];
        for (policy, services) in dropped {
            let gauges = &metrics.like_kube_proxy.no_local_endpoints;
            gauges.get_or_create(&policy_labels(family, policy)).set(gauge(services));
        }
        let RestoreFailures { full, partial } = figures.restore_failures[family as usize];
        let failures = [
            (&metrics.like_kube_proxy.restore_failures, full),
            (&metrics.like_kube_proxy.partial_restore_failures, partial),
        ];
        for (counters, count) in failures {
            let counter = counters.get_or_create(&ip_family(family));
            counter.inner().store(count, Ordering::Relaxed);
        }
    }
    let Some(drops) = &figures.drops else { return };
    for reason in ServiceDropReason::ALL {
        let packets = drops.of(reason);
        if reason == ServiceDropReason::Invalid {
            metrics.like_kube_proxy.invalid_dropped.inner().store(packets, Ordering::Relaxed);
        } else {
            let counter = metrics.own.service_drops.get_or_create(&[("reason", reason.name())]);
            counter.inner().store(packets, Ordering::Relaxed);
        }
    }
}

fn without_local(plan: &Plan, drops: impl Fn(&Frontend) -> bool) -> usize {
    let services = plan.services().into_iter();
    let frontends = services.flat_map(ServicePlan::frontends).filter(|frontend| drops(frontend));
    let ports: BTreeSet<&ServicePortName> =
        frontends.map(|frontend| &frontend.service_port).collect();
    ports.len()
}

fn gauge(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
