//! Rules as the kernel's expressions (`struct nft_expr`; linux/netfilter/nf_tables.h).
//!
//! Registers are named as nft names them, so that its own listing recognises what it reads.

mod address;
mod client;

use super::element::Key;
use super::name::{ChainName, SetName, TableFamily};
use super::rule::{Action, ENDPOINT_BITS, Match, Rule, SCRATCH, SCRATCH_BITS};
use super::set::{Data, Part};
use crate::model::Family;
use denizen_netlink::Writer;

// Attribute numbers, in the order of the kernel's enums.
const EXPR_NAME: u16 = 1;
const EXPR_DATA: u16 = 2;
const LIST_ELEM: u16 = 1;
const DATA_VALUE: u16 = 1;
const DATA_VERDICT: u16 = 2;
const VERDICT_CODE: u16 = 1;
const VERDICT_CHAIN: u16 = 2;

const VERDICT_REGISTER: u32 = 0;
const NF_DROP: i32 = 0;
const NFT_JUMP: i32 = -3;
const NFT_GOTO: i32 = -4;
const NFT_RETURN: i32 = -5;

const CMP_EQ: u32 = 0;
const CMP_NEQ: u32 = 1;

// enum ip_conntrack_status
const IPS_CONFIRMED: u32 = 1 << 3;
const IPS_DST_NAT: u32 = 1 << 5;

const META_PRIORITY: u32 = 2;
const META_PROTOCOL: u32 = 1;
const META_MARK: u32 = 3;
const META_IIFNAME: u32 = 6;
const META_L4PROTO: u32 = 16;
const META_IIFKIND: u32 = 26;

const NETWORK_HEADER: u32 = 1;
const TRANSPORT_HEADER: u32 = 2;

/// Writes a rule's expressions into an open list.
pub fn rule(writer: &mut Writer, table_family: TableFamily, rule: &Rule) {
    let mut out = Expressions { writer, table_family };
    for wanted in &rule.matches {
        out.matches(wanted);
    }
    for action in &rule.actions {
        out.action(action);
    }
}

/// Writes a verdict that goes to a chain, as the value of a map's element.
pub fn goto_data(writer: &mut Writer, kind: u16, chain: ChainName) {
    let data = writer.begin(kind);
    verdict(writer, NFT_GOTO, Some(chain));
    writer.end(data);
}

fn verdict(writer: &mut Writer, code: i32, chain: Option<ChainName>) {
    let open = writer.begin(DATA_VERDICT);
    writer.put_u32(VERDICT_CODE, code as u32);
    if let Some(chain) = chain {
        writer.put_str(VERDICT_CHAIN, &chain.to_string());
    }
    writer.end(open);
}

/// nft's name of the 32-bit register `word`: the old 128-bit registers where one begins there.
fn register(word: u32) -> u32 {
    if word.is_multiple_of(4) { 1 + word / 4 } else { 8 + word }
}

struct Expressions<'a> {
    writer: &'a mut Writer,
    table_family: TableFamily,
}

