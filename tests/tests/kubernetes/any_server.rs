//! What following the API costs a server, and what becomes of it when the server goes away: the
//! same with the tests' own server and with a real kube-apiserver. `tests/apiserver` plays these.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use denizen_model::Event;
use denizen_source::kube::{NodeCount, PodScope, PodScopes};
use denizen_tests::agent::{Agent, Settings};
use denizen_tests::eventually::eventually;
use denizen_tests::peers::api::context::{ApiContext, TIMEOUT, until_error, with_every_api};
use denizen_tests::peers::api::{Api, ReceivedRequest};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::following::{Following, pod, pod_name, policy};

pub(crate) const LISTED: [&str; 3] =
    ["/api/v1/pods", "/api/v1/namespaces", "/apis/networking.k8s.io/v1/networkpolicies"];

pub(crate) fn namespace(name: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } })
}

fn node(number: usize) -> Value {
    let name = format!("node-{number}");
    json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": name } })
}

/// The lists and the watches of `path` so far.
pub(crate) fn requests_for<A: Api>(
    context: &ApiContext<A>,
    path: &str,
) -> Result<(Vec<ReceivedRequest>, Vec<ReceivedRequest>)> {
    let requests = context.api.agent_requests()?.into_iter();
    Ok(requests.filter(|request| request.path == path).partition(ReceivedRequest::is_page))
}

/// The server answers lists from its cache, whole, and encodes each change once for all agents: no
/// watch selects what an object may stop to match.
#[test]
fn lists_come_from_the_cache_and_watches_select_nothing() -> Result<()> {
    with_every_api("any-lists", |context| {
        let ended = pod("done", "job", "Failed");
        let pods = [pod("web", "web", "Running"), ended];
        context
            .api
            .put_all(&[vec![namespace("shop"), policy(&json!({}))], pods.into()].concat())?;
        let mut following = Following::start(context)?;
        following.until_listed()?;
        following.until_pods(&[("web", "web")])?;
        context.api.put_all(&[pod("web", "web", "Succeeded"), pod("db", "db", "Running")])?;
        following.until_pods(&[("db", "db")])?;
        for path in LISTED {
            let (lists, watches) = requests_for(context, path)?;
            ensure!(lists.len() == 1 && watches.len() == 1, "{path}: {lists:?} {watches:?}");
            assert_eq!(lists[0].parameter("resourceVersion"), Some("0"), "{lists:?}");
            assert_eq!(lists[0].parameter("limit"), None, "{lists:?}");
            ensure!(lists[0].user_agent.starts_with("denizen-agent/"), "{lists:?}");
            assert_eq!(watches[0].parameter("fieldSelector"), None, "{watches:?}");
            ensure!(!watches[0].is_stream(), "{watches:?}");
        }
        let (lists, _) = requests_for(context, LISTED[0])?;
        let fields = lists[0].parameter("fieldSelector").context("a selector")?;
        ensure!(fields.contains("status.phase!=Failed"), "{fields}");
        Ok(())
    })
}

/// Many nodes lose the server at one moment: each goes on where it was. Where the server cannot,
/// the list may be its cache's.
#[test]
fn after_a_restart_of_the_server_nobody_lists_what_it_knows() -> Result<()> {
    const AGENTS: usize = 20;
    with_every_api("any-many", |context| {
        context.api.put_all(&[
            namespace("shop"),
            pod("web", "web", "Running"),
            policy(&json!({})),
        ])?;
        let mut agents =
            (0..AGENTS).map(|_| Following::start(context)).collect::<Result<Vec<_>>>()?;
        for agent in &mut agents {
            agent.until_listed()?;
            agent.until_pods(&[("web", "web")])?;
        }
        let lists = |context: &ApiContext<_>| -> Result<Vec<ReceivedRequest>> {
            let lists = LISTED.map(|path| requests_for(context, path).map(|(lists, _)| lists));
            let lists = lists.into_iter().collect::<Result<Vec<_>>>()?.concat();
            Ok(lists.into_iter().filter(|list| list.status == 200).collect())
        };
        let before = lists(context)?.len();
        assert_eq!(before, LISTED.len() * AGENTS, "one for each kind and agent");
        context.api.stop();
        context.go_on()?;
        context.api.put(&pod("db", "db", "Running"))?;
        for agent in &mut agents {
            agent.until_pods(&[("db", "db"), ("web", "web")])?;
        }
        let after = lists(context)?;
        let again: Vec<_> =
            after.iter().filter(|list| list.parameter("resourceVersion") != Some("0")).collect();
        ensure!(after.len() == before + again.len(), "{after:?}");
        ensure!(again.is_empty() || !context.api.resumes(), "{again:?}");
        for list in again {
            assert_eq!(list.parameter("resourceVersionMatch"), Some("NotOlderThan"), "{list:?}");
            assert_eq!(list.parameter("limit"), None, "{list:?}");
        }
        Ok(())
    })
}

