//! Connects the plan, which says which pods must be known, with the source, which follows these
//! pods.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::sync::watch;
use tokio::time::sleep_until;
use tracing::info;

use super::pod_watch::{PodWatch, ScopeFacts};
use super::{if_on, now, timestamp};
use crate::config::{Config, Objects, WatchPods};
use denizen_model::{CoveredNamespaces, PodCoverage};
use denizen_observe::status::WatchedPodsStatus;
use denizen_plan::{Planner, PodNeeds};
use denizen_source::kube::{NodeCount, PodScope, PodScopes};

/// Chooses which pods of other nodes are followed, if not all are, and tells the source.
pub(super) struct PodScopeChooser {
    watch: PodWatch,
    wanted: watch::Sender<Option<PodScope>>,
    nodes: watch::Receiver<NodeCount>,
}

impl PodScopeChooser {
    /// The chooser, and the source's end of it; `None` if all pods are followed.
    pub(super) fn open(config: &Config) -> Option<(Self, PodScopes)> {
        let (mode, linger) = config.watch_pods;
        let may_be_some = matches!(config.objects, Objects::Api(_))
            && config.features.network_policy
            && mode != WatchPods::All;
        may_be_some.then(|| {
            let (wanted, chosen) = watch::channel(None);
            let (count, nodes) = watch::channel(NodeCount::default());
            let count = (mode == WatchPods::Auto).then_some(count);
            let chooser = Self { watch: PodWatch::new(mode, linger), wanted, nodes };
            (chooser, PodScopes { wanted: chosen, nodes: count })
        })
    }

    /// Completes when fewer pods may be followed.
    pub(super) async fn due(&self) {
        if_on(self.watch.due().map(|due| sleep_until(due.into()))).await
    }

    /// Chooses anew, from the current plan and model.
    pub(super) fn step(&mut self, planner: &Planner) {
        let (model, Some(firewall)) = (planner.model(), planner.plan().firewall()) else { return };
        let needs = firewall.pod_needs();
        let is_all = model.pod_coverage().is_all() && firewall.is_known();
        let nodes = *self.nodes.borrow();
        if self.watch.is_current(needs, is_all, nodes, now()) {
            return;
        }
        let none = BTreeSet::new();
        let needed = if let PodNeeds::Namespaces(needed) = needs { needed } else { &none };
        let (needed_pods, all) = model.pod_counts(needed);
        let facts = ScopeFacts { needs, nodes, needed_pods, all_pods: is_all.then_some(all) };
        if let Some(chosen) = self.watch.choose(facts, now(), timestamp) {
            info!(why = self.watch.why(), all = chosen == PodScope::All, "pods to follow chosen");
            self.wanted.send_replace(Some(chosen));
        }
    }

    /// Which pods are followed, for `status`; `None` if no policies are enforced.
    pub(super) fn report(&self, planner: &Planner) -> Option<WatchedPodsStatus> {
        let (watch, coverage) = (&self.watch, planner.model().pod_coverage());
        let firewall = planner.plan().firewall()?;
        let names = |names: &BTreeSet<_>| names.iter().map(ToString::to_string).collect();
        let scope = match watch.scope() {
            None => "",
            Some(PodScope::All) => "all",
            Some(PodScope::Namespaces(_)) => "namespaces",
        };
        let status = WatchedPodsStatus {
            scope: scope.to_owned(),
            since: watch.since().to_owned(),
            why: watch.why().to_owned(),
            ..WatchedPodsStatus::default()
        };
        let covered = match coverage {
            PodCoverage::All => {
                return Some(WatchedPodsStatus { all_known: firewall.is_known(), ..status });
            }
            PodCoverage::Some(covered) => covered,
        };
        let CoveredNamespaces { complete, failed } = covered;
        let waiting = match firewall.pod_needs() {
            PodNeeds::Namespaces(needed) => {
                let is_waiting =
                    |name: &&Arc<str>| !complete.contains(*name) && !failed.contains(*name);
                needed.iter().filter(is_waiting).map(ToString::to_string).collect()
            }
            PodNeeds::Unknown | PodNeeds::All(_) => Vec::new(),
        };
        let (namespaces, failed) = (names(complete), names(failed));
        Some(WatchedPodsStatus { namespaces, waiting_for: waiting, failed, ..status })
    }
}
