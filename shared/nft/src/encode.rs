//! Statements as the kernel's expressions (`struct nft_expr`; linux/netfilter/nf_tables.h).
//!
//! Registers are named as nft names them, so that its own listing recognises what it reads.

mod limit;
mod reject;

use std::net::IpAddr;

use denizen_netlink::Writer;
use nix::libc;

use self::limit::limit_data;
use self::reject::reject_data;
use crate::bytes::Key;
use crate::family::TableFamily;
use crate::field::{Field, Load};
use crate::lookup::{Lookup, prefix_mask};
use crate::statement::{Assigned, Operation, Statement, Update, Variable, Verdict};
use denizen_packet::Family;

// Attribute numbers, in the order of the kernel's enums.
const EXPR_NAME: u16 = 1;
const EXPR_DATA: u16 = 2;
const LIST_ELEM: u16 = 1;
const DATA_VALUE: u16 = 1;
const DATA_VERDICT: u16 = 2;
const VERDICT_CODE: u16 = 1;
const VERDICT_CHAIN: u16 = 2;

pub(crate) const VERDICT_REGISTER: u32 = 0;

/// NFT_META_NFTRACE.
pub(crate) const NFTRACE: u32 = 12;

const CMP_EQ: u32 = 0;
const CMP_NEQ: u32 = 1;
const CMP_LTE: u32 = 3;
const CMP_GTE: u32 = 5;

/// Writes a rule's statements as expressions into an open list.
pub(crate) fn statements(writer: &mut Writer, family: TableFamily, statements: &[Statement]) {
    let mut out = Expressions { writer, family, frame: None };
    for statement in statements {
        out.statement(statement);
        if let Statement::Equals(Field::FrameType, value) = statement {
            out.frame = Some(*value);
        }
    }
}

/// Writes a verdict that goes to a chain, as the value of a map's element.
pub(crate) fn goto_data(writer: &mut Writer, kind: u16, chain: &str) {
    let data = writer.begin(kind);
    verdict(writer, libc::NFT_GOTO, Some(chain));
    writer.end(data);
}

fn verdict(writer: &mut Writer, code: i32, chain: Option<&str>) {
    let open = writer.begin(DATA_VERDICT);
    writer.put_u32(VERDICT_CODE, code as u32);
    if let Some(chain) = chain {
        writer.put_str(VERDICT_CHAIN, chain);
    }
    writer.end(open);
}

/// nft's name of the 32-bit register `word`: the old 128-bit registers where one begins there.
fn register(word: u32) -> u32 {
    if word.is_multiple_of(4) { 1 + word / 4 } else { 8 + word }
}

/// An expression of which each element of a set gets its own copy (`NFTA_DYNSET_EXPR`).
fn put_of_element(w: &mut Writer, name: &str, fill: impl FnOnce(&mut Writer)) {
    const DYNSET_EXPRESSION: u16 = 7;
    let expression = w.begin(DYNSET_EXPRESSION);
    w.put_str(EXPR_NAME, name);
    let data = w.begin(EXPR_DATA);
    fill(w);
    w.end(data);
    w.end(expression);
}

/// Nothing is counted yet.
fn counter_data(w: &mut Writer) {
    w.put(1, &0_u64.to_be_bytes());
    w.put(2, &0_u64.to_be_bytes());
}

struct Expressions<'a> {
    writer: &'a mut Writer,
    family: TableFamily,
    /// The EtherType that the rule requires of the frame's own header. What the frame carries is
    /// then known, and not compared again.
    frame: Option<Key>,
}

