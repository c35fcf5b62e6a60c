//! Frontends as elements of the maps. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};
use std::net::SocketAddr;
use std::sync::Arc;

use ipnetwork::IpNetwork;

use super::element::frontend_key;
use super::name::{ChainName, Class, Group, MOST_SLOTS, ServiceSet};
use super::number::{MOST_NUMBERS, Numbers, Owner};
use super::source_range;
use denizen_model::{Protocol, SessionAffinity};
use denizen_nft::{Data, Delta, Element, Value, comment_text, endpoint};
use denizen_plan::{Frontend, FrontendAddress, FrontendKey, FrontendKind, Masquerade, Outcome};

/// A frontend as it is programmed.
///
/// Slots and size class depend on the previous state, so that an endpoint's change touches only
/// that endpoint's element.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FrontendState {
    /// The kind of its address.
    pub kind: FrontendKind,
    inside: LoweredTarget,
    masquerade: Masquerade,
    outside: Option<LoweredTarget>,
    /// The service port's name, for the element's comment.
    owner: Arc<str>,
    /// The time-out of session affinity in seconds.
    affinity: Option<u32>,
    /// With session affinity: the number of each endpoint.
    numbers: BTreeMap<SocketAddr, u32>,
    /// The allowed sources; `None` if all are.
    sources: Option<Arc<[IpNetwork]>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum LoweredTarget {
    Forward(Slots),
    Reject,
    Drop,
}

/// Endpoints in their slots.
///
/// Invariant: no gaps; more than a quarter of `size`, and no more than `size`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Slots {
    size: u32,
    endpoints: Box<[SocketAddr]>,
}

/// The desired frontend, given how it is programmed now.
pub fn lower(
    frontend: &Frontend,
    now: Option<&FrontendState>,
    numbers: &mut Numbers,
) -> FrontendState {
    let most = match frontend.affinity {
        SessionAffinity::None => MOST_SLOTS as usize,
        SessionAffinity::ClientIp { .. } => MOST_NUMBERS,
    };
    let inside = target(&frontend.inside, now.map(|now| &now.inside), most);
    let outside = frontend.outside.as_ref().map(|outcome| {
        let now = now.and_then(|now| now.outside.as_ref());
        target(outcome, now, most)
    });
    let owner = match now {
        Some(now) if is_written_as(&frontend.service_port, &now.owner) => now.owner.clone(),
        Some(_) | None => comment_text(&frontend.service_port.to_string()).into(),
    };
    let mut key = FrontendState {
        kind: frontend.kind,
        inside,
        masquerade: frontend.masquerade,
        outside,
        owner,
        affinity: None,
        numbers: BTreeMap::new(),
        sources: frontend.sources.clone(),
    };
    if let SessionAffinity::ClientIp { seconds } = frontend.affinity {
        key.number(frontend.key.protocol, seconds, numbers);
    }
    key
}

/// Whether `text` is what `value` is written as. Allocates nothing.
fn is_written_as(value: &impl fmt::Display, text: &str) -> bool {
    struct Rest<'a>(&'a str);
    impl fmt::Write for Rest<'_> {
        fn write_str(&mut self, part: &str) -> fmt::Result {
            self.0 = self.0.strip_prefix(part).ok_or(fmt::Error)?;
            Ok(())
        }
    }
    let mut rest = Rest(text);
    write!(rest, "{value}").is_ok() && rest.0.is_empty()
}

fn target(outcome: &Outcome, now: Option<&LoweredTarget>, most: usize) -> LoweredTarget {
    match outcome {
        Outcome::Reject => LoweredTarget::Reject,
        Outcome::Drop => LoweredTarget::Drop,
        Outcome::Forward(endpoints) => {
            let wanted: Vec<SocketAddr> =
                endpoints.iter().map(|endpoint| endpoint.address).take(most).collect();
            LoweredTarget::Forward(Slots::of(&wanted, now.and_then(LoweredTarget::slots)))
        }
    }
}

impl LoweredTarget {
    fn slots(&self) -> Option<&Slots> {
        match self {
            Self::Forward(slots) => Some(slots),
            Self::Reject | Self::Drop => None,
        }
    }

