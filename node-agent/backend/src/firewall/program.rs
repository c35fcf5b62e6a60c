//! The chains of the tables of IP packets, one by one: the same whatever pods and policies there
//! are.

use std::net::Ipv6Addr;
use std::sync::Arc;

use super::drop_reason::DropReason;
use super::number::{self, ITSELF, NOBODY};
use super::port_range;
use super::rule::{
    base, becomes, chain, dropped, has_any, is_everything, is_unspecified, rule, to, types,
};
use super::schema::{FirewallScope, FirewallSet};
use super::tunnel;
use crate::refusals::{RefusalReason, note_all};
use denizen_model::Family;
use denizen_nft::{
    Assigned, Chain, Field, Hook, Key, Lookup, Reject, Rule, Statement, Variable, Verdict,
};
use denizen_plan::{Direction, KnownPods, MarkBit};

/// `raw`: before connection tracking, so that forged packets cost no entry.
const RAW_PRIORITY: i32 = -300;
/// Before `filter` (0). Behind the translation of destinations and before that of sources, so that
/// a policy sees the endpoint and, where this node balances, the true client.
pub(super) const POLICY_PRIORITY: i32 = -5;

/// ESTABLISHED and RELATED (`NF_CT_STATE_BIT`).
const ESTABLISHED: u32 = 0b010;
const RELATED: u32 = 0b100;
/// `IPS_DST_NAT` (`enum ip_conntrack_status`).
const DST_NAT: u32 = 1 << 5;
/// IPPROTO_TCP.
const TCP: u8 = 6;
/// IPPROTO_TCP, IPPROTO_UDP and IPPROTO_SCTP: the protocols whose ports policies can name.
const WITH_PORTS: [u8; 3] = [TCP, 17, 132];
/// TCP's flags, and FIN among them (RFC 9293).
const TCP_FLAGS: Field = Field::TransportByte(13);
const FIN: u32 = 1;

/// The tables' chains in one IP version.
pub(super) struct Program {
    pub version: Family,
    pub scope: FirewallScope,
    pub pods: KnownPods,
}

fn tiers_chain(direction: Direction) -> Arc<str> {
    format!("{direction}-tiers").into()
}

fn port_ranges_chain(direction: Direction) -> Arc<str> {
    format!("{direction}-port-ranges").into()
}

fn refused_chain(direction: Direction) -> Arc<str> {
    format!("{direction}-refused").into()
}

/// Matches link-local and unspecified sources: hosts that have no other address yet, or need none.
fn from_link() -> [Statement; 2] {
    let link_local = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0);
    let source = Field::Source(Family::V6);
    [Statement::Within(source, link_local.into(), 10), is_unspecified()]
}

/// Neighbour and multicast listener discovery, without which nothing is reachable.
///
/// A message of neighbour discovery has hop limit 255: with a smaller one it came through a router
/// and is invalid (RFC 4861, 6.1 and 7.1). A message of listener discovery comes from a link-local
/// or the unspecified address and is for a group (RFC 2710, 3; RFC 3810, 5.1.15 and 5.2.14).
/// Without these tests, both could carry anything to anybody through every router.
///
/// Linux routes a packet back to the link that it comes from, whatever its source is. Policies know
/// nothing of the unspecified address and of addresses that a host gives itself, so other messages
/// of hosts from there are dropped.
fn neighbour_discovery() -> Vec<Rule> {
    let why = "neighbour and listener discovery: nothing is reachable without";
    let on_link = Statement::Equals(Field::HopLimit, Key::EMPTY.byte(255));
    let to_group = tunnel::is_multicast(Family::V6);
    let kinds = |(first, last)| types(Field::Icmpv6Type, first, last);
    let mut rules = vec![rule(why, [kinds((133, 137)), on_link, to(Verdict::Return)])];
    for from in from_link() {
        for listening in [(130, 132), (143, 143)].map(kinds) {
            let matches = [listening, from.clone(), to_group.clone()];
            rules.push(rule(why, matches.into_iter().chain([to(Verdict::Return)])));
        }
    }
    for from in from_link() {
        let other = [(131, 137), (143, 143)].map(kinds);
        let refused = DropReason::Refused(Direction::Egress);
        rules.extend(other.map(|kind| dropped(refused, vec![kind, from.clone()])));
    }
    rules
}

