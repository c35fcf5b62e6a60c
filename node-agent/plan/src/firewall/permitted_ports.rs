//! What may pass between a pod and one peer: sets of ports, and the protocols without any.

use std::collections::BTreeSet;
use std::num::NonZeroU16;
use std::ops::Bound;
use std::sync::Arc;

use denizen_model::Protocol;

/// The protocols with ports.
const PROTOCOLS: [Protocol; 3] = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];

/// Ports of the destination from one to another, both included.
pub type PortSpan = (u16, u16);

/// A set of packets, by protocol and destination port.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
pub(crate) struct PortSet {
    /// By protocol, in the order of [`PROTOCOLS`]. Sorted; spans neither overlap nor touch.
    spans: [Vec<PortSpan>; 3],
    /// All other protocols: those without ports that policies can name.
    others: bool,
}

impl PortSet {
    /// Every packet.
    pub fn all() -> Self {
        Self {
            spans: [vec![(0, u16::MAX)], vec![(0, u16::MAX)], vec![(0, u16::MAX)]],
            others: true,
        }
    }

    /// Every port of every protocol with ports.
    pub fn every_port() -> Self {
        Self { others: false, ..Self::all() }
    }

    /// Adds ports of a protocol.
    pub fn add(&mut self, protocol: Protocol, first: NonZeroU16, last: NonZeroU16) {
        let mut more = Self::default();
        more.spans[index(protocol)].push((first.get(), last.get()));
        *self = self.union(&more);
    }

    /// Adds every port of a protocol.
    pub fn add_all(&mut self, protocol: Protocol) {
        self.spans[index(protocol)] = vec![(0, u16::MAX)];
    }

    /// Adds the ports from the first to the second, both included; `None`: protocols without ports.
    pub fn add_span(&mut self, protocol: Option<Protocol>, (first, last): PortSpan) {
        match protocol {
            None => self.others = true,
            Some(protocol) => {
                let spans = &mut self.spans[index(protocol)];
                *spans = joined([&spans[..], &[(first, last)]].concat());
            }
        }
    }

    /// Cuts its spans at these ports. `None`: protocols without ports.
    pub fn cut_at(&self, edges: &BTreeSet<u16>) -> Vec<(Option<Protocol>, PortSpan)> {
        let mut parts = Vec::new();
        for (protocol, spans) in PROTOCOLS.into_iter().zip(&self.spans) {
            for (first, last) in spans {
                let mut from = *first;
                let inside = (Bound::Excluded(first), Bound::Included(last));
                for edge in edges.range(inside) {
                    parts.push((Some(protocol), (from, edge - 1)));
                    from = *edge;
                }
                parts.push((Some(protocol), (from, *last)));
            }
        }
        parts.extend(self.others.then_some((None, (0, 0))));
        parts
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        !self.others && self.spans.iter().all(Vec::is_empty)
    }

    /// Whether a packet is in it; `None` for a protocol without ports.
    pub fn contains(&self, protocol: Option<Protocol>, port: u16) -> bool {
        match protocol {
            None => self.others,
            Some(protocol) => {
                let mut spans = self.spans[index(protocol)].iter();
                spans.any(|(first, last)| (*first..=*last).contains(&port))
            }
        }
    }

    /// The packets in either set.
    pub fn union(&self, other: &Self) -> Self {
        let spans =
            std::array::from_fn(|n| joined([&self.spans[n][..], &other.spans[n][..]].concat()));
        Self { spans, others: self.others || other.others }
    }

    /// The packets in both sets.
    pub fn common(&self, other: &Self) -> Self {
        self.without(&Self::all().without(other))
    }

    /// The packets in this set and not in `other`.
    pub fn without(&self, other: &Self) -> Self {
        let spans = std::array::from_fn(|n| cut(&self.spans[n], &other.spans[n]));
        Self { spans, others: self.others && !other.others }
    }
}

fn index(protocol: Protocol) -> usize {
    match protocol {
        Protocol::Tcp => 0,
        Protocol::Udp => 1,
        Protocol::Sctp => 2,
    }
}

fn joined(mut spans: Vec<PortSpan>) -> Vec<PortSpan> {
    spans.sort_unstable();
    let mut joined: Vec<PortSpan> = Vec::with_capacity(spans.len());
    for (first, last) in spans {
        match joined.last_mut() {
            Some((_, end)) if first <= end.saturating_add(1) => *end = last.max(*end),
            Some(_) | None => joined.push((first, last)),
        }
    }
    joined
}

fn cut(spans: &[PortSpan], holes: &[PortSpan]) -> Vec<PortSpan> {
    let mut left = Vec::with_capacity(spans.len());
    for (first, last) in spans {
        let mut next = Some(*first);
        for (from, to) in holes.iter().filter(|(from, to)| from <= last && to >= first) {
            let Some(at) = next else { break };
            if at < *from {
                left.push((at, from - 1));
            }
            next = if *to < at { next } else { to.checked_add(1) };
        }
        left.extend(next.filter(|at| at <= last).map(|at| (at, *last)));
    }
    left
}

