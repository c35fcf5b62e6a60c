//! Events on the Node and on Services, as kube-proxy writes them, and on NetworkPolicies.

use std::collections::BTreeSet;
use std::net::TcpListener;

use anyhow::{Context, Result};
use denizen_tests::agent::Agent;
use denizen_tests::eventually::{eventually, observed};
use denizen_tests::node::cluster::NODE;
use denizen_tests::node::fixture::{Host, service_ips};
use denizen_tests::node::manifest;
use denizen_tests::node::world::ip;
use denizen_tests::peers::api::context::{ApiContext, HTTP, TIMEOUT, until_error, until_no_error};
use denizen_tests::peers::api::{Api, ApiServer};
use serde_json::{Value, json};

/// What `/metrics` is served at.
const METRICS: &str = "127.0.0.1:10249";
/// The health-check node port of the service in these tests.
const PORT: u16 = 32_123;

/// The events for this reason.
fn events(context: &ApiContext<ApiServer>, reason: &str) -> Vec<Value> {
    let all = context.api.objects("events").into_iter();
    all.filter(|event| event["reason"] == reason).collect()
}

fn until_event(context: &ApiContext<ApiServer>, reason: &str) -> Result<Value> {
    eventually(reason, TIMEOUT, || Ok(!events(context, reason).is_empty()))?;
    events(context, reason).pop().context("it was there")
}

/// Takes an address in the node, until the value is dropped.
fn taken(context: &ApiContext<ApiServer>, address: &str) -> Result<TcpListener> {
    Ok(context.fixture.cluster.world.node.run(|| TcpListener::bind(address))??)
}

fn checked_service() -> Value {
    let mut service = manifest::service("checked", &service_ips(11), &HTTP);
    service["spec"]["type"] = "LoadBalancer".into();
    service["spec"]["externalTrafficPolicy"] = "Local".into();
    service["spec"]["healthCheckNodePort"] = PORT.into();
    service
}

#[test]
fn what_cannot_be_served_is_an_event_once() -> Result<()> {
    let context = ApiContext::own("kube-events")?;
    context.put_node()?;
    context.put_web("web", 10, &[Host::Routed])?;
    let metrics = taken(&context, METRICS)?;
    let port = taken(&context, &format!("0.0.0.0:{PORT}"))?;
    let agent = context.start_agent()?;
    let node = json!({ "kind": "Node", "name": NODE, "uid": NODE });
    let started = until_event(&context, "Starting")?;
    assert_eq!(started["regarding"], node);
    assert_eq!(
        (&started["type"], &started["metadata"]["namespace"]),
        (&json!("Normal"), &json!("default"))
    );
    let failed = until_event(&context, "FailedToStartMetricServer")?;
    assert_eq!((&failed["regarding"], &failed["type"]), (&node, &json!("Warning")));
    let note = failed["note"].as_str().context("a note")?;
    assert!(note.contains(METRICS), "{failed}");
    context.api.put(&checked_service())?;
    let failed = until_event(&context, "FailedToStartServiceHealthcheck")?;
    assert_eq!(
        (&failed["regarding"]["kind"], &failed["regarding"]["name"]),
        (&json!("Service"), &json!("checked"))
    );
    // The same again is no news.
    context.api.delete(&checked_service())?;
    until_error(&agent, METRICS)?;
    drop(metrics);
    until_no_error(&agent)?;
    context.api.put(&checked_service())?;
    until_error(&agent, &PORT.to_string())?;
    drop(port);
    until_no_error(&agent)?;
    assert_eq!(events(&context, "FailedToStartServiceHealthcheck").len(), 1);
    assert_eq!(events(&context, "Starting").len(), 1);
    assert_eq!(events(&context, "FailedToStartProxierHealthcheck").len(), 0);
    Ok(())
}

fn wrong_policy(name: &str, labels: &Value) -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": { "name": name, "namespace": "default", "labels": labels },
        "spec": { "podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{ "form": [] }] },
    })
}

