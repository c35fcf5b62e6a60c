//! The pod firewall: which pod may talk to which, by NetworkPolicies (`networking.k8s.io/v1`) and
//! ClusterNetworkPolicies (`policy.networking.k8s.io`).
//!
//! Each direction of a pod of this node is open, isolated (with permissions), or pending.
//! Permissions are decided for *identities* ([`IdentityId`]): numbers by which this module groups
//! addresses. One lookup finds a peer's identity, and a second one whether the peer is permitted.
//! Pods with the same decisions about a direction form a *class* (`ClassKey`).
//!
//! | file | decides |
//! | --- | --- |
//! | `settings` | what the operator configures |
//! | `rules` | which policies are in force here |
//! | `peer` | the peers that policies in force name, each once |
//! | `group` | which peers cover which pods, by labels |
//! | `blocks` | which peers cover which addresses |
//! | `budget` | policies whose `ipBlock`s would cost too much |
//! | `address` | which pod has which address, and the address's identity |
//! | `direction_rules` | which pods are isolated |
//! | `subjects` | this node's pods, and the decision about each |
//! | `address_key` | the identity keys of addresses that no known pod has |
//! | `tiered_policy` | the peers and ports of ClusterNetworkPolicies in force |
//! | `tier` | what ClusterNetworkPolicies say, tier by tier |
//! | `tie` | which ClusterNetworkPolicies of a pod have the same priority |
//! | `permitted_ports` | what passes between a pod and a peer, by policies of every kind |
//! | `ports_by_peer` | what passes between a pod and all its peers |
//! | `permission` | what an isolated pod may do |
//! | `evaluation` | what a class's policies decide about one packet, and by which rule |
//! | `decider` | which policy decides between a class and an identity, port by port |
//! | `class` | what the pods of each class may do |
//! | `flow` | whether one connection is permitted, and why |
//! | `pod_needs` | pods of which namespaces must be known for these decisions |
//! | `narrowed` | addresses whose established connections may be forbidden now |
//! | `update` | which of these decisions a change of facts touches |
//! | `changes` | what differs from the previous plan |

mod address;
mod address_key;
mod blocks;
mod budget;
mod changes;
mod class;
mod decider;
mod direction;
mod direction_rules;
mod evaluation;
mod flow;
mod group;
mod identity;
mod narrowed;
mod peer;
mod permission;
mod permitted_ports;
mod pod_needs;
mod ports_by_peer;
mod rules;
mod settings;
mod subjects;
#[cfg(test)]
mod tests;
mod tie;
mod tier;
mod tier_decider;
mod tiered_policy;
mod update;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use self::address::PodAddresses;
use self::blocks::{Pieces, piece_of};
use self::class::Classes;

use self::flow::FlowCheck;
use self::group::{GroupId, Groups, PortNames};
use self::identity::{Identities, IdentityKey};
use self::peer::{PeerId, PeerTable};
use self::pod_needs::NeedsTracker;
use self::rules::PoliciesInForce;
use self::subjects::{FirewallPod, Subjects};
use self::update::FirewallUpdate;
use denizen_model::{
    LocalPod, Model, ModelChange, NodeLinks, PodByName, PodName, PodSet, PolicyName,
};
use denizen_state::AttachmentId;
use foldhash::quality::RandomState;
use ipnetwork::IpNetwork;

pub use self::blocks::AddressRange;
pub use self::budget::ExcessPolicy;
pub use self::changes::{FirewallChanges, IdentityChange, PodRulesChange};
pub use self::decider::Decider;
pub(crate) use self::decider::port_edges;
pub use self::direction::Direction;
pub use self::direction_rules::{DirectionRules, Isolation, PodRules, Tiered};
pub use self::flow::{PolicyFlow, PolicyRejection, PolicyResult, PolicyStep};
pub use self::identity::IdentityId;
pub(crate) use self::permission::ClassKey;
pub use self::permission::{Permission, PortKey};
pub(crate) use self::permitted_ports::PortSet;
pub use self::permitted_ports::{PermittedPorts, PortSpan};
pub use self::pod_needs::{AllPodsReason, PodNeeds};
pub use self::ports_by_peer::{PeerPorts, PortsByPeer};
pub use self::settings::{FirewallSettings, IfRefused, KnownPods, ToNode};
pub use self::tie::PolicyTie;
pub use self::tier::TierStep;
pub use self::tier_decider::TierDecider;

