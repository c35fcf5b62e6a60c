//! What the backend was told, as rules and sets. Pure.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::num::NonZeroU16;

use ipnetwork::IpNetwork;

use super::fixed::Shape;
use super::pods::Pods;
use super::ruleset::Ruleset;
use super::text::Rendering;
use crate::backend::Told;
use crate::backend::nftables::{Nftables, NoKernel};
use crate::model::{Egress, Family, PodSet};
use crate::plan::{Detector, FrontendKey, NodePortAddresses, NodeSide, Plan};

/// What is wanted in both families, and how much of it is known.
#[derive(Debug)]
pub struct Wanted<K = NoKernel> {
    /// The rules, by family.
    pub rules: [Ruleset; 2],
    /// The table that tells the rules of a bridge's ports. Wanted only where a pod's port must be
    /// right.
    pub bridge: Nftables<K>,
    /// This node's pods.
    pub pods: Pods,
    /// The pods are known, and differ perhaps from what was last written.
    pub pods_changed: bool,
    /// Which facts the agent has been told. What an earlier run programmed from the others is left
    /// alone: a restart must lose nothing while the API, or the state file, cannot be read.
    pub pods_known: bool,
    /// As [`Self::pods_known`], of services.
    pub services_known: bool,
}

impl Wanted {
    /// As [`Self::new`], to be looked at and never programmed.
    pub fn offline() -> Self {
        Self::new(true, Nftables::offline_bridge())
    }

    /// The rules, to be looked at.
    pub fn rendering(&self) -> Rendering {
        let bridge = self.bridge.is_wanted().then(|| self.bridge.rendering());
        Rendering::of(&self.rules, &self.pods, bridge)
    }
}

impl<K> Wanted<K> {
    /// Nothing yet. `drop_invalid`: what connection tracking cannot place is not let through.
    /// `bridge` has the bridge's table alone.
    pub fn new(drop_invalid: bool, bridge: Nftables<K>) -> Self {
        Self {
            rules: Family::BOTH.map(|family| Ruleset::new(Shape::new(family, drop_invalid))),
            bridge,
            pods: Pods::default(),
            pods_changed: false,
            pods_known: false,
            services_known: false,
        }
    }

    fn reshape(&mut self, change: impl Fn(&mut Shape)) {
        self.rules.iter_mut().for_each(|rules| rules.reshape(&change));
    }
}

impl<K> Told for Wanted<K> {
    fn set_pods(&mut self, pods: &PodSet) {
        self.bridge.set_pods(pods);
        let pods = Pods::new(pods, self.bridge.is_wanted());
        self.pods_changed |= !self.pods_known || self.pods != pods;
        self.pods_known = true;
        self.pods = pods;
    }

    /// An endpoint's own chain tells whether it is handed to itself.
    fn set_hairpins(&mut self, _addresses: &BTreeSet<IpAddr>) {}

    fn set_node_port_addresses(&mut self, wanted: &NodePortAddresses, addresses: &[IpAddr]) {
        self.reshape(|shape| shape.serve_node_ports(wanted, addresses));
    }

    fn set_health_ports(&mut self, ports: &BTreeSet<NonZeroU16>) {
        self.reshape(|shape| shape.health_ports = ports.iter().map(|port| port.get()).collect());
    }

    fn set_frontends(&mut self, plan: &Plan, keys: &BTreeSet<FrontendKey>) {
        for rules in &mut self.rules {
            rules.change_frontends(keys.iter().map(|key| (*key, plan.frontend(key))));
        }
    }

    fn set_complete(&mut self) {
        self.bridge.set_complete();
        self.services_known = true;
    }

    fn set_detector(&mut self, detector: &Detector, ranges: &[IpNetwork]) {
        // Any port of a bridge is known to iptables itself: `-m physdev`.
        if *detector == Detector::PodPort {
            self.bridge.set_detector(detector, ranges);
        }
        self.reshape(|shape| shape.detect(detector, ranges));
    }

    fn set_egress(&mut self, egress: Option<&Egress>) {
        self.reshape(|shape| shape.send_out(egress));
    }

    fn set_node_side(&mut self, node_side: &NodeSide) {
        self.bridge.set_node_side(node_side);
        self.reshape(|shape| shape.settle(node_side));
    }

    /// As in kube-proxy's iptables mode, what no service has is nobody's business here.
    fn set_service_ranges(&mut self, _ranges: &[IpNetwork]) {}
}