/// What may pass between a pod and one peer, by all policies of all tiers. Equal port sets have one
/// number in the kernel. A port set never changes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PermittedPorts(Arc<PortSet>);

impl PermittedPorts {
    pub(crate) fn new(set: PortSet) -> Self {
        Self(Arc::new(set))
    }

    pub(super) fn ports(&self) -> &PortSet {
        &self.0
    }

    /// Nothing passes.
    pub fn none() -> Self {
        Self::new(PortSet::default())
    }

    /// Everything passes.
    pub fn all() -> Self {
        Self::new(PortSet::all())
    }

    /// The address of the shared data: equal for copies of one value.
    pub fn address(&self) -> usize {
        Arc::as_ptr(&self.0) as usize
    }

    /// Whether everything passes.
    pub fn is_all(&self) -> bool {
        let all = [(0, u16::MAX)];
        self.0.others && self.0.spans.iter().all(|spans| spans[..] == all)
    }

    /// Whether nothing passes.
    pub fn is_none(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a packet passes; `None` for a protocol without ports.
    pub fn passes(&self, protocol: Option<Protocol>, port: u16) -> bool {
        self.0.contains(protocol, port)
    }

    /// The ports that pass. Sorted.
    pub fn spans(&self) -> impl Iterator<Item = (Protocol, PortSpan)> {
        let spans = PROTOCOLS.into_iter().zip(&self.0.spans);
        spans.flat_map(|(protocol, spans)| spans.iter().map(move |span| (protocol, *span)))
    }

    /// Whether protocols without ports pass.
    pub fn passes_others(&self) -> bool {
        self.0.others
    }

    /// Whether something that `before` permits no longer passes.
    pub(super) fn is_narrower_than(&self, before: &Self) -> bool {
        self != before && !before.0.without(&self.0).is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(spans: &[PortSpan], others: bool) -> PortSet {
        PortSet { spans: [spans.to_vec(), Vec::new(), Vec::new()], others }
    }

    #[test]
    fn sets_of_ports_are_cut_and_joined() {
        let ssh = set(&[(22, 22)], false);
        let rest = PortSet::all().without(&ssh);
        assert_eq!(rest.spans[0], [(0, 21), (23, u16::MAX)]);
        assert_eq!(rest.spans[1], [(0, u16::MAX)]);
        assert_eq!(rest.union(&ssh), PortSet::all());
        assert_eq!(PortSet::all().common(&ssh), ssh);
        assert!(ssh.without(&PortSet::every_port()).is_empty());
        assert!(PortSet::all().without(&PortSet::every_port()).others);
        let touching = set(&[(1, 3)], false).union(&set(&[(4, 9), (11, 12)], true));
        assert_eq!(touching, set(&[(1, 9), (11, 12)], true));
        let holes = set(&[(0, 0), (2, 2), (4, 20)], false);
        assert_eq!(touching.without(&holes), set(&[(1, 1), (3, 3)], true));
    }

    #[test]
    fn parts_cross_no_edge_and_make_up_the_whole() {
        let whole = set(&[(0, 9), (20, u16::MAX)], true);
        let edges = BTreeSet::from([0, 5, 9, 10, 20, 21, u16::MAX]);
        let parts = whole.cut_at(&edges);
        let tcp: Vec<PortSpan> =
            parts.iter().filter(|part| part.0.is_some()).map(|part| part.1).collect();
        let expected = [(0, 4), (5, 8), (9, 9), (20, 20), (21, u16::MAX - 1), (u16::MAX, u16::MAX)];
        assert_eq!(tcp, expected);
        let mut again = PortSet::default();
        parts.into_iter().for_each(|(protocol, span)| again.add_span(protocol, span));
        assert_eq!(again, whole);
    }

    /// Every boundary of spans that touch, nest or share an end.
    #[test]
    fn sets_say_of_each_port_what_their_parts_say() {
        let spans = [(0, 0), (0, 3), (2, 5), (3, 3), (4, 9), (9, u16::MAX), (u16::MAX, u16::MAX)];
        for a in spans {
            for b in spans {
                for c in spans {
                    let of = |span: PortSpan| set(&[span], false);
                    let (left, right) = (of(a).union(&of(b)), of(c));
                    for port in (0..12).chain([u16::MAX - 1, u16::MAX]) {
                        let is_in = |set: &PortSet| set.contains(Some(Protocol::Tcp), port);
                        let (l, r) = (is_in(&left), is_in(&right));
                        assert_eq!(is_in(&left.union(&right)), l || r, "{a:?} {b:?} {c:?} {port}");
                        assert_eq!(is_in(&left.common(&right)), l && r, "{a:?} {b:?} {c:?} {port}");
                        assert_eq!(
                            is_in(&left.without(&right)),
                            l && !r,
                            "{a:?} {b:?} {c:?} {port}"
                        );
                    }
                }
            }
        }
    }
}