/// All decisions about which pods may talk to which.
#[derive(Debug, Default)]
pub struct FirewallPlan {
    settings: FirewallSettings,
    /// Whether all policies, pods and namespaces are known.
    known: bool,
    /// Whether pods are open because RBAC forbids the agent to read what policies need.
    left_open: bool,
    /// Whether there is any policy in the cluster.
    any_policy: bool,
    /// Whether every recorded pod is [confined](Self::is_confined): some ClusterNetworkPolicy of
    /// the cluster denies or passes, and may do so to a pod that no policy selects. Such a pod, on
    /// whichever node, must not evade it by an address that has no labels.
    are_all_confined: bool,
    /// The pods that were recorded before this agent started.
    earlier: Option<BTreeSet<AttachmentId>>,
    /// The addresses of this node's links.
    link_addresses: BTreeSet<IpAddr>,
    /// The addresses of all nodes that are known.
    nodes: BTreeSet<IpAddr>,
    /// Addresses in podCIDRs that are probably nodes'.
    node_addresses_in_ranges: BTreeSet<IpAddr>,
    /// This node's bridges and tunnels.
    links: NodeLinks,
    subjects: Subjects,
    pod_rules: BTreeMap<IpAddr, PodRules>,
    owners: BTreeMap<IpAddr, AttachmentId>,
    /// The pods of the API whose addresses count, and their groups.
    claims: HashMap<PodByName, GroupId, RandomState>,
    /// Pods whose attachment was removed, and whose object in the API is still there.
    departed: BTreeMap<PodName, Arc<str>>,
    rules: PoliciesInForce,
    names: PortNames,
    peers: PeerTable,
    groups: Groups,
    addresses: PodAddresses,
    identities: Identities,
    pieces: Pieces,
    blocks: Blocks,
    classes: Classes,
    /// The peer that stands for the ranges of pods, while ClusterNetworkPolicies are in force.
    pod_ranges: Option<PeerId>,
    /// The identities of nodes' addresses that no pod has, while ClusterNetworkPolicies are in
    /// force.
    node_identities: BTreeMap<IpAddr, IdentityId>,
    /// Which pods must be known; tracked if some may be unknown.
    needs: NeedsTracker,
    /// Whether the pods that must be known are known, or cannot be read. Until then, less is
    /// permitted.
    are_needs_covered: bool,
}

/// The ranges of `ipBlock`s, by first address, with their identities.
type Blocks = BTreeMap<IpAddr, (AddressRange, IdentityId)>;

impl FirewallPlan {
    /// A plan before any fact is known. `pod_ranges`: ranges in which only pods have addresses.
    pub fn new(settings: FirewallSettings, pod_ranges: &[IpNetwork]) -> Self {
        let (peers, needs) = (PeerTable::new(pod_ranges), NeedsTracker::new(pod_ranges));
        Self { settings, peers, needs, ..Self::default() }
    }

    pub fn settings(&self) -> FirewallSettings {
        self.settings
    }

    /// Decides again what `change` concerns.
    pub(crate) fn update(
        &mut self,
        model: &Model,
        recorded: Option<&PodSet>,
        change: &ModelChange,
    ) -> FirewallChanges {
        FirewallUpdate::new(self).run(model, recorded, change)
    }

    /// Whether all policies, pods and namespaces are known. Until then, only pods that were added
    /// since the agent started have a decision: they are pending.
    pub fn is_known(&self) -> bool {
        self.known
    }

    /// Whether pods are open because RBAC forbids the agent to read what policies need. What an
    /// earlier run enforced stays in the kernel.
    pub fn is_left_open(&self) -> bool {
        self.left_open
    }

    /// Whether rules are needed at all. Without any policy they would only cost time.
    pub fn is_enforced(&self) -> bool {
        self.any_policy || self.pods().any(|(_, pod_rules)| pod_rules.is_restricted())
    }

    /// The addresses of this node's pods, with the decisions about them.
    pub fn pods(&self) -> impl Iterator<Item = (IpAddr, &PodRules)> {
        self.pod_rules.iter().map(|(address, pod_rules)| (*address, pod_rules))
    }

    /// The decisions about an address; `None` if it is not a pod's of this node.
    pub fn pod_rules(&self, address: IpAddr) -> Option<&PodRules> {
        self.pod_rules.get(&address)
    }

    /// Whether one direction of a recorded pod is restricted, and the policies that isolate it.
    pub fn isolation(&self, pod: &LocalPod, direction: Direction) -> (Isolation, &[PolicyName]) {
        let rules = pod.ips.iter().find_map(|ip| self.pod_rules(*ip));
        let isolation = rules.map_or(Isolation::Open, |rules| rules.of(direction).isolation);
        let class = self.class(&pod.id, direction);
        (isolation, class.map(|class| &*class.policies).unwrap_or_default())
    }

