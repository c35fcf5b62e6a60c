//! Which pods of other nodes are followed: all, or those of namespaces that policies name. Pure.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::config::WatchPods;
use denizen_plan::PodNeeds;
use denizen_source::kube::{NodeCount, PodScope};

/// At most this many namespaces are followed one by one, since each costs a connection to the API
/// server. If more are needed, all pods are followed.
pub(super) const MOST_NAMESPACES: usize = 32;

/// Up to this many nodes, `--watch-pods auto` follows all pods.
const FEW_NODES: u32 = 1_000;

/// The assumed number of pods of a node, until all pods have been counted.
const PODS_PER_NODE: usize = 30;

/// What the choice depends on.
#[derive(Debug, Clone, Copy)]
pub(super) struct ScopeFacts<'a> {
    pub needs: &'a PodNeeds,
    pub nodes: NodeCount,
    /// How many known pods the needed namespaces have.
    pub needed_pods: usize,
    /// How many pods there are, if all are known.
    pub all_pods: Option<usize>,
}

/// The choice, and why. A wider scope takes effect at once, a narrower one after a while, so that a
/// need that comes and goes does not open and close watches.
#[derive(Debug)]
pub(super) struct PodWatch {
    mode: WatchPods,
    /// How long pods are still followed after no policy needs them.
    linger: Duration,
    scope: Option<PodScope>,
    why: String,
    /// RFC 3339 in UTC.
    since: String,
    /// Followed namespaces that no policy needs, and since when.
    unneeded: BTreeMap<Arc<str>, Instant>,
    /// Since when not all pods are needed, although they are followed.
    all_unneeded: Option<Instant>,
    /// How many pods there were when all were known.
    counted: Option<usize>,
    basis: Option<ChoiceBasis>,
}

/// The facts that the last choice was made from. If they are the same, so is the choice.
#[derive(Debug, PartialEq, Eq)]
struct ChoiceBasis {
    needs: PodNeeds,
    is_all_known: bool,
    nodes: NodeCount,
}

impl PodWatch {
    pub fn new(mode: WatchPods, linger: Duration) -> Self {
        Self {
            mode,
            linger,
            scope: None,
            why: "not known yet what policies need".to_owned(),
            since: String::new(),
            unneeded: BTreeMap::new(),
            all_unneeded: None,
            counted: None,
            basis: None,
        }
    }

    /// `None` until enough is known to choose.
    pub fn scope(&self) -> Option<&PodScope> {
        self.scope.as_ref()
    }

    pub fn why(&self) -> &str {
        &self.why
    }

    /// Since when the current scope has been followed. RFC 3339 in UTC.
    pub fn since(&self) -> &str {
        &self.since
    }

    /// Whether the choice still holds at `now`. `is_all`: all pods are known. A changed number of
    /// pods alone does not reopen the choice.
    pub fn is_current(
        &self,
        needs: &PodNeeds,
        is_all: bool,
        nodes: NodeCount,
        now: Instant,
    ) -> bool {
        let is_due = self.due().is_some_and(|due| due <= now);
        let is_same = |basis: &ChoiceBasis| {
            basis.needs == *needs && basis.is_all_known == is_all && basis.nodes == nodes
        };
        !is_due && self.basis.as_ref().is_some_and(is_same)
    }

    /// Chooses anew at `now`, whose wall-clock time is `at` (RFC 3339). Returns the scope if it
    /// differs.
    pub fn choose(
        &mut self,
        facts: ScopeFacts<'_>,
        now: Instant,
        at: impl FnOnce() -> String,
    ) -> Option<PodScope> {
        self.basis = Some(ChoiceBasis {
            needs: facts.needs.clone(),
            is_all_known: facts.all_pods.is_some(),
            nodes: facts.nodes,
        });
        self.counted = facts.all_pods.or(self.counted);
        let (wanted, why) = self.wanted(facts, now)?;
        let chosen = match (&self.scope, wanted) {
            (_, PodScope::All) => {
                (self.all_unneeded, self.why) = (None, why);
                self.unneeded.clear();
                PodScope::All
            }
            (Some(PodScope::All), wanted) => {
                let since = *self.all_unneeded.get_or_insert(now);
                if now.saturating_duration_since(since) < self.linger {
                    return None;
                }
                (self.all_unneeded, self.why) = (None, why);
                wanted
            }
            (None | Some(PodScope::Namespaces(_)), wanted) => {
                self.why = why;
                wanted
            }
        };
        if self.scope.as_ref() == Some(&chosen) {
            return None;
        }
        let is_all = |scope: &PodScope| *scope == PodScope::All;
        if self.scope.as_ref().map(is_all) != Some(is_all(&chosen)) {
            self.since = at();
        }
        self.scope = Some(chosen.clone());
        Some(chosen)
    }

    /// What should be followed, and why; `None` while not enough is known.
    fn wanted(&mut self, facts: ScopeFacts<'_>, now: Instant) -> Option<(PodScope, String)> {
        let all = |why: String| Some((PodScope::All, why));
        if self.mode == WatchPods::Auto {
            match facts.nodes {
                NodeCount::Unasked => return None,
                NodeCount::Refused => {
                    return all("the API does not say how many nodes there are".into());
                }
                NodeCount::Nodes(nodes) if nodes <= FEW_NODES => {
                    return all(format!(
                        "nodes at the start: {nodes}, and up to {FEW_NODES} are few"
                    ));
                }
                NodeCount::Nodes(_) => {}
            }
        }
        let needed = match facts.needs {
            PodNeeds::Unknown => return None,
            PodNeeds::All(why) => return all(why.to_string()),
            PodNeeds::Namespaces(needed) => needed,
        };
        if needed.len() > MOST_NAMESPACES {
            return all(format!("policies need the pods of {} namespaces", needed.len()));
        }
        if let Some(total) = self.total(facts.nodes)
            && facts.needed_pods * 2 > total
        {
            return all(format!("policies need {} of about {total} pods", facts.needed_pods));
        }
        let followed = self.followed(needed, now);
        if followed.len() > MOST_NAMESPACES {
            return all(format!(
                "policies needed the pods of {} namespaces lately",
                followed.len()
            ));
        }
        Some((PodScope::Namespaces(followed), "policies need few namespaces".to_owned()))
    }

    /// How many pods the cluster has, counted or estimated; `None` unless the mode is `auto` and
    /// the number of nodes is known.
    fn total(&self, nodes: NodeCount) -> Option<usize> {
        match (self.mode, nodes) {
            (WatchPods::Auto, NodeCount::Nodes(nodes)) => {
                Some(self.counted.unwrap_or(nodes as usize * PODS_PER_NODE))
            }
            (WatchPods::All | WatchPods::Auto | WatchPods::Namespaces, _) => None,
        }
    }

    /// The needed namespaces, and those that were needed less than [`Self::linger`] ago.
    fn followed(&mut self, needed: &BTreeSet<Arc<str>>, now: Instant) -> BTreeSet<Arc<str>> {
        self.unneeded.retain(|name, _| !needed.contains(name));
        if let Some(PodScope::Namespaces(before)) = &self.scope {
            for name in before.difference(needed) {
                self.unneeded.entry(name.clone()).or_insert(now);
            }
        }
        let linger = self.linger;
        self.unneeded.retain(|_, since| now.saturating_duration_since(*since) < linger);
        needed.iter().chain(self.unneeded.keys()).cloned().collect()
    }

    /// When [`Self::choose`] is due although nothing changes.
    pub fn due(&self) -> Option<Instant> {
        let since = self.unneeded.values().chain(&self.all_unneeded).min()?;
        Some(*since + self.linger)
    }
}
