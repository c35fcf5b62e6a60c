//! Which pod serves which port of the node.
//!
//! Services come first: their addresses and ports are allocated by the API, a host port is only
//! requested. Among pods, one that names the address precedes one that requests every address, then
//! the newest record: of two pods that claim one port, the older one is on its way out.
//!
//! Each [`HostPortKey`] is decided by itself: a pod's change touches the keys that it claims, and
//! no others.

mod changes;
mod claims;
mod inputs;
mod key;
mod remark;
mod settings;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroU16;
use std::sync::Arc;

pub use self::changes::HostPortChanges;
use self::changes::Remarks;
use self::claims::{Claim, Claims};
pub(super) use self::inputs::HostPortInputs;
use self::inputs::{NodeAddresses, is_of_one_link};
pub use self::key::{HostPortKey, HostPortPlace};
pub use self::remark::HostPortRemark;
pub use self::settings::HostPortSettings;
use super::services::Frontend;
use denizen_model::{Protocol, family_of};
use denizen_state::AttachmentId;

/// A host port that is served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServedHostPort {
    /// The pod, as [`LocalPod`](denizen_model::LocalPod) shows itself.
    pub pod: Arc<str>,
    pub attachment: AttachmentId,
    /// Where connections are forwarded to.
    pub endpoint: SocketAddr,
}

/// An address and a port of the node that a service has, so that no host port is served there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct TakenPort {
    pub ip: IpAddr,
    pub protocol: Protocol,
    pub port: NonZeroU16,
}

/// The decisions about host ports.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct HostPortPlan {
    served: BTreeMap<HostPortKey, ServedHostPort>,
    taken: BTreeSet<TakenPort>,
    is_on_loopback: bool,
    remarks: Remarks,
    /// Who serves a key is in [`Self::served`].
    decisions: BTreeMap<HostPortKey, Decision>,
    claims: Claims,
    addresses: NodeAddresses,
    node_ports: BTreeSet<IpAddr>,
    knows_services: bool,
}

/// What is decided about one key, except which pod serves it.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Decision {
    taken: Vec<TakenPort>,
    remarks: Vec<HostPortRemark>,
}

impl HostPortPlan {
    pub fn served(&self) -> &BTreeMap<HostPortKey, ServedHostPort> {
        &self.served
    }

    /// The node's addresses at which host ports that name no address are served.
    pub fn addresses(&self) -> &BTreeSet<IpAddr> {
        &self.addresses.any
    }

    /// The addresses and ports that a pod requests and a service has.
    pub fn taken(&self) -> &BTreeSet<TakenPort> {
        &self.taken
    }

    /// Whether host ports are served on 127.0.0.0/8, to the node itself.
    pub fn is_on_loopback(&self) -> bool {
        self.is_on_loopback
    }

    /// What is not served as requested.
    pub fn remarks(&self) -> impl Iterator<Item = &HostPortRemark> + Clone {
        self.remarks.iter()
    }

    /// The host port that a packet to this destination is for, with the key by which it is found.
    pub fn at(
        &self,
        ip: IpAddr,
        protocol: Protocol,
        port: NonZeroU16,
    ) -> Option<(HostPortKey, &ServedHostPort)> {
        if self.taken.contains(&TakenPort { ip, protocol, port }) {
            return None;
        }
        let key = |at| HostPortKey { at, protocol, port };
        let found = |key: HostPortKey| Some((key, self.served.get(&key)?));
        let any = || found(key(HostPortPlace::Any(family_of(ip))));
        let is_any = || self.serves_any_at(ip);
        found(key(HostPortPlace::Ip(ip))).or_else(|| is_any().then(any).flatten())
    }

    /// Whether host ports that name no address are served at this one.
    pub fn serves_any_at(&self, ip: IpAddr) -> bool {
        match ip {
            IpAddr::V4(v4) if v4.is_loopback() => self.is_on_loopback,
            IpAddr::V4(_) | IpAddr::V6(_) => self.addresses().contains(&ip),
        }
    }

    /// Decides again what a change touches.
    pub(super) fn update(&mut self, by: &HostPortInputs<'_>) -> HostPortChanges {
        let mut changes = HostPortChanges::default();
        let claims = self.claims.change(by.former_pods, by.pods);
        for [former, now] in &claims.pods {
            self.remarks.replace(&former.remarks, &now.remarks, &mut changes.remarks);
        }
        let mut due = claims.keys;
        self.apply_inputs(by, &mut due, &mut changes);
        let mut taken = BTreeSet::new();
        for key in due {
            self.decide(key, by, &mut taken, &mut changes);
        }
        for one in taken {
            let is_taken = self.is_taken(one);
            let differs = match is_taken {
                true => self.taken.insert(one),
                false => self.taken.remove(&one),
            };
            if differs {
                changes.taken.insert(one);
            }
        }
        changes
    }

