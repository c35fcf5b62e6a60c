//! Denizen's rules in another firewall's chain.
//!
//! In a chain that iptables made, the rules are written as iptables writes them (xtables matches):
//! iptables refuses to show or change a table with expressions that it does not know.

use super::{OWN, Passing};
use crate::why::Why;
use denizen_nft::{Field, Rule, Statement, Verdict};
use denizen_plan::MarkBit;

/// The form in which a chain's rules are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Language {
    Nft,
    /// With xtables matches, as iptables-nft does.
    Xtables,
}

// ESTABLISHED and RELATED (`NF_CT_STATE_BIT`); xt_conntrack counts them the same way.
const ANSWERS: u32 = 0b110;

/// The rules, in the order in which they are in the chain: the packet belongs to a connection that
/// was let in, or to an error about one; the connection was forwarded to a service's endpoint.
pub fn rules(language: Language, passing: Passing, admitted: MarkBit) -> Vec<Rule> {
    let (answers, services) = match language {
        Language::Nft => (nft_answers(), nft_services(admitted)),
        Language::Xtables => (
            xtables("conntrack", 3, xt_conntrack().into()),
            xtables("connmark", 1, xt_connmark(admitted).into()),
        ),
    };
    let rule = |(asks, why): (Statement, Why)| Rule {
        statements: vec![asks, Statement::Counter, Statement::Verdict(Verdict::Accept)],
        why: why.text(),
    };
    let services = (services, Why::AdmitServices);
    let wanted = match passing {
        Passing::Forward => vec![(answers, Why::AdmitAnswers), services],
        Passing::Input => vec![services],
    };
    wanted.into_iter().map(rule).collect()
}

/// The comment by which a rule is known to be ours.
pub fn comment(rule: &Rule) -> String {
    format!("{OWN}{}", rule.why)
}

fn nft_answers() -> Statement {
    Statement::Bits { field: Field::ConnectionState, mask: ANSWERS, equal: false, value: 0 }
}

fn nft_services(admitted: MarkBit) -> Statement {
    let mask = admitted.mask();
    Statement::Bits { field: Field::ConnectionMark, mask, equal: true, value: mask }
}

fn xtables(name: &'static str, revision: u32, info: Vec<u8>) -> Statement {
    Statement::Xtables { name, revision, info }
}

/// `struct xt_conntrack_mtinfo3`, XT_ALIGNed: all zero except the test of the state.
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
fn xt_connmark(admitted: MarkBit) -> [u8; 16] {
    let mut info = [0; 16];
    info[..4].copy_from_slice(&admitted.mask().to_ne_bytes());
    info[4..8].copy_from_slice(&admitted.mask().to_ne_bytes());
    info
}
