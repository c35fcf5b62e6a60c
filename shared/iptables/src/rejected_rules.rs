//! The rules that cannot be written for now: how everything else is written without them, and when
//! they are tried again. Pure.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::Bound;
use std::time::{Duration, Instant};

use super::delta::DesiredChain;
use super::probe::MissingExtensions;
pub use super::rejected_rule::RejectedKey;
use super::rejected_rule::{RejectedRule, Unwritten};
use super::{ChainId, Lines, OnRejection, Schema};

/// Rejected rules are tried again after this pause, then after twice that, up to [`LONGEST`]: an
/// operator may load the module that the kernel lacks.
const SHORTEST: Duration = Duration::from_secs(5);
const LONGEST: Duration = Duration::from_secs(300);

/// Up to this many chains are all tried again every time. If there are more, all are tried every
/// other time, and this many of them in between.
const FEW: usize = 8;

/// At most this many rejected rules are listed.
const LISTED: usize = 32;

/// The rules that are rejected now.
#[derive(Debug)]
pub struct RejectedRules {
    schema: &'static Schema,
    all: BTreeMap<RejectedKey, RejectedRule>,
    /// What this host lacks. Rules that need it are rejected without asking a program.
    missing: MissingExtensions,
    /// Changes that are not reported yet.
    news: News,
    next: Option<Instant>,
    pause: Duration,
    /// All chains were tried the last time.
    together: bool,
    /// The last chain of the last retry that did not try all chains.
    last: Option<ChainId>,
}

/// What differs from before, as text.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct News {
    /// Rules that are rejected for the first time.
    pub rejected: Vec<String>,
    /// Rules that were rejected, and are accepted now.
    pub accepted: Vec<String>,
}

impl RejectedRules {
    /// No rule is rejected yet.
    pub fn new(schema: &'static Schema) -> Self {
        Self {
            schema,
            all: BTreeMap::new(),
            missing: MissingExtensions::default(),
            news: News::default(),
            next: None,
            pause: SHORTEST,
            together: false,
            last: None,
        }
    }

    /// What can be written of a chain that should have these rules, or should be gone (`None`).
    /// Rejected rules that are not wanted any more are forgotten.
    pub fn filter(&mut self, chain: &ChainId, lines: Option<Lines>) -> DesiredChain {
        if self.all.is_empty() && self.missing.is_empty() {
            return lines.map_or(DesiredChain::Absent, DesiredChain::Rules);
        }
        let whole = (chain.clone(), None);
        let before = self.all.get(&whole);
        let Some(mut lines) = lines else {
            if before.is_some_and(|before| before.unwritten == Unwritten::Removal) {
                return DesiredChain::Rules(Lines::new());
            }
            self.all.retain(|key, _| key.0 != *chain);
            return DesiredChain::Absent;
        };
        match (self.schema.on_rejection)(chain.0, &chain.1) {
            OnRejection::KeepChain => {
                let is_same = |before: &RejectedRule| match &before.unwritten {
                    Unwritten::Chain(all) => *all == lines,
                    Unwritten::Rule(_) | Unwritten::Removal => false,
                };
                match before {
                    Some(before) if !is_same(before) => drop(self.all.remove(&whole)),
                    Some(before) if !before.is_unsupported => return DesiredChain::AsItIs,
                    Some(_) | None => {}
                }
            }
            OnRejection::OmitRule => {
                let wanted: HashSet<&String> = lines.iter().collect();
                let is_wanted =
                    |line: &Option<String>| line.as_ref().is_some_and(|line| wanted.contains(line));
                self.all.retain(|key, _| key.0 != *chain || is_wanted(&key.1));
                let of_chain =
                    self.all.iter().filter(|((id, _), it)| id == chain && !it.is_unsupported);
                let held: BTreeSet<String> =
                    of_chain.flat_map(|((_, line), _)| line.clone()).collect();
                lines.retain(|line| !held.contains(line));
            }
            OnRejection::Fail => drop(self.all.remove(&whole)),
        }
        self.supported(chain, lines)
    }

    /// What can be written of a chain with these rules, regardless of earlier rejections: all but
    /// the rules that need a missing extension.
    pub fn supported(&mut self, chain: &ChainId, mut lines: Lines) -> DesiredChain {
        if self.missing.is_empty() {
            return DesiredChain::Rules(lines);
        }
        match (self.schema.on_rejection)(chain.0, &chain.1) {
            OnRejection::KeepChain => {
                let mut reasons = lines.iter().filter_map(|line| self.missing.reason(line));
                if let Some(reason) = reasons.next().map(str::to_owned) {
                    self.add(RejectedRule::chain(chain.clone(), lines, &reason).unsupported());
                    return DesiredChain::AsItIs;
                }
            }
            OnRejection::OmitRule => {
                let mut rejected = Vec::new();
                lines.retain(|line| match self.missing.reason(line) {
                    Some(reason) => {
                        let rule = RejectedRule::rule(chain.clone(), line, reason);
                        rejected.push(rule.unsupported());
                        false
                    }
                    None => true,
                });
                rejected.into_iter().for_each(|rejected| self.add(rejected));
            }
            OnRejection::Fail => {}
        }
        DesiredChain::Rules(lines)
    }

