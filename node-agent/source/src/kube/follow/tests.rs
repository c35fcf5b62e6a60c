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
    let (answers, wrong_policies) = (mpsc::channel(1).1, mpsc::channel(1).0);
    let list_delay = Arc::new(ListDelay::new());
    let ends = FollowerChannels::new(outlet, answers, wrong_policies, Arc::default(), list_delay);
    let mut follower = KindFollower::new(ObjectKind::Pod, &config, ends, Recovery::new());
    if !version.is_empty() {
        follower.index.begin_list();
        follower.complete(version.to_owned()).await.unwrap();
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
            follower.index.begin_list();
            for number in 0..PODS {
                follower.take_listed(Object::Json(&pod(number))).await.unwrap();
            }
            let early = sent.len();
            follower.complete("8".to_owned()).await.unwrap();
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
        follower.index.begin_list();
        for number in 0..300 {
            follower.take_listed(Object::Json(&pod(number))).await.unwrap();
        }
        let brought = sent.recv().await.unwrap();
        let Event::ClusterPod(gone, Some(_)) = &brought[0] else { panic!("{brought:?}") };
        follower.index.begin_list();
        for number in 0..300 {
            let pod = pod(number);
            if !pod.contains(&format!("\"{}\"", gone.name)) {
                follower.take_listed(Object::Json(&pod)).await.unwrap();
            }
        }
        follower.complete("8".to_owned()).await.unwrap();
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
            follower.index.begin_list();
            for pod in objects {
                follower.take_listed(Object::Json(pod)).await.unwrap();
            }
            follower.complete("8".to_owned()).await.unwrap();
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

/// A list and an answer about one of its objects arrive at the same time: the newest state stays,
/// whichever comes first, and whether or not the list's has been sent.
#[test]
fn of_a_list_and_an_answer_that_cross_the_newer_counts() {
    let of_version = |version: u8| {
        let metadata = json!({ "name": "web", "namespace": "shop",
                               "resourceVersion": version.to_string() });
        json!({ "metadata": metadata, "status": { "podIP": format!("10.0.0.{version}") } })
    };
    in_runtime(async {
        for (version, sent_early, in_list, answered) in [
            ("", false, 5, 7),
            ("", false, 7, 5),
            ("", true, 5, 7),
            ("", true, 7, 5),
            ("4", false, 5, 7),
            ("4", false, 7, 5),
        ] {
            let case = format!("{version:?} {sent_early} {in_list} {answered}");
            let (mut follower, mut sent) = listed(version).await;
            let (_reads, answers) = mpsc::channel(1);
            follower.answers = answers;
            let mut known = None;
            let mut latest = || {
                while let Ok(events) = sent.try_recv() {
                    for event in events {
                        let Event::ClusterPod(name, pod) = event else { continue };
                        if &*name.name == "web" {
                            known = pod.map(|pod| pod.ips[0].to_string());
                        }
                    }
                }
                known.clone()
            };
            follower.version = None;
            follower.index.begin_list();
            follower.take_listed(Object::Json(&of_version(in_list).to_string())).await.unwrap();
            for number in 0..if sent_early { 300 } else { 0 } {
                follower.take_listed(Object::Json(&pod(number))).await.unwrap();
            }
            assert_eq!(latest().is_some(), sent_early, "{case}");
            let (encoding, body) = (Encoding::Json, of_version(answered).to_string().into());
            let answer = ObjectAnswer { encoding, body, _untaken: None };
            follower.take_answer(&answer).await.unwrap();
            let newest = format!("10.0.0.{}", in_list.max(answered));
            assert_eq!(latest().as_ref(), Some(&newest), "{case}: an ADD waits for it");
            for number in 300..600 {
                follower.take_listed(Object::Json(&pod(number))).await.unwrap();
            }
            follower.complete((in_list + 1).to_string()).await.unwrap();
            assert_eq!(latest().as_ref(), Some(&newest), "{case}");
        }
    });
}