impl Expressions<'_> {
    fn matches(&mut self, wanted: &Match) {
        match wanted {
            Match::In(set) => {
                if self.table_family == TableFamily::Bridge {
                    self.carries(set.family(self.table_family));
                }
                self.load_key(*set, 0);
                self.lookup(*set, None);
            }
            Match::NotIn(set) => {
                self.load_key(*set, 0);
                self.lookup_unless(*set);
            }
            Match::Protocol(protocol) => {
                self.meta(META_L4PROTO, 0);
                self.compare(CMP_EQ, &[protocol.number()]);
            }
            Match::InputInterface(name) => {
                self.meta(META_IIFNAME, 0);
                self.compare(CMP_EQ, Key::EMPTY.interface(name).as_bytes());
            }
            Match::InputKind(kind) => {
                self.meta(META_IIFKIND, 0);
                self.compare(CMP_EQ, Key::EMPTY.interface(kind).as_bytes());
            }
            Match::Carries(family) => self.carries(*family),
            Match::InputPrefix(prefix) => {
                self.meta(META_IIFNAME, 0);
                self.compare(CMP_EQ, prefix.as_bytes());
            }
            Match::Source(range) => self.within(Part::Source, *range),
            Match::Destination(range) => self.within(Part::Destination, *range),
            Match::FirstPacket => self.status(IPS_CONFIRMED, CMP_EQ),
            Match::Translated => self.status(IPS_DST_NAT, CMP_NEQ),
            Match::Marked(bit) => self.meta_bits(META_MARK, bit.mask(), CMP_EQ, bit.mask()),
            Match::Recalled => self.meta_bits(META_PRIORITY, ENDPOINT_BITS, CMP_NEQ, 0),
            Match::Scratched => self.meta_bits(META_PRIORITY, SCRATCH_BITS, CMP_EQ, SCRATCH),
        }
    }

    /// Compares one bit of the connection's status with none.
    fn status(&mut self, bit: u32, operator: u32) {
        const CT_STATUS: u32 = 2;
        self.expression("ct", |w| {
            w.put_u32(1, register(0));
            w.put_u32(2, CT_STATUS);
        });
        self.bits(bit, 0);
        self.compare(operator, &0_u32.to_ne_bytes());
    }

    /// The family of what is in the frame, by its EtherType.
    fn carries(&mut self, family: Family) {
        let ether_type: u16 = match family {
            Family::V4 => 0x0800,
            Family::V6 => 0x86dd,
        };
        self.meta(META_PROTOCOL, 0);
        self.compare(CMP_EQ, &ether_type.to_be_bytes());
    }

    /// Compares some bits of a field.
    fn meta_bits(&mut self, key: u32, mask: u32, operator: u32, value: u32) {
        self.meta(key, 0);
        self.bits(mask, 0);
        self.compare(operator, &value.to_ne_bytes());
    }

    fn action(&mut self, action: &Action) {
        match *action {
            Action::Return => self.verdict(NFT_RETURN, None),
            Action::Jump(chain) => self.verdict(NFT_JUMP, Some(chain)),
            Action::Goto(chain) => self.verdict(NFT_GOTO, Some(chain)),
            Action::Drop => self.verdict(NF_DROP, None),
            Action::Lookup(map) => {
                self.load_key(map, 0);
                self.lookup(map, Some(VERDICT_REGISTER));
            }
            Action::Translate { endpoints, slots } => self.translate(endpoints, slots),
            Action::TranslateToNumber(endpoints) => self.translate(endpoints, 0),
            Action::Draw { numbers, slots } => {
                self.load_key(numbers, slots);
                self.lookup(numbers, Some(register(0)));
                self.store(META_PRIORITY);
            }
            Action::KeepServicePort => self.change(META_PRIORITY, !ENDPOINT_BITS, 0),
            Action::Recall(map) => {
                self.load_key(map, 0);
                self.lookup(map, Some(register(0)));
                self.store(META_PRIORITY);
            }
            Action::Remember { map, seconds } => self.remember(map, seconds),
            Action::Spend(budget) => self.spend(budget),
            Action::Forget(map) => self.forget(map),
            Action::ClearScratch => self.clear_priority(),
            Action::Mark(bit) => self.change(META_MARK, !bit.mask(), bit.mask()),
            Action::Unmark(bit) => self.change(META_MARK, !bit.mask(), 0),
            Action::Admit(bit) => self.admit(bit.mask()),
            Action::Masquerade => {
                const FULLY_RANDOM: u32 = 1 << 4;
                self.expression("masq", |w| w.put_u32(1, FULLY_RANDOM));
            }
            Action::Count => self.expression("counter", |w| {
                w.put(1, &0_u64.to_be_bytes());
                w.put(2, &0_u64.to_be_bytes());
            }),
            Action::Reset => self.reject(1, 0),
            // ICMP port unreachable; ICMPv6 port unreachable.
            Action::Unreachable => match self.table_family {
                TableFamily::Ip(Family::V6) => self.reject(0, 4),
                TableFamily::Ip(Family::V4) | TableFamily::Bridge => self.reject(0, 3),
            },
        }
    }

    fn admit(&mut self, bit: u32) {
        const CT_MARK: u32 = 3;
        self.expression("ct", |w| {
            w.put_u32(1, register(0));
            w.put_u32(2, CT_MARK);
        });
        self.bits(!bit, bit);
        self.expression("ct", |w| {
            w.put_u32(2, CT_MARK);
            w.put_u32(4, register(0));
        });
    }

    fn clear_priority(&mut self) {
        self.expression("immediate", |w| {
            w.put_u32(1, register(0));
            let data = w.begin(2);
            w.put(DATA_VALUE, &0_u32.to_ne_bytes());
            w.end(data);
        });
        self.store(META_PRIORITY);
    }

    fn translate(&mut self, endpoints: SetName, slots: u32) {
        let family = endpoints.family(self.table_family);
        let address_words = Part::Destination.words(family);
        self.load_key(endpoints, slots);
        self.lookup(endpoints, Some(register(0)));
        self.expression("nat", |w| {
            const DESTINATION: u32 = 1;
            w.put_u32(1, DESTINATION);
            w.put_u32(2, u32::from(TableFamily::Ip(family).number()));
            w.put_u32(3, register(0));
            w.put_u32(5, register(address_words));
        });
    }

    /// Loads a key's parts into consecutive registers; `slots` to draw among, where a slot is a
    /// part.
    fn load_key(&mut self, set: SetName, slots: u32) {
        let family = set.family(self.table_family);
        let mut word = 0;
        for part in set.shape().key {
            match part {
                Part::Source | Part::SourceRange | Part::Destination => {
                    self.address(family, *part, word)
                }
                Part::Scratch => self.meta(META_PRIORITY, word),
                Part::Port => self.payload(TRANSPORT_HEADER, 2, 2, word),
                Part::Protocol => self.meta(META_L4PROTO, word),
                Part::Interface => self.meta(META_IIFNAME, word),
                Part::Slot => self.expression("numgen", |w| {
                    const RANDOM: u32 = 1;
                    w.put_u32(1, register(word));
                    w.put_u32(2, slots);
                    w.put_u32(3, RANDOM);
                    w.put_u32(4, 0);
                }),
            }
            word += part.words(family);
        }
    }

    fn lookup(&mut self, set: SetName, destination: Option<u32>) {
        debug_assert_eq!(destination.is_none(), set.shape().data == Data::None);
        self.expression("lookup", |w| {
            w.put_str(1, set.as_str());
            w.put_u32(2, register(0));
            if let Some(destination) = destination {
                w.put_u32(3, destination);
            }
        });
    }

    fn lookup_unless(&mut self, set: SetName) {
        const NFT_LOOKUP_F_INV: u32 = 1;
        self.expression("lookup", |w| {
            w.put_str(1, set.as_str());
            w.put_u32(2, register(0));
            w.put_u32(5, NFT_LOOKUP_F_INV);
        });
    }

    fn change(&mut self, key: u32, keep: u32, flip: u32) {
        self.meta(key, 0);
        self.bits(keep, flip);
        self.store(key);
    }

    fn store(&mut self, key: u32) {
        self.expression("meta", |w| {
            w.put_u32(2, key);
            w.put_u32(3, register(0));
        });
    }

    fn bits(&mut self, mask: u32, flip: u32) {
        self.bitwise(&mask.to_ne_bytes(), &flip.to_ne_bytes());
    }

    fn bitwise(&mut self, mask: &[u8], flip: &[u8]) {
        self.expression("bitwise", |w| {
            w.put_u32(1, register(0));
            w.put_u32(2, register(0));
            w.put_u32(3, mask.len() as u32);
            for (kind, value) in [(4, mask), (5, flip)] {
                let data = w.begin(kind);
                w.put(DATA_VALUE, value);
                w.end(data);
            }
        });
    }

    fn meta(&mut self, key: u32, word: u32) {
        self.expression("meta", |w| {
            w.put_u32(2, key);
            w.put_u32(1, register(word));
        });
    }

    fn payload(&mut self, base: u32, offset: u32, length: usize, word: u32) {
        self.expression("payload", |w| {
            w.put_u32(1, register(word));
            w.put_u32(2, base);
            w.put_u32(3, offset);
            w.put_u32(4, length as u32);
        });
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

    fn verdict(&mut self, code: i32, chain: Option<ChainName>) {
        self.expression("immediate", |w| {
            w.put_u32(1, VERDICT_REGISTER);
            let data = w.begin(2);
            verdict(w, code, chain);
            w.end(data);
        });
    }

    fn reject(&mut self, kind: u32, code: u8) {
        self.expression("reject", |w| {
            w.put_u32(1, kind);
            w.put(2, &[code]);
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
