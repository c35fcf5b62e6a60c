//! A table as the kernel reports it. It is parsed, never trusted: what the client would not have
//! written is simply not equal to the desired content.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::replace;
use std::sync::Arc;

use denizen_netlink::{Attributes, Message};

use crate::bytes::Key;
use crate::chain::Chain;
use crate::difference::{Delta, Structure};
use crate::edge::{RangeEdge, ranges};
use crate::edit::Edit;
use crate::observed_chain::{ObservedChain, ObservedHook, ObservedRule, wanted_chain};
use crate::observed_element::observed_element;
use crate::observed_elements::ObservedElements;
use crate::set::{Element, Schema, Set, SetId, VERDICT, Value, without_comment};

/// A set as the kernel has it: flags, key type and length, data type and length, user data without
/// the comment.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ObservedSet {
    flags: u32,
    key: (u32, u32),
    data: Option<(u32, u32)>,
    user_data: Vec<u8>,
}

/// All of a table that the driver compares.
#[derive(Debug, Default)]
pub struct Observed {
    /// The ruleset's generation when reading began.
    pub(crate) generation: u32,
    /// Whether the table is there.
    pub(crate) exists: bool,
    /// Its flags, such as dormant or owned. Our tables have none.
    pub(crate) flags: u32,
    pub(crate) owner: Option<u32>,
    pub(crate) chains: BTreeMap<Arc<str>, ObservedChain>,
    pub(crate) sets: BTreeMap<String, ObservedSet>,
    pub(crate) elements: ObservedElements,
    /// Elements with keys that no set of ours could have.
    pub(crate) unreadable_keys: usize,
    /// Where ranges of the set that is being read begin and end.
    pub(crate) edges: Vec<RangeEdge>,
}

impl Observed {
    /// The ruleset's generation when it was read.
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// Whether a chain is there and has rules.
    pub fn has_rules(&self, chain: &str) -> bool {
        self.chains.get(chain).is_some_and(|chain| !chain.rules.is_empty())
    }

    /// Whether the table is there.
    pub fn is_there(&self) -> bool {
        self.exists
    }

    /// The netlink portid of the table's owner, if it has one: nobody else may change the table.
    pub fn owner(&self) -> Option<u32> {
        self.owner
    }

    /// Whether a set is there as it is declared, whatever its comment says.
    pub fn has_set(&self, set: &Set) -> bool {
        self.sets.get(set.name).is_some_and(|observed| *observed == wanted_set(set))
    }

    /// Whether a set of this name is there.
    pub(crate) fn has_set_named(&self, name: &str) -> bool {
        self.sets.contains_key(name)
    }

    /// Whether the table has exactly these sets, as they are declared.
    pub(crate) fn has_sets(&self, sets: &[Set]) -> bool {
        self.sets.len() == sets.len() && sets.iter().all(|set| self.has_set(set))
    }

    /// The elements that were read, in no order.
    pub fn elements(
        &self,
    ) -> impl Iterator<Item = (SetId, Key, Option<&Value>, Option<&Arc<str>>)> {
        let elements = self.elements.iter();
        elements.map(|(set, key, (value, comment))| (set, key, value.as_ref(), comment.as_ref()))
    }

    /// The plain members, elements without data, of the sets that `of` selects.
    pub fn members(&self, of: impl Fn(SetId) -> bool) -> Vec<Element> {
        let members = self.elements().filter(|(set, _, value, _)| {
            of(*set) && value.is_some_and(|value| *value == Value::Member)
        });
        members
            .map(|(set, key, _, comment)| Element {
                set,
                key,
                value: Value::Member,
                comment: comment.cloned(),
            })
            .collect()
    }

    /// The difference between the table's chains and `chains`; `None` if the table cannot be kept:
    /// it is not there, or its sets are not the declared ones.
    pub fn structure(&self, schema: &Schema, chains: &[Chain]) -> Option<Structure> {
        let is_usable = self.exists && self.flags == 0 && self.unreadable_keys == 0;
        if !is_usable || !self.has_sets(&schema.sets) {
            return None;
        }
        let mut structure = Structure::default();
        for chain in chains {
            let wanted = wanted_chain(schema.family, chain);
            match self.chains.get(&chain.name) {
                None => structure.missing.push(chain.clone()),
                Some(seen) if seen.hook != wanted.hook => {
                    structure.misplaced.push(chain.name.clone());
                    structure.missing.push(chain.clone());
                }
                Some(seen) if seen.rules != wanted.rules => {
                    structure.wrong.push(Edit::new(chain, seen, &wanted));
                }
                Some(_) => {}
            }
        }
        let wanted: BTreeSet<&Arc<str>> = chains.iter().map(|chain| &chain.name).collect();
        for (name, seen) in self.chains.iter().filter(|(name, _)| !wanted.contains(name)) {
            let list = match seen.hook {
                Some(_) => &mut structure.misplaced,
                None => &mut structure.left_over,
            };
            list.push(name.clone());
        }
        Some(structure)
    }

