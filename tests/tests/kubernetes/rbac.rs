//! What the agent's role permits is what the agent asks for: no less, and no more.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use denizen_tests::agent::{Agent, Settings};
use denizen_tests::conf::{built_with, documents};
use denizen_tests::eventually::eventually;
use denizen_tests::node::fixture::Host;
use denizen_tests::peers::api::context::{ApiContext, TIMEOUT};
use denizen_tests::peers::api::{ApiServer, ReceivedRequest};
use serde_json::Value;

use crate::following::{Following, pod_name};

/// An API group, a resource in it, and what is done with it.
type GrantedRight = (String, String, String);

fn texts(list: &Value) -> Vec<String> {
    let texts = list.as_array().into_iter().flatten();
    texts.filter_map(|text| text.as_str().map(str::to_owned)).collect()
}

fn permitted(documents: &[Value]) -> Result<BTreeSet<GrantedRight>> {
    let role = documents.iter().find(|object| object["kind"] == "ClusterRole");
    let mut rights = BTreeSet::new();
    // Asked for where ClusterNetworkPolicies are served.
    let of_tiers = ["policy.networking.k8s.io", "apiextensions.k8s.io"];
    for rule in role.context("no role")?["rules"].as_array().context("rules")? {
        for group in
            texts(&rule["apiGroups"]).into_iter().filter(|group| !of_tiers.contains(&&**group))
        {
            for resource in texts(&rule["resources"]) {
                let verbs = texts(&rule["verbs"]).into_iter();
                rights.extend(verbs.map(|verb| (group.clone(), resource.clone(), verb)));
            }
        }
    }
    Ok(rights)
}

/// What a request needs.
fn right(request: &ReceivedRequest) -> Result<GrantedRight> {
    let path = &request.path;
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let (group, resource) = match parts.as_slice() {
        ["api", "v1", "namespaces", _, resource, _] => {
            ensure!(request.method == "GET", "{request:?}");
            return Ok((String::new(), (*resource).to_owned(), "get".to_owned()));
        }
        ["api", "v1", resource] => ("", *resource),
        ["apis", group, _, resource] | ["apis", group, _, "namespaces", _, resource] => {
            (*group, *resource)
        }
        _ => anyhow::bail!("{path} is no collection"),
    };
    let verb = match request.method.as_str() {
        "GET" if request.is_watch() => "watch",
        "GET" => "list",
        "POST" => "create",
        _ => anyhow::bail!("{request:?}"),
    };
    Ok((group.to_owned(), resource.to_owned(), verb.to_owned()))
}

#[test]
fn the_role_permits_what_is_asked_for_and_nothing_else() -> Result<()> {
    let context = ApiContext::own("rbac")?;
    context.put_node()?;
    context.put_web("web", 10, &[Host::Routed])?;
    let _agent = context.start_agent()?;
    context.until_answered(10, Host::Routed)?;
    let following = Following::start(&context)?;
    following.unknown.send_replace([pod_name("web")].into());
    until_all_is_asked_for(&context, &permitted(&documents("kubernetes/rbac.yaml")?)?)
}

/// Beside kube-proxy, nobody asks for services.
#[test]
fn the_role_beside_kube_proxy_permits_what_is_asked_for_and_nothing_else() -> Result<()> {
    let context = ApiContext::own("rbac-beside")?;
    context.put_node()?;
    let flags = ["--services=off", "--network-policy=on"].map(str::to_owned);
    let settings = Settings { flags: flags.into(), ..context.settings() };
    let _agent = Agent::start(&context.fixture.cluster.world.node, settings)?;
    let following = Following::start(&context)?;
    following.unknown.send_replace([pod_name("web")].into());
    until_all_is_asked_for(&context, &permitted(&built_with("beside-kube-proxy")?)?)
}

fn until_all_is_asked_for(
    context: &ApiContext<ApiServer>,
    permitted: &BTreeSet<GrantedRight>,
) -> Result<()> {
    eventually("everything that is permitted is asked for", TIMEOUT, || {
        let requests = context.api.requests();
        let of_tiers =
            |request: &&ReceivedRequest| request.path.contains("policy.networking.k8s.io");
        let requests = requests.iter().filter(|request| !of_tiers(request));
        let requests: BTreeSet<GrantedRight> = requests.map(right).collect::<Result<_>>()?;
        let more: Vec<_> = requests.difference(permitted).collect();
        anyhow::ensure!(more.is_empty(), "forbidden: {more:?}");
        Ok(requests == *permitted)
    })
}
