//! One table: what it should hold, and what leads there.

use std::collections::BTreeMap;

use super::number::Numbers;
use super::schema::SetName;
use denizen_nft::sampled;
use denizen_nft::{
    Batch, Chain, Delta, Element, Kernel, Key, NftError, Observed, Schema, SetId, Structure, Value,
};
use denizen_plan::IdentityId;

/// What should be in a table.
#[derive(Debug)]
pub(super) struct Wanted {
    pub schema: Schema,
    pub chains: Vec<Chain>,
    pub elements: Vec<Element>,
}

impl Wanted {
    /// Adds the rules that show what is dropped.
    pub fn sample_drops(&mut self) {
        self.chains = sampled(std::mem::take(&mut self.chains));
    }
}

/// A difference in two steps.
///
/// First all at once: what is added, and what is taken away so that less passes. Then what nothing
/// refers to any more: a packet that read a number, or that a pod is isolated, before the first
/// step, still finds what was permitted then, and no more.
#[derive(Debug, Default)]
pub(super) struct Steps {
    pub first: Delta,
    pub then: Delta,
}

/// Which of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    First,
    Then,
}

impl Steps {
    /// Sorts what is to be removed into the steps. `is_garbage` says what nothing refers to.
    pub fn new(delta: Delta, is_garbage: impl Fn(SetId, &Key) -> bool) -> Self {
        let Delta { delete, add } = delta;
        let (then, first): (Vec<_>, Vec<_>) =
            delete.into_iter().partition(|(set, key)| is_garbage(*set, key));
        let mut steps = Self {
            first: Delta { delete: first, add },
            then: Delta { delete: then, add: Vec::new() },
        };
        // What is replaced is replaced at once.
        let added: std::collections::BTreeSet<(SetId, Key)> =
            steps.first.add.iter().map(|element| (element.set, element.key)).collect();
        let replaced = steps.then.delete.extract_if(.., |key| added.contains(key));
        steps.first.delete.extend(replaced);
        steps.first.sort();
        steps.then.sort();
        steps
    }

    pub fn is_empty(&self) -> bool {
        self.first.is_empty() && self.then.is_empty()
    }

    /// Puts one phase into a batch. `after` says what a set holds behind both.
    pub fn write(
        &self,
        phase: Phase,
        batch: &mut Batch,
        schema: &Schema,
        chains: impl FnOnce() -> Vec<Chain>,
        after: impl Fn(SetId) -> Vec<Element>,
    ) {
        match phase {
            Phase::First => self.first.write_within(batch, schema, chains, |set| {
                let later = self.then.delete.iter().filter(|(id, _)| *id == set);
                let kept = later.map(|(set, key)| permission(*set, *key));
                after(set).into_iter().chain(kept).collect()
            }),
            Phase::Then => self.then.write_within(batch, schema, chains, after),
        }
    }
}

/// Sets of permissions have no data.
fn permission(set: SetId, key: Key) -> Element {
    Element { set, key, value: Value::Member, comment: None }
}

/// Which numbers the addresses have in the kernel that an earlier run gave them.
pub(super) fn numbers_seen(
    seen: &Observed,
    identity_of: impl Fn(std::net::IpAddr) -> Option<IdentityId>,
    version: denizen_model::Family,
    into: &mut BTreeMap<u32, std::collections::BTreeSet<Option<IdentityId>>>,
) {
    for (set, key, value, _) in seen.elements() {
        let number = match value {
            Some(Value::Data(data)) => data.as_bytes().first_chunk().copied(),
            Some(Value::Member | Value::Goto(_)) | None => None,
        };
        let address = match set {
            _ if set == SetName::Identities.id() || set == SetName::Blocks.id() => {
                denizen_nft::read_address(version, key.as_bytes())
            }
            _ => None,
        };
        if let Some((number, address)) = number.zip(address) {
            into.entry(u32::from_ne_bytes(number)).or_default().insert(identity_of(address));
        }
    }
}

/// Whether nothing refers to a permission: its peer's number is nobody's, or its pod is not
/// isolated any more.
pub(super) fn is_garbage(
    set: SetId,
    key: &Key,
    version: denizen_model::Family,
    numbers: &Numbers,
    is_isolated: impl Fn(std::net::IpAddr, denizen_plan::Direction) -> bool,
) -> bool {
    let Some(name) = SetName::ALL.into_iter().find(|name| name.id() == set) else { return false };
    let direction = match name {
        SetName::All(direction)
        | SetName::Protocols(direction)
        | SetName::Ports(direction)
        | SetName::PortRanges(direction) => direction,
        SetName::Pending
        | SetName::Isolated(_)
        | SetName::Itself
        | SetName::Identities
        | SetName::Blocks
        | SetName::PodInterfaces
        | SetName::PodAddresses
        | SetName::RestrictedInterfaces
        | SetName::IsolatedInterfaces
        | SetName::Taken
        | SetName::Nodes
        | SetName::TunnelPorts
        | SetName::TunnelProtocols => return false,
    };
    let bytes = key.as_bytes();
    let behind = if matches!(name, SetName::PortRanges(_)) { 4 } else { 0 };
    let number = bytes.len().checked_sub(4 + behind).and_then(|at| bytes.get(at..)?.first_chunk());
    let number = number.copied().map(u32::from_ne_bytes).unwrap_or_default();
    let pod = denizen_nft::read_address(version, bytes);
    !numbers.is_in_use(number) || !pod.is_some_and(|pod| is_isolated(pod, direction))
}

/// Writes everything in place of whatever is there.
pub(super) fn load(
    kernel: &mut Kernel,
    seen: &Observed,
    wanted: &Wanted,
) -> Result<usize, NftError> {
    let mut batch = kernel.batch(wanted.schema.family, Some(seen.generation()));
    batch.replace_table(seen.is_there(), &wanted.schema, &wanted.chains);
    batch.add_elements(&wanted.schema, &wanted.elements);
    kernel.commit(batch)?;
    Ok(wanted.elements.len())
}

/// Writes what differs.
pub(super) fn repair(
    kernel: &mut Kernel,
    seen: &Observed,
    wanted: &Wanted,
    structure: &Structure,
    steps: &Steps,
) -> Result<(), NftError> {
    let Wanted { schema, chains, elements } = wanted;
    let chains = || chains.clone();
    let after = |set| elements.iter().filter(|element| element.set == set).cloned().collect();
    let mut batch = kernel.batch(schema.family, Some(seen.generation()));
    structure.write(&mut batch, schema.name);
    steps.write(Phase::First, &mut batch, schema, chains, after);
    kernel.commit(batch)?;
    // Before 6.2 a kernel refuses to remove a chain in the batch that removes what refers to it.
    kernel.write(schema.family, |batch: &mut Batch| {
        batch.delete_chains(schema.name, structure.left_over());
        steps.write(Phase::Then, batch, schema, chains, after);
    })
}