    /// The difference between the observed elements and `wanted`, in the sets that `covers`
    /// selects.
    pub fn difference(
        &self,
        wanted: impl Iterator<Item = Element>,
        covers: impl Fn(SetId) -> bool,
    ) -> Delta {
        let mut delta = Delta::default();
        let mut is_wanted = vec![false; self.elements.len()];
        for element in wanted.filter(|element| covers(element.set)) {
            if let Some(number) = self.elements.number(element.set, &element.key) {
                let was_wanted = replace(&mut is_wanted[number as usize], true);
                // It is right if it has the same value and comment.
                let (value, comment) = self.elements.element(number);
                if *comment == element.comment && value.as_ref() == Some(&element.value) {
                    continue;
                }
                if !was_wanted {
                    delta.delete.push((element.set, element.key));
                }
            }
            delta.add.push(element);
        }
        let there = self.elements.iter().zip(is_wanted);
        let unwanted = there.filter(|((set, ..), is_wanted)| !is_wanted && covers(*set));
        delta.delete.extend(unwanted.map(|((set, key, _), _)| (set, key)));
        delta.sort();
        delta
    }

    /// Reads a NFT_MSG_NEWTABLE.
    pub(crate) fn read_table(&mut self, table: &str, message: &Message<'_>) {
        if let Some(attributes) = about(table, message) {
            self.exists = true;
            self.flags = attributes.find_u32(2).unwrap_or_default();
            self.owner = attributes.find_u32(7);
        }
    }

    /// Reads a NFT_MSG_NEWCHAIN.
    pub(crate) fn read_chain(&mut self, table: &str, message: &Message<'_>) {
        let attributes = message.attributes();
        let Some(name) = about(table, message).and_then(|a| a.find_str(3)) else {
            return;
        };
        self.chains.entry(name.into()).or_default().hook = ObservedHook::read(attributes);
    }

    /// Reads a NFT_MSG_NEWRULE.
    pub(crate) fn read_rule(&mut self, table: &str, message: &Message<'_>) {
        let attributes = message.attributes();
        let Some(chain) = about(table, message).and_then(|a| a.find_str(2)) else {
            return;
        };
        let handle = attributes.find(3).and_then(|handle| handle.try_into().ok());
        let chain = self.chains.entry(chain.into()).or_default();
        chain.rules.push(ObservedRule::read(attributes));
        chain.handles.push(handle.map(u64::from_be_bytes).unwrap_or_default());
    }

    /// Reads a NFT_MSG_NEWSET.
    pub(crate) fn read_set(&mut self, table: &str, message: &Message<'_>) {
        let attributes = message.attributes();
        let Some(name) = about(table, message).and_then(|a| a.find_str(2)) else {
            return;
        };
        let number = |kind| attributes.find_u32(kind).unwrap_or_default();
        let set = ObservedSet {
            flags: number(3),
            key: (number(4), number(5)),
            // A verdict's length is the kernel's own affair.
            data: match attributes.find_u32(6) {
                Some(VERDICT) => Some((VERDICT, 0)),
                data => data.map(|data| (data, number(7))),
            },
            user_data: without_comment(attributes.find(13).unwrap_or_default()),
        };
        self.sets.insert(name.to_owned(), set);
    }

    /// Reads a NFT_MSG_NEWSETELEM about a set of ours.
    pub(crate) fn read_elements(&mut self, set: &Set, message: &Message<'_>) {
        for (_, element) in message.attributes().nested(3) {
            let element = Attributes::new(element);
            let first = element.nested(1).find(1);
            if set.is_ranged {
                self.edges.extend(first.and_then(|key| RangeEdge::read(set, key, element)));
                continue;
            }
            match first.and_then(Key::from_bytes) {
                Some(key) => self.elements.insert(set.id, &key, observed_element(set, element)),
                None => self.unreadable_keys += 1,
            }
        }
    }

    /// All elements of a set were read: the edges of ranges become ranges.
    pub(crate) fn end_of_set(&mut self, set: &Set) {
        let Some(version) = set.range() else { return };
        let edges = std::mem::take(&mut self.edges);
        for (first, last, element) in ranges(edges) {
            match Key::from_bounds(version, &first, &last) {
                Some(key) => self.elements.insert(set.id, &key, element),
                None => self.unreadable_keys += 1,
            }
        }
    }
}

fn wanted_set(set: &Set) -> ObservedSet {
    ObservedSet {
        flags: set.flags(),
        key: set.key_type(),
        data: set.data_type(),
        user_data: without_comment(&set.user_data()),
    }
}

/// A message's attributes, if it is about this table or what is in it: every message has the
/// table's name first, and dumps may cover other tables.
pub(crate) fn about<'a>(table: &str, message: &Message<'a>) -> Option<Attributes<'a>> {
    let attributes = message.attributes();
    (attributes.find_str(1) == Some(table)).then_some(attributes)
}
