//! Frontends as elements of the maps. Pure.

use std::net::SocketAddr;
use std::sync::Arc;

use super::element::{Element, Key, Value};
use super::name::{ChainName, Class, Group};
use super::set::cut;
use crate::model::Protocol;
use crate::plan::{Door, DoorAddress, DoorKind, Frontend, Masquerade, Outcome};

/// More endpoints than this a door cannot have: the slots are numbered with 16 bits.
pub const MOST_SLOTS: u32 = 65_535;

/// A door as it is programmed.
///
/// Which endpoint sits in which slot, and which size class the door is in, depend on what came before:
/// an endpoint's change should touch that endpoint's element and no other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DoorState {
    /// What kind of address it is.
    pub kind: DoorKind,
    inside: Target,
    masquerade: Masquerade,
    outside: Option<Target>,
    /// Whose door it is, beside the element.
    owner: Arc<str>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Target {
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

/// The door as it should be programmed, given how it is programmed now.
pub fn lower(frontend: &Frontend, now: Option<&DoorState>) -> DoorState {
    let inside = target(&frontend.inside, now.map(|now| &now.inside));
    let outside = frontend.outside.as_ref().map(|outcome| {
        let now = now.and_then(|now| now.outside.as_ref());
        target(outcome, now)
    });
    let owner = match now {
        Some(now) if *now.owner == *owner(frontend) => now.owner.clone(),
        _ => owner(frontend).into(),
    };
    DoorState {
        kind: frontend.kind,
        inside,
        masquerade: frontend.masquerade,
        outside,
        owner,
    }
}

fn owner(frontend: &Frontend) -> String {
    cut(&frontend.service_port.to_string())
}

fn target(outcome: &Outcome, now: Option<&Target>) -> Target {
    match outcome {
        Outcome::Reject => Target::Reject,
        Outcome::Drop => Target::Drop,
        Outcome::Forward(endpoints) => {
            let wanted: Vec<SocketAddr> = endpoints
                .iter()
                .map(|endpoint| endpoint.address)
                .take(MOST_SLOTS as usize)
                .collect();
            let now = match now {
                Some(Target::Forward(slots)) => Some(slots),
                Some(Target::Reject | Target::Drop) | None => None,
            };
            Target::Forward(Slots::of(&wanted, now))
        }
    }
}

impl Slots {
    /// Puts `wanted` (sorted) into slots; whoever has one keeps it unless it would leave a gap behind.
    fn of(wanted: &[SocketAddr], now: Option<&Self>) -> Self {
        let count = wanted.len() as u32;
        let size = match now {
            // A new verdict costs the kernel more than a new endpoint, so a class is left late.
            Some(now) if count <= now.size && count * 4 > now.size => now.size,
            Some(_) | None => count.next_power_of_two(),
        };
        let before: &[SocketAddr] = now.map_or(&[], |now| &now.endpoints);
        let stays: Vec<Option<SocketAddr>> = (0..wanted.len())
            .map(|slot| {
                before
                    .get(slot)
                    .copied()
                    .filter(|at| wanted.binary_search(at).is_ok())
            })
            .collect();
        let mut kept: Vec<SocketAddr> = stays.iter().flatten().copied().collect();
        kept.sort_unstable();
        let mut others = wanted
            .iter()
            .copied()
            .filter(|at| kept.binary_search(at).is_err());
        let endpoints = stays
            .into_iter()
            .filter_map(|stays| stays.or_else(|| others.next()))
            .collect();
        Self { size, endpoints }
    }
}

impl DoorState {
    /// The classes whose chains the door's elements name.
    pub fn classes(&self, door: &Door) -> impl Iterator<Item = Class> {
        let sides = [(&self.inside, inside_group(door)), self.outside_side(door)];
        let classes = sides.map(|(target, group)| match target {
            Target::Forward(slots) => Some(class(group, door.protocol, slots)),
            Target::Reject | Target::Drop => None,
        });
        classes.into_iter().flatten()
    }

    fn outside_side(&self, door: &Door) -> (&Target, Group) {
        (
            self.outside.as_ref().unwrap_or(&Target::Reject),
            outside_group(door),
        )
    }

    /// The door's elements.
    pub fn elements(&self, door: &Door) -> Vec<Element> {
        let mut elements = Vec::new();
        let entry = |class| match self.masquerade {
            Masquerade::UnlessLocalPod => ChainName::Cluster(class),
            Masquerade::Always => ChainName::External(class),
        };
        self.side(door, &self.inside, inside_group(door), entry, &mut elements);
        if let Some(outside) = &self.outside {
            self.side(
                door,
                outside,
                outside_group(door),
                ChainName::Balance,
                &mut elements,
            );
        }
        elements
    }

    fn side(
        &self,
        door: &Door,
        target: &Target,
        group: Group,
        entry: impl Fn(Class) -> ChainName,
        elements: &mut Vec<Element>,
    ) {
        let chain = match target {
            Target::Reject => ChainName::NoEndpoints,
            Target::Drop => ChainName::NoLocalEndpoints,
            Target::Forward(slots) => {
                let endpoints = slots.endpoints.iter().zip(0..).map(|(endpoint, slot)| Element {
                    set: group.endpoints(),
                    key: door_key(door).slot(slot),
                    value: Value::Endpoint(*endpoint),
                    comment: None,
                });
                elements.extend(endpoints);
                entry(class(group, door.protocol, slots))
            }
        };
        let comment = Some(self.owner.clone());
        elements.push(Element {
            set: group.doors(),
            key: door_key(door),
            value: Value::Goto(chain),
            comment,
        });
    }
}

fn class(group: Group, protocol: Protocol, slots: &Slots) -> Class {
    Class {
        group,
        protocol,
        size: slots.size,
    }
}

fn inside_group(door: &Door) -> Group {
    match door.address {
        DoorAddress::Ip(_) => Group::Service,
        DoorAddress::Node(_) => Group::NodePort,
    }
}

fn outside_group(door: &Door) -> Group {
    match door.address {
        DoorAddress::Ip(_) => Group::LocalService,
        DoorAddress::Node(_) => Group::LocalNodePort,
    }
}

/// What every element of a door has its key begin with.
fn door_key(door: &Door) -> Key {
    let key = match door.address {
        DoorAddress::Ip(address) => Key::EMPTY.address(address),
        DoorAddress::Node(_) => Key::EMPTY,
    };
    key.protocol(door.protocol).port(door.port.get())
}
