use jiff::Timestamp;
use serde_json::json;

use super::super::access::Credentials;
use super::*;
use crate::source::Features;
use crate::source::running::in_runtime;

/// A follower of pods that has listed up to this version, and what it sends.
async fn listed(version: &str) -> (Follower, mpsc::Receiver<Vec<Event>>) {
    let (events, mut sent) = mpsc::channel(16);
    let config = Config {
        access: Access { credentials: Credentials::ServiceAccount, server: None },
        node_name: "n".into(),
        since: Timestamp::UNIX_EPOCH,
        features: Features { services: false, network_policy: true },
    };
    let (outlet, _problems) = Outlet::new(events);
    let ends = Ends { outlet, answers: mpsc::channel(1).1, wrong_policies: mpsc::channel(1).0 };
    let mut follower = Follower::new(Kind::Pod, &config, ends, Recovery::new());
    if !version.is_empty() {
        follower.complete(List::default(), version.to_owned()).await.unwrap();
        sent.recv().await.unwrap();
    }
    (follower, sent)
}

#[test]
fn an_answer_that_the_watch_has_passed_is_ignored() {
    let cases = [
        ("newer", "100", "101", true),
        ("newer by more digits", "99", "100", true),
        ("the same", "100", "100", false),
        ("older: the pod may have been deleted", "100", "99", false),
        ("before the first list", "", "7", true),
        ("not a version", "100", "x", false),
    ];
    in_runtime(async {
        for (name, watched, answered, counts) in cases {
            let (mut follower, mut sent) = listed(watched).await;
            let pod = json!({ "metadata": { "name": "web", "namespace": "shop", "resourceVersion": answered } });
            let answer = Answer { text: pod.to_string(), _untaken: None };
            follower.take_answer(&answer).await.unwrap();
            assert_eq!(sent.try_recv().is_ok(), counts, "{name}");
            let version = follower.version.as_deref().unwrap_or_default();
            assert_eq!(version, watched, "{name}: the watch goes on from where it was");
        }
    });
}
