//! Writes events to the API.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use hyper::Request;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};
use tracing::{debug, warn};

use super::limit::EventLimit;
use crate::kube::SharedClient;
use crate::kube::backoff::Backoff;
use denizen_model::{Notice, NoticeReason, NoticeSubject};

/// Attempts before an event is given up, as in client-go.
const ATTEMPTS: usize = 12;

/// The API's limit for a note, in bytes.
const LONGEST_NOTE: usize = 1024;

/// The API's limit for a name, in bytes.
const LONGEST_NAME: usize = 253;

/// The API's limit for who reports an event, in bytes. A node's name may be longer.
const LONGEST_REPORTER: usize = 128;

/// The name under which events are reported.
const CONTROLLER: &str = "denizen-agent";

/// Writes events until the channel is closed.
pub(super) async fn run(
    clients: SharedClient,
    node_name: Arc<str>,
    mut waiting: mpsc::Receiver<Notice>,
) {
    let mut limit = EventLimit::default();
    while let Some(notice) = waiting.recv().await {
        if !limit.permits(&notice, Instant::now()) {
            debug!(?notice, "event dropped: too many events");
            continue;
        }
        let (path, event) = event(&notice, &node_name, Timestamp::now());
        let mut backoff = Backoff::default();
        for attempt in 1..=ATTEMPTS {
            let Err(error) = write(&clients, &path, &event).await else {
                break;
            };
            if has_code(&error, |code| code == 409) {
                // Another node has written it.
                break;
            }
            if attempt == ATTEMPTS || is_refused(&error) {
                warn!(
                    error = describe(&error),
                    reason = notice.reason.name(),
                    "cannot write an event"
                );
                break;
            }
            sleep(backoff.pause(None)).await;
        }
    }
}

/// The error; only the API's own message if the API refused the event.
fn describe(error: &anyhow::Error) -> String {
    match error.downcast_ref() {
        Some(kube::Error::Api(status)) => status.message.clone(),
        Some(_) | None => format!("{error:#}"),
    }
}

/// Whether the API refuses the event for good.
fn is_refused(error: &anyhow::Error) -> bool {
    has_code(error, |code| (400..500).contains(&code) && !matches!(code, 401 | 429))
}

/// Whether the API answered with such a status code.
fn has_code(error: &anyhow::Error, such: impl Fn(u16) -> bool) -> bool {
    matches!(error.downcast_ref(), Some(kube::Error::Api(status)) if such(status.code))
}

async fn write(clients: &SharedClient, path: &str, event: &Value) -> anyhow::Result<()> {
    let client = clients.get().await?;
    let request = Request::post(path).header("content-type", "application/json");
    let written = client.request_text(request.body(event.to_string().into_bytes())?).await;
    let written = written.map(drop).map_err(anyhow::Error::from);
    if written.as_ref().is_err_and(|error| has_code(error, |code| code == 401)) {
        clients.discard(Some(client)).await;
    }
    written
}

/// The path and the event (`events.k8s.io/v1`).
fn event(notice: &Notice, node_name: &str, now: Timestamp) -> (String, Value) {
    // Events about objects without a namespace go to this one. (Its UID is its name, as in kubelet
    // and kube-proxy.)
    let (namespace, name, regarding) = match &notice.about {
        NoticeSubject::Node => {
            ("default", node_name, json!({ "kind": "Node", "name": node_name, "uid": node_name }))
        }
        NoticeSubject::Service(service) => (
            &*service.namespace,
            &*service.name,
            json!({
                "apiVersion": "v1", "kind": "Service",
                "namespace": &*service.namespace, "name": &*service.name,
            }),
        ),
        // Not in a namespace, so its events are in `default` too.
        NoticeSubject::ClusterNetworkPolicy(policy) => (
            "default",
            &**policy,
            json!({
                "apiVersion": "policy.networking.k8s.io/v1alpha2",
                "kind": "ClusterNetworkPolicy", "name": &**policy,
            }),
        ),
        NoticeSubject::NetworkPolicy(policy) => (
            &*policy.namespace,
            &*policy.name,
            json!({
                "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
                "namespace": &*policy.namespace, "name": &*policy.name,
            }),
        ),
    };
    let end = notice.text.floor_char_boundary(LONGEST_NOTE);
    let mut reporter = format!("{CONTROLLER}-{node_name}");
    reporter.truncate(reporter.floor_char_boundary(LONGEST_REPORTER));
    let event = json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event",
        "metadata": { "namespace": namespace, "name": event_name(name, notice, now) },
        "eventTime": format!("{now:.6}"),
        "reportingController": CONTROLLER, "reportingInstance": reporter,
        "action": notice.reason.action(), "reason": notice.reason.name(),
        "regarding": regarding, "note": &notice.text[..end], "type": notice.reason.kind(),
    });
    (format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events"), event)
}

