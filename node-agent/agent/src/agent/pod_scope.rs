//! Between the plan, which says whose pods must be known, and the source, which follows them.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::sync::watch;
use tokio::time::sleep_until;
use tracing::info;

use super::pod_watch::{PodWatch, ScopeFacts};
use super::{Agent, if_on, now, timestamp};
use crate::config::{Config, Objects, WatchPods};
use denizen_model::{CoveredNamespaces, PodCoverage};
use denizen_observe::status::WatchedPodsStatus;
use denizen_plan::PodNeeds;
use denizen_source::kube::{NodeCount, PodScope, PodScopes};

/// Says which pods are followed.
pub(super) struct PodScopeSender {
    pub(super) wanted: watch::Sender<Option<PodScope>>,
    pub(super) nodes: watch::Receiver<NodeCount>,
}

/// Both ends, if not all pods may be followed.
pub(super) fn pod_scopes(config: &Config) -> Option<(PodScopeSender, PodScopes)> {
    let (mode, _) = config.watch_pods;
    let may_be_some = matches!(config.objects, Objects::Api(_))
        && config.features.network_policy
        && mode != WatchPods::All;
    may_be_some.then(|| {
        let (wanted, asked) = watch::channel(None);
        let (count, nodes) = watch::channel(NodeCount::default());
        let count = (mode == WatchPods::Auto).then_some(count);
        (PodScopeSender { wanted, nodes }, PodScopes { wanted: asked, nodes: count })
    })
}

/// Chooses which pods of other nodes are followed, if not all are.
pub(super) fn choose(agent: &mut Agent) {
    let (Some(scope), plan) = (&agent.sources.pod_scope, agent.engine.plan()) else { return };
    let Some(firewall) = plan.firewall() else { return };
    let (needs, model) = (firewall.pod_needs(), agent.engine.model());
    let is_all = model.pod_coverage().is_all() && firewall.is_known();
    let nodes = *scope.nodes.borrow();
    if agent.pod_watch.is_settled(needs, is_all, nodes, now()) {
        return;
    }
    let none = BTreeSet::new();
    let needed = if let PodNeeds::Namespaces(needed) = needs { needed } else { &none };
    let (needed_pods, all) = model.pod_counts(needed);
    let facts = ScopeFacts { needs, nodes, needed_pods, all_pods: is_all.then_some(all) };
    if let Some(chosen) = agent.pod_watch.choose(facts, now(), timestamp) {
        info!(why = agent.pod_watch.why(), all = chosen == PodScope::All, "pods to follow chosen");
        scope.wanted.send_replace(Some(chosen));
    }
}

/// Waits until less may be followed.
pub(super) async fn due(watch: &PodWatch) {
    if_on(watch.due().map(|due| sleep_until(due.into()))).await
}

/// Which pods are followed, for `status`; `None` if all are without a choice.
pub(super) fn status(agent: &Agent) -> Option<WatchedPodsStatus> {
    agent.sources.pod_scope.as_ref()?;
    let (watch, coverage) = (&agent.pod_watch, agent.engine.model().pod_coverage());
    let firewall = agent.engine.plan().firewall()?;
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
