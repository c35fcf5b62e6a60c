//! Denizen's rules in somebody else's chain, as the kernel's expressions.
//!
//! In a chain that iptables made they are written as iptables writes them (xtables matches): it
//! refuses to show or change a table with expressions that it does not know.

use nix::libc;

use super::OWN;
use crate::backend::why::Why;
use crate::plan::MarkBit;
use denizen_netlink::Writer;

/// Whose language a chain is written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Language {
    /// nft's.
    Nft,
    /// iptables-nft's.
    Xtables,
}

/// What the rules ask, in the order in which they stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asks {
    /// The packet belongs to a connection that was let in, or to an error about one.
    Answers,
    /// The connection was forwarded to a service's endpoint.
    Services(MarkBit),
}

impl Asks {
    fn why(self) -> Why {
        match self {
            Self::Answers => Why::AdmitAnswers,
            Self::Services(_) => Why::AdmitServices,
        }
    }

    /// What stands beside the rule, by which it is known to be ours.
    pub fn comment(self) -> String {
        format!("{OWN}{}", self.why().text())
    }
}

// ESTABLISHED and RELATED (`NF_CT_STATE_BIT`); xt_conntrack counts them the same way.
const ANSWERS: u32 = 0b110;

/// Writes a rule's expressions into an open list.
pub fn write(w: &mut Writer, language: Language, asks: Asks) {
    match (language, asks) {
        (Language::Nft, Asks::Answers) => connection(w, CT_STATE, ANSWERS, CMP_NEQ, 0),
        (Language::Nft, Asks::Services(bit)) => {
            connection(w, CT_MARK, bit.mask(), CMP_EQ, bit.mask())
        }
        (Language::Xtables, Asks::Answers) => xt_match(w, "conntrack", 3, &xt_conntrack()),
        (Language::Xtables, Asks::Services(bit)) => xt_match(w, "connmark", 1, &xt_connmark(bit)),
    }
    expression(w, "counter", |w| {
        w.put(1, &0_u64.to_be_bytes());
        w.put(2, &0_u64.to_be_bytes());
    });
    expression(w, "immediate", |w| {
        const VERDICT_REGISTER: u32 = 0;
        w.put_u32(1, VERDICT_REGISTER);
        let data = w.begin(2);
        let verdict = w.begin(2);
        w.put_u32(1, libc::NF_ACCEPT as u32);
        w.end(verdict);
        w.end(data);
    });
}

const CT_STATE: u32 = 0;
const CT_MARK: u32 = 3;
const CMP_EQ: u32 = 0;
const CMP_NEQ: u32 = 1;

/// Compares some bits of what is known of the connection.
fn connection(w: &mut Writer, key: u32, mask: u32, operator: u32, value: u32) {
    const REGISTER: u32 = 1;
    let data = |w: &mut Writer, kind, value: u32| {
        let open = w.begin(kind);
        w.put(1, &value.to_ne_bytes());
        w.end(open);
    };
    expression(w, "ct", |w| {
        w.put_u32(1, REGISTER);
        w.put_u32(2, key);
    });
    expression(w, "bitwise", |w| {
        w.put_u32(1, REGISTER);
        w.put_u32(2, REGISTER);
        w.put_u32(3, 4);
        data(w, 4, mask);
        data(w, 5, 0);
    });
    expression(w, "cmp", |w| {
        w.put_u32(1, REGISTER);
        w.put_u32(2, operator);
        data(w, 3, value);
    });
}

fn xt_match(w: &mut Writer, name: &str, revision: u32, info: &[u8]) {
    expression(w, "match", |w| {
        w.put_str(1, name);
        w.put_u32(2, revision);
        w.put(3, info);
    });
}

/// `struct xt_conntrack_mtinfo3`, XT_ALIGNed: all zero but what asks for the state.
fn xt_conntrack() -> [u8; 168] {
    const MATCH_FLAGS: usize = 146;
    const STATE_MASK: usize = 150;
    const XT_CONNTRACK_STATE: u16 = 1;
    let mut info = [0; 168];
    info[MATCH_FLAGS..MATCH_FLAGS + 2].copy_from_slice(&XT_CONNTRACK_STATE.to_ne_bytes());
    info[STATE_MASK..STATE_MASK + 2].copy_from_slice(&(ANSWERS as u16).to_ne_bytes());
    info
}

/// `struct xt_connmark_mtinfo1`, XT_ALIGNed: mark, mask, not inverted.
fn xt_connmark(bit: MarkBit) -> [u8; 16] {
    let mut info = [0; 16];
    info[..4].copy_from_slice(&bit.mask().to_ne_bytes());
    info[4..8].copy_from_slice(&bit.mask().to_ne_bytes());
    info
}

fn expression(w: &mut Writer, name: &str, data: impl FnOnce(&mut Writer)) {
    let element = w.begin(1);
    w.put_str(1, name);
    let open = w.begin(2);
    data(w);
    w.end(open);
    w.end(element);
}
