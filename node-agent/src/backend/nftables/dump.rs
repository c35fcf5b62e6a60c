//! What the kernel holds of ours, as it tells it. It is parsed, never trusted: what we would not
//! have written ourselves is simply not equal to what we want.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;

use super::element::{Element, Key, Value, read_address};
use super::expression::{self, Expression};
use super::message::{ACCEPT, hook_number, rule_comment};
use super::name::{SetName, TABLE, TableFamily};
use super::rule::{Chain, Rule};
use super::set::{Data, VERDICT, address_len, find_tlv};
use super::table::Delta;
use crate::model::Family;
use crate::plan::FrontendKey;
use denizen_netlink::{Attributes, Message};

/// Where a base chain hangs.
#[derive(Debug, PartialEq, Eq)]
pub struct ObservedHook {
    kind: String,
    hook: u32,
    priority: i32,
    policy: u32,
}

/// A chain as the kernel has it.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ObservedChain {
    /// Where it hangs, if it is a base chain.
    pub hook: Option<ObservedHook>,
    /// Its rules, in order.
    pub rules: Vec<ObservedRule>,
}

/// A rule as the kernel has it: its comment (empty for none), and what it does.
#[derive(Debug, PartialEq, Eq)]
pub struct ObservedRule {
    comment: String,
    expressions: Vec<Expression>,
}

/// A set as the kernel has it: flags, key type and length, data type and length, user data.
#[derive(Debug, PartialEq, Eq)]
pub struct ObservedSet {
    flags: u32,
    key: (u32, u32),
    data: Option<(u32, u32)>,
    user_data: Vec<u8>,
}

/// What an element leads to, as the kernel has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ObservedValue {
    /// It has no data.
    Member,
    /// Goes to this chain.
    Goto(String),
    /// An endpoint.
    Endpoint(SocketAddr),
    /// An endpoint's number.
    Number(u32),
    /// Something else.
    Other,
}

/// An element's value and comment.
pub type ObservedElement = (ObservedValue, Option<Arc<str>>);

/// All of a table.
#[derive(Debug, Default)]
pub struct Observed {
    /// The ruleset's generation when reading began.
    pub generation: u32,
    /// Whether the table is there.
    pub table: bool,
    /// Whether somebody put it to sleep, or owns it: flags that ours does not have.
    pub flags: u32,
    /// The netlink portid that alone may change it, where it has an owner.
    pub owner: Option<u32>,
    /// Its chains.
    pub chains: BTreeMap<String, ObservedChain>,
    /// Its sets.
    pub sets: BTreeMap<String, ObservedSet>,
    /// Their elements, with comments.
    pub elements: HashMap<(SetName, Key), ObservedElement>,
    /// Elements with keys that no set of ours could have.
    pub strange: usize,
}

impl Observed {
    /// Takes in a NFT_MSG_NEWTABLE.
    pub fn table(&mut self, message: &Message<'_>) {
        if let Some(table) = ours(message.attributes()) {
            self.table = true;
            self.flags = table.find_u32(2).unwrap_or_default();
            self.owner = table.find_u32(7);
        }
    }

    /// Takes in a NFT_MSG_NEWCHAIN.
    pub fn chain(&mut self, message: &Message<'_>) {
        let attributes = message.attributes();
        let Some(name) = ours(attributes).and_then(|a| a.find_str(3)) else {
            return;
        };
        let hook = attributes.nested(4);
        let base_chain = hook.find_u32(1).zip(hook.find_u32(2));
        let hook = base_chain.map(|(hook, priority)| ObservedHook {
            kind: attributes.find_str(7).unwrap_or_default().to_owned(),
            hook,
            priority: priority as i32,
            policy: attributes.find_u32(5).unwrap_or_default(),
        });
        self.chains.entry(name.to_owned()).or_default().hook = hook;
    }

    /// Takes in a NFT_MSG_NEWRULE.
    pub fn rule(&mut self, message: &Message<'_>) {
        let attributes = message.attributes();
        let Some(chain) = ours(attributes).and_then(|a| a.find_str(2)) else {
            return;
        };
        let rule = ObservedRule {
            comment: rule_comment_of(attributes).unwrap_or_default().to_owned(),
            expressions: expression::observed(attributes.nested(4)),
        };
        self.chains.entry(chain.to_owned()).or_default().rules.push(rule);
    }

    /// Takes in a NFT_MSG_NEWSET.
    pub fn set(&mut self, message: &Message<'_>) {
        let attributes = message.attributes();
        let Some(name) = ours(attributes).and_then(|a| a.find_str(2)) else {
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
            user_data: attributes.find(13).unwrap_or_default().to_vec(),
        };
        self.sets.insert(name.to_owned(), set);
    }

    /// Takes in a NFT_MSG_NEWSETELEM about one of our sets.
    pub fn elements(&mut self, table_family: TableFamily, set: SetName, message: &Message<'_>) {
        for (_, element) in message.attributes().nested(3) {
            let element = Attributes::new(element);
            let last = element.nested(10).find(1);
            let key = element.nested(1).find(1).and_then(|first| match last {
                Some(last) => Key::from_bounds(first, last),
                None => Key::from_bytes(first),
            });
            let Some(key) = key else {
                self.strange += 1;
                continue;
            };
            let comment = element.find(6).and_then(comment_in).map(Arc::from);
            self.elements
                .insert((set, key), (value(set.family(table_family), set, element), comment));
        }
    }

    /// Whether a set is there in the shape that it should have.
    pub fn has_set(&self, table_family: TableFamily, set: SetName) -> bool {
        self.sets
            .get(set.as_str())
            .is_some_and(|observed| *observed == wanted_set(table_family, set))
    }