/// Discovery messages that a host sends before it has an address.
pub(super) fn discovery_from_link() -> Vec<Rule> {
    let why = "neighbour and listener discovery, as every host does it on its own link";
    let mut rules = Vec::new();
    for from in from_link() {
        for (first, last) in [(131, 133), (135, 136), (143, 143)] {
            let kind = types(Field::Icmpv6Type, first, last);
            rules.push(rule(why, [kind, from.clone(), to(Verdict::Return)]));
        }
    }
    rules
}

/// Sends packets of a connection that has been forbidden since it was established to the chain
/// `forbidden`.
pub(super) fn forbidden(matches: Vec<Statement>) -> Rule {
    let goto = to(Verdict::Goto("forbidden".into()));
    rule("connections that are not permitted any more", matches.into_iter().chain([goto]))
}

impl Program {
    fn lookup(&self, set: FirewallSet) -> Lookup {
        set.declared(self.version).lookup()
    }

    fn is_in(&self, set: FirewallSet) -> Statement {
        Statement::In(self.lookup(set))
    }

    /// Matches a destination in a set whose key is declared with the source.
    fn is_destination_in(&self, set: FirewallSet) -> Statement {
        let destination = Field::Destination(self.version);
        Statement::In(set.declared(self.version).lookup_of(vec![destination]))
    }

    fn neighbour_discovery(&self) -> Vec<Rule> {
        match self.version {
            Family::V4 => Vec::new(),
            Family::V6 => neighbour_discovery(),
        }
    }

    /// Checks the sources of routed pods' packets; for pods on bridges, the bridge's table does. Of
    /// an unrestricted pod, it drops only packets that impersonate another pod, a node or a router.
    pub(super) fn sources(&self) -> Chain {
        let foreign = Statement::NotIn(FirewallSet::PodInterfaces.declared(self.version).lookup());
        let mut rules =
            vec![rule("does not come from a pod's interface", [foreign, to(Verdict::Return)])];
        rules.extend(tunnel::jumps(
            self.is_in(FirewallSet::TunnelPorts),
            self.is_in(FirewallSet::TunnelProtocols),
        ));
        if self.version == Family::V6 {
            let router = [134, 137].map(|kind| types(Field::Icmpv6Type, kind, kind));
            rules.extend(router.map(|matched| dropped(DropReason::Router, vec![matched])));
        }
        let spoofed = |set| dropped(DropReason::Spoofed, vec![self.is_in(set)]);
        rules.extend([
            rule(
                "an address of the pod",
                [self.is_in(FirewallSet::PodAddresses), to(Verdict::Return)],
            ),
            spoofed(FirewallSet::Taken),
        ]);
        if self.version == Family::V6 {
            rules.extend(discovery_from_link());
        }
        rules.push(spoofed(FirewallSet::RestrictedInterfaces));
        base(
            "prerouting",
            Hook::Prerouting,
            RAW_PRIORITY,
            "what arrives from pods' own interfaces, before connections are tracked",
            rules,
        )
    }

    /// A packet encapsulated for the node's tunnel would come out with any inner source, and be
    /// judged by that.
    pub(super) fn tunnels(&self) -> Chain {
        let rules = match self.pods {
            KnownPods::Some => vec![tunnel::to_anybody()],
            KnownPods::All => {
                let to_node = vec![self.is_destination_in(FirewallSet::Nodes)];
                let mut rules = vec![dropped(DropReason::Tunnel, to_node)];
                rules.extend(tunnel::to_special(self.version, &[]));
                rules
            }
        };
        let why = "what pods send to where nodes take packets out of packets";
        chain("tunnels".into(), why, rules)
    }

