//! nf_tables' messages: one batch, which the kernel accepts as a whole or not at all.

use std::sync::Arc;

use denizen_netlink::{Open, Writer};
use nix::libc;

use crate::bytes::Key;
use crate::chain::Chain;
use crate::encode;
use crate::family::TableFamily;
use crate::rule::Rule;
use crate::set::{Element, Schema, Set, SetId, Value};
use crate::subject::MessageSubject;
use crate::user_data::comment;

/// The kind of a message of nf_tables: `NFNL_SUBSYS_NFTABLES` above `enum nf_tables_msg_types`.
pub(crate) const fn kind(message: i32) -> u16 {
    ((libc::NFNL_SUBSYS_NFTABLES << 8) | message) as u16
}

const CREATE: u16 = libc::NLM_F_CREATE as u16;
const APPEND: u16 = libc::NLM_F_APPEND as u16;

/// Elements of one set go many to a message; a nested attribute holds at most 65,535 bytes.
const MESSAGE_ROOM: usize = 60_000;

/// A batch's messages are kept in pieces of about this many bytes.
const PIECE_SIZE: usize = 1 << 20;

/// `NFT_SET_ELEM_INTERVAL_END`: the element says where a range ends.
pub(crate) const INTERVAL_END: u32 = 1;

/// A base chain's policy: `NF_ACCEPT`.
pub(crate) const ACCEPT: u32 = 1;

/// A batch being written, first about tables of one family, then of another ([`Batch::about`]).
///
/// Messages are numbered from the batch's first sequence on, so that a refusal names the message
/// that was refused.
#[derive(Debug)]
pub struct Batch {
    /// The messages before those of the writer, in pieces: one growing buffer would need, for a
    /// moment, three times the memory.
    pieces: Vec<Vec<u8>>,
    writer: Writer,
    family: TableFamily,
    first: u32,
    count: u32,
    what: Vec<(TableFamily, MessageSubject)>,
    /// Where the last message begins in the writer.
    last_at: usize,
}

/// Where a rule is put in its chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RulePosition {
    /// At the chain's start.
    Start,
    /// At the chain's end.
    End,
    /// Before the rule with this handle.
    Before(u64),
}

impl Batch {
    /// An empty batch. With `generation`, the kernel refuses it (ERESTART) if anything was changed
    /// since that generation.
    pub(crate) fn new(family: TableFamily, first: u32, generation: Option<u32>) -> Self {
        let mut batch = Self {
            pieces: Vec::new(),
            writer: Writer::default(),
            family,
            first,
            count: 0,
            what: Vec::new(),
            last_at: 0,
        };
        batch.edge(libc::NFNL_MSG_BATCH_BEGIN, generation);
        batch
    }

    /// Begins the part of the batch about tables of this family.
    pub fn about(&mut self, family: TableFamily) {
        self.family = family;
    }

    /// The family of the tables that the next messages are about.
    pub(crate) fn family(&self) -> TableFamily {
        self.family
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.what.is_empty()
    }

    /// Ends it. Only its last message asks for an acknowledgement: one for each would overflow the
    /// buffer for answers, after a commit that succeeded.
    pub(crate) fn finish(mut self) -> Finished {
        let last = self.first + self.count - 1;
        self.writer.add_flags(self.last_at, libc::NLM_F_ACK as u16);
        self.edge(libc::NFNL_MSG_BATCH_END, None);
        self.pieces.push(self.writer.into_bytes());
        Finished { pieces: self.pieces, first: self.first, last, what: self.what }
    }

    fn edge(&mut self, message: i32, generation: Option<u32>) {
        const GENERATION: u16 = 1;
        let sequence = self.first + self.count;
        self.count += 1;
        let subsystem = libc::NFNL_SUBSYS_NFTABLES as u16;
        let open = self.writer.begin_message(message as u16, 0, sequence, 0, subsystem);
        if let Some(generation) = generation {
            self.writer.put_u32(GENERATION, generation);
        }
        self.writer.end_message(open);
    }

    /// A message about something in a table.
    fn message(
        &mut self,
        kind_of: i32,
        flags: u16,
        table: &str,
        what: MessageSubject,
        fill: impl FnOnce(&mut Writer),
    ) {
        let open = self.begin_message(kind_of, flags, table, what);
        fill(&mut self.writer);
        self.writer.end_message(open);
    }

    /// All messages begin with the table's name.
    fn begin_message(
        &mut self,
        kind_of: i32,
        flags: u16,
        table: &str,
        what: MessageSubject,
    ) -> Open {
        if self.writer.bytes().len() >= PIECE_SIZE {
            self.pieces.push(std::mem::take(&mut self.writer).into_bytes());
        }
        let sequence = self.first + self.count;
        self.count += 1;
        self.what.push((self.family, what));
        self.last_at = self.writer.bytes().len();
        let family = self.family.number();
        let open = self.writer.begin_message(kind(kind_of), flags, sequence, family, 0);
        self.writer.put_str(1, table);
        open
    }

    /// Makes a table, if it is not there.
    pub fn add_table(&mut self, schema: &Schema) {
        self.add_table_as(schema.name, schema.comment, 0);
    }

