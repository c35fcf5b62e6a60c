//! What the pod firewall needs of the API: Pods, Namespaces and NetworkPolicies, and single pods.

use std::collections::BTreeSet;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use denizen_model::{Event, Notice, NoticeReason, NoticeSubject};
use denizen_source::events::Notices;
use denizen_tests::eventually::eventually;
use denizen_tests::peers::api::context::{ApiContext, TIMEOUT};
use denizen_tests::peers::api::{Api, ReceivedRequest};
use serde_json::json;

use crate::following::{Following, client, pod, pod_name, policy, run_on_node};

#[test]
fn pods_are_followed_until_they_end() -> Result<()> {
    for refuses_fields in [false, true] {
        let context = ApiContext::own("kube-pods")?;
        context.api.behave(|behaviour| behaviour.refuses_fields = refuses_fields);
        let namespace =
            json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "shop" } });
        let mut host = pod("host", "web", "Running");
        host["spec"]["hostNetwork"] = true.into();
        context.api.put_all(&[
            namespace,
            pod("web", "web", "Running"),
            pod("done", "job", "Succeeded"),
            host,
            policy(&json!({})),
        ])?;
        let mut following = Following::start(&context)?;
        following.until_listed()?;
        following.until_pods(&[("web", "web")])?;
        let sent = following.sent.len();
        let mut reported = pod("web", "web", "Running");
        reported["status"]["conditions"] = json!([{ "type": "Ready", "status": "True" }]);
        context.api.put_all(&[reported, pod("db", "db", "Pending")])?;
        following.until_pods(&[("db", "db"), ("web", "web")])?;
        assert_eq!(following.sent.len(), sent + 1, "conditions decide nothing");
        context.api.put_all(&[pod("web", "new", "Running"), pod("db", "db", "Failed")])?;
        following.until_pods(&[("web", "new")])?;
        context.api.delete(&pod("web", "new", "Running"))?;
        following.until_pods(&[])?;
    }
    Ok(())
}

/// What is asked about all pods is answered from the server's cache, in one piece. No pod stops to
/// match what a watch selects: the server would encode its end for each node that watches.
#[test]
fn a_pod_that_ends_is_an_event_like_any_other() -> Result<()> {
    let context = ApiContext::own("kube-ends")?;
    context.api.put_all(&[pod("web", "web", "Running"), pod("done", "job", "Failed")])?;
    let mut following = Following::start(&context)?;
    following.until_listed()?;
    following.until_pods(&[("web", "web")])?;
    context.api.cut_watches();
    context.api.put_all(&[pod("web", "web", "Succeeded"), pod("db", "db", "Running")])?;
    following.until_pods(&[("db", "db")])?;
    let of_pods = || -> (Vec<ReceivedRequest>, Vec<ReceivedRequest>) {
        let requests = context.api.requests().into_iter();
        requests
            .filter(|request| request.path == "/api/v1/pods")
            .partition(ReceivedRequest::is_watch)
    };
    eventually("pods are listed and watched again", TIMEOUT, || {
        // Only a watch that runs can expire.
        context.api.expire_watches();
        let (watches, lists) = of_pods();
        Ok(watches.len() > 1 && lists.len() > 1)
    })?;
    let (watches, lists) = of_pods();
    for list in &lists {
        assert_eq!(list.parameter("limit"), None, "{list:?}");
        assert!(list.parameter("resourceVersion").is_some(), "etcd would answer: {list:?}");
        let fields = list.parameter("fieldSelector").context("a selector")?;
        assert!(fields.contains("status.phase!=Failed"), "{list:?}");
    }
    assert_eq!(lists[0].parameter("resourceVersion"), Some("0"));
    assert_eq!(lists[1].parameter("resourceVersionMatch"), Some("NotOlderThan"));
    for watch in &watches {
        assert_eq!(watch.parameter("fieldSelector"), None, "{watch:?}");
        ensure!(!watch.is_stream(), "{watch:?}");
    }
    Ok(())
}