#[test]
fn a_policy_that_is_not_understood_is_an_event_once_and_in_the_status() -> Result<()> {
    let context = ApiContext::own("kube-policy-event")?;
    // A real server drops a field that it does not know, and in protobuf it has a number.
    context.api.behave(|behaviour| behaviour.only_json = true);
    context.put_node()?;
    context.api.put(&wrong_policy("first", &json!({})))?;
    let agent = context.start_agent()?;
    let event = until_event(&context, "InvalidNetworkPolicy")?;
    let first = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "namespace": "default", "name": "first",
    });
    assert_eq!((&event["regarding"], &event["type"]), (&first, &json!("Warning")));
    let text = "NetworkPolicy default/first: spec.ingress[0].form \"[]\": not understood";
    let note = event["note"].as_str().context("a note")?;
    assert!(note.starts_with(text), "{event}");
    until_error(&agent, "NetworkPolicy default/first: spec.ingress[0].form")?;
    assert_eq!(agent.status()?["networkPolicy"]["notUnderstood"], 1);
    // The same mistake again is no news.
    context.api.put(&wrong_policy("first", &json!({ "x": "y" })))?;
    context.api.put(&wrong_policy("second", &json!({})))?;
    let all = || events(&context, "InvalidNetworkPolicy");
    let names_second = |event: &Value| event["regarding"]["name"] == "second";
    eventually("the other is named", TIMEOUT, || Ok(all().iter().any(names_second)))?;
    assert_eq!(all().len(), 2, "{:?}", all());
    // The API would not keep an event that it has. Besides these two, one is about the start.
    let requests = context.api.requests();
    let written = requests
        .iter()
        .filter(|request| request.method == "POST" && request.path.ends_with("/events"));
    assert_eq!(written.count(), 3, "{requests:?}");
    for name in ["first", "second"] {
        let mut right = wrong_policy(name, &json!({}));
        right["spec"]["ingress"] = json!([]);
        context.api.put(&right)?;
    }
    until_no_error(&agent)
}

/// All Nodes are followed. What one of them may not have is reported once.
#[test]
fn a_pod_cidr_without_a_route_is_an_event_and_others_get_theirs() -> Result<()> {
    let context = ApiContext::own("kube-route-event")?;
    context.put_node()?;
    let node = |ranges: &[&str]| {
        let mut node = manifest::node("evil", &[ip("198.18.0.66")], "");
        node["spec"] = json!({ "podCIDRs": ranges });
        context.api.put(&node)
    };
    node(&["10.99.0.0/24", "192.168.0.0/24"])?;
    let mut settings = context.settings();
    settings.flags.push("--routing-mode=direct".to_owned());
    let here = &context.fixture.cluster.world.node;
    // Its usual network has no neighbours.
    here.ip("addr add 198.18.0.1/24 dev eth0")?;
    let _agent = Agent::start(here, settings)?;
    let event = until_event(&context, "RouteRejected")?;
    assert_eq!((&event["regarding"]["name"], &event["type"]), (&json!(NODE), &json!("Warning")));
    let text = "no route to 192.168.0.0/24, the podCIDR of Node evil: 192.168.0.2 is the address \
                of a node";
    assert_eq!(event["note"], text);
    let routes = || here.output("ip", &["-N", "route", "show", "proto", "213"]);
    let through = |range: &str| format!("{range} via 198.18.0.66 dev eth0 metric 1190 \n");
    let until = |wanted: &str| observed("routed", TIMEOUT, routes, |routes| routes == wanted);
    until(&through("10.99.0.0/24"))?;
    node(&["10.98.0.0/24", "192.168.0.0/24"])?;
    until(&through("10.98.0.0/24"))?;
    let metadata = json!({ "name": "evil" });
    context.api.delete(&json!({ "apiVersion": "v1", "kind": "Node", "metadata": metadata }))?;
    until("")?;
    assert_eq!(events(&context, "RouteRejected").len(), 1);
    Ok(())
}

/// Who may not write events says so in the log, and serves all the same.
#[test]
fn an_event_that_cannot_be_written_stops_nothing() -> Result<()> {
    let context = ApiContext::own("kube-noevent")?;
    context.api.behave(|behaviour| behaviour.forbidden = vec!["events"]);
    context.put_node()?;
    context.put_web("web", 10, &[Host::Routed])?;
    let agent = context.start_agent()?;
    context.until_answered(10, Host::Routed)?;
    eventually("it is said", TIMEOUT, || Ok(agent.log().contains("cannot write an event")))?;
    until_no_error(&agent)?;
    assert!(context.api.objects("events").is_empty());
    Ok(())
}

