//! Answers that are refused, broken off or in another encoding: the same with the tests' own server
//! alone and in front of a real kube-apiserver. `tests/apiserver` plays these.

use std::time::Duration;

use anyhow::{Result, ensure};
use denizen_model::Event;
use denizen_tests::agent::{Agent, START_TIMEOUT, Settings};
use denizen_tests::eventually::eventually;
use denizen_tests::peers::api::context::{
    ApiContext, TIMEOUT, until_error, until_no_error, with_faulty_apis,
};
use denizen_tests::peers::api::{Api, ApiServer, CutPoint};
use serde_json::{Value, json};

use crate::any_server::{LISTED, namespace, requests_for};
use crate::following::{Following, pod, policy};

const PODS: &str = LISTED[0];
const NAMESPACES: &str = LISTED[1];
const POLICIES: &str = LISTED[2];

fn with_firewall(context: &ApiContext<ApiServer>) -> Settings {
    let mut settings = context.settings();
    settings.flags.push("--network-policy=on".to_owned());
    settings
}

/// The server's wish is obeyed, and the kinds that it answers are not disturbed.
#[test]
fn a_kind_that_is_told_to_wait_waits_and_wakes_nobody() -> Result<()> {
    with_faulty_apis("faults-429", |context| {
        context.put_node()?;
        context.api.behave(|behaviour| behaviour.too_many = Some(("networkpolicies", 3)));
        let mut agent = Agent::spawn(&context.fixture.cluster.world.node, with_firewall(context))?;
        until_error(&agent, "NetworkPolicies: Too many requests")?;
        let requests = || Ok::<_, anyhow::Error>(requests_for(context, POLICIES)?.0);
        eventually("it is asked again", TIMEOUT, || Ok(requests()?.len() >= 3))?;
        for pair in requests()?.windows(2) {
            let waited = pair[1].at - pair[0].at;
            ensure!(waited >= Duration::from_secs(3), "{waited:?}");
        }
        assert_eq!(requests_for(context, NAMESPACES)?.0.len(), 1);
        context.api.behave(|behaviour| behaviour.too_many = None);
        agent.wait_programmed(6 * START_TIMEOUT)?;
        until_no_error(&agent)
    })
}

/// A watch that is cut goes on where it was, wherever in an event that was.
#[test]
fn a_watch_that_is_cut_lists_nothing_again() -> Result<()> {
    with_faulty_apis("faults-cut", |context| {
        context.api.put_all(&[namespace("shop"), policy(&json!({}))])?;
        let mut following = Following::start(context)?;
        following.until_listed()?;
        for only_json in [true, false] {
            context.api.behave(|behaviour| behaviour.only_json = only_json);
            for point in [CutPoint::Length, CutPoint::Body, CutPoint::Between] {
                let mut brings = |app: &str| -> Result<()> {
                    context.api.put(&pod("web", app, "Running"))?;
                    following.until_pods(&[("web", app)])
                };
                // A watch that has brought something can be cut.
                brings(&format!("{only_json}-before-{point:?}"))?;
                let before = requests_for(context, PODS)?.1.len();
                context.api.cut_watches_at(point);
                brings(&format!("{only_json}-after-{point:?}"))?;
                let is_again = || Ok(requests_for(context, PODS)?.1.len() > before);
                eventually("pods are watched again", TIMEOUT, is_again)?;
            }
        }
        for path in LISTED {
            let (lists, _) = requests_for(context, path)?;
            ensure!(lists.len() == 1, "{path}: {lists:?}");
        }
        Ok(())
    })
}

/// What is gone is known only from a whole list.
#[test]
fn a_list_that_breaks_off_takes_nothing_away() -> Result<()> {
    with_faulty_apis("faults-half", |context| {
        let (gone, web) = (pod("gone", "gone", "Running"), pod("web", "web", "Running"));
        context.api.put_all(&[namespace("shop"), gone.clone(), web])?;
        let mut following = Following::start(context)?;
        following.until_listed()?;
        for only_json in [true, false] {
            context.api.put(&gone)?;
            following.until_pods(&[("gone", "gone"), ("web", "web")])?;
            context.api.stop();
            context.api.delete(&gone)?;
            context.api.behave(|behaviour| {
                behaviour.only_json = only_json;
                (behaviour.breaks_lists, behaviour.forgets) = (usize::MAX, true);
            });
            let before = requests_for(context, PODS)?.0.len();
            context.go_on()?;
            let tried = || Ok(requests_for(context, PODS)?.0.len() >= before + 2);
            eventually("lists are tried", TIMEOUT, tried)?;
            following.until_pods(&[("gone", "gone"), ("web", "web")])?;
            context
                .api
                .behave(|behaviour| (behaviour.breaks_lists, behaviour.forgets) = (0, false));
            following.until_pods(&[("web", "web")])?;
        }
        Ok(())
    })
}

