use jiff::Timestamp;
use serde_json::json;

use super::super::access::{Access, Credentials};
use super::*;
use crate::Features;
use crate::running::in_runtime;

/// A follower of pods that has listed up to this version, and what it sends.
async fn listed(version: &str) -> (KindFollower, mpsc::Receiver<Vec<Event>>) {
    let (events, mut sent) = mpsc::channel(16);
    let access = Access { credentials: Credentials::ServiceAccount, server: None };
    let config = KubeConfig {
        client: SharedClient::new(access),
        node_name: "n".into(),
        since: Timestamp::UNIX_EPOCH,
        features: Features { services: false, network_policy: true, other_nodes: false },
        pods: None,
    };
    let (outlet, _problems) = Outlet::new(events);
    let ends = FollowerChannels {
        outlet,
        answers: mpsc::channel(1).1,
        wrong_policies: mpsc::channel(1).0,
        traffic: Arc::default(),
        list_delay: Arc::new(ListDelay::new()),
        companion: None,
        call: None,
        watched: None,
        scope: StreamScope::All,
        progress: Arc::default(),
        floor: None,
    };
    let mut follower = KindFollower::new(ObjectKind::Pod, &config, ends, Recovery::new());
    if !version.is_empty() {
        let list = follower.index.begin_list();
        follower.complete(list, version.to_owned()).await.unwrap();
        sent.recv().await.unwrap();
    }
    (follower, sent)
}

fn pod(number: usize) -> String {
    let metadata =
        json!({ "name": format!("pod-{number}"), "namespace": "shop", "resourceVersion": "1" });
    let address = format!("10.0.{}.{}", number / 256, number % 256);
    json!({ "metadata": metadata, "status": { "podIP": address } }).to_string()
}

/// Nothing else is decided by half a list, but it need not wait here as a whole.
#[test]
fn a_large_first_list_is_sent_in_parts_and_any_other_as_one_change() {
    const PODS: usize = 1_000;
    in_runtime(async {
        for (version, first, most) in
            [("", "nothing was listed before", 300), ("7", "it was", PODS)]
        {
            let (mut follower, mut sent) = listed(version).await;
            let mut list = follower.index.begin_list();
            for number in 0..PODS {
                follower.take_listed(&mut list, Object::Json(&pod(number))).await.unwrap();
            }
            let early = sent.len();
            follower.complete(list, "8".to_owned()).await.unwrap();
            assert_eq!(early > 0, version.is_empty(), "{first}");
            let mut names = std::collections::BTreeSet::new();
            while let Ok(events) = sent.try_recv() {
                assert!(events.len() <= most, "{first}: {}", events.len());
                names.extend(events.into_iter().filter_map(|event| {
                    let Event::ClusterPod(name, Some(_)) = event else { return None };
                    Some(name)
                }));
            }
            assert_eq!(names.len(), PODS, "{first}");
        }
    });
}

/// What a list that broke off had brought is known to be gone if the next one does not have it.
#[test]
fn what_only_a_list_that_broke_off_had_is_gone() {
    in_runtime(async {
        let (mut follower, mut sent) = listed("").await;
        let mut broken = follower.index.begin_list();
        for number in 0..300 {
            follower.take_listed(&mut broken, Object::Json(&pod(number))).await.unwrap();
        }
        drop(broken);
        let brought = sent.recv().await.unwrap();
        let Event::ClusterPod(gone, Some(_)) = &brought[0] else { panic!("{brought:?}") };
        let mut list = follower.index.begin_list();
        for number in 0..300 {
            let pod = pod(number);
            if !pod.contains(&format!("\"{}\"", gone.name)) {
                follower.take_listed(&mut list, Object::Json(&pod)).await.unwrap();
            }
        }
        follower.complete(list, "8".to_owned()).await.unwrap();
        let events = sent.recv().await.unwrap();
        assert_eq!(events[0], Event::ClusterPod(gone.clone(), None));
    });
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
            let metadata =
                json!({ "name": "web", "namespace": "shop", "resourceVersion": answered });
            let pod = json!({ "metadata": metadata });
            let (encoding, body) = (Encoding::Json, pod.to_string().into());
            let answer = ObjectAnswer { encoding, body, _untaken: None };
            follower.take_answer(&answer).await.unwrap();
            assert_eq!(sent.try_recv().is_ok(), counts, "{name}");
            let version = follower.version.as_deref().unwrap_or_default();
            assert_eq!(version, watched, "{name}: the watch goes on from where it was");
        }
    });
}

/// The answer is newer than the list, which has another state of this pod or none.
#[test]
fn a_list_that_is_older_than_an_answer_takes_nothing_back() {
    in_runtime(async {
        let (mut follower, mut sent) = listed("").await;
        let newer =
            json!({ "metadata": { "name": "pod-1", "namespace": "shop", "resourceVersion": "9" } });
        let (encoding, body) = (Encoding::Json, newer.to_string().into());
        follower.take_answer(&ObjectAnswer { encoding, body, _untaken: None }).await.unwrap();
        assert!(matches!(&sent.recv().await.unwrap()[..], [Event::ClusterPod(_, Some(_))]));
        for objects in [&[pod(1), pod(2)][..], &[pod(2)]] {
            let mut list = follower.index.begin_list();
            for pod in objects {
                follower.take_listed(&mut list, Object::Json(pod)).await.unwrap();
            }
            follower.complete(list, "8".to_owned()).await.unwrap();
            while let Ok(events) = sent.try_recv() {
                let of_first = |event: &&Event| {
                    let Event::ClusterPod(name, _) = event else { return false };
                    &*name.name == "pod-1"
                };
                assert_eq!(events.iter().find(of_first), None);
            }
        }
    });
}