/// Whoever may write a Service chooses its external IPs (CVE-2020-8554).
#[test]
fn an_address_outside_the_permitted_ranges_is_an_event_and_never_in_the_kernel() -> Result<()> {
    let context = ApiContext::own("kube-permitted")?;
    context.put_node()?;
    let mut service = manifest::service("grabs", &service_ips(12), &HTTP);
    service["spec"]["externalIPs"] = json!(["192.0.2.7", "198.51.100.53"]);
    context.api.put(&service)?;
    let mut settings = context.settings();
    settings.flags.push("--external-ip-ranges=192.0.2.0/24,2001:db8::/64".to_owned());
    let here = &context.fixture.cluster.world.node;
    let agent = Agent::start(here, settings)?;
    let event = until_event(&context, "AddressNotPermitted")?;
    assert_eq!(
        (&event["regarding"]["kind"], &event["regarding"]["name"], &event["type"]),
        (&json!("Service"), &json!("grabs"), &json!("Warning"))
    );
    let text = "Service default/grabs: its external IP 198.51.100.53 is in no range of \
                --external-ip-ranges: not served";
    assert_eq!(event["note"], text);
    until_error(&agent, text)?;
    let rules = || here.output("nft", &["list", "ruleset"]);
    let rules =
        observed("the other one is served", TIMEOUT, rules, |rules| rules.contains("192.0.2.7"))?;
    assert!(!rules.contains("198.51.100.53"), "{rules}");
    service["spec"]["externalIPs"] = json!(["192.0.2.7"]);
    context.api.put(&service)?;
    until_no_error(&agent)
}

/// An object of a few kilobytes would have hundreds of thousands of frontends.
#[test]
fn too_many_addresses_of_a_service_are_an_event_and_never_in_the_kernel() -> Result<()> {
    let context = ApiContext::own("kube-too-many")?;
    context.put_node()?;
    let mut service = manifest::service("large", &service_ips(12), &HTTP);
    let ports = (1..=400).map(|n| json!({ "name": format!("p{n}"), "port": n, "protocol": "TCP" }));
    service["spec"]["ports"] = ports.collect();
    let addresses = |most| (1..=most).map(|n| json!(format!("198.51.100.{n}"))).collect::<Value>();
    service["spec"]["externalIPs"] = addresses(30);
    context.api.put(&service)?;
    let agent = context.start_agent()?;
    let event = until_event(&context, "TooManyAddresses")?;
    assert_eq!(
        (&event["regarding"]["kind"], &event["regarding"]["name"], &event["type"]),
        (&json!("Service"), &json!("large"), &json!("Warning"))
    );
    let text = "Service default/large: for its number of ports it has too many external IPs and \
                load balancer IPs: 20 are served, 10 are not";
    assert_eq!(event["note"], text);
    until_error(&agent, text)?;
    let here = &context.fixture.cluster.world.node;
    let rules = || here.output("nft", &["list", "map", "ip", "denizen", "services"]);
    let rules = observed("the others are served", TIMEOUT, rules, |rules| {
        rules.contains("198.51.100.20 . tcp . 400 ")
    })?;
    assert!(!rules.contains("198.51.100.21 "), "{rules}");
    service["spec"]["externalIPs"] = addresses(20);
    context.api.put(&service)?;
    until_no_error(&agent)
}

/// Both are named, once; a third with another priority is not.
#[test]
fn policies_of_one_priority_about_one_pod_are_events() -> Result<()> {
    let context = ApiContext::own("kube-cnp-tie")?;
    context.api.behave(|behaviour| behaviour.tiers = true);
    context.put_node()?;
    context.api.put_all(&context.fixture.pod_objects("a", "b"))?;
    let policy = |name: &str, priority: u16| {
        json!({
            "apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy",
            "metadata": { "name": name },
            "spec": {
                "tier": "Admin", "priority": priority, "subject": { "namespaces": {} },
                "egress": [{ "action": "Accept", "to": [{ "networks": ["0.0.0.0/0"] }] }],
            },
        })
    };
    for (name, priority) in [("first", 5), ("second", 5), ("third", 6)] {
        context.api.put(&policy(name, priority))?;
    }
    let _agent = context.start_agent()?;
    let named = || {
        let all = events(&context, "SamePriority");
        let name = |event: &Value| event["regarding"]["name"].as_str().map(str::to_owned);
        all.iter().filter_map(name).collect::<BTreeSet<_>>()
    };
    let expected = ["first", "second"].map(str::to_owned).into();
    eventually("both are named", TIMEOUT, || Ok(named() == expected))?;
    let event = &events(&context, "SamePriority")[0];
    assert_eq!(event["type"], "Warning");
    let note = event["note"].as_str().context("a note")?;
    assert!(note.starts_with("ClusterNetworkPolicies first, second select one pod"), "{note}");
    // It is news again only once it was otherwise.
    context.api.put(&policy("second", 7))?;
    context.api.put(&policy("third", 5))?;
    eventually("the new one is named", TIMEOUT, || Ok(named().contains("third")))
}