    /// Whether packets go to the same chain.
    fn has_chain_of(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Forward(slots), Self::Forward(others)) => slots.size == others.size,
            (Self::Reject, Self::Reject) | (Self::Drop, Self::Drop) => true,
            (Self::Forward(_) | Self::Reject | Self::Drop, _) => false,
        }
    }
}

impl Slots {
    /// Puts `wanted` (sorted) into slots; an endpoint keeps its slot unless that would leave a gap.
    fn of(wanted: &[SocketAddr], now: Option<&Self>) -> Self {
        let count = wanted.len() as u32;
        let size = match now {
            // A changed verdict costs the kernel more than a changed endpoint, so the class is kept
            // as long as the endpoints fit it well enough.
            Some(now) if count <= now.size && count * 4 > now.size => now.size,
            Some(_) | None => count.next_power_of_two(),
        };
        let before: &[SocketAddr] = now.map_or(&[], |now| &now.endpoints);
        let stays: Vec<Option<SocketAddr>> = (0..wanted.len())
            .map(|slot| before.get(slot).copied().filter(|at| wanted.binary_search(at).is_ok()))
            .collect();
        let mut kept: Vec<SocketAddr> = stays.iter().flatten().copied().collect();
        kept.sort_unstable();
        let mut others = wanted.iter().copied().filter(|at| kept.binary_search(at).is_err());
        let endpoints =
            stays.into_iter().filter_map(|stays| stays.or_else(|| others.next())).collect();
        Self { size, endpoints }
    }
}

impl FrontendState {
    /// Gives the endpoints numbers for session affinity.
    fn number(&mut self, protocol: Protocol, seconds: u32, numbers: &mut Numbers) {
        self.affinity = Some(seconds);
        let targets = [Some(&self.inside), self.outside.as_ref()].into_iter().flatten();
        let sides = targets
            .filter_map(LoweredTarget::slots)
            .flat_map(|slots| slots.endpoints.iter().copied());
        let endpoints: Vec<SocketAddr> = sides.collect::<BTreeSet<_>>().into_iter().collect();
        let numbers = numbers.of(&(self.owner.clone(), protocol), &endpoints);
        self.numbers = endpoints.into_iter().zip(numbers).collect();
    }

    /// With session affinity: whose numbers the endpoints have.
    pub fn number_owner(&self, key: &FrontendKey) -> Option<Owner> {
        self.affinity.map(|_| (self.owner.clone(), key.protocol))
    }

    /// The classes that the frontend's elements refer to and, with session affinity, the plain
    /// classes that those refer to.
    pub fn classes(&self, key: &FrontendKey) -> impl Iterator<Item = Class> {
        let outside = self.outside.as_ref().map(|target| (target, outside_group(key)));
        let sides = [Some((&self.inside, inside_group(key))), outside].into_iter().flatten();
        let classes = sides
            .filter_map(|(target, group)| Some(self.class(group, key.protocol, target.slots()?)));
        let with_plain =
            classes.flat_map(|class| [Some(class.plain()), class.affinity.map(|_| class)]);
        with_plain.flatten().collect::<Vec<_>>().into_iter()
    }

    fn class(&self, group: Group, protocol: Protocol, slots: &Slots) -> Class {
        Class { group, protocol, size: slots.size, affinity: self.affinity }
    }

    /// Adds to `delta` what changes a frontend's elements from `now` to `wanted`.
    pub fn change(now: Option<&Self>, wanted: Option<&Self>, key: &FrontendKey, delta: &mut Delta) {
        let elements: fn(&Self, &FrontendKey) -> Vec<Element> = match (now, wanted) {
            // By far the most frequent change.
            (Some(now), Some(wanted)) if now.differs_by_endpoints(wanted) => Self::endpoints,
            (_, _) => Self::elements,
        };
        let of = |state: Option<&Self>| state.map(|state| elements(state, key));
        delta.extend(of(now).unwrap_or_default(), of(wanted).unwrap_or_default());
    }

