//! Why a probe failed: what the agents say of such a connection, and what became of the packets of
//! another attempt.

#![expect(clippy::disallowed_methods, reason = "what takes too long is left out")]

use std::collections::BTreeSet;
use std::future::pending;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use super::probe::ProbeRunner;
use super::report::ConnectivityFailure;
use crate::output::{Body, ClusterReport, Level};
use crate::survey::Limits;
use crate::verb::explain::{ClusterExplanation, ExplainArgs, explain};
use crate::verb::trace::{ClusterTrace, TraceArgs, trace_after};

/// Maximum number of failures that are explained: a broken node has dozens.
const EXPLAINED: usize = 3;

/// Maximum number of failures whose packets are followed.
const TRACED: usize = 1;

/// How long packets are followed.
const FOLLOWING: Duration = Duration::from_secs(4);

/// Adds explanations to some of the failures: pairs of nodes that were not explained yet.
pub async fn add(probing: ProbeRunner<'_>, limits: Limits, failures: &mut [ConnectivityFailure]) {
    let mut pairs = BTreeSet::new();
    let (mut explained, mut traced) = (0, 0);
    for failure in failures {
        let host = failure.to.rsplit_once(':').map_or(&*failure.to, |(host, _)| host);
        let is_new = pairs.insert((failure.node.clone(), host.to_owned()));
        if !is_new || explained == EXPLAINED || Instant::now() >= limits.deadline {
            continue;
        }
        explained += 1;
        let args = ends(probing, failure);
        let explaining = explain(probing.api, limits, &args);
        failure.explained = timeout_at(limits.deadline, explaining).await.ok().and_then(Result::ok);
        if traced < TRACED && failure.is_lost() && is_unexplained(failure.explained.as_ref()) {
            traced += 1;
            failure.traced =
                timeout_at(limits.deadline, trace_another_attempt(probing, limits, failure, args))
                    .await
                    .unwrap_or_default();
        }
    }
}

fn ends(probing: ProbeRunner<'_>, failure: &ConnectivityFailure) -> ExplainArgs {
    let from = format!("{}/{}", probing.namespace.name, failure.from);
    ExplainArgs { from, to: failure.to.clone(), via: None }
}

/// Whether nothing that the agents know refuses the connection.
fn is_unexplained(explained: Option<&ClusterReport<ClusterExplanation>>) -> bool {
    explained.is_none_or(|explained| explained.body.level() < Level::Failure)
}

/// Follows the packets of another attempt.
async fn trace_another_attempt(
    probing: ProbeRunner<'_>,
    limits: Limits,
    failure: &ConnectivityFailure,
    ends: ExplainArgs,
) -> Option<ClusterReport<ClusterTrace>> {
    let args = TraceArgs { ends, count: 1, time: FOLLOWING };
    let (begins, begun) = oneshot::channel();
    let following = trace_after(probing.api, limits, &args, || {
        let _ = begins.send(());
    });
    let again = async {
        // The wait fails if no packets can be followed.
        if begun.await.is_ok() {
            let _ = probing.connect(&failure.from, vec![&failure.to], &[], FOLLOWING).await;
        }
        // The trace shows the result of this attempt.
        pending().await
    };
    tokio::select! {
        traced = following => traced.ok(),
        () = again => None,
    }
}
