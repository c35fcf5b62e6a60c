//! nf_tables' messages: one batch, which the kernel takes whole or not at all.

use nix::libc;

use super::element::{Element, Key, Value, endpoint_bytes};
use super::encode;
use super::name::{ChainName, SetName, TABLE, TableFamily};
use super::rule::{Chain, Hook, Rule};
use super::set::{room, tlv, with_nul};
use crate::model::Family;
use denizen_netlink::Writer;

/// The kind of a message of nf_tables: `NFNL_SUBSYS_NFTABLES` above `enum nf_tables_msg_types`.
pub const fn kind(message: i32) -> u16 {
    ((libc::NFNL_SUBSYS_NFTABLES << 8) | message) as u16
}

const CREATE: u16 = libc::NLM_F_CREATE as u16;
const APPEND: u16 = libc::NLM_F_APPEND as u16;

/// What the table says of itself on the node.
pub const TABLE_COMMENT: &str = "Denizen: service networking; see denizen-agent explain";

/// Elements of one set go many to a message; a nested attribute holds at most 65,535 bytes.
const MESSAGE_ROOM: usize = 60_000;

/// A batch being written.
///
/// Messages are numbered from the batch's first sequence on, so that a refusal can be led back to
/// what was refused.
#[derive(Debug)]
pub struct Batch {
    writer: Writer,
    table_family: TableFamily,
    first: u32,
    count: u32,
    what: Vec<What>,
    /// Where the last message begins.
    last_at: usize,
}

/// What a message of a batch is about, for the error that names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// The table.
    Table,
    /// A chain or its rules.
    Chain(ChainName),
    /// A set.
    Set(SetName),
    /// Elements of a set.
    Elements(SetName),
    /// Something that is otherwise than ours, or should not be there.
    Foreign(String),
}

impl std::fmt::Display for What {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Table => f.write_str("the table"),
            Self::Chain(chain) => write!(f, "chain {chain}"),
            Self::Set(set) => write!(f, "set {set}"),
            Self::Elements(set) => write!(f, "elements of {set}"),
            Self::Foreign(name) => write!(f, "the removal of {name}"),
        }
    }
}

impl Batch {
    /// An empty batch for one table. With `generation`, the kernel refuses it (ERESTART) when
    /// anybody has changed anything since it was read.
    pub fn new(table_family: TableFamily, first: u32, generation: Option<u32>) -> Self {
        let mut batch = Self {
            writer: Writer::default(),
            table_family,
            first,
            count: 0,
            what: Vec::new(),
            last_at: 0,
        };
        batch.edge(libc::NFNL_MSG_BATCH_BEGIN, generation);
        batch
    }

    /// Nothing but the edges.
    pub fn is_empty(&self) -> bool {
        self.what.is_empty()
    }