    /// Drops packets that a service's translation leads to a tunnel, whoever sends them: nobody
    /// needs to reach a tunnel through a service.
    pub(super) fn translated_to_tunnel(&self) -> [Rule; 2] {
        let is_translated = has_any(Field::ConnectionStatus, DST_NAT);
        let is_for = |set| vec![is_translated.clone(), self.is_in(set)];
        [FirewallSet::TunnelPorts, FirewallSet::TunnelProtocols].map(|set| {
            let node = match self.pods {
                KnownPods::Some => Vec::new(),
                KnownPods::All => vec![self.is_destination_in(FirewallSet::Nodes)],
            };
            dropped(DropReason::Tunnel, [is_for(set), node].concat())
        })
    }

    /// Packets of a permitted connection pass, unless the connection has been forbidden since.
    pub(super) fn established(&self) -> Vec<Rule> {
        let is_forbidden = has_any(Field::ConnectionMark, MarkBit::FORBIDDEN.mask());
        let mut rules = vec![forbidden(vec![is_forbidden])];
        rules.extend(self.known());
        rules
    }

    /// Packets of a permitted connection, and ICMP errors about it. A forged error would end
    /// somebody else's connection, so an isolated pod may only send errors about its own.
    pub(super) fn known(&self) -> [Rule; 3] {
        let is = |state| has_any(Field::ConnectionState, state);
        let itself = FirewallSet::Itself.declared(self.version);
        let source = Field::Source(self.version);
        let is_no_end = |end: Field| Statement::NotIn(itself.lookup_of(vec![end, source]));
        [
            rule("connections that were permitted", [is(ESTABLISHED), to(Verdict::Return)]),
            dropped(
                DropReason::Refused(Direction::Egress),
                vec![
                    is(RELATED),
                    self.is_in(FirewallSet::Isolated(Direction::Egress)),
                    is_no_end(Field::OriginalSource(self.version)),
                    is_no_end(Field::AnswerSource(self.version)),
                ],
            ),
            rule("errors about permitted connections", [is(RELATED), to(Verdict::Return)]),
        ]
    }

    /// An end that closes a forbidden connection (FIN) gets a reset. Without the reset, that end
    /// would keep retransmitting for longer than conntrack remembers a connection that both ends
    /// have closed (30 seconds, `nf_conntrack_tcp_timeout_last_ack`), and the retransmissions would
    /// be taken for a new connection.
    pub(super) fn forbidden(&self) -> Chain {
        let is_tcp = Statement::Equals(Field::Protocol, Key::EMPTY.byte(TCP));
        let reset = [Statement::Counter, Statement::Reject(Reject::TcpReset)];
        let closes = [is_tcp, has_any(TCP_FLAGS, FIN)].into_iter().chain(reset);
        let rules = vec![
            rule(DropReason::Forbidden.text(), closes),
            dropped(DropReason::Forbidden, Vec::new()),
        ];
        chain("forbidden".into(), "what belongs to a connection that a policy forbids", rules)
    }

    /// `return`, never `accept`: what another table drops stays dropped, and a permitted direction
    /// does not permit the other one.
    pub(super) fn forward(&self) -> Chain {
        let mut rules = self.established();
        rules.extend(self.neighbour_discovery());
        rules.extend(self.translated_to_tunnel());
        rules.push(self.to_foreign_address());
        rules.extend(self.judged());
        let why = "what is sent on to pods and from pods; the node itself always reaches its pods";
        base("forward", Hook::Forward, POLICY_PRIORITY, why, rules)
    }

    /// Drops packets that a route leads to an isolated pod though they are for another address: its
    /// policies are about its own addresses.
    fn to_foreign_address(&self) -> Rule {
        let interface = Field::OutputInterface;
        let isolated = FirewallSet::IsolatedInterfaces.declared(self.version);
        let own = FirewallSet::PodAddresses.declared(self.version);
        let destination = Field::Destination(self.version);
        let matches = vec![
            Statement::In(isolated.lookup_of(vec![interface])),
            Statement::NotIn(own.lookup_of(vec![interface, destination])),
        ];
        dropped(DropReason::Refused(Direction::Ingress), matches)
    }

