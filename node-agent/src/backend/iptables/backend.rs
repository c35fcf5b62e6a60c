//! iptables as the agent sees it: what is wanted comes in, and what came of it goes out.

use std::collections::BTreeSet;
use std::future::pending;
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::time::Duration;

use ipnetwork::IpNetwork;
use tokio::time::sleep_until;

use super::IptablesError;
use super::name::SetName;
use super::sync::{Iptables, serves};
use super::told::Wanted;
use crate::backend::nftables::Nftables;
use crate::backend::{Backend, Repair, SetSize, Told};
use crate::iptables::Writer;
use crate::model::{Egress, PodSet};
use crate::plan::{Detector, Frontend, FrontendKey, NodePortAddresses, NodeSide, Plan};

impl Told for Iptables {
    fn set_pods(&mut self, pods: &PodSet) {
        self.wanted.set_pods(pods);
    }

    fn set_hairpins(&mut self, addresses: &BTreeSet<IpAddr>) {
        self.wanted.set_hairpins(addresses);
    }

    fn set_node_port_addresses(&mut self, wanted: &NodePortAddresses, addresses: &[IpAddr]) {
        self.wanted.set_node_port_addresses(wanted, addresses);
    }

    fn set_health_ports(&mut self, ports: &BTreeSet<NonZeroU16>) {
        self.wanted.set_health_ports(ports);
    }

    fn set_frontends(&mut self, plan: &Plan, keys: &BTreeSet<FrontendKey>) {
        self.wanted.set_frontends(plan, keys);
    }

    fn set_complete(&mut self) {
        self.wanted.set_complete();
    }

    fn set_detector(&mut self, detector: &Detector, ranges: &[IpNetwork]) {
        self.wanted.set_detector(detector, ranges);
    }

    fn set_egress(&mut self, egress: Option<&Egress>) {
        self.wanted.set_egress(egress);
    }

    fn set_node_side(&mut self, node_side: &NodeSide) {
        self.wanted.set_node_side(node_side);
    }

    fn set_service_ranges(&mut self, ranges: &[IpNetwork]) {
        self.wanted.set_service_ranges(ranges);
    }
}

impl Backend for Iptables {
    type Error = IptablesError;

    /// Pods are programmed when it returns; rules are on their way.
    fn sync(&mut self) -> Result<Repair, IptablesError> {
        self.program(Nftables::sync).map(|_| Repair::default())
    }

    fn resync(&mut self) -> Result<Repair, IptablesError> {
        self.sets.forget();
        self.writers.iter_mut().for_each(|writer| writer.unknown = true);
        self.program(Nftables::resync)
    }

    fn sizes(&self) -> Vec<SetSize> {
        let Wanted { pods, bridge, .. } = &self.wanted;
        let size = |set: SetName| SetSize {
            family: set.family(),
            set: set.as_str().to_owned(),
            elements: pods.of(set).len(),
        };
        let told = bridge.is_wanted().then(|| bridge.sizes()).into_iter().flatten();
        SetName::ALL.map(size).into_iter().chain(told).collect()
    }

    fn left_frontends(&mut self) -> Vec<FrontendKey> {
        std::mem::take(&mut self.left_frontends)
    }

    /// Every chain ends in an endpoint that is there.
    fn missed_lookups(&mut self) -> Result<u64, IptablesError> {
        Ok(0)
    }

    fn is_settled(&self) -> bool {
        let mut writers = self.writers.iter().zip(&self.wanted.rules);
        self.wanted.services_known && writers.all(|(writer, rules)| writer.is_settled(rules))
    }

    fn has_pods(&self) -> bool {
        let Wanted { bridge, .. } = &self.wanted;
        let told = !bridge.is_wanted() || bridge.has_pods();
        told && self.wanted.pods_known && !self.wanted.pods_changed && self.sets.are_programmed()
    }

    fn look_every(&self) -> Duration {
        self.look_every
    }

    fn refused(&self) -> Vec<String> {
        self.rejected_words()
    }

    fn rejected(&self, frontend: &Frontend) -> Vec<String> {
        let at = frontend.key.family() as usize;
        let own = self.wanted.rules[at].of_frontend(frontend);
        self.writers[at].rejected.about(&own)
    }

    fn serves(&self) -> bool {
        let mut writers = self.writers.iter().zip(&self.wanted.rules);
        writers.all(|(writer, rules)| serves(writer, rules))
    }

    fn contended(&self) -> Option<&str> {
        self.contended.as_deref()
    }

    fn repaired(&mut self) -> Repair {
        std::mem::take(&mut self.repaired)
    }

    async fn news(&mut self) {
        let next = self.writers.iter().filter_map(Writer::next_try).min();
        let again = async {
            match next {
                Some(at) => {
                    sleep_until(at.into()).await;
                    at
                }
                None => pending().await,
            }
        };
        tokio::select! {
            done = self.news.recv() => match done {
                Some(done) => self.heard.push(done),
                None => pending().await,
            },
            at = again => self.writers.iter_mut().for_each(|writer| writer.try_again(at)),
        }
    }
}
