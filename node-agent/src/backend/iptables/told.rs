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
use crate::model::{Family, PodSet};
use crate::plan::{Detector, Door, NodePortAddresses, NodeSide, Plan};

/// What is wanted in both families, and how much of it is known.
#[derive(Debug)]
pub struct Wanted {
    /// The rules, by family.
    pub rules: [Ruleset; 2],
    /// This node's pods.
    pub pods: Pods,
    /// The pods are known, and differ perhaps from what was last written.
    pub pods_changed: bool,
    /// Which facts the agent has been told. What an earlier run programmed from the others is left alone: a
    /// restart must lose nothing while the API, or the state file, cannot be read.
    pub pods_known: bool,
    /// As [`Self::pods_known`], of services.
    pub services_known: bool,
}

impl Wanted {
    /// Nothing yet. `drop_invalid`: what connection tracking cannot place is not let through.
    pub fn new(drop_invalid: bool) -> Self {
        Self {
            rules: Family::BOTH.map(|family| Ruleset::new(Shape::new(family, drop_invalid))),
            pods: Pods::default(),
            pods_changed: false,
            pods_known: false,
            services_known: false,
        }
    }

    /// The rules, to be looked at.
    pub fn rendering(&self) -> Rendering {
        Rendering::of(self.rules.iter().map(|rules| (rules, &self.pods)))
    }

    fn reshape(&mut self, change: impl Fn(&mut Shape)) {
        self.rules.iter_mut().for_each(|rules| rules.reshape(&change));
    }
}

impl Told for Wanted {
    fn set_pods(&mut self, pods: &PodSet) {
        let pods = Pods::new(pods);
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

    fn set_doors(&mut self, plan: &Plan, doors: &BTreeSet<Door>) {
        for rules in &mut self.rules {
            rules.change_doors(doors.iter().map(|door| (*door, plan.frontend(door))));
        }
    }

    fn set_complete(&mut self) {
        self.services_known = true;
    }

    fn set_detector(&mut self, detector: &Detector, ranges: &[IpNetwork]) {
        self.reshape(|shape| shape.detect(detector, ranges));
    }

    fn set_node_side(&mut self, node_side: &NodeSide) {
        self.reshape(|shape| shape.mark = node_side.masquerade_bit);
    }

    /// As in kube-proxy's iptables mode, what no service has is nobody's business here.
    fn set_service_ranges(&mut self, _ranges: &[IpNetwork]) {}
}
