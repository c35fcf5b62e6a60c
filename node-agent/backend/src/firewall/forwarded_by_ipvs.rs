//! The chains for connections that IPVS forwards to an endpoint on another node.
//!
//! IPVS takes a packet in the input hook, translates it, and sends it on through the output hook,
//! where the input interface is not known. The forward hook sees only the answers.

use super::program::{POLICY_PRIORITY, Program, forbidden};
use super::rule::{base, has_any, rule, to};
use denizen_nft::{Assigned, Chain, Field, Hook, Rule, Statement, Variable, Verdict};
use denizen_plan::MarkBit;

/// Right before IPVS takes a packet (`NF_IP_PRI_NAT_SRC - 1`, 99): nobody changes the connection's
/// mark in between.
const BEFORE_IPVS: i32 = 97;
/// After IPVS, and after the translation of sources (`NF_IP_PRI_NAT_SRC`, 100): packets here end on
/// this node, and already have the destination that IPVS gave them.
const BEHIND_IPVS: i32 = 101;

/// NEW and ESTABLISHED (`NF_CT_STATE_BIT`), and what is not tracked (`NF_CT_STATE_UNTRACKED_BIT`).
const NEW: u32 = 0b1000;
const ESTABLISHED: u32 = 0b0010;
const UNTRACKED: u32 = 0b100_0000;

const FORWARDED_BY_IPVS: u32 = MarkBit::FORWARDED_BY_IPVS.mask();

/// The chains. The first two find out which connections IPVS forwards; the third one judges
/// them. `to_node`: rules about what pods send to their own node.
pub(super) fn chains(program: &Program, to_node: Vec<Rule>) -> [Chain; 3] {
    let is_new = || has_any(Field::ConnectionState, NEW);
    let assign = |assigned| Statement::Assign(Variable::ConnectionMark, assigned);
    let mark = rule(
        "it is not known yet whether IPVS forwards it",
        [is_new(), assign(Assigned::Or(FORWARDED_BY_IPVS))],
    );
    let clear = rule("it ends on this node", [is_new(), assign(Assigned::And(!FORWARDED_BY_IPVS))]);
    [
        base("before-ipvs", Hook::Input, BEFORE_IPVS, "what IPVS may take", vec![mark]),
        base(
            "input",
            Hook::Input,
            BEHIND_IPVS,
            "what ends on this node, behind IPVS",
            [clear].into_iter().chain(to_node).collect(),
        ),
        output(program),
    ]
}

/// Connections from before the first policy do not have [`MarkBit::FORWARDED_BY_IPVS`] in their
/// mark, and may be forbidden too: the first rule does not test that bit.
///
/// The kernel's own reset, which ends a forbidden connection, belongs to that connection, too. The
/// first rule does not match it: its state is RELATED, as no packet from the connection's ends has
/// it.
fn output(program: &Program) -> Chain {
    let own = Statement::Bits {
        field: Field::ConnectionMark,
        mask: FORWARDED_BY_IPVS,
        equal: true,
        value: 0,
    };
    let is_forbidden = vec![
        has_any(Field::ConnectionMark, MarkBit::FORBIDDEN.mask()),
        has_any(Field::ConnectionState, NEW | ESTABLISHED),
    ];
    let mut rules = vec![forbidden(is_forbidden)];
    rules.extend(program.known());
    rules.extend([
        // An untracked packet has no connection, and so no mark.
        rule(
            "the node's own: neighbour discovery, and what the host exempts from tracking",
            [has_any(Field::ConnectionState, UNTRACKED), to(Verdict::Return)],
        ),
        rule("the node's own: it always reaches its pods", [own, to(Verdict::Return)]),
    ]);
    rules.extend(program.judged());
    let why = "what IPVS forwards, with the endpoint as its destination";
    base("output", Hook::Output, POLICY_PRIORITY, why, rules)
}