impl Expressions<'_> {
    fn statement(&mut self, statement: &Statement) {
        match statement {
            Statement::Equals(field, value) => self.compare_field(*field, &[(CMP_EQ, value)]),
            Statement::NotEquals(field, value) => self.compare_field(*field, &[(CMP_NEQ, value)]),
            Statement::Between(field, first, last) => {
                self.compare_field(*field, &[(CMP_GTE, first), (CMP_LTE, last)]);
            }
            Statement::BeginsWith(field, prefix) => {
                self.load(*field, 0);
                self.compare(CMP_EQ, prefix.as_bytes());
            }
            Statement::Within(field, network, prefix) => self.within(*field, *network, *prefix),
            Statement::Bits { field, mask, equal, value } => {
                self.load(*field, 0);
                self.bitwise(0, &field.number(*mask), &field.number(0));
                self.compare(if *equal { CMP_EQ } else { CMP_NEQ }, &field.number(*value));
            }
            Statement::In(lookup) => {
                self.depend(&lookup.key);
                self.find(lookup, None);
            }
            Statement::NotIn(lookup) => self.unless(lookup),
            Statement::Xtables { name, revision, info } => self.expression("match", |w| {
                w.put_str(1, name);
                w.put_u32(2, *revision);
                w.put(3, info);
            }),
            Statement::Assign(variable, to) => self.assign(*variable, to),
            Statement::VerdictMap(lookup) => self.find(lookup, Some(VERDICT_REGISTER)),
            Statement::Dnat(version, lookup) => self.translate(*version, lookup),
            Statement::Update(update) => self.update(update),
            Statement::Masquerade => {
                const FULLY_RANDOM: u32 = 1 << 4;
                self.expression("masq", |w| w.put_u32(1, FULLY_RANDOM));
            }
            Statement::Redirect(port) => {
                self.set_register(&port.to_be_bytes());
                self.expression("redir", |w| w.put_u32(1, register(0)));
            }
            Statement::Counter => self.expression("counter", counter_data),
            Statement::Limit(limit) => self.expression("limit", |w| limit_data(w, *limit)),
            Statement::Trace => self.trace(),
            Statement::Reject(reject) => {
                let family = self.family;
                self.expression("reject", |w| reject_data(w, family, *reject));
            }
            Statement::Verdict(verdict) => self.decide(verdict),
        }
    }

    /// Adds the comparisons that make sure that a packet has these fields, as nft does: in a
    /// bridge's table and in one of both versions, that it is of the address's version; everywhere,
    /// that it is an ARP or ICMPv6 message, for fields of such messages.
    fn depend(&mut self, key: &[Field]) {
        let version = key.iter().find_map(|field| field.address());
        match (self.family, version) {
            (TableFamily::Bridge, Some(version)) => self.carries(version.ether_type()),
            (TableFamily::Inet, Some(version)) => self.statement(&Statement::is_of(version)),
            (TableFamily::Ip | TableFamily::Ip6 | TableFamily::Arp, _) | (_, None) => {}
        }
        if key.contains(&Field::ArpSender) || key.contains(&Field::ArpSenderEther) {
            self.carries(Field::ARP);
        }
        if key.contains(&Field::Icmpv6Type) {
            let protocol = Key::EMPTY.byte(libc::IPPROTO_ICMPV6 as u8);
            self.statement(&Statement::Equals(Field::Protocol, protocol));
        }
    }

    /// Compares the EtherType of what the frame carries, unless the rule has compared the frame's
    /// own.
    fn carries(&mut self, ether_type: u16) {
        let value = Key::EMPTY.port(ether_type);
        if self.frame != Some(value) {
            self.statement(&Statement::Equals(Field::EtherType, value));
        }
    }

    /// Compares a field with values.
    fn compare_field(&mut self, field: Field, with: &[(u32, &Key)]) {
        self.depend(&[field]);
        self.load(field, 0);
        for (operator, value) in with {
            let value = value.as_bytes();
            self.compare(*operator, &value[..field.size().min(value.len())]);
        }
    }

    /// If the prefix ends at a byte boundary, only its bytes are loaded and compared. Otherwise the
    /// whole address is masked and compared.
    fn within(&mut self, field: Field, network: IpAddr, prefix: u8) {
        // In a bridge's table the client compares the version itself.
        if self.family == TableFamily::Inet {
            self.depend(&[field]);
        }
        let network = Key::EMPTY.address(network).as_bytes().to_vec();
        let bits = usize::from(prefix);
        if bits.is_multiple_of(8) && bits > 0 {
            self.load_bytes(field, bits / 8, 0);
            return self.compare(CMP_EQ, &network[..bits / 8]);
        }
        let mask = prefix_mask(prefix, network.len());
        self.load(field, 0);
        self.bitwise(0, &mask, &vec![0; network.len()]);
        self.compare(CMP_EQ, &network);
    }

    fn assign(&mut self, variable: Variable, to: &Assigned) {
        let field = Field::from(variable);
        match to {
            Assigned::Zero => self.set_register(&0_u32.to_ne_bytes()),
            Assigned::And(bits) => {
                self.load(field, 0);
                self.bits(0, *bits, 0);
            }
            Assigned::Or(bits) => {
                self.load(field, 0);
                self.bits(0, !bits, *bits);
            }
            Assigned::Found(lookup) => self.find(lookup, Some(register(0))),
        }
        self.store(variable);
    }

    fn translate(&mut self, version: Family, lookup: &Lookup) {
        self.find(lookup, Some(register(0)));
        self.expression("nat", |w| {
            const DESTINATION: u32 = 1;
            w.put_u32(1, DESTINATION);
            w.put_u32(2, u32::from(TableFamily::from(version).number()));
            w.put_u32(3, register(0));
            w.put_u32(5, register(Field::Destination(version).words()));
        });
    }

    /// Loads a key's fields into consecutive registers.
    fn load_key(&mut self, lookup: &Lookup) {
        let mut word = 0;
        for field in &lookup.key {
            self.load(*field, word);
            if let Some(prefix) = lookup.prefix.filter(|prefix| prefix.field == *field) {
                self.bitwise(word, &prefix.mask(), &prefix.mark());
            }
            word += field.words();
        }
    }

    fn find(&mut self, lookup: &Lookup, destination: Option<u32>) {
        self.load_key(lookup);
        self.expression("lookup", |w| {
            w.put_str(1, lookup.set);
            w.put_u32(2, register(0));
            if let Some(destination) = destination {
                w.put_u32(3, destination);
            }
        });
    }

    fn unless(&mut self, lookup: &Lookup) {
        const NFT_LOOKUP_F_INV: u32 = 1;
        self.load_key(lookup);
        self.expression("lookup", |w| {
            w.put_str(1, lookup.set);
            w.put_u32(2, register(0));
            w.put_u32(5, NFT_LOOKUP_F_INV);
        });
    }

    fn update(&mut self, update: &Update) {
        // `enum nft_dynset_ops`.
        const ADD: u32 = 0;
        const UPDATE: u32 = 1;
        const DELETE: u32 = 2;
        let mut word = 0;
        for (field, bits) in &update.key {
            self.load(*field, word);
            if let Some(bits) = bits {
                self.bitwise(word, &field.number(*bits), &field.number(0));
            }
            word += field.words();
        }
        // The data's register lies behind the key. The one that nft would choose lies within an
        // IPv6 key.
        let data = update.data.map(|field| (field, word.next_multiple_of(4)));
        if let Some((field, word)) = data {
            self.load(field, word);
        }
        let (operation, seconds) = match update.operation {
            Operation::Update { seconds, .. } => (UPDATE, Some(seconds)),
            Operation::Count { seconds, is_renewed: false } => (ADD, Some(seconds)),
            Operation::Count { seconds, is_renewed: true } => (UPDATE, Some(seconds)),
            Operation::Delete => (DELETE, None),
        };
        self.expression("dynset", |w| {
            w.put_str(1, update.set);
            w.put_u32(3, operation);
            w.put_u32(4, register(0));
            if let Some((_, word)) = data {
                w.put_u32(5, register(word));
            }
            if let Some(seconds) = seconds {
                w.put(6, &(u64::from(seconds) * 1000).to_be_bytes());
            }
            match update.operation {
                Operation::Update { limit: Some(limit), .. } => {
                    put_of_element(w, "limit", |w| limit_data(w, limit));
                }
                Operation::Count { .. } => put_of_element(w, "counter", counter_data),
                Operation::Update { limit: None, .. } | Operation::Delete => {}
            }
        });
    }

    fn store(&mut self, variable: Variable) {
        let (name, key, source) = match variable {
            Variable::Priority => ("meta", 2, 3),
            Variable::Mark => ("meta", 3, 3),
            Variable::ConnectionMark => ("ct", 3, 4),
        };
        self.expression(name, |w| {
            w.put_u32(2, key);
            w.put_u32(source, register(0));
        });
    }

    fn trace(&mut self) {
        self.set_register(&[1]);
        self.expression("meta", |w| {
            w.put_u32(2, NFTRACE);
            w.put_u32(3, register(0));
        });
    }

    fn set_register(&mut self, value: &[u8]) {
        self.expression("immediate", |w| {
            w.put_u32(1, register(0));
            let data = w.begin(2);
            w.put(DATA_VALUE, value);
            w.end(data);
        });
    }

    /// `field & mask ^ flip`, in the register `word`.
    fn bits(&mut self, word: u32, mask: u32, flip: u32) {
        self.bitwise(word, &mask.to_ne_bytes(), &flip.to_ne_bytes());
    }

    fn bitwise(&mut self, word: u32, mask: &[u8], flip: &[u8]) {
        self.expression("bitwise", |w| {
            w.put_u32(1, register(word));
            w.put_u32(2, register(word));
            w.put_u32(3, mask.len() as u32);
            for (kind, value) in [(4, mask), (5, flip)] {
                let data = w.begin(kind);
                w.put(DATA_VALUE, value);
                w.end(data);
            }
        });
    }

    fn load(&mut self, field: Field, word: u32) {
        self.load_bytes(field, field.size(), word);
    }

    /// Loads a field, or the first `length` bytes of one that is in the packet.
    fn load_bytes(&mut self, field: Field, length: usize, word: u32) {
        match field.load() {
            Load::Meta(key) => self.expression("meta", |w| {
                w.put_u32(2, key);
                w.put_u32(1, register(word));
            }),
            Load::Connection(key, direction) => self.expression("ct", |w| {
                w.put_u32(1, register(word));
                w.put_u32(2, key);
                direction.iter().for_each(|direction| w.put(3, &[*direction]));
            }),
            Load::Payload(base, offset) => self.expression("payload", |w| {
                w.put_u32(1, register(word));
                w.put_u32(2, base);
                w.put_u32(3, offset);
                w.put_u32(4, length as u32);
            }),
            Load::Route(result, flags) => self.expression("fib", |w| {
                w.put_u32(1, register(word));
                w.put_u32(2, result);
                w.put_u32(3, flags);
            }),
            Load::Random(below) => self.expression("numgen", |w| {
                const RANDOM: u32 = 1;
                w.put_u32(1, register(word));
                w.put_u32(2, below);
                w.put_u32(3, RANDOM);
                w.put_u32(4, 0);
            }),
        }
    }

    fn compare(&mut self, operator: u32, value: &[u8]) {
        self.expression("cmp", |w| {
            w.put_u32(1, register(0));
            w.put_u32(2, operator);
            let data = w.begin(3);
            w.put(DATA_VALUE, value);
            w.end(data);
        });
    }

    fn decide(&mut self, wanted: &Verdict) {
        let (code, chain) = match wanted {
            Verdict::Accept => (libc::NF_ACCEPT, None),
            Verdict::Drop => (libc::NF_DROP, None),
            Verdict::Return => (libc::NFT_RETURN, None),
            Verdict::Jump(chain) => (libc::NFT_JUMP, Some(&**chain)),
            Verdict::Goto(chain) => (libc::NFT_GOTO, Some(&**chain)),
        };
        self.expression("immediate", |w| {
            w.put_u32(1, VERDICT_REGISTER);
            let data = w.begin(2);
            verdict(w, code, chain);
            w.end(data);
        });
    }

    fn expression(&mut self, name: &str, data: impl FnOnce(&mut Writer)) {
        let element = self.writer.begin(LIST_ELEM);
        self.writer.put_str(EXPR_NAME, name);
        let open = self.writer.begin(EXPR_DATA);
        data(self.writer);
        self.writer.end(open);
        self.writer.end(element);
    }
}