/// The name of an event about the object `name`. Every node sees the same mistake in a policy or a
/// Service, and many the same shared address, so the name of that event depends only on its text:
/// the first node writes it, the others find it there.
fn event_name(name: &str, notice: &Notice, now: Timestamp) -> String {
    let id = match notice.reason {
        NoticeReason::Starting
        | NoticeReason::HealthUnserved
        | NoticeReason::MetricsUnserved
        | NoticeReason::HealthCheckUnserved
        | NoticeReason::RouteRejected
        | NoticeReason::HostPortConflict
        | NoticeReason::NotAnnounced => format!("{:x}", now.as_nanosecond()),
        NoticeReason::InvalidNetworkPolicy
        | NoticeReason::AddressNotPermitted
        | NoticeReason::TooManyAddresses
        | NoticeReason::InvalidClusterNetworkPolicy
        | NoticeReason::SamePriority
        | NoticeReason::SharedAddress => {
            let mut hasher = DefaultHasher::new();
            notice.text.hash(&mut hasher);
            format!("{:x}", hasher.finish())
        }
    };
    let end = name.floor_char_boundary(LONGEST_NAME - 1 - id.len());
    format!("{}.{id}", name[..end].trim_end_matches(['-', '.']))
}

#[cfg(test)]
mod tests {
    use super::*;
    use denizen_model::{PolicyName, ServiceName};

    #[test]
    fn an_event_is_valid_for_the_api() {
        let now: Timestamp = "2026-11-20T12:00:00.123456789Z".parse().unwrap();
        let about = NoticeSubject::Service(ServiceName::new("shop", "web"));
        let notice = Notice {
            about,
            reason: NoticeReason::HealthCheckUnserved,
            text: "ü".repeat(LONGEST_NOTE),
        };
        let (path, written) = event(&notice, "node-1", now);
        assert_eq!(path, "/apis/events.k8s.io/v1/namespaces/shop/events");
        assert_eq!(written["metadata"]["namespace"], written["regarding"]["namespace"]);
        assert_eq!(written["eventTime"], "2026-11-20T12:00:00.123456Z");
        assert_eq!(written["note"].as_str().unwrap().len(), LONGEST_NOTE);
        // The longest that a node's name may be.
        let node = "n".repeat(LONGEST_NAME);
        let about = NoticeSubject::Node;
        let notice = Notice { about, reason: NoticeReason::Starting, text: String::new() };
        let (path, written) = event(&notice, &node, now);
        assert_eq!(path, "/apis/events.k8s.io/v1/namespaces/default/events");
        assert_eq!(written["regarding"]["name"], *node);
        assert_eq!(written["reportingInstance"].as_str().unwrap().len(), LONGEST_REPORTER);
        assert_eq!(written["type"], "Normal");
    }

    #[test]
    fn every_node_gives_one_mistake_of_a_policy_the_same_name() {
        let name = |policy: &str, text: &str, now: i64| {
            let name = PolicyName { namespace: "shop".into(), name: policy.into() };
            let about = NoticeSubject::NetworkPolicy(name);
            let notice =
                Notice { about, reason: NoticeReason::InvalidNetworkPolicy, text: text.to_owned() };
            let now = Timestamp::from_second(now).unwrap();
            let (_, written) = event(&notice, "n", now);
            assert_eq!(written["regarding"]["kind"], "NetworkPolicy");
            written["metadata"]["name"].as_str().unwrap().to_owned()
        };
        assert_eq!(name("web", "a", 1), name("web", "a", 2));
        assert_ne!(name("web", "a", 1), name("web", "b", 1));
        let long = name(&format!("{}-{}", "a".repeat(235), "b".repeat(17)), "a", 1);
        assert!(
            long.len() <= LONGEST_NAME && long.starts_with(&format!("{}.", "a".repeat(235))),
            "{long}"
        );
    }
}