    /// The frontends that are there.
    pub fn keys(&self, table_family: TableFamily) -> impl Iterator<Item = FrontendKey> + '_ {
        let keys = self.elements.keys();
        keys.filter(|(set, _)| matches!(set, SetName::Services | SetName::NodePorts))
            .filter_map(move |(set, key)| key.key(*set, set.family(table_family)))
    }

    /// What leads from the elements that are there to `wanted`, in the sets that are asked for.
    pub fn difference(
        &self,
        wanted: impl Iterator<Item = Element>,
        covers: impl Fn(SetName) -> bool,
    ) -> Delta {
        let mut delta = Delta::default();
        let there = self.elements.keys().filter(|(set, _)| covers(*set));
        let mut unwanted: HashSet<&(SetName, Key)> = there.collect();
        for element in wanted.filter(|element| covers(element.set)) {
            let key = (element.set, element.key);
            let is_there = unwanted.remove(&key);
            if self.has(&element) {
                continue;
            }
            if is_there {
                delta.delete.push(key);
            }
            delta.add.push(element);
        }
        delta.delete.extend(unwanted);
        delta.sort();
        delta
    }

    /// The members of the sets that are asked for, as they are.
    pub fn members(&self, of: impl Fn(SetName) -> bool) -> Vec<Element> {
        let there = self.elements.iter().filter(|((set, _), (value, _))| {
            of(*set) && set.shape().data == Data::None && *value == ObservedValue::Member
        });
        there
            .map(|((set, key), (_, comment))| Element {
                set: *set,
                key: *key,
                value: Value::Member,
                comment: comment.clone(),
            })
            .collect()
    }

    /// Whether an element is there as it should be.
    fn has(&self, element: &Element) -> bool {
        self.elements.get(&(element.set, element.key)).is_some_and(|(value, comment)| {
            *comment == element.comment
                && match (value, element.value) {
                    (ObservedValue::Member, Value::Member) => true,
                    (ObservedValue::Goto(seen), Value::Goto(chain)) => *seen == chain.to_string(),
                    (ObservedValue::Endpoint(seen), Value::Endpoint(endpoint)) => *seen == endpoint,
                    (ObservedValue::Number(seen), Value::Number(number)) => *seen == number,
                    (
                        ObservedValue::Member | ObservedValue::Goto(_) | ObservedValue::Number(_),
                        _,
                    ) => false,
                    (ObservedValue::Endpoint(_) | ObservedValue::Other, _) => false,
                }
        })
    }
}

fn wanted_set(table_family: TableFamily, set: SetName) -> ObservedSet {
    let (shape, family) = (set.shape(), set.family(table_family));
    ObservedSet {
        flags: shape.flags(),
        key: (shape.key_type(family), shape.key_len(family)),
        data: shape.data(family),
        user_data: shape.user_data(family, set.why()),
    }
}

/// A chain as the kernel should have it.
pub fn wanted_chain(table_family: TableFamily, chain: &Chain) -> ObservedChain {
    let rule = |rule: &Rule| ObservedRule {
        comment: rule_comment(table_family, rule),
        expressions: expression::wanted(table_family, rule),
    };
    ObservedChain {
        hook: chain.base_chain.map(|base_chain| ObservedHook {
            kind: base_chain.kind.as_str().to_owned(),
            hook: hook_number(base_chain.hook),
            priority: base_chain.priority,
            policy: ACCEPT,
        }),
        rules: chain.rules.iter().map(rule).collect(),
    }
}

fn value(family: Family, set: SetName, element: Attributes<'_>) -> ObservedValue {
    const NFT_GOTO: i32 = -4;
    let data = element.nested(2);
    match set.shape().data {
        Data::None => ObservedValue::Member,
        Data::Number => match data.find(1).and_then(|bytes| bytes.try_into().ok()) {
            Some(number) => ObservedValue::Number(u32::from_ne_bytes(number)),
            None => ObservedValue::Other,
        },
        Data::Verdict => {
            let verdict = data.nested(2);
            match (verdict.find_u32(1).map(|code| code as i32), verdict.find_str(2)) {
                (Some(NFT_GOTO), Some(chain)) => ObservedValue::Goto(chain.to_owned()),
                _ => ObservedValue::Other,
            }
        }
        Data::Endpoint => {
            let bytes = data.find(1).unwrap_or_default();
            let port = bytes.get(address_len(family)..).and_then(|rest| rest.first_chunk::<2>());
            match (read_address(family, bytes), port) {
                (Some(ip), Some(port)) => {
                    ObservedValue::Endpoint(SocketAddr::new(ip, u16::from_be_bytes(*port)))
                }
                _ => ObservedValue::Other,
            }
        }
    }
}

/// Dumps of chains and rules cover every table of the family.
fn ours(attributes: Attributes<'_>) -> Option<Attributes<'_>> {
    (attributes.find_str(1) == Some(TABLE)).then_some(attributes)
}

/// The comment of a rule of ours.
pub fn rule_comment_of(rule: Attributes<'_>) -> Option<&str> {
    ours(rule)?.find(7).and_then(comment_in)
}

fn comment_in(user_data: &[u8]) -> Option<&str> {
    let text = find_tlv(user_data, 0)?;
    std::str::from_utf8(text.strip_suffix(&[0]).unwrap_or(text)).ok()
}

/// Whether a message is about tables of this table family.
pub fn is_of(table_family: TableFamily, message: &Message<'_>) -> bool {
    message.family() == Some(table_family.number())
}
