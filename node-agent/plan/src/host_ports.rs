//! Which pod serves which port of the node.
//!
//! Services come first: their addresses and ports are allocated by the API, a host port is only
//! asked for. Among pods, who names the address comes before who asks for every address, then the
//! newest record: of two pods that claim one port, the older one is on its way out.

mod remark;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroU16;
use std::sync::Arc;

pub use self::remark::HostPortRemark;
use super::PlanChanges;
use super::node::NodePorts;
use super::services::{Frontend, FrontendAddress, FrontendKey, FrontendKind, ServicePlan};
use denizen_model::{
    Family, HostPort, HostPortAddress, LocalPod, NodeAddress, Protocol, family_of,
};
use denizen_state::AttachmentId;

/// The device on which kube-proxy's IPVS mode keeps services' addresses.
const KUBE_IPVS: &str = "kube-ipvs0";

/// Settings for all host ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostPortSettings {
    /// Whether host ports are served on 127.0.0.0/8, too, to the node itself.
    pub localhost: bool,
}

/// Where packets to a host port are addressed to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostPortKey {
    /// The address.
    pub at: HostPortPlace,
    /// The protocol.
    pub protocol: Protocol,
    /// The port.
    pub port: NonZeroU16,
}

/// The address of a [`HostPortKey`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum HostPortPlace {
    /// This one.
    Ip(IpAddr),
    /// [`HostPortPlan::addresses`] of this family.
    Any(Family),
}

impl HostPortKey {
    /// The family of the packets.
    pub fn family(&self) -> Family {
        match self.at {
            HostPortPlace::Ip(ip) => family_of(ip),
            HostPortPlace::Any(family) => family,
        }
    }

    /// The keys of a host port as asked for.
    fn of(asked: HostPort) -> impl Iterator<Item = Self> {
        let HostPort { at, protocol, port, .. } = asked;
        at.families().map(move |family| Self {
            at: match at {
                HostPortAddress::Ip(ip) => HostPortPlace::Ip(ip),
                HostPortAddress::Any | HostPortAddress::AnyOf(_) => HostPortPlace::Any(family),
            },
            protocol,
            port,
        })
    }
}

impl fmt::Display for HostPortKey {
    /// As in `192.168.0.2:8080/tcp`, or `8080/tcp` at every address.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, protocol, port } = self;
        match at {
            HostPortPlace::Ip(ip) => write!(f, "{}/{protocol}", SocketAddr::new(*ip, port.get())),
            HostPortPlace::Any(_) => write!(f, "{port}/{protocol}"),
        }
    }
}

/// A host port that is served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServedHostPort {
    /// The pod, as [`LocalPod`] shows itself.
    pub pod: Arc<str>,
    /// Its attachment.
    pub attachment: AttachmentId,
    /// Where connections are forwarded to.
    pub endpoint: SocketAddr,
}

/// An address and a port of the node that a service has, so that no host port is served there.
pub type TakenPort = (IpAddr, Protocol, NonZeroU16);

/// The decisions about host ports.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct HostPortPlan {
    served: BTreeMap<HostPortKey, ServedHostPort>,
    addresses: BTreeSet<IpAddr>,
    taken: BTreeSet<TakenPort>,
    is_on_loopback: bool,
    remarks: Vec<HostPortRemark>,
}

/// What host ports are decided by.
pub(super) struct Surroundings<'a> {
    pub settings: HostPortSettings,
    pub pods: &'a [LocalPod],
    pub links: &'a [NodeAddress],
    pub services: Option<&'a ServicePlan>,
    pub node_ports: &'a NodePorts,
}

/// What differs from the plan before: for each host port that leads elsewhere now, or nowhere,
/// where it led before; `None` for one that is new.
pub type HostPortChanges = BTreeMap<HostPortKey, Option<SocketAddr>>;

impl HostPortPlan {
    /// Every host port that is served.
    pub fn served(&self) -> &BTreeMap<HostPortKey, ServedHostPort> {
        &self.served
    }

    /// The node's addresses at which host ports that name none are served.
    pub fn addresses(&self) -> &BTreeSet<IpAddr> {
        &self.addresses
    }

    /// Of [`Self::addresses`], where a service has a port that [`Self::served`] has, too.
    pub fn taken(&self) -> &BTreeSet<TakenPort> {
        &self.taken
    }

    /// Whether host ports are served on 127.0.0.0/8, to the node itself.
    pub fn is_on_loopback(&self) -> bool {
        self.is_on_loopback
    }