    /// The addresses of pods and nodes that have an identity of their own. Any other address has
    /// the identity of the [block](Self::blocks) that contains it, if there is one.
    pub fn identities(&self) -> impl Iterator<Item = (IpAddr, IdentityId)> {
        self.addresses.iter().chain(self.node_identities.iter().map(|(ip, id)| (*ip, *id)))
    }

    /// The ranges of `ipBlock`s, which do not overlap.
    pub fn blocks(&self) -> impl Iterator<Item = (AddressRange, IdentityId)> {
        self.blocks.values().copied()
    }

    /// The addresses that a recorded pod may send from: those of its record, the link-local one of
    /// its MAC address, and those of its annotation that no other pod and no node has.
    pub fn addresses_of(&self, pod: &LocalPod) -> Vec<IpAddr> {
        let subject = self.subjects.get(&pod.id);
        let granted = subject.into_iter().flat_map(|subject| self.granted(&pod.id, subject));
        own_addresses(pod).chain(granted).collect()
    }

    /// The additional addresses of a pod that no other pod and no node has.
    fn granted<'a>(
        &'a self,
        id: &'a AttachmentId,
        subject: &'a FirewallPod,
    ) -> impl Iterator<Item = IpAddr> + 'a {
        let is_own = |ip: &IpAddr| subject.ips.contains(ip);
        let is_free = move |ip: &IpAddr| !is_own(ip) && self.owner(*ip) == Some(id);
        subject.additional.iter().copied().filter(is_free)
    }

    /// The recorded pod that has an address. Of two records with one address, the later one counts.
    /// An address that only an annotation names is the pod's if no other pod and no node has it.
    fn owner(&self, address: IpAddr) -> Option<&AttachmentId> {
        let (id, is_additional) = self.addresses.recorded(address)?;
        (!is_additional || !self.nodes.contains(&address)).then_some(id)
    }

    /// Whether a recorded pod may not send with this source. A [confined](Self::is_confined) pod
    /// may use only its own addresses; any other pod also addresses that are neither a pod's nor a
    /// node's.
    pub fn is_forged(&self, pod: &LocalPod, source: IpAddr) -> bool {
        !self.addresses_of(pod).contains(&source)
            && (self.is_confined(pod) || self.is_taken(source))
    }

    /// Whether a recorded pod may send only from its own addresses.
    pub fn is_confined(&self, pod: &LocalPod) -> bool {
        !self.knows_owners() || self.are_all_confined || self.is_restricted(pod)
    }

    /// Whether all addresses of pods and nodes are known.
    fn knows_owners(&self) -> bool {
        self.settings.pods == KnownPods::All
    }

    /// The state that decides which rules are needed.
    fn state(&self) -> [bool; 5] {
        let Self { known, left_open, are_all_confined, .. } = *self;
        [known, left_open, are_all_confined, self.is_enforced(), self.has_tiers()]
    }

    fn update_needs(&mut self, model: &Model, recorded: &[LocalPod], change: &ModelChange) {
        if !self.knows_owners() {
            self.needs.update(model, recorded, change);
        }
        self.are_needs_covered = self.needs.needs().are_covered(model.pod_coverage());
    }

    /// Which pods of other nodes must be known; [`PodNeeds::Unknown`] unless the setting is
    /// [`KnownPods::Some`].
    pub fn pod_needs(&self) -> &PodNeeds {
        self.needs.needs()
    }

    /// Whether a policy restricts any direction of a recorded pod, or may do so.
    pub fn is_restricted(&self, pod: &LocalPod) -> bool {
        pod.ips.iter().any(|ip| self.pod_rules(*ip).is_some_and(PodRules::is_restricted))
    }

    /// Whether an address is a pod's or a node's, as far as they are known.
    pub fn is_taken(&self, address: IpAddr) -> bool {
        self.addresses.is_claimed(address) || self.nodes.contains(&address)
    }

    /// Every address that is a pod's or a node's.
    pub fn taken(&self) -> impl Iterator<Item = IpAddr> + '_ {
        let nodes = self.nodes.iter().filter(|ip| !self.addresses.is_claimed(**ip));
        self.addresses.all().chain(nodes.copied())
    }

    /// Where tunnels of nodes may end: their addresses, known or probable, and the other addresses
    /// at which this node takes packets.
    pub fn tunnel_ends(&self) -> BTreeSet<IpAddr> {
        let probable = &self.node_addresses_in_ranges;
        self.nodes.iter().chain(probable).chain(&self.links.also_local).copied().collect()
    }

    /// This node's bridges and tunnels.
    pub fn links(&self) -> &NodeLinks {
        &self.links
    }

    /// How many identities are in use.
    pub fn identity_count(&self) -> usize {
        self.identities.len()
    }

    /// How many policies select a pod of this node.
    pub fn policies_in_force(&self) -> usize {
        self.rules.len()
    }

    /// The policies that forbid a flow, if any do, exactly as the kernel's rules decide.
    pub fn rejection(&self, flow: &PolicyFlow) -> Option<PolicyRejection> {
        FlowCheck { plan: self, flow }.rejection()
    }

    /// What policies decide about a flow in each direction, for pods of this node.
    pub fn explain(&self, flow: &PolicyFlow) -> Vec<PolicyStep> {
        FlowCheck { plan: self, flow }.explain()
    }

    /// The identity of any address: its own, or that of the blocks that contain it.
    pub fn identity_of(&self, address: IpAddr) -> Option<IdentityId> {
        let own = self.addresses.identity(address);
        let own = own.or_else(|| self.node_identities.get(&address).copied());
        own.or_else(|| {
            let piece = piece_of(&self.pieces, address)?;
            self.blocks.get(&piece.range.first).map(|(_, id)| *id)
        })
    }

    /// The class of a recorded pod; `None` if it is open.
    pub(crate) fn class(&self, pod: &AttachmentId, direction: Direction) -> Option<&ClassKey> {
        let subject = self.subjects.get(pod)?;
        let decision = match direction {
            Direction::Ingress => &subject.ingress,
            Direction::Egress => &subject.egress,
        };
        decision.class.as_ref()
    }

    /// What passes between pods of this class and an identity, as the kernel has it.
    pub(crate) fn passing(&self, class: &ClassKey, peer: Option<IdentityId>) -> PortSet {
        self.classes.passing(class, peer)
    }

    /// The disjoint ranges into which `ipBlock`s and the ranges of pods cut addresses.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = AddressRange> {
        self.pieces.values().map(|piece| piece.range)
    }

    /// The addresses of nodes.
    pub(crate) fn node_addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.nodes.iter().copied()
    }

    fn key_of(&self, address: IpAddr) -> Option<IdentityKey> {
        self.identities.key(self.identity_of(address)?).cloned()
    }

    /// How many ClusterNetworkPolicies select a pod of this node.
    pub fn tiers_in_force(&self) -> usize {
        self.rules.tier_count()
    }

    /// ClusterNetworkPolicies whose order for a pod of this node the API leaves open.
    pub fn ties(&self) -> BTreeSet<PolicyTie> {
        self.classes.keys().flat_map(|class| PolicyTie::of_class(class, &self.rules)).collect()
    }

    /// Policies in force whose rules are left out, since they would cost too much.
    pub fn excess(&self) -> Vec<ExcessPolicy> {
        self.rules.excess().collect()
    }

    /// Whether ClusterNetworkPolicies select a pod of this node.
    pub fn has_tiers(&self) -> bool {
        self.rules.tier_count() > 0
    }

    /// Whether everything about a recorded pod is known. While policies, pods or namespaces are
    /// unknown, that holds for no pod, unless pods are [left open](Self::is_left_open).
    pub fn is_decided(&self, pod: &LocalPod) -> bool {
        match self.subjects.get(&pod.id) {
            Some(subject) => self.are_needs_covered && !self.lacks_labels(subject),
            None => self.left_open || pod.pod.is_none(),
        }
    }

    /// The recorded pods whose labels are needed and not known.
    pub fn lacking_labels(&self) -> impl Iterator<Item = &PodName> {
        let lacking = self.subjects.iter().filter(|_| self.known);
        lacking
            .filter(|subject| self.lacks_labels(subject))
            .filter_map(|subject| subject.pod.as_ref())
    }

    /// Whether the pod's labels are unknown, and needed to decide about its isolation or about what
    /// other pods permit it.
    fn lacks_labels(&self, subject: &FirewallPod) -> bool {
        let is_pod = subject.pod.is_some() && subject.described.is_none();
        let matters = subject.ingress.is_open_ended
            || subject.egress.is_open_ended
            || self.rules.len() > 0
            || self.has_tiers();
        is_pod && matters
    }
}

/// The addresses of a pod's record, and the link-local one that Linux makes of its MAC address.
fn own_addresses(pod: &LocalPod) -> impl Iterator<Item = IpAddr> {
    let link_local = pod.mac.map(|mac| IpAddr::V6(mac.link_local()));
    let link_local = link_local.filter(|ip| !pod.ips.contains(ip));
    pod.ips.iter().copied().chain(link_local)
}