    /// Ends it. Only its last message asks for an acknowledgement: one for each would overflow the
    /// buffer for answers, after a commit that succeeded.
    pub fn finish(mut self) -> Finished {
        let last = self.first + self.count - 1;
        self.writer.add_flags(self.last_at, libc::NLM_F_ACK as u16);
        self.edge(libc::NFNL_MSG_BATCH_END, None);
        Finished { bytes: self.writer.into_bytes(), first: self.first, last, what: self.what }
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

    fn message(
        &mut self,
        kind_of: i32,
        flags: u16,
        what: What,
        fill: impl FnOnce(&mut Writer, TableFamily),
    ) {
        let sequence = self.first + self.count;
        self.count += 1;
        self.what.push(what);
        self.last_at = self.writer.bytes().len();
        let open = self.writer.begin_message(
            kind(kind_of),
            flags,
            sequence,
            self.table_family.number(),
            0,
        );
        self.writer.put_str(1, TABLE);
        fill(&mut self.writer, self.table_family);
        self.writer.end_message(open);
    }

    /// Makes the table, if it is not there.
    pub fn add_table(&mut self) {
        const USER_DATA: u16 = 6;
        const FLAGS: u16 = 2;
        self.message(libc::NFT_MSG_NEWTABLE, CREATE, What::Table, |w, _| {
            w.put_u32(FLAGS, 0);
            w.put(USER_DATA, &comment(0, TABLE_COMMENT));
        });
    }

    /// Removes the table with all that is in it. It must be there.
    pub fn delete_table(&mut self) {
        self.message(libc::NFT_MSG_DELTABLE, 0, What::Table, |_, _| {});
    }

    /// Makes a chain without its rules.
    pub fn add_chain(&mut self, chain: &Chain) {
        self.message(libc::NFT_MSG_NEWCHAIN, CREATE, What::Chain(chain.name), |w, _| {
            w.put_str(3, &chain.name.to_string());
            if let Some(base_chain) = chain.base_chain {
                let open = w.begin(4);
                w.put_u32(1, hook_number(base_chain.hook));
                w.put_u32(2, base_chain.priority as u32);
                w.end(open);
                w.put_u32(5, ACCEPT);
                w.put_str(7, base_chain.kind.as_str());
            }
            w.put(12, &comment(0, chain.why.text()));
        });
    }

    /// Appends a rule to a chain that is there.
    pub fn add_rule(&mut self, chain: ChainName, rule: &Rule) {
        self.message(
            libc::NFT_MSG_NEWRULE,
            CREATE | APPEND,
            What::Chain(chain),
            |w, table_family| {
                w.put_str(2, &chain.to_string());
                let list = w.begin(4);
                encode::rule(w, table_family, rule);
                w.end(list);
                w.put(7, &comment(0, &rule_comment(table_family, rule)));
            },
        );
    }

    /// Removes the rules of a chain.
    pub fn flush_chain(&mut self, name: &str) {
        let what = What::Foreign(format!("chain {name}"));
        self.message(libc::NFT_MSG_DELRULE, 0, what, |w, _| w.put_str(2, name));
    }

    /// Removes chains, which may refer to each other; nothing else may refer to them.
    pub fn delete_chains(&mut self, names: &[String]) {
        for name in names {
            self.flush_chain(name);
        }
        for name in names {
            let what = What::Foreign(format!("chain {name}"));
            self.message(libc::NFT_MSG_DELCHAIN, 0, what, |w, _| w.put_str(3, name));
        }
    }

    /// Makes a set or map.
    pub fn add_set(&mut self, set: SetName, id: u32) {
        self.message(libc::NFT_MSG_NEWSET, CREATE, What::Set(set), |w, table_family| {
            let (shape, family) = (set.shape(), set.family(table_family));
            w.put_str(2, set.as_str());
            w.put_u32(3, shape.flags());
            w.put_u32(4, shape.key_type(family));
            w.put_u32(5, shape.key_len(family));
            if let Some((kind, length)) = shape.data(family) {
                w.put_u32(6, kind);
                w.put_u32(7, length);
            }
            describe_set(w, family, set);
            w.put_u32(10, id);
            w.put(13, &shape.user_data(family, set.why()));
        });
    }

    /// Adds elements, grouped by set in the order given.
    pub fn add_elements(&mut self, elements: &[Element]) {
        let write = |w: &mut Writer, element: &Element| {
            put_key(w, element.set, &element.key);
            match element.value {
                Value::Member => {}
                Value::Number(number) => {
                    let data = w.begin(2);
                    w.put(1, &number.to_ne_bytes());
                    w.end(data);
                }
                Value::Goto(chain) => encode::goto_data(w, 2, chain),
                Value::Endpoint(endpoint) => {
                    let data = w.begin(2);
                    w.put(1, endpoint_bytes(endpoint).as_bytes());
                    w.end(data);
                }
            }
            if let Some(text) = &element.comment {
                w.put(6, &comment(0, text));
            }
        };
        for group in elements.chunk_by(|a, b| a.set == b.set) {
            self.elements(libc::NFT_MSG_NEWSETELEM, CREATE, group[0].set, group, write);
        }
    }

    /// Removes elements, grouped by set in the order given. They must be there.
    pub fn delete_elements(&mut self, keys: &[(SetName, Key)]) {
        for group in keys.chunk_by(|a, b| a.0 == b.0) {
            let write = |w: &mut Writer, (set, key): &(SetName, Key)| put_key(w, *set, key);
            self.elements(libc::NFT_MSG_DELSETELEM, 0, group[0].0, group, write);
        }
    }

    fn elements<T>(
        &mut self,
        message: i32,
        flags: u16,
        set: SetName,
        items: &[T],
        write: impl Fn(&mut Writer, &T),
    ) {
        let mut rest = items.iter().peekable();
        while rest.peek().is_some() {
            self.message(message, flags, What::Elements(set), |w, _| {
                w.put_str(2, set.as_str());
                let list = w.begin(3);
                while w.nested_len(&list) < MESSAGE_ROOM {
                    let Some(item) = rest.next() else { break };
                    let open = w.begin(1);
                    write(w, item);
                    w.end(open);
                }
                w.end(list);
            });
        }
    }
}

/// A base chain's policy: `NF_ACCEPT`.
pub const ACCEPT: u32 = 1;

/// `enum nf_inet_hooks`; a bridge's hooks (`NF_BR_PRE_ROUTING` …) have the same numbers.
pub fn hook_number(hook: Hook) -> u32 {
    let number = match hook {
        Hook::Prerouting => libc::NF_INET_PRE_ROUTING,
        Hook::Forward => libc::NF_INET_FORWARD,
        Hook::Input => libc::NF_INET_LOCAL_IN,
        Hook::Output => libc::NF_INET_LOCAL_OUT,
        Hook::Postrouting => libc::NF_INET_POST_ROUTING,
    };
    number as u32
}

/// How large a set may grow, and where the parts of its keys end, where the kernel must know.
fn describe_set(w: &mut Writer, family: Family, set: SetName) {
    let (shape, room) = (set.shape(), room(set));
    if room.is_none() && !shape.is_ranged() {
        return;
    }
    let description = w.begin(9);
    if let Some(room) = room {
        w.put_u32(1, room);
    }
    if shape.is_ranged() {
        let parts = w.begin(2);
        for part in shape.key {
            let field = w.begin(1);
            w.put_u32(1, part.len(family) as u32);
            w.end(field);
        }
        w.end(parts);
    }
    w.end(description);
}

/// A key, or the first and the last key of a range.
fn put_key(w: &mut Writer, set: SetName, key: &Key) {
    let mut put = |kind, key: &Key| {
        let open = w.begin(kind);
        w.put(1, key.as_bytes());
        w.end(open);
    };
    if set.shape().is_ranged() {
        let (first, last) = key.bounds();
        put(1, &first);
        put(10, &last);
    } else {
        put(1, key);
    }
}

/// A comment in user data.
fn comment(kind: u8, text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    tlv(&mut out, kind, &with_nul(text));
    out
}

/// `<rule id> <why>`. Rules do not come back from the kernel as they were written; by the id, a
/// hash of what the kernel was told, a restarted agent knows that a rule is the one it would write.
pub fn rule_comment(table_family: TableFamily, rule: &Rule) -> String {
    let mut bytes = Writer::default();
    encode::rule(&mut bytes, table_family, rule);
    // FNV-1a, 32 bits: the id tells versions of one program apart, it withstands no attack.
    let id = bytes
        .bytes()
        .iter()
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193));
    format!("{id:08x} {}", rule.why.text())
}

/// A batch that can be sent.
#[derive(Debug)]
pub struct Finished {
    /// What to send, in one datagram.
    pub bytes: Vec<u8>,
    first: u32,
    /// The number of the message whose acknowledgement says that the batch was taken.
    pub last: u32,
    what: Vec<What>,
}

impl Finished {
    /// What a refused message was about.
    pub fn what(&self, sequence: u32) -> Option<&What> {
        let index = sequence.checked_sub(self.first)?.checked_sub(1)?;
        self.what.get(index as usize)
    }
}
