//! Pods of the test: making them, and waiting until they run.

#![expect(clippy::disallowed_methods, reason = "pods take a while to start")]

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;
use serde::Deserialize;
use serde_json::Value;
use tokio::time::{Instant, sleep, sleep_until};

use super::namespace::TestNamespace;
use super::rights::{is_forbidden, with_need};
use crate::cluster::Api;
use crate::no_answer::NoAnswer;
use crate::objects::{self, PodObject};
use crate::output::described;

/// The pause between two reads of the pods.
const POLL_PAUSE: Duration = Duration::from_millis(250);

/// Pods by name, or why they do not run.
pub type StartedPods = BTreeMap<String, Result<PodObject, NoAnswer>>;

/// Makes these pods, and waits until each runs or never will, until the deadline.
pub async fn start(
    api: &Api,
    namespace: &TestNamespace,
    pods: Vec<Value>,
    parallel: usize,
    deadline: Instant,
) -> anyhow::Result<StartedPods> {
    let path = namespace.path("pods");
    let one = async |pod: Value| {
        let name = pod["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let made = objects::create::<Value>(&api.client, &path, &pod);
        let made = tokio::select! {
            made = made => made.map_err(not_made),
            () = sleep_until(deadline) => Err(NoAnswer::new(NoAnswer::TIMED_OUT, LATE)),
        };
        (name, made.err())
    };
    let made: BTreeMap<String, Option<NoAnswer>> =
        stream::iter(pods).map(one).buffer_unordered(parallel).collect().await;
    let mut states: StartedPods = BTreeMap::new();
    let mut waiting = Vec::new();
    for (name, why) in made {
        match why {
            Some(why) => drop(states.insert(name, Err(why))),
            None => waiting.push(name),
        }
    }
    let mut last = BTreeMap::new();
    while !waiting.is_empty() {
        let listed = tokio::select! {
            listed = objects::list::<PodObject>(&api.client, &path, &[]) => listed,
            () = sleep_until(deadline) => break,
        };
        let listed = listed.map_err(|error| with_need(error, "cannot list pods", "list pods"))?;
        last = listed.into_iter().map(|pod| (pod.metadata.name.clone(), pod)).collect();
        waiting.retain(|name| match last.get(name).and_then(decided) {
            Some(state) => {
                states.insert(name.clone(), state);
                false
            }
            None => true,
        });
        if !waiting.is_empty() {
            sleep(POLL_PAUSE).await;
        }
    }
    if !waiting.is_empty() {
        let events = events(api, namespace).await;
        for name in waiting {
            let why = not_yet(last.get(&name), events.get(&name));
            states.insert(name, Err(why));
        }
    }
    Ok(states)
}

const LATE: &str = "the API server did not make it in time";

fn not_made(error: kube::Error) -> NoAnswer {
    let code = if is_forbidden(&error) { NoAnswer::FORBIDDEN } else { NoAnswer::FAILED };
    NoAnswer::new(code, described(&with_need(error, "its pod was not made", "create pods")))
}

/// Whether a pod runs, or why it never will; `None` if it may still start.
fn decided(pod: &PodObject) -> Option<Result<PodObject, NoAnswer>> {
    let status = pod.status.container_statuses.first();
    let ended = status.and_then(|status| status.state.terminated.as_ref());
    let failed = |why: String| Some(Err(NoAnswer::new(NoAnswer::NOT_RUNNING, why)));
    let name = &pod.metadata.name;
    match (&*pod.status.phase, ended) {
        (_, Some(ended)) if ended.exit_code == 2 => {
            failed(format!("pod {name} has ended: its agent's image does not know `probe` yet"))
        }
        (_, Some(ended)) => failed(format!(
            "pod {name} has ended, exit code {} ({})",
            ended.exit_code, ended.reason
        )),
        ("Failed" | "Succeeded", None) => {
            let words = format!("{} {}", pod.status.reason, pod.status.message);
            failed(format!("pod {name} has ended: {}", words.trim()))
        }
        ("Running", None) if pod.ips().next().is_some() => {
            status.and_then(|status| status.state.running.as_ref()).map(|_| Ok(pod.clone()))
        }
        (_, None) => None,
    }
}

/// Why a pod does not run, as far as anybody says it.
fn not_yet(pod: Option<&PodObject>, event: Option<&String>) -> NoAnswer {
    let waiting = pod.and_then(|pod| pod.status.container_statuses.first()?.state.waiting.clone());
    let mut why = "its pod did not run in time (see --timeout)".to_owned();
    let state = waiting.map(|waiting| format!("{} {}", waiting.reason, waiting.message));
    for words in state.iter().chain(event).filter(|words| !words.trim().is_empty()) {
        why.push_str(": ");
        why.push_str(words.trim());
    }
    NoAnswer::new(NoAnswer::NOT_RUNNING, why)
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct EventObject {
    regarding: Regarding,
    #[serde(rename = "type")]
    kind: String,
    note: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Regarding {
    name: String,
}

/// The last warning about each pod, if they may be read.
async fn events(api: &Api, namespace: &TestNamespace) -> BTreeMap<String, String> {
    let path = format!("/apis/events.k8s.io/v1/namespaces/{}/events", namespace.name);
    let events: Vec<EventObject> = objects::list(&api.client, &path, &[]).await.unwrap_or_default();
    let warnings = events.into_iter().filter(|event| event.kind == "Warning");
    warnings.map(|event| (event.regarding.name, event.note)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(status: Value) -> PodObject {
        serde_json::from_value(json!({ "metadata": { "name": "p" }, "status": status })).unwrap()
    }

    #[test]
    fn a_pod_runs_or_has_a_reason() {
        let state = |state: Value| json!([{ "name": "probe", "state": state }]);
        let ips = json!([{ "ip": "10.0.0.1" }]);
        let of = |code: u8| state(json!({ "terminated": { "exitCode": code, "reason": "Error" } }));
        let running = || state(json!({ "running": {} }));
        let cases = [
            (json!({ "phase": "Pending" }), None),
            (json!({ "phase": "Running", "containerStatuses": running() }), None),
            (
                json!({ "phase": "Running", "podIPs": ips, "containerStatuses": running() }),
                Some(""),
            ),
            (
                json!({ "phase": "Failed", "containerStatuses": of(2) }),
                Some("does not know `probe`"),
            ),
            (
                json!({ "phase": "Failed", "containerStatuses": of(137) }),
                Some("exit code 137 (Error)"),
            ),
            (
                json!({ "phase": "Failed", "reason": "OutOfcpu", "message": "too little" }),
                Some("OutOfcpu too little"),
            ),
        ];
        for (status, expected) in cases {
            let found = decided(&pod(status.clone()));
            let words = found.map(|state| state.map_or_else(|why| why.reason, |_| String::new()));
            match expected {
                None => assert_eq!(words, None, "{status}"),
                Some(expected) => assert!(words.unwrap().contains(expected), "{status}"),
            }
        }
        let waiting =
            state(json!({ "waiting": { "reason": "ErrImagePull", "message": "no route" } }));
        let why =
            not_yet(Some(&pod(json!({ "containerStatuses": waiting }))), Some(&"x".to_owned()));
        assert!(why.reason.ends_with("(see --timeout): ErrImagePull no route: x"), "{why:?}");
    }
}