/// What an ADD waits for does not wait behind lists.
#[test]
fn a_pod_is_asked_for_while_a_list_has_no_end() -> Result<()> {
    let context = ApiContext::own("kube-endless")?;
    context.api.put_all(&[pod("web", "web", "Running"), pod("db", "db", "Running")])?;
    context.api.behave(|behaviour| behaviour.never_ends_lists = true);
    let mut following = Following::start(&context)?;
    following.unknown.send_replace([pod_name("web")].into());
    following.until_pods(&[("web", "web")])?;
    let requests = context.api.requests();
    let connections = |is_single| -> BTreeSet<Option<usize>> {
        let of = requests.iter().filter(|of| of.path.ends_with("/pods/web") == is_single);
        of.map(|request| request.connection).collect()
    };
    let (of_lists, of_pods) = (connections(false), connections(true));
    ensure!(of_lists.is_disjoint(&of_pods), "{of_lists:?} {of_pods:?}");
    Ok(())
}

#[test]
fn a_pod_that_the_watch_has_not_brought_is_asked_for() -> Result<()> {
    let context = ApiContext::own("kube-lookup")?;
    // The list of pods begins, and does not end.
    context.api.behave(|behaviour| behaviour.never_ends_lists = true);
    let mut following = Following::start(&context)?;
    let names = ["web", "../../services", "later"].map(pod_name);
    following.unknown.send_replace(names.into());
    context.api.put(&pod("web", "web", "Running"))?;
    following.until_pods(&[("web", "web")])?;
    // A static pod's object may come after its sandbox.
    context.api.put(&pod("later", "late", "Pending"))?;
    following.until_pods(&[("later", "late"), ("web", "web")])?;
    following.unknown.send_replace(BTreeSet::new());
    let singles = || -> Vec<String> {
        let requests = context.api.requests().into_iter().map(|request| request.path);
        requests.filter(|path| path.starts_with("/api/v1/namespaces/shop/")).collect()
    };
    let allowed = ["web", "later"].map(|name| format!("/api/v1/namespaces/shop/pods/{name}"));
    // One request may be under way.
    std::thread::sleep(std::time::Duration::from_millis(300));
    let before = singles();
    std::thread::sleep(std::time::Duration::from_millis(700));
    assert_eq!(singles(), before, "nobody needs them any more");
    assert!(before.iter().all(|path| allowed.contains(path)), "{before:?}");
    Ok(())
}

/// A policy that was stored before a pod may come through its watch long after it.
#[test]
fn policies_that_the_watch_has_not_brought_are_read() -> Result<()> {
    let context = ApiContext::own("kube-read")?;
    context.api.put(&policy(&json!({})))?;
    let mut following = Following::start(&context)?;
    following.until_listed()?;
    context.api.behave(|behaviour| behaviour.late.push("networkpolicies"));
    let mut changed = policy(&json!({ "ports": [{ "port": 80 }] }));
    context.api.put(&changed)?;
    let ports = |sent: &[Event]| {
        let of = |event: &Event| {
            let Event::NetworkPolicy(_, Some(policy)) = event else { return None };
            Some(format!("{:?}", policy.ingress))
        };
        sent.iter().filter_map(of).collect::<Vec<_>>()
    };
    following.until_read(1)?;
    following.until("the new policy", |sent| ports(sent).len() == 2)?;
    following.until_read(2)?;
    following.until("nothing is new", |sent| ports(sent).len() == 2)?;
    changed["spec"]["ingress"] = json!([{ "ports": [{ "port": 81 }] }]);
    // The watch brings the end of the policy before, which is not this one's.
    context.api.delete(&changed)?;
    context.api.put(&changed)?;
    following.until_read(3)?;
    context.api.behave(|behaviour| behaviour.late.clear());
    changed["spec"]["ingress"] = json!([]);
    context.api.put(&changed)?;
    following.until("the last state", |sent| ports(sent).len() == 4)?;
    let is_gone = |event: &Event| matches!(event, Event::NetworkPolicy(_, None));
    ensure!(!following.sent.iter().any(is_gone), "{:?}", following.sent);
    Ok(())
}