    /// Sends the first packets of connections through the policies of both directions.
    pub(super) fn judged(&self) -> [Rule; 5] {
        let jump = |direction: Direction| {
            let why = match direction {
                Direction::Egress => "a policy isolates the sender for egress",
                Direction::Ingress => "a policy isolates the receiver for ingress",
            };
            let chain = Verdict::Jump(direction.to_string().into());
            rule(why, [self.is_in(FirewallSet::Isolated(direction)), to(chain)])
        };
        [
            self.to_itself(),
            dropped(DropReason::Pending, vec![self.is_in(FirewallSet::Pending)]),
            dropped(DropReason::Pending, vec![self.is_destination_in(FirewallSet::Pending)]),
            jump(Direction::Egress),
            jump(Direction::Ingress),
        ]
    }

    /// NetworkPolicies always let a pod reach itself. ClusterNetworkPolicies do not, where it does
    /// so through a service.
    fn to_itself(&self) -> Rule {
        let tiered = FirewallSet::Tiered.declared(self.version).lookup();
        let is_not_tiered = self.scope.is_tiered().then_some(Statement::NotIn(tiered));
        let matches = [self.is_in(FirewallSet::Itself)].into_iter().chain(is_not_tiered);
        rule("a pod reaches itself", matches.chain([to(Verdict::Return)]))
    }

    /// Judges a pod that ClusterNetworkPolicies select, in three look-ups: the peer's number, the
    /// port set for pod and peer, the port in the port set. The port set includes all policies of
    /// all tiers.
    pub(super) fn tiers(&self, direction: Direction) -> Chain {
        let permitted = || to(Verdict::Goto("permitted".into()));
        let itself = [self.is_in(FirewallSet::Itself)].into_iter().chain(becomes(ITSELF));
        let by_peer = Assigned::Found(self.lookup(FirewallSet::PortsByPeer(direction)));
        let by_peer = Statement::Assign(Variable::Priority, by_peer);
        let has_no_ports = WITH_PORTS
            .map(|protocol| Statement::NotEquals(Field::Protocol, Key::EMPTY.byte(protocol)));
        let others = [self.is_in(FirewallSet::PermittedOthers), permitted()];
        let ranges = self.in_port_ranges(FirewallSet::PermittedPortRanges);
        let mut rules = vec![
            rule("until something is known: whom no policy names", becomes(NOBODY)),
            self.identify(direction, FirewallSet::Blocks, "the peer's networks"),
            self.identify(
                direction,
                FirewallSet::Identities,
                "the peer's pod or node, whose number covers its networks too",
            ),
            rule("a pod and itself, through a service", itself),
            rule("what passes between both, by all policies", [by_peer]),
            rule("everything", [is_everything(), permitted()]),
            rule("this port", [self.is_in(FirewallSet::PermittedPorts), permitted()]),
        ];
        rules.extend(ranges.map(|is_in| rule("a range with this port", [is_in, permitted()])));
        rules.extend([
            rule("protocols without ports", has_no_ports.into_iter().chain(others)),
            rule("nothing permits it", [to(Verdict::Goto(refused_chain(direction)))]),
        ]);
        let why = match direction {
            Direction::Ingress => "what may reach a pod that ClusterNetworkPolicies select",
            Direction::Egress => "what a pod may reach that ClusterNetworkPolicies select",
        };
        chain(tiers_chain(direction), why, rules)
    }

    /// The rules about what pods send to their own node.
    pub(super) fn to_node(&self) -> Vec<Rule> {
        let mut rules = self.established();
        rules.extend(self.neighbour_discovery());
        let jump = to(Verdict::Jump(Direction::Egress.to_string().into()));
        rules.extend([
            dropped(DropReason::Pending, vec![self.is_in(FirewallSet::Pending)]),
            rule(
                "a policy isolates the sender for egress; --policy-to-node enforce",
                [self.is_in(FirewallSet::Isolated(Direction::Egress)), jump],
            ),
        ]);
        rules
    }