/// Many watches, and what a pod's ADD waits for beside them. What is known is not forgotten when
/// the pods of all namespaces are followed in place of each by itself.
#[test]
fn pods_of_many_namespaces_and_a_single_pod() -> Result<()> {
    const NAMESPACES: usize = 32;
    const NODES: usize = 30;
    with_every_api("any-scopes", |context| {
        let names: Vec<String> = (0..NAMESPACES).map(|number| format!("team-{number}")).collect();
        let pod_of = |name: &String| {
            let mut pod = pod("web", "web", "Running");
            pod["metadata"]["namespace"] = name.as_str().into();
            pod["spec"]["nodeName"] = "elsewhere".into();
            pod
        };
        let shop = [namespace("shop"), namespace("unnamed"), pod("late", "late", "Running")];
        context.api.put_all(&shop)?;
        context.api.put(&pod_of(&"unnamed".to_owned()))?;
        context.api.put_all(&(0..NODES).map(node).collect::<Vec<_>>())?;
        let namespaces = names.iter().map(|name| namespace(name));
        context.api.put_all(&namespaces.chain(names.iter().map(pod_of)).collect::<Vec<_>>())?;

        let of_names =
            || PodScope::Namespaces(names.iter().map(|name| name.as_str().into()).collect());
        let (wanted, scopes) = watch::channel(Some(of_names()));
        let (nodes, counted) = watch::channel(NodeCount::default());
        let scopes = PodScopes { wanted: scopes, nodes: Some(nodes) };
        let mut following = Following::start_with(context, Some(scopes))?;
        let known = |names: &[String]| {
            let of_names = names.iter().map(|name| format!("{name}/web"));
            of_names.chain(["shop/late".to_owned()]).collect::<BTreeSet<_>>()
        };
        let has = |wanted: BTreeSet<String>| {
            move |sent: &[Event]| {
                crate::following::pods(sent).into_keys().eq(wanted.iter().cloned())
            }
        };
        following.until("the pods of each namespace", has(known(&names)))?;
        assert_eq!(*counted.borrow(), NodeCount::Nodes(u32::try_from(NODES)?));
        following.unknown.send_replace([pod_name("late")].into());
        let single = "/api/v1/namespaces/shop/pods/late";
        let answered =
            || Ok(requests_for(context, single)?.0.iter().any(|request| request.status == 200));
        eventually("a pod is asked for beside all watches", TIMEOUT, answered)?;
        following.unknown.send_replace(BTreeSet::new());
        for name in &names {
            let (lists, watches) =
                requests_for(context, &format!("/api/v1/namespaces/{name}/pods"))?;
            ensure!(lists.len() == 1 && watches.len() == 1, "{lists:?} {watches:?}");
            assert!(lists[0].parameter("resourceVersion").is_some(), "{lists:?}");
        }

        let all = [names.clone(), vec!["unnamed".to_owned()]].concat();
        for _ in 0..2 {
            wanted.send_replace(Some(PodScope::All));
            following.until("all pods", has(known(&all)))?;
            wanted.send_replace(Some(of_names()));
            following.until("those of the namespaces", has(known(&names)))?;
        }
        let gone = following.sent.iter().filter_map(|event| {
            let Event::ClusterPod(name, None) = event else { return None };
            Some(name.to_string())
        });
        let gone: BTreeSet<String> = gone.collect();
        assert_eq!(gone, BTreeSet::from(["unnamed/web".to_owned()]), "what stays known never went");
        Ok(())
    })
}

/// A kind that no server has in protobuf.
#[test]
fn cluster_network_policies_come_in_json() -> Result<()> {
    with_every_api("any-tiers", |context| {
        context.api.define_tiers()?;
        context.api.put_all(&[namespace("shop"), pod("web", "web", "Running")])?;
        let admin = |name: &str| {
            json!({
                "apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy",
                "metadata": { "name": name },
                "spec": { "tier": "Admin", "priority": 1, "subject": { "namespaces": {} } },
            })
        };
        context.api.put(&admin("first"))?;
        let mut following = Following::start(context)?;
        let has = |name: &'static str| {
            move |sent: &[Event]| {
                let mut events = sent.iter();
                events.any(|event| matches!(event, Event::ClusterNetworkPolicy(of, Some(_)) if **of == *name))
            }
        };
        following.until("the policy of the list", has("first"))?;
        context.api.put(&admin("second"))?;
        following.until("the policy of the watch", has("second"))
    })
}

/// The server's reason is understood in the encoding that was asked for.
#[test]
fn a_refusal_is_named_with_its_code() -> Result<()> {
    with_every_api("any-403", |context| {
        context.put_node()?;
        context.api.forbid_all()?;
        let flags = ["--services=off", "--network-policy=on"].map(str::to_owned).into();
        let settings = Settings { flags, ..context.settings() };
        let agent = Agent::spawn(&context.fixture.cluster.world.node, settings)?;
        for part in ["pods is forbidden: User", "(403 Forbidden)"] {
            until_error(&agent, part)?;
        }
        Ok(())
    })
}