    /// What is not served as asked for.
    pub fn remarks(&self) -> &[HostPortRemark] {
        &self.remarks
    }

    /// The host port that a packet to this destination is for, with the key by which it is found.
    pub fn at(
        &self,
        ip: IpAddr,
        protocol: Protocol,
        port: NonZeroU16,
    ) -> Option<(HostPortKey, &ServedHostPort)> {
        let key = |at| HostPortKey { at, protocol, port };
        let exact = key(HostPortPlace::Ip(ip));
        let any = key(HostPortPlace::Any(family_of(ip)));
        let found = |key: HostPortKey| Some((key, self.served.get(&key)?));
        let is_any = || self.serves_any_at(ip) && !self.taken.contains(&(ip, protocol, port));
        found(exact).or_else(|| is_any().then(|| found(any)).flatten())
    }

    /// Whether host ports that name no address are served at this one.
    pub fn serves_any_at(&self, ip: IpAddr) -> bool {
        match ip {
            IpAddr::V4(v4) if v4.is_loopback() => self.is_on_loopback,
            IpAddr::V4(_) | IpAddr::V6(_) => self.addresses.contains(&ip),
        }
    }

    /// Whether a change of services at these frontends may change what is served.
    pub(super) fn concerns<'a>(&self, mut keys: impl Iterator<Item = &'a FrontendKey>) -> bool {
        keys.any(|key| self.asks_for(key.protocol, key.port))
    }

    fn asks_for(&self, protocol: Protocol, port: NonZeroU16) -> bool {
        let served = self.served.keys().map(|key| (key.protocol, key.port));
        let not = self.remarks.iter().map(HostPortRemark::port);
        served.chain(not).any(|asked| asked == (protocol, port))
    }

    /// Decides anew. Returns whether anything differs.
    pub(super) fn update(&mut self, by: &Surroundings<'_>, changes: &mut PlanChanges) -> bool {
        let new = Self::new(by);
        if *self == new {
            return false;
        }
        let added = new.remarks.iter().filter(|remark| !self.remarks.contains(remark));
        changes.host_port_remarks.extend(added.cloned());
        let changes = &mut changes.host_ports;
        for (key, was) in &self.served {
            if new.served.get(key).map(|is| is.endpoint) != Some(was.endpoint) {
                changes.insert(*key, Some(was.endpoint));
            }
        }
        for key in new.served.keys().filter(|key| !self.served.contains_key(key)) {
            changes.insert(*key, None);
        }
        *self = new;
        true
    }

    fn new(by: &Surroundings<'_>) -> Self {
        let is_on_loopback = by.settings.localhost;
        let mut plan = Self { addresses: addresses(by), is_on_loopback, ..Self::default() };
        let mut claims: BTreeMap<HostPortKey, Vec<Claim<'_>>> = BTreeMap::new();
        for claim in all_claims(by, &mut plan.remarks) {
            claims.entry(claim.key).or_default().push(claim);
        }
        for (key, mut of_key) in claims {
            of_key.sort_by_key(Claim::rank);
            let mut of_key = of_key.into_iter();
            let Some(first) = of_key.next() else { continue };
            let older = of_key.filter(|claim| claim.name() != first.name());
            plan.remarks.extend(older.map(|claim| HostPortRemark::Older {
                pod: claim.name(),
                asked: claim.asked,
                newer: first.name(),
            }));
            plan.serve(key, &first, by);
        }
        plan.remarks.sort();
        plan.remarks.dedup();
        plan
    }

    /// Serves a key, except where a service has it.
    fn serve(&mut self, key: HostPortKey, claim: &Claim<'_>, by: &Surroundings<'_>) {
        let HostPortKey { at, protocol, port } = key;
        let frontend = |ip| by.frontend(ip, protocol, port);
        let shadowed = |ip, frontend: &Frontend| HostPortRemark::Shadowed {
            pod: claim.name(),
            asked: claim.asked,
            at: ip,
            kind: frontend.kind,
            by: frontend.service_port.clone(),
        };
        match at {
            HostPortPlace::Ip(ip) => {
                if let Some(frontend) = frontend(ip) {
                    return self.remarks.push(shadowed(ip, frontend));
                }
                if !by.has(ip) {
                    return self
                        .remarks
                        .push(HostPortRemark::NoAddress { pod: claim.name(), asked: claim.asked });
                }
            }
            HostPortPlace::Any(family) => {
                let loopback = IpAddr::from(Ipv4Addr::LOCALHOST);
                let on_loopback = by.settings.localhost.then_some(&loopback);
                let all = self.addresses.iter().chain(on_loopback);
                for ip in all.filter(|ip| family_of(**ip) == family) {
                    if let Some(frontend) = frontend(*ip) {
                        self.taken.insert((*ip, protocol, port));
                        self.remarks.push(shadowed(*ip, frontend));
                    }
                }
            }
        }
        let (pod, attachment) = (claim.name(), claim.pod.id.clone());
        self.served.insert(key, ServedHostPort { pod, attachment, endpoint: claim.endpoint });
    }
}