/// A pod's ADD does not wait long, and pods that come at once share a request.
#[test]
fn policies_that_cannot_be_read_are_given_up() -> Result<()> {
    let context = ApiContext::own("kube-unread")?;
    let mut following = Following::start(&context)?;
    following.until_listed()?;
    context.api.behave(|behaviour| behaviour.silent.push("networkpolicies"));
    let path = "/apis/networking.k8s.io/v1/namespaces/shop/networkpolicies";
    let reads = || context.api.requests().iter().filter(|request| request.path == path).count();
    following.read(1)?;
    eventually("the first is under way", TIMEOUT, || Ok(reads() == 1))?;
    (2..=9).try_for_each(|ticket| following.read(ticket))?;
    (1..=9).try_for_each(|ticket| following.until_done(ticket))?;
    assert_eq!(reads(), 2);
    context.api.behave(|behaviour| behaviour.silent.clear());
    following.until_read(10)
}

#[test]
fn a_wrong_policy_is_reported_once_for_each_text() -> Result<()> {
    let context = ApiContext::own("kube-wrong")?;
    // In protobuf, a field that is not known has a number.
    context.api.behave(|behaviour| behaviour.only_json = true);
    context.api.put(&policy(&json!({ "form": [] })))?;
    let mut following = Following::start(&context)?;
    following.until_listed()?;
    let text =
        "NetworkPolicy shop/web: spec.ingress[0].form \"[]\": not understood: the rule is left out";
    let first = following.wrong.try_recv()?;
    assert_eq!((first.policy.to_string(), first.text), ("shop/web".into(), text.into()));
    let mut same = policy(&json!({ "form": [] }));
    same["metadata"]["labels"] = json!({ "x": "y" });
    context.api.put_all(&[same, policy(&json!({ "ports": 80 }))])?;
    let policies = |sent: &[Event]| {
        sent.iter().filter(|event| matches!(event, Event::NetworkPolicy(..))).count()
    };
    following.until("three states", |sent| policies(sent) == 3)?;
    eventually("another text", TIMEOUT, || Ok(!following.wrong.is_empty()))?;
    assert!(following.wrong.try_recv()?.text.contains("spec.ingress[0]"));
    ensure!(following.wrong.try_recv().is_err(), "one for each text");
    Ok(())
}

/// Every node sees the same mistake, and a cluster may have 5,000 nodes.
#[test]
fn all_nodes_write_one_event_about_a_wrong_policy() -> Result<()> {
    let context = ApiContext::own("kube-wrong-event")?;
    let client = client(&context);
    let _stop = run_on_node(&context, move || {
        for node in ["node-1", "node-2"] {
            let notices = Notices::to_api(client.clone(), Arc::from(node));
            for text in ["one", "two"] {
                let policy =
                    denizen_model::PolicyName { namespace: "shop".into(), name: "web".into() };
                let about = NoticeSubject::NetworkPolicy(policy);
                let reason = NoticeReason::InvalidNetworkPolicy;
                notices.send(Notice { about, reason, text: text.to_owned() });
            }
        }
    })?;
    let writes = || context.api.requests().iter().filter(|request| request.status != 0).count();
    eventually("both nodes have written", TIMEOUT, || Ok(writes() == 4))?;
    let events = context.api.objects("events");
    assert_eq!(events.len(), 2, "{events:?}");
    let first = &events[0];
    assert_eq!(first["reason"], "InvalidNetworkPolicy");
    assert_eq!(first["regarding"]["kind"], "NetworkPolicy");
    assert_eq!(first["type"], "Warning");
    Ok(())
}