/// The kind is named, and the others go on.
#[test]
fn an_event_above_16_mib_ends_its_watch() -> Result<()> {
    with_faulty_apis("faults-large", |context| {
        context.put_node()?;
        let agent = Agent::start(&context.fixture.cluster.world.node, with_firewall(context))?;
        for only_json in [true, false] {
            context.api.behave(|behaviour| {
                behaviour.only_json = only_json;
                behaviour.oversized = vec!["networkpolicies"];
            });
            context.api.cut_watches();
            agent.until("this kind alone is named", TIMEOUT, |status| {
                let errors = status["errors"].as_array().map_or(&[][..], Vec::as_slice);
                let mut errors = errors.iter().filter_map(Value::as_str);
                let named = "an object in it has more than 16 MiB";
                errors.next().is_some_and(|error| {
                    error.contains("NetworkPolicies: ") && error.contains(named)
                }) && errors.next().is_none()
            })?;
            context.api.behave(|behaviour| behaviour.oversized.clear());
            until_no_error(&agent)?;
        }
        Ok(())
    })
}

/// Policies and pods with what may be absent, empty or defaulted.
fn sparse() -> Vec<Value> {
    let named = |name: &str, spec: Value| {
        json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": { "name": name, "namespace": "shop" }, "spec": spec,
        })
    };
    let app = json!({ "matchLabels": { "app": "web" } });
    let expressions = json!([
        { "key": "app", "operator": "In", "values": ["web", "db"] },
        { "key": "old", "operator": "DoesNotExist" },
    ]);
    let policies = [
        ("nothing", json!({ "podSelector": {} })),
        ("no-rules", json!({ "podSelector": app, "policyTypes": ["Ingress", "Egress"] })),
        ("empty-rules", json!({ "podSelector": {}, "ingress": [], "egress": [] })),
        ("any-rule", json!({ "podSelector": {}, "ingress": [{}], "egress": [{}] })),
        (
            "all-pods",
            json!({ "podSelector": {}, "ingress": [{ "from": [{ "podSelector": {} }] }] }),
        ),
        (
            "all-namespaces",
            json!({ "podSelector": {}, "ingress": [{ "from": [{ "namespaceSelector": {} }] }] }),
        ),
        (
            "both",
            json!({
                "podSelector": { "matchExpressions": expressions },
                "ingress": [{ "from": [{ "namespaceSelector": app, "podSelector": {} }] }],
            }),
        ),
        (
            "ports",
            json!({
                "podSelector": {}, "policyTypes": ["Egress"],
                "egress": [{
                    "to": [{ "ipBlock": { "cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"] } }],
                    "ports": [{}, { "port": 53, "protocol": "UDP" }, { "port": "http" }],
                }],
            }),
        ),
    ];
    let mut bare = pod("bare", "bare", "Pending");
    bare["metadata"]["labels"] = json!({});
    bare["status"] = json!({ "phase": "Pending" });
    let mut host = pod("host", "host", "Running");
    host["spec"]["hostNetwork"] = true.into();
    host["status"]["podIPs"] = json!([{ "ip": "192.0.2.7" }]);
    let mut ports = pod("ports", "ports", "Running");
    ports["spec"]["containers"][0]["ports"] =
        json!([{ "name": "http", "containerPort": 80 }, { "containerPort": 81, "hostPort": 8081 }]);
    let policies = policies.map(|(name, spec)| named(name, spec));
    [vec![namespace("shop")], policies.into(), vec![bare, host, ports]].concat()
}

/// As a server writes them, a real one with its defaults and its managed fields.
#[test]
fn objects_are_the_same_in_both_encodings() -> Result<()> {
    with_faulty_apis("faults-both", |context| {
        context.put_node()?;
        context.api.put_all(&sparse())?;
        let listed = |only_json: bool| -> Result<Vec<String>> {
            context.api.behave(|behaviour| behaviour.only_json = only_json);
            let mut following = Following::start(context)?;
            following.until_listed()?;
            let is_object = |event: &&Event| !matches!(event, Event::Listed(_));
            let mut objects: Vec<String> =
                following.sent.iter().filter(is_object).map(|event| format!("{event:?}")).collect();
            objects.sort();
            Ok(objects)
        };
        let (json, protobuf) = (listed(true)?, listed(false)?);
        ensure!(json.len() >= sparse().len(), "{json:#?}");
        assert_eq!(json, protobuf);
        let requests = context.api.requests();
        for path in LISTED {
            let encodings: Vec<bool> = requests
                .iter()
                .filter(|request| request.path == path && request.is_page())
                .map(|request| request.protobuf)
                .collect();
            assert_eq!(encodings, [false, true], "{path}");
        }
        Ok(())
    })
}
