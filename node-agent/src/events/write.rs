//! Writes events to the API.

use std::sync::Arc;

use hyper::Request;
use jiff::Timestamp;
use kube::Client;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};
use tracing::{debug, warn};

use super::limit::Limit;
use super::{About, Notice, Reason};
use crate::source::kube::access::Access;
use crate::source::kube::pace::Pace;

/// Attempts before an event is given up, as in client-go.
const ATTEMPTS: usize = 12;

/// The API's limit for a note, in bytes.
const LONGEST_NOTE: usize = 1024;

/// The name under which events are reported.
const CONTROLLER: &str = "denizen-agent";

/// Writes events until the channel is closed.
pub(super) async fn run(access: Access, node_name: Arc<str>, mut waiting: mpsc::Receiver<Notice>) {
    let mut limit = Limit::default();
    while let Some(notice) = waiting.recv().await {
        if !limit.permits(&notice, Instant::now()) {
            debug!(?notice, "event dropped: too many events");
            continue;
        }
        let (path, event) = event(&notice, &node_name, Timestamp::now());
        let mut pace = Pace::default();
        for attempt in 1..=ATTEMPTS {
            let Err(error) = write(&access, &path, &event).await else {
                break;
            };
            if attempt == ATTEMPTS || is_refused(&error) {
                warn!(
                    error = format!("{error:#}"),
                    reason = notice.reason.name(),
                    "cannot write an event"
                );
                break;
            }
            sleep(pace.pause(None)).await;
        }
    }
}

/// Whether the API refuses the event for good.
fn is_refused(error: &anyhow::Error) -> bool {
    let refused = |status: &kube::core::Status| {
        (400..500).contains(&status.code) && !matches!(status.code, 401 | 429)
    };
    matches!(error.downcast_ref(), Some(kube::Error::Api(status)) if refused(status))
}

async fn write(access: &Access, path: &str, event: &Value) -> anyhow::Result<()> {
    // Events are rare, so each has a client of its own, with the current credentials.
    let client: Client = access.client().await?;
    let request = Request::post(path).header("content-type", "application/json");
    client.request_text(request.body(event.to_string().into_bytes())?).await?;
    Ok(())
}

/// The path and the event (`events.k8s.io/v1`).
fn event(notice: &Notice, node_name: &str, now: Timestamp) -> (String, Value) {
    // Events about objects without a namespace go to this one. (Its UID is its name, as in kubelet
    // and kube-proxy.)
    let (namespace, name, regarding) = match &notice.about {
        About::Node => {
            ("default", node_name, json!({ "kind": "Node", "name": node_name, "uid": node_name }))
        }
        About::Service(service) => (
            &*service.namespace,
            &*service.name,
            json!({ "apiVersion": "v1", "kind": "Service", "namespace": &*service.namespace, "name": &*service.name }),
        ),
    };
    let end = notice.text.floor_char_boundary(LONGEST_NOTE);
    let event = json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event",
        "metadata": { "namespace": namespace, "name": format!("{name}.{:x}", now.as_nanosecond()) },
        "eventTime": format!("{now:.6}"),
        "reportingController": CONTROLLER, "reportingInstance": format!("{CONTROLLER}-{node_name}"),
        "action": notice.reason.action(), "reason": notice.reason.name(),
        "regarding": regarding, "note": &notice.text[..end], "type": notice.reason.kind(),
    });
    (format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events"), event)
}

impl Reason {
    fn name(self) -> &'static str {
        match self {
            Self::Starting => "Starting",
            Self::HealthUnserved => "FailedToStartProxierHealthcheck",
            Self::MetricsUnserved => "FailedToStartMetricServer",
            Self::HealthCheckUnserved => "FailedToStartServiceHealthcheck",
        }
    }

    fn action(self) -> &'static str {
        match self {
            Self::Starting | Self::HealthUnserved | Self::MetricsUnserved => "StartKubeProxy",
            Self::HealthCheckUnserved => "Listen",
        }
    }

    fn kind(self) -> &'static str {
        match self {
            Self::Starting => "Normal",
            Self::HealthUnserved | Self::MetricsUnserved | Self::HealthCheckUnserved => "Warning",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ServiceName;

    #[test]
    fn an_event_is_valid_for_the_api() {
        let now: Timestamp = "2026-11-20T12:00:00.123456789Z".parse().unwrap();
        let about = About::Service(ServiceName::new("shop", "web"));
        let notice =
            Notice { about, reason: Reason::HealthCheckUnserved, text: "ü".repeat(LONGEST_NOTE) };
        let (path, written) = event(&notice, "node-1", now);
        assert_eq!(path, "/apis/events.k8s.io/v1/namespaces/shop/events");
        assert_eq!(written["metadata"]["namespace"], written["regarding"]["namespace"]);
        assert_eq!(written["eventTime"], "2026-11-20T12:00:00.123456Z");
        assert_eq!(written["note"].as_str().unwrap().len(), LONGEST_NOTE);
        let (path, written) = event(
            &Notice { about: About::Node, reason: Reason::Starting, text: String::new() },
            "node-1",
            now,
        );
        assert_eq!(path, "/apis/events.k8s.io/v1/namespaces/default/events");
        assert_eq!(written["regarding"]["name"], "node-1");
        assert_eq!(written["type"], "Normal");
    }
}
