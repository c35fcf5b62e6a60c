//! What another firewall's chain in the forward hook does to packets that its rules do not expect.
//! Pure.

use std::collections::BTreeMap;

/// What a rule does to the packets that it matches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RuleEffect {
    /// Continues with the next rule.
    Nothing,
    /// Lets them through.
    Accept,
    /// Drops or refuses them.
    Drop,
    /// Returns to the chain that jumped here.
    Return,
    /// To a chain, and back.
    Jump(String),
    /// To a chain, not back.
    Goto(String),
    /// The rule alone does not show it: a map of verdicts, a queue to a program.
    Unknown,
}

/// A rule, as far as it matters here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// It matches only some packets. Which ones does not matter here.
    pub conditional: bool,
    pub act: RuleEffect,
    /// Its handle, if it is one of denizen's rules.
    pub own: Option<u64>,
}

/// The rules of a table's chains, by the chain's name.
pub type Chains = BTreeMap<String, Vec<Rule>>;

/// What happens to a packet that no rule of the chain expects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DefaultFate {
    /// It is let through.
    Passes,
    /// It is dropped.
    Drops {
        /// No rule lets anything else through either.
        all: bool,
    },
}

/// How a walk through a chain ends for a packet that no rule expects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WalkEnd {
    Accepted,
    Dropped,
    Returned,
}

/// Follows the base chain `base`. Denizen's own rules in it do not count.
pub fn filter(chains: &Chains, base: &str, policy_drops: bool) -> DefaultFate {
    let mut walk = Walk { chains, accepts: false };
    let dropped = match walk.through(base, 0) {
        WalkEnd::Accepted => false,
        WalkEnd::Dropped => true,
        WalkEnd::Returned => policy_drops,
    };
    if dropped { DefaultFate::Drops { all: !walk.accepts } } else { DefaultFate::Passes }
}

struct Walk<'a> {
    chains: &'a Chains,
    /// Some rule so far may let packets through.
    accepts: bool,
}

impl Walk<'_> {
    fn through(&mut self, chain: &str, depth: usize) -> WalkEnd {
        // The kernel's own limit on jumps (NFT_JUMP_STACK_SIZE).
        const DEEPEST: usize = 16;
        let rules = self.chains.get(chain).filter(|_| depth < DEEPEST);
        let foreign = rules.into_iter().flatten().filter(|rule| rule.own.is_none());
        for rule in foreign {
            if let Some(end) = self.past(rule, depth) {
                return end;
            }
        }
        WalkEnd::Returned
    }

    /// Where the walk ends at this rule, if it does.
    fn past(&mut self, rule: &Rule, depth: usize) -> Option<WalkEnd> {
        let end = match &rule.act {
            RuleEffect::Nothing => return None,
            RuleEffect::Unknown => {
                self.accepts = true;
                return None;
            }
            RuleEffect::Accept => WalkEnd::Accepted,
            RuleEffect::Drop => WalkEnd::Dropped,
            RuleEffect::Return => WalkEnd::Returned,
            RuleEffect::Jump(to) => match self.through(to, depth + 1) {
                WalkEnd::Returned => return None,
                end @ (WalkEnd::Accepted | WalkEnd::Dropped) => end,
            },
            RuleEffect::Goto(to) => self.through(to, depth + 1),
        };
        if rule.conditional {
            // A rule that returns early avoids a later drop.
            self.accepts |= end != WalkEnd::Dropped;
            return None;
        }
        Some(end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(conditional: bool, act: RuleEffect) -> Rule {
        Rule { conditional, act, own: None }
    }

    #[test]
    fn chains_are_judged_by_what_they_do_to_strangers() {
        use RuleEffect::{Accept, Drop, Goto, Jump, Nothing, Return, Unknown};
        let always = |act| rule(false, act);
        let some = |act| rule(true, act);
        let to = |act: fn(String) -> RuleEffect| act("other".to_owned());
        let ours = Rule { own: Some(7), ..always(Accept) };
        let drops = |all| DefaultFate::Drops { all };
        let passes = DefaultFate::Passes;
        // Rules of the base chain, of the other chain, and the expected fate with policy drop and
        // with policy accept.
        type ChainCase = (&'static str, Vec<Rule>, Vec<Rule>, [DefaultFate; 2]);
        let cases: Vec<ChainCase> = vec![
            ("empty", vec![], vec![], [drops(true), passes]),
            ("counts", vec![always(Nothing)], vec![], [drops(true), passes]),
            ("accepts some", vec![some(Accept)], vec![], [drops(false), passes]),
            ("accepts all", vec![always(Accept)], vec![], [passes, passes]),
            ("refuses at the end", vec![some(Accept), always(Drop)], vec![], [drops(false); 2]),
            ("refuses all", vec![always(Drop)], vec![], [drops(true); 2]),
            ("refuses some", vec![some(Drop)], vec![], [drops(true), passes]),
            ("a map", vec![some(Unknown)], vec![], [drops(false), passes]),
            ("jumps to a drop", vec![always(to(Jump))], vec![always(Drop)], [drops(true); 2]),
            ("jumps to an accept", vec![always(to(Jump))], vec![always(Accept)], [passes; 2]),
            (
                "jumps and returns",
                vec![always(to(Jump))],
                vec![always(Return), always(Drop)],
                [drops(true), passes],
            ),
            ("some go to a drop", vec![some(to(Goto))], vec![always(Drop)], [drops(true), passes]),
            (
                "some jump to an accept",
                vec![some(to(Jump))],
                vec![always(Accept)],
                [drops(false), passes],
            ),
            ("all go away", vec![always(to(Goto)), always(Accept)], vec![], [drops(true), passes]),
            (
                "round in a circle",
                vec![always(to(Jump))],
                vec![always(to(Jump))],
                [drops(true), passes],
            ),
            ("ours does not count", vec![ours], vec![], [drops(true), passes]),
        ];
        for (name, base, other, expected) in cases {
            let chains = Chains::from([("forward".to_owned(), base), ("other".to_owned(), other)]);
            let found = [true, false].map(|policy| filter(&chains, "forward", policy));
            assert_eq!(found, expected, "{name}");
        }
    }
}