    /// Makes a table that has no sets, if it is not there.
    pub fn add_table_named(&mut self, name: &str, comment: &str) {
        self.add_table_as(name, comment, 0);
    }

    /// Makes a table that only this socket can change, with its chains and without sets. The kernel
    /// removes it when the socket is closed, and so when the process ends, however it ends (since
    /// Linux 5.12).
    pub fn add_owned_table(&mut self, schema: &Schema, chains: &[Chain]) {
        const OWNER: u32 = 2;
        self.add_table_as(schema.name, schema.comment, OWNER);
        self.add_chains(schema.name, chains);
    }

    fn add_table_as(&mut self, name: &str, about: &str, flags: u32) {
        const USER_DATA: u16 = 6;
        const FLAGS: u16 = 2;
        self.message(libc::NFT_MSG_NEWTABLE, CREATE, name, MessageSubject::Table, |w| {
            w.put_u32(FLAGS, flags);
            w.put(USER_DATA, &comment(about));
        });
    }

    /// Removes a table with all that is in it. It must be there.
    pub fn delete_table(&mut self, table: &str) {
        self.message(libc::NFT_MSG_DELTABLE, 0, table, MessageSubject::Table, |_| {});
    }

    /// Makes a table with its sets, chains and rules, in place of the existing one, if there is
    /// one.
    pub fn replace_table(&mut self, is_there: bool, schema: &Schema, chains: &[Chain]) {
        let table = schema.name;
        if is_there {
            self.delete_table(table);
        }
        self.add_table(schema);
        for chain in chains {
            self.add_chain(table, chain);
        }
        for (set, number) in schema.sets.iter().zip(1..) {
            self.add_set(table, set, number);
        }
        for chain in chains {
            self.add_rules(table, chain);
        }
    }

    /// Makes chains with their rules, which may refer to each other.
    pub fn add_chains(&mut self, table: &str, chains: &[Chain]) {
        for chain in chains {
            self.add_chain(table, chain);
        }
        for chain in chains {
            self.add_rules(table, chain);
        }
    }

    /// Makes a chain without its rules, if it is not there.
    pub fn add_chain(&mut self, table: &str, chain: &Chain) {
        let what = MessageSubject::Chain(chain.name.clone());
        self.message(libc::NFT_MSG_NEWCHAIN, CREATE, table, what, |w| {
            w.put_str(3, &chain.name);
            if let Some(base) = chain.base {
                let open = w.begin(4);
                w.put_u32(1, base.hook.number());
                w.put_u32(2, base.priority as u32);
                w.end(open);
                w.put_u32(5, ACCEPT);
                w.put_str(7, base.kind.as_str());
            }
            w.put(12, &comment(chain.why));
        });
    }

    /// Appends a chain's rules to the chain, which is there.
    pub(crate) fn add_rules(&mut self, table: &str, chain: &Chain) {
        let family = self.family;
        for rule in &chain.rules {
            self.add_rule(table, &chain.name, rule, &rule.comment(family), RulePosition::End);
        }
    }

    /// Puts a rule into a chain that is there, with a comment.
    pub fn add_rule(
        &mut self,
        table: &str,
        chain: &Arc<str>,
        rule: &Rule,
        text: &str,
        at: RulePosition,
    ) {
        let (family, what) = (self.family, MessageSubject::Chain(chain.clone()));
        let (flags, position) = match at {
            RulePosition::Start => (CREATE, None),
            RulePosition::End => (CREATE | APPEND, None),
            RulePosition::Before(handle) => (CREATE, Some(handle)),
        };
        self.message(libc::NFT_MSG_NEWRULE, flags, table, what, |w| {
            w.put_str(2, chain);
            let list = w.begin(4);
            encode::statements(w, family, &rule.statements);
            w.end(list);
            if let Some(handle) = position {
                w.put(6, &handle.to_be_bytes());
            }
            w.put(7, &comment(text));
        });
    }

    /// Removes a rule from a chain.
    pub fn delete_rule(&mut self, table: &str, chain: &Arc<str>, handle: u64) {
        let what = MessageSubject::RuleRemoval(chain.clone(), handle);
        self.message(libc::NFT_MSG_DELRULE, 0, table, what, |w| {
            w.put_str(2, chain);
            w.put(3, &handle.to_be_bytes());
        });
    }

    /// Removes the rules of a chain.
    pub fn flush_chain(&mut self, table: &str, chain: &Arc<str>) {
        let what = MessageSubject::ChainRemoval(chain.clone());
        self.message(libc::NFT_MSG_DELRULE, 0, table, what, |w| w.put_str(2, chain));
    }

    /// Replaces the rules of these chains, which exist, by those given.
    pub fn replace_rules(&mut self, table: &str, chains: &[Chain]) {
        for chain in chains {
            self.flush_chain(table, &chain.name);
            self.add_rules(table, chain);
        }
    }

