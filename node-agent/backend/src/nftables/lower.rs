//! Frontends as elements of the maps. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use ipnetwork::IpNetwork;

use super::element::frontend_key;
use super::name::{ChainName, Class, Group, MOST_SLOTS, ServiceSet};
use super::number::{MOST_NUMBERS, Numbers};
use super::source_range;
use denizen_model::{Protocol, SessionAffinity};
use denizen_nft::{Data, Element, Value, comment_text, endpoint};
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
        Some(now) if *now.owner == *owner(frontend) => now.owner.clone(),
        _ => owner(frontend).into(),
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

fn owner(frontend: &Frontend) -> String {
    comment_text(&frontend.service_port.to_string())
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

    /// The classes that the frontend's elements refer to, and those that these refer to.
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

    /// The frontend's elements.
    pub fn elements(&self, key: &FrontendKey) -> Vec<Element> {
        let mut elements = Vec::new();
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
            LoweredTarget::Forward(slots) => {
                self.endpoints(key, slots, group, elements);
                entry(self.class(group, key.protocol, slots))
            }
        };
        let comment = Some(self.owner.clone());
        elements.push(Element {
            set: group.keys().id(),
            key: frontend_key(key),
            value: Value::Goto(chain.to_string().into()),
            comment,
        });
    }

    /// One side's endpoints by slot and, with session affinity, by number.
    fn endpoints(
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