    fn add(&mut self, rejected: RejectedRule) {
        let text = rejected.text();
        if self.all.insert(rejected.key(), rejected).is_none() {
            self.news.rejected.push(text);
        }
    }

    /// Takes in what this host lacks. Returns whether that has changed. Rules whose extension is no
    /// longer missing stay rejected until they are written.
    pub fn probed(&mut self, missing: MissingExtensions) -> bool {
        let before = std::mem::replace(&mut self.missing, missing);
        before != self.missing
    }

    /// Whether this host lacks an extension, which may be there later.
    pub fn is_any_missing(&self) -> bool {
        !self.missing.is_empty()
    }

    /// Takes in the rules that were rejected, at `at`, by a write in which the chains `tried` were
    /// tried again.
    pub fn learn(&mut self, tried: &BTreeSet<ChainId>, rejected: Vec<RejectedRule>, at: Instant) {
        let chains: BTreeSet<ChainId> = rejected.iter().map(|rule| rule.chain.clone()).collect();
        let missing = &self.missing;
        let is_tried = |rule: &RejectedRule| match rule.is_unsupported {
            true => !rule.needs(missing),
            false => tried.contains(&rule.chain),
        };
        let is_replaced = |key: &RejectedKey| key.1.is_none() && chains.contains(&key.0);
        let before = self.all.extract_if(.., |key, rule| is_tried(rule) || is_replaced(key));
        let mut before: BTreeMap<RejectedKey, RejectedRule> = before.collect();
        for rejected in rejected {
            if before.remove(&rejected.key()).is_none() {
                self.news.rejected.push(rejected.text());
            }
            self.all.insert(rejected.key(), rejected);
        }
        let accepted = before.values().filter(|rule| is_tried(rule));
        self.news.accepted.extend(accepted.map(RejectedRule::text));
        if !tried.is_empty() {
            self.next = Some(at + self.pause);
        }
    }

    /// What is new since this was last asked. After news, rejected rules are soon tried again.
    pub fn take_news(&mut self, at: Instant) -> News {
        let News { rejected, accepted } = std::mem::take(&mut self.news);
        if !rejected.is_empty() || !accepted.is_empty() {
            self.pause = SHORTEST;
            self.next = Some(at + self.pause);
        }
        News { rejected: shortened(rejected), accepted: shortened(accepted) }
    }

    /// When rejected rules are to be tried again.
    pub fn next(&self) -> Option<Instant> {
        self.next.filter(|_| !self.all.is_empty())
    }

    /// The chains to be tried again now, at `at`.
    pub fn due(&mut self, at: Instant) -> BTreeSet<ChainId> {
        self.pause = (self.pause * 2).min(LONGEST);
        self.next = Some(at + self.pause);
        let written = self.all.iter().filter(|(_, rejected)| !rejected.is_unsupported);
        let chains: BTreeSet<ChainId> = written.map(|((chain, _), _)| chain.clone()).collect();
        self.together = !self.together;
        if self.together || chains.len() <= FEW {
            return chains;
        }
        let after = self.last.take().map_or(Bound::Unbounded, Bound::Excluded);
        let after = chains.range((after, Bound::Unbounded));
        let some: Vec<ChainId> = after.chain(&chains).take(FEW).cloned().collect();
        self.last = some.last().cloned();
        some.into_iter().collect()
    }

    /// The chains with rejected rules, or whose removal is rejected.
    pub fn chains(&self) -> BTreeSet<ChainId> {
        self.all.keys().map(|(chain, _)| chain.clone()).collect()
    }

    /// Forgets the rejected rules of a chain that is neither there nor wanted.
    pub fn forget(&mut self, chain: &ChainId) {
        self.all.retain(|key, _| key.0 != *chain);
    }

    /// How many chains whose names begin with `prefix` lack rules.
    pub fn chains_of(&self, prefix: &str) -> usize {
        let lacks = |(_, chain): &ChainId, rejected: &RejectedRule| {
            chain.starts_with(prefix) && rejected.unwritten != Unwritten::Removal
        };
        self.all.iter().filter(|((chain, _), rejected)| lacks(chain, rejected)).count()
    }

    /// As text, what is rejected with these keys: whole chains, and single rules of shared chains.
    pub fn about(&self, own: &BTreeSet<RejectedKey>) -> Vec<String> {
        let is_own = |key: &RejectedKey, rejected: &RejectedRule| {
            own.contains(key) && rejected.unwritten != Unwritten::Removal
        };
        let rejected = self.all.iter().filter(|(key, rejected)| is_own(key, rejected));
        rejected.map(|(_, rejected)| rejected.text()).collect()
    }

    /// All rejected rules as text, for the log and `status`.
    pub fn texts(&self) -> Vec<String> {
        shortened(self.all.values().map(RejectedRule::text).collect())
    }
}

/// The first [`LISTED`] texts, and how many more there are.
fn shortened(mut texts: Vec<String>) -> Vec<String> {
    let more = texts.len().saturating_sub(LISTED);
    if more > 0 {
        texts.truncate(LISTED);
        texts.push(format!("{more} more rules are rejected"));
    }
    texts
}