    /// Removes chains, which may refer to each other; nothing else may refer to them.
    pub fn delete_chains<'a>(
        &mut self,
        table: &str,
        chains: impl IntoIterator<Item = &'a Arc<str>> + Copy,
    ) {
        for chain in chains {
            self.flush_chain(table, chain);
        }
        for chain in chains {
            let what = MessageSubject::ChainRemoval(chain.clone());
            self.message(libc::NFT_MSG_DELCHAIN, 0, table, what, |w| w.put_str(3, chain));
        }
    }

    /// Makes a set or map, the batch's `number`th.
    fn add_set(&mut self, table: &str, set: &Set, number: u32) {
        self.message(libc::NFT_MSG_NEWSET, CREATE, table, MessageSubject::Set(set.name), |w| {
            let (key_type, key_len) = set.key_type();
            w.put_str(2, set.name);
            w.put_u32(3, set.flags());
            w.put_u32(4, key_type);
            w.put_u32(5, key_len);
            if let Some((kind, length)) = set.data_type() {
                w.put_u32(6, kind);
                w.put_u32(7, length);
            }
            describe_set(w, set);
            w.put_u32(10, number);
            w.put(13, &set.user_data());
        });
    }

    /// Adds elements, grouped by set in the order given.
    pub fn add_elements(&mut self, schema: &Schema, elements: &[Element]) {
        for group in elements.chunk_by(|a, b| a.set == b.set) {
            let set = schema.set(group[0].set);
            let message = libc::NFT_MSG_NEWSETELEM;
            let put = |w: &mut Writer, element: &Element| {
                match &element.value {
                    Value::Member => {}
                    Value::Goto(chain) => encode::goto_data(w, 2, chain),
                    Value::Data(value) => {
                        let data = w.begin(2);
                        w.put(1, value.as_bytes());
                        w.end(data);
                    }
                }
                if let Some(text) = &element.comment {
                    w.put(6, &comment(text));
                }
            };
            self.elements(message, schema.name, set, group, |element| &element.key, put);
        }
    }

    /// Removes elements, grouped by set in the order given. They must be there.
    pub fn delete_elements(&mut self, schema: &Schema, keys: &[(SetId, Key)]) {
        for group in keys.chunk_by(|a, b| a.0 == b.0) {
            let set = schema.set(group[0].0);
            let message = libc::NFT_MSG_DELSETELEM;
            self.elements(message, schema.name, set, group, |(_, key)| key, |_, _| {});
        }
    }

    fn elements<T>(
        &mut self,
        message: i32,
        table: &str,
        set: &Set,
        items: &[T],
        key_of: impl Fn(&T) -> &Key,
        write_value: impl Fn(&mut Writer, &T),
    ) {
        let flags = if message == libc::NFT_MSG_NEWSETELEM { CREATE } else { 0 };
        let mut rest = items.iter().peekable();
        while rest.peek().is_some() {
            self.message(message, flags, table, MessageSubject::Elements(set.name), |w| {
                w.put_str(2, set.name);
                let list = w.begin(3);
                while w.nested_len(&list) < MESSAGE_ROOM {
                    let Some(item) = rest.next() else { break };
                    let open = w.begin(1);
                    put_key(w, set, key_of(item));
                    write_value(w, item);
                    w.end(open);
                    // The end of a range is an element of its own, in the same message.
                    put_end(w, set, key_of(item));
                }
                w.end(list);
            });
        }
    }
}

/// How many elements the set may have (`NFTA_SET_DESC_SIZE`): for sets that packets fill.
fn describe_set(w: &mut Writer, set: &Set) {
    let Some(max_elements) = set.max_dynamic_elements else { return };
    let description = w.begin(9);
    w.put_u32(1, max_elements);
    w.end(description);
}

/// A key, or the first key of a range.
fn put_key(w: &mut Writer, set: &Set, key: &Key) {
    let open = w.begin(1);
    match set.range() {
        Some(version) => w.put(1, key.bounds(version).0.as_bytes()),
        None => w.put(1, &key.as_bytes()[..set.key_type().1 as usize]),
    }
    w.end(open);
}

/// In a set of ranges, the element that ends a range: its key is the one after the range's last
/// key. A range up to the greatest key has no such element.
fn put_end(w: &mut Writer, set: &Set, key: &Key) {
    let Some(version) = set.range() else { return };
    if let Some(end) = key.bounds(version).1.successor() {
        let element = w.begin(1);
        let open = w.begin(1);
        w.put(1, end.as_bytes());
        w.end(open);
        w.put_u32(3, INTERVAL_END);
        w.end(element);
    }
}

/// A batch that can be sent.
#[derive(Debug)]
pub(crate) struct Finished {
    /// What to send, in one datagram.
    pub pieces: Vec<Vec<u8>>,
    first: u32,
    /// The number of the message whose acknowledgement says that the batch was taken.
    pub last: u32,
    what: Vec<(TableFamily, MessageSubject)>,
}

impl Finished {
    /// How many messages it has, without its begin and its end.
    pub fn count(&self) -> usize {
        self.what.len()
    }

    /// What the message with this number was about, and the family.
    pub fn what(&self, sequence: u32) -> Option<&(TableFamily, MessageSubject)> {
        let index = sequence.checked_sub(self.first)?.checked_sub(1)?;
        self.what.get(index as usize)
    }
}