    /// Applies changes of services and addresses. Adds the keys that they concern to `due`.
    fn apply_inputs(
        &mut self,
        by: &HostPortInputs<'_>,
        due: &mut BTreeSet<HostPortKey>,
        changes: &mut HostPortChanges,
    ) {
        self.is_on_loopback = by.settings.localhost;
        let knows_services = by.services.is_some();
        let is_first =
            std::mem::replace(&mut self.knows_services, knows_services) != knows_services;
        if is_first {
            due.extend(self.claims.keys());
        } else {
            let frontends = by.frontends.iter();
            let keys =
                frontends.flat_map(|frontend| HostPortKey::shadowed_by(frontend, &self.node_ports));
            due.extend(keys.filter(|key| self.claims.has_key(key)));
        }
        let node_ports: BTreeSet<IpAddr> = by.node_ports.addresses.iter().copied().collect();
        let of_node_ports: Vec<IpAddr> =
            self.node_ports.symmetric_difference(&node_ports).copied().collect();
        self.node_ports = node_ports;
        let is_on_dummy = |ip: IpAddr| self.addresses.on_dummies.contains(&ip);
        let concerns_dummies = || by.frontends.iter().any(|key| key.ip().is_some_and(is_on_dummy));
        let mut moved = BTreeSet::new();
        if is_first || by.links_changed || concerns_dummies() {
            let addresses = NodeAddresses::of(by);
            moved = addresses.differing(&self.addresses);
            let any = addresses.any.symmetric_difference(&self.addresses.any);
            changes.addresses = any.copied().collect();
            self.addresses = addresses;
        }
        for ip in moved.iter().chain(&of_node_ports) {
            due.extend(self.claims.keys_at(HostPortPlace::Ip(*ip)));
            if !is_of_one_link(*ip) || of_node_ports.contains(ip) {
                due.extend(self.claims.keys_at(HostPortPlace::Any(family_of(*ip))));
            }
        }
    }

    /// Decides about a key. Adds to `taken` the ports at this key that a service has now or had
    /// before.
    fn decide(
        &mut self,
        key: HostPortKey,
        by: &HostPortInputs<'_>,
        taken: &mut BTreeSet<TakenPort>,
        changes: &mut HostPortChanges,
    ) {
        let (decision, served) = self.decision(key, by);
        let was = match &served {
            Some(served) => self.served.insert(key, served.clone()),
            None => self.served.remove(&key),
        };
        let end = |served: &ServedHostPort| served.endpoint;
        if was.as_ref().map(end) != served.as_ref().map(end) {
            changes.former.insert(key, was.as_ref().map(end));
        }
        if was != served {
            changes.served.insert(key);
        }
        let is_nothing = decision == Decision::default();
        let now = (decision.taken.clone(), decision.remarks.clone());
        let former = match is_nothing {
            true => self.decisions.remove(&key),
            false => self.decisions.insert(key, decision),
        };
        let former = former.unwrap_or_default();
        self.remarks.replace(&former.remarks, &now.1, &mut changes.remarks);
        taken.extend(former.taken.into_iter().chain(now.0));
    }

    /// The decision about a key, and who serves it.
    fn decision(
        &self,
        key: HostPortKey,
        by: &HostPortInputs<'_>,
    ) -> (Decision, Option<ServedHostPort>) {
        let mut claims = self.claims.of_key(key);
        let mut decision = Decision::default();
        let Some(first) = claims.next() else {
            return (decision, None);
        };
        let older = claims.filter(|claim| claim.pod != first.pod);
        decision.remarks.extend(older.map(|claim| HostPortRemark::Older {
            pod: claim.pod.clone(),
            requested: claim.requested,
            newer: first.pod.clone(),
        }));
        let shadowed = self.shadowed(key, by);
        let is_served = match key.at {
            HostPortPlace::Ip(ip) => {
                let is_here = self.addresses.has(ip, by.settings);
                if shadowed.is_empty() && !is_here {
                    let (pod, requested) = (first.pod.clone(), first.requested);
                    decision.remarks.push(HostPortRemark::NoAddress { pod, requested });
                }
                shadowed.is_empty() && is_here
            }
            HostPortPlace::Any(_) => true,
        };
        for (ip, frontend) in shadowed {
            let HostPortKey { protocol, port, .. } = key;
            decision.taken.push(TakenPort { ip, protocol, port });
            decision.remarks.push(HostPortRemark::Shadowed {
                pod: first.pod.clone(),
                requested: first.requested,
                at: ip,
                kind: frontend.kind,
                by: frontend.service_port.clone(),
            });
        }
        (decision, is_served.then(|| served(first)))
    }

    /// The services that have a key's port, and at which addresses.
    fn shadowed<'a>(
        &self,
        key: HostPortKey,
        by: &'a HostPortInputs<'_>,
    ) -> Vec<(IpAddr, &'a Frontend)> {
        let HostPortKey { at, protocol, port } = key;
        let frontend = |ip| Some((ip, by.frontend(ip, protocol, port)?));
        match at {
            HostPortPlace::Ip(ip) => frontend(ip).into_iter().collect(),
            HostPortPlace::Any(family) => {
                let loopback = IpAddr::from(Ipv4Addr::LOCALHOST);
                let on_loopback = by.settings.localhost.then_some(loopback);
                let all = self.addresses().iter().copied().chain(on_loopback);
                all.filter(|ip| family_of(*ip) == family).filter_map(frontend).collect()
            }
        }
    }

    /// Whether a service has the port at this address, by the decisions about the keys that cover
    /// it.
    fn is_taken(&self, taken: TakenPort) -> bool {
        let TakenPort { ip, protocol, port } = taken;
        [HostPortPlace::Ip(ip), HostPortPlace::Any(family_of(ip))].into_iter().any(|at| {
            let decision = self.decisions.get(&HostPortKey { at, protocol, port });
            decision.is_some_and(|decision| decision.taken.contains(&taken))
        })
    }
}

fn served(claim: &Claim) -> ServedHostPort {
    ServedHostPort {
        pod: claim.pod.clone(),
        attachment: claim.id.clone(),
        endpoint: claim.endpoint,
    }
}