    /// Looks up what is permitted to everybody, then what is permitted to the peer. The number of
    /// the peer's identity is in the packet's priority meanwhile.
    pub(super) fn policies(&self, direction: Direction) -> Chain {
        let clear = Statement::Assign(Variable::Priority, Assigned::Zero);
        let mut rules = Vec::new();
        if self.scope.is_tiered() {
            let is_tiered = match direction {
                Direction::Ingress => self.is_destination_in(FirewallSet::Tiered),
                Direction::Egress => self.is_in(FirewallSet::Tiered),
            };
            let goto = to(Verdict::Goto(tiers_chain(direction)));
            rules.push(rule("ClusterNetworkPolicies select the pod", [is_tiered, goto]));
        }
        rules.push(rule("0 stands for everybody", [clear]));
        rules.extend(self.permissions(direction));
        rules.push(self.identify(direction, FirewallSet::Blocks, "the peer's ipBlocks"));
        rules.push(self.identify(
            direction,
            FirewallSet::Identities,
            "the peer's pod, whose number covers its ipBlocks too",
        ));
        rules.extend(self.permissions(direction));
        let refused = to(Verdict::Goto(refused_chain(direction)));
        rules.push(rule("nothing permits it", [refused]));
        let why = match direction {
            Direction::Ingress => "what may reach an isolated pod",
            Direction::Egress => "what an isolated pod may reach",
        };
        chain(direction.to_string().into(), why, rules)
    }

    fn permissions(&self, direction: Direction) -> [Rule; 5] {
        let permitted = || to(Verdict::Goto("permitted".into()));
        let is_permitted = |set, why| rule(why, [self.is_in(set), permitted()]);
        let has_ranges = self.is_in(FirewallSet::WithPortRanges(direction));
        let jump = to(Verdict::Jump(port_ranges_chain(direction)));
        [
            is_permitted(FirewallSet::All(direction), "every port"),
            is_permitted(FirewallSet::Protocols(direction), "every port of the protocol"),
            is_permitted(FirewallSet::Ports(direction), "this port"),
            rule("there are ranges of ports", [has_ranges, jump]),
            rule("one of them has this port", [is_everything(), permitted()]),
        ]
    }

    /// Looks for the port in ranges of ports, one length of their prefixes after another. The
    /// packet's priority says whether it was found.
    pub(super) fn port_ranges(&self, direction: Direction) -> Chain {
        let why = "a range with this port";
        let found = self.in_port_ranges(FirewallSet::PortRanges(direction)).map(|is_in| {
            rule(why, [is_in].into_iter().chain(becomes(number::ALL)).chain([to(Verdict::Return)]))
        });
        let rules = found.collect();
        chain(port_ranges_chain(direction), "what a pod may do at ranges of ports", rules)
    }

    /// Matches ports of a set of prefixes, for each length.
    fn in_port_ranges(&self, set: FirewallSet) -> impl Iterator<Item = Statement> {
        let lookup = self.lookup(set);
        let of = move |length| lookup.clone().marked_prefix(Field::DestinationPort, length);
        port_range::LENGTHS.into_iter().map(move |length| Statement::In(of(length)))
    }

    fn identify(&self, direction: Direction, map: FirewallSet, why: &'static str) -> Rule {
        let peer = match direction {
            Direction::Ingress => Field::Source(self.version),
            Direction::Egress => Field::Destination(self.version),
        };
        let lookup = map.declared(self.version).lookup_of(vec![peer]);
        rule(why, [Statement::Assign(Variable::Priority, Assigned::Found(lookup))])
    }

    /// Clears the packet's priority, which held the peer's number, and returns to the rule behind
    /// the jump.
    pub(super) fn permitted(&self) -> Chain {
        let clear = Statement::Assign(Variable::Priority, Assigned::Zero);
        let rules = vec![rule("gives the priority back, which held the peer's number", [clear])];
        chain("permitted".into(), "a policy permits it: on to the other direction", rules)
    }

    /// Notes the flow, then drops; a table that exists only for pending pods notes nothing.
    pub(super) fn refused(&self, direction: Direction) -> Chain {
        let why = "notes whose packets no policy permits, for 15 minutes";
        let noting = note_all(RefusalReason::NoPolicy(direction).set(), self.version);
        let noting = noting.into_iter().filter(|_| self.scope != FirewallScope::Idle);
        let mut rules: Vec<Rule> = noting.map(|statements| rule(why, statements)).collect();
        rules.push(dropped(DropReason::Refused(direction), Vec::new()));
        chain(refused_chain(direction), "no policy permits it", rules)
    }
}
