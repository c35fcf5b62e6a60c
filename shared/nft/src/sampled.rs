//! Rules that make the kernel report dropped packets while a command watches. Pure.

use crate::chain::Chain;
use crate::rule::Rule;
use crate::statement::{Limit, Statement, Verdict};

/// At most this many packets of one rule are shown: for each, the kernel writes two messages.
const LIMIT: Limit = Limit { burst: 5, hourly: 5 * 3600 };

/// The same chains with a rule before each one that drops or refuses packets. The added rule makes
/// the kernel report the packet ([`Statement::Trace`]), and then what becomes of it.
///
/// Such rules exist only while a command watches: they cost packets time, and as long as any rule
/// in the kernel traces, every chain of the node checks for each packet whether it is traced.
pub fn sampled(chains: Vec<Chain>) -> Vec<Chain> {
    chains
        .into_iter()
        .map(|chain| {
            let rules = chain.rules.into_iter();
            let rules = rules.flat_map(|rule| sample_of(&rule).into_iter().chain([rule])).collect();
            Chain { rules, ..chain }
        })
        .collect()
}

fn sample_of(rule: &Rule) -> Option<Rule> {
    let drops =
        matches!(rule.statements.last()?, Statement::Verdict(Verdict::Drop) | Statement::Reject(_));
    let matches = rule.statements.iter().filter(|statement| is_match(statement)).cloned();
    let sample = [Statement::Limit(LIMIT), Statement::Trace];
    drops.then(|| Rule { statements: matches.chain(sample).collect(), why: rule.why })
}

/// Whether the statement only matches packets, and changes nothing.
fn is_match(statement: &Statement) -> bool {
    match statement {
        Statement::Equals(..)
        | Statement::NotEquals(..)
        | Statement::Between(..)
        | Statement::BeginsWith(..)
        | Statement::Within(..)
        | Statement::Bits { .. }
        | Statement::In(_)
        | Statement::NotIn(_)
        | Statement::Xtables { .. } => true,
        Statement::Assign(..)
        | Statement::VerdictMap(_)
        | Statement::Dnat(..)
        | Statement::Update(_)
        | Statement::Masquerade
        | Statement::Redirect(_)
        | Statement::Counter
        | Statement::Limit(_)
        | Statement::Trace
        | Statement::Reject(_)
        | Statement::Verdict(_) => false,
    }
}
