//! The source address that an endpoint sees.

use std::net::IpAddr;

use super::{Sender, Way, words};
use crate::{Endpoint, Endpoints, Frontend, FrontendKind, Masquerade};

impl Way<'_> {
    pub(super) fn masquerade(
        &mut self,
        frontend: &Frontend,
        bound: bool,
        endpoints: &Endpoints,
        sender: Sender,
    ) -> bool {
        let (masquerade, why) = match frontend.masquerade {
            _ if bound => (false, words::KEPT_LOCAL_POLICY),
            Masquerade::Always if frontend.kind == FrontendKind::ClusterIp => {
                (true, words::MASQUERADE_ALL)
            }
            Masquerade::Always => (true, words::MASQUERADE_EXTERNAL),
            Masquerade::UnlessLocalPod if sender == Sender::Pod => (false, words::KEPT_LOCAL_POD),
            Masquerade::UnlessLocalPod
                if sender == Sender::Node && self.node_is_in_a_pod_range() =>
            {
                (false, words::KEPT_NODE_RANGE)
            }
            Masquerade::UnlessLocalPod => (true, words::MASQUERADE_FOREIGN),
        };
        // Packets to the node itself are not forwarded, and masquerade happens after forwarding.
        let stays = |e: &&Endpoint| sender != Sender::Node && self.is_own(e.address.ip());
        let itself = |e: &&Endpoint| e.address.ip() == self.packet.source && self.is_hairpin();
        let sees_node = |e: &&Endpoint| {
            let translated = if masquerade { !stays(e) } else { itself(e) };
            translated || self.leaves_to(sender, e.address.ip())
        };
        let masqueraded: Vec<String> =
            endpoints.iter().filter(sees_node).map(|e| e.address.to_string()).collect();
        let exceptions = match masquerade {
            true => endpoints.iter().filter(stays).count(),
            false => endpoints.iter().filter(itself).count(),
        };
        let only_exceptions = exceptions == endpoints.count();
        if masqueraded.len() < endpoints.count() {
            self.masqueraded = masqueraded;
        }
        if !only_exceptions {
            let what = if masquerade { words::SOURCE_REPLACED } else { words::SOURCE_KEPT };
            self.step(what, why);
        }
        if exceptions > 0 {
            let (what, why) = if masquerade { words::STAYS } else { words::HAIRPIN };
            self.step(what, why);
        }
        masquerade != only_exceptions || self.leaves_for_endpoint(sender, endpoints)
    }

    pub(super) fn is_own(&self, address: IpAddr) -> bool {
        self.plan.node().addresses.contains(&address)
    }

    /// Whether the sender may reach itself through a service.
    fn is_hairpin(&self) -> bool {
        self.services.hairpins().contains(&self.packet.source)
    }

    /// If only the source counts, the node's own address in a pod CIDR (a bridge's) counts as a
    /// pod's.
    fn node_is_in_a_pod_range(&self) -> bool {
        let detection = &self.plan.node().detection;
        detection.local(self.plan.recorded(), self.packet.source, None).is_some()
    }
}