    /// Whether all elements but [`Self::endpoints`] are the same.
    fn differs_by_endpoints(&self, other: &Self) -> bool {
        let Self { kind: _, inside, masquerade, outside, owner, affinity, numbers: _, sources } =
            self;
        let has_chain_of_others = match (outside, &other.outside) {
            (Some(outside), Some(others)) => outside.has_chain_of(others),
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        };
        has_chain_of_others
            && inside.has_chain_of(&other.inside)
            && *masquerade == other.masquerade
            && *owner == other.owner
            && *affinity == other.affinity
            && *sources == other.sources
    }

    /// The frontend's elements.
    pub fn elements(&self, key: &FrontendKey) -> Vec<Element> {
        let mut elements = self.endpoints(key);
        let entry = |class| match self.masquerade {
            Masquerade::UnlessLocalPod => ChainName::Cluster(class),
            Masquerade::Always => ChainName::External(class),
        };
        self.side(key, &self.inside, inside_group(key), entry, &mut elements);
        if let Some(outside) = &self.outside {
            self.side(key, outside, outside_group(key), ChainName::Balance, &mut elements);
        }
        if let Some(sources) = &self.sources {
            let comment = || Some(self.owner.clone());
            let element = |set: ServiceSet, key| Element {
                set: set.id(),
                key,
                value: Value::Member,
                comment: comment(),
            };
            elements.push(element(ServiceSet::RestrictedFrontends, frontend_key(key)));
            let parts: BTreeSet<IpNetwork> = sources.iter().flat_map(source_range::parts).collect();
            elements.extend(parts.into_iter().map(|part| {
                let key = frontend_key(key).address(part.network()).number(part.prefix().into());
                element(ServiceSet::AllowedSources, key)
            }));
        }
        elements
    }

    fn side(
        &self,
        key: &FrontendKey,
        target: &LoweredTarget,
        group: Group,
        entry: impl Fn(Class) -> ChainName,
        elements: &mut Vec<Element>,
    ) {
        let chain = match target {
            LoweredTarget::Reject => ChainName::NoEndpoints,
            LoweredTarget::Drop => ChainName::NoLocalEndpoints,
            LoweredTarget::Forward(slots) => entry(self.class(group, key.protocol, slots)),
        };
        let comment = Some(self.owner.clone());
        elements.push(Element {
            set: group.keys().id(),
            key: frontend_key(key),
            value: Value::Goto(chain.to_string().into()),
            comment,
        });
    }

    /// The endpoints by slot and, with session affinity, by number.
    fn endpoints(&self, key: &FrontendKey) -> Vec<Element> {
        let outside = self.outside.as_ref().map(|outside| (outside, outside_group(key)));
        let sides = [Some((&self.inside, inside_group(key))), outside].into_iter().flatten();
        let mut elements = Vec::new();
        for (target, group) in sides {
            if let Some(slots) = target.slots() {
                self.side_endpoints(key, slots, group, &mut elements);
            }
        }
        elements
    }

    fn side_endpoints(
        &self,
        frontend: &FrontendKey,
        slots: &Slots,
        group: Group,
        elements: &mut Vec<Element>,
    ) {
        let at =
            |set: ServiceSet, key, value, comment| Element { set: set.id(), key, value, comment };
        for (address, slot) in slots.endpoints.iter().zip(0..) {
            let to = Value::Data(endpoint(address.ip(), address.port()));
            let key = frontend_key(frontend).number(slot);
            elements.push(at(group.endpoints(), key, to.clone(), None));
            if let Some(number) = self.numbers.get(address) {
                let value = Value::Data(Data::EMPTY.number(*number));
                elements.push(at(group.affinity_slots(), key, value, None));
                // The comment tells a restarted agent whose number it is.
                let (key, owner) =
                    (frontend_key(frontend).number(*number), Some(self.owner.clone()));
                elements.push(at(group.affinity_endpoints(), key, to, owner));
            }
        }
    }
}

fn inside_group(key: &FrontendKey) -> Group {
    match key.address {
        FrontendAddress::Ip(_) => Group::Service,
        FrontendAddress::Node(_) => Group::NodePort,
    }
}

fn outside_group(key: &FrontendKey) -> Group {
    match key.address {
        FrontendAddress::Ip(_) => Group::LocalService,
        FrontendAddress::Node(_) => Group::LocalNodePort,
    }
}