impl Surroundings<'_> {
    /// The frontend of a service at an address of the node.
    fn frontend(&self, ip: IpAddr, protocol: Protocol, port: NonZeroU16) -> Option<&Frontend> {
        let services = self.services?;
        let key = |address| FrontendKey { address, protocol, port };
        let node = key(FrontendAddress::Node(family_of(ip)));
        let at_node =
            || services.frontend(&node).filter(|_| self.node_ports.addresses.contains(&ip));
        services.frontend(&key(FrontendAddress::Ip(ip))).or_else(at_node)
    }

    /// Whether the node has an address at which host ports can be served.
    fn has(&self, ip: IpAddr) -> bool {
        match ip {
            IpAddr::V4(v4) if v4.is_loopback() => self.settings.localhost,
            IpAddr::V6(v6) if v6.is_loopback() => false,
            IpAddr::V4(_) | IpAddr::V6(_) => self.links.iter().any(|on| on.address == ip),
        }
    }
}

/// The node's addresses at which a host port that names none is served: all of its links', but
/// loopback (127.0.0.0/8 is served by itself, and from `::1` nothing can be forwarded), and those
/// that are a service's: kube-proxy's IPVS mode keeps them on a device.
fn addresses(by: &Surroundings<'_>) -> BTreeSet<IpAddr> {
    // A node-local DNS cache has a cluster IP on a dummy device.
    let is_cluster_ip = |ip: IpAddr| {
        let mut frontends = by.services.into_iter().flat_map(ServicePlan::frontends);
        let at = FrontendAddress::Ip(ip);
        frontends.any(|one| one.kind == FrontendKind::ClusterIp && one.key.address == at)
    };
    let of_node = by.links.iter().filter(|on| &*on.interface != KUBE_IPVS);
    let of_node = of_node.filter(|on| !on.address.is_loopback());
    of_node.filter(|on| !on.dummy || !is_cluster_ip(on.address)).map(|on| on.address).collect()
}

/// A pod's claim of one key.
struct Claim<'a> {
    key: HostPortKey,
    pod: &'a LocalPod,
    asked: HostPort,
    endpoint: SocketAddr,
}

impl Claim<'_> {
    /// The smallest wins.
    fn rank(&self) -> impl Ord + use<> {
        (Reverse(self.pod.added_at.clone()), self.pod.id.clone(), self.endpoint)
    }

    fn name(&self) -> Arc<str> {
        self.pod.to_string().into()
    }
}

/// Every claim that can be served. A record whose address a newer one has is of a pod that is gone.
fn all_claims<'a>(by: &Surroundings<'a>, remarks: &mut Vec<HostPortRemark>) -> Vec<Claim<'a>> {
    let asking = || by.pods.iter().filter(|pod| !pod.host_ports.is_empty());
    let mut owners: HashMap<IpAddr, &LocalPod> = HashMap::new();
    if asking().next().is_some() {
        for pod in by.pods {
            for ip in &pod.ips {
                let owner = owners.entry(*ip).or_insert(pod);
                if (&owner.added_at, &owner.id) < (&pod.added_at, &pod.id) {
                    *owner = pod;
                }
            }
        }
    }
    let mut claims = Vec::new();
    for pod in asking() {
        let is_gone = |ip: &IpAddr| owners.get(ip).is_some_and(|owner| owner.id != pod.id);
        for asked in pod.host_ports.iter().copied() {
            let (mut is_possible, mut is_superseded) = (false, false);
            for key in HostPortKey::of(asked) {
                let ip = pod.ips.iter().find(|ip| family_of(**ip) == key.family());
                let Some(ip) = ip else { continue };
                is_superseded |= is_gone(ip);
                if !is_gone(ip) {
                    let endpoint = SocketAddr::new(*ip, asked.pod_port.get());
                    claims.push(Claim { key, pod, asked, endpoint });
                    is_possible = true;
                }
            }
            if !is_possible && !is_superseded {
                remarks.push(HostPortRemark::NoPodAddress { pod: pod.to_string().into(), asked });
            }
        }
    }
    claims
}
