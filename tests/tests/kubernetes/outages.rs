//! An API server that is away, slow, broken, forgetful or old: what was known stays served, what is
//! told in the end is programmed, and what is wrong is said.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use denizen_tests::agent::{Agent, START_TIMEOUT, Settings};
use denizen_tests::eventually::eventually;
use denizen_tests::node::fixture::Host;
use denizen_tests::node::pod::Wiring;
use denizen_tests::peers::api::context::{ApiContext, TIMEOUT, until_error, until_no_error};
use denizen_tests::peers::api::{Api, ApiServer, ReceivedRequest};
use serde_json::{Value, json};

/// A node, service 10 at the routed pod, and whatever else is asked for: not started yet.
fn context(label: &str) -> Result<ApiContext<ApiServer>> {
    let context = ApiContext::own(label)?;
    context.put_node()?;
    context.put_web("web", 10, &[Host::Routed])?;
    Ok(context)
}

/// The requests for `resource`.
fn requests(context: &ApiContext<ApiServer>, resource: &str) -> Vec<ReceivedRequest> {
    // All agents count the nodes before their first lists.
    let counts = |request: &ReceivedRequest| request.parameter("limit") == Some("1");
    let of = |request: &ReceivedRequest| {
        request.path.ends_with(&format!("/{resource}")) && !counts(request)
    };
    context.api.requests().into_iter().filter(of).collect()
}

/// How many lists, as a stream or the first page of one.
fn lists(requests: &[ReceivedRequest]) -> usize {
    let first =
        |request: &&ReceivedRequest| request.is_page() && request.parameter("continue").is_none();
    requests.iter().filter(|request| request.is_stream() || first(request)).count()
}

/// While the server is away, `gone` is deleted and `web` moved, and nobody remembers.
fn change_behind_its_back(context: &mut ApiContext<ApiServer>) -> Result<()> {
    context.api.stop();
    context.delete_web("gone", true)?;
    context.put_web("web", 10, &[Host::Remote])?;
    context.api.compact();
    Ok(())
}

/// One request for each kind, from the server's cache; its watch goes on from there.
#[test]
fn the_first_list_is_one_request_to_the_cache() -> Result<()> {
    let context = context("kube-list")?;
    context.put_web("second", 11, &[Host::Bridged])?;
    let agent = context.start_agent()?;
    context.until_answered(11, Host::Bridged)?;
    for resource in ["services", "endpointslices", "nodes", "servicecidrs"] {
        let requests = requests(&context, resource);
        let listed = requests.iter().filter(|request| request.is_page()).collect::<Vec<_>>();
        assert_eq!(listed.len(), 1, "{resource}: {requests:?}");
        assert_eq!(listed[0].parameter("resourceVersion"), Some("0"), "{listed:?}");
        assert_eq!(listed[0].parameter("limit"), None, "{listed:?}");
        assert!(!requests.iter().any(ReceivedRequest::is_stream), "{requests:?}");
    }
    until_no_error(&agent)?;
    // As a server that has been restored from an older copy: it never gets that far.
    context.api.expire_watches();
    eventually("services are listed again", TIMEOUT, || {
        Ok(lists(&requests(&context, "services")) > 1)
    })?;
    let again = requests(&context, "services").into_iter().rfind(ReceivedRequest::is_page);
    let again = again.context("a list")?;
    assert_eq!(again.parameter("resourceVersionMatch"), Some("NotOlderThan"), "{again:?}");
    ensure!(again.parameter("resourceVersion").is_some_and(|version| version != "0"));
    context.put_web("web", 10, &[Host::Remote])?;
    context.until_answered(10, Host::Remote)
}

/// A connection costs a server more than a watch does, and most of it when all nodes come at once.
#[test]
fn all_watches_share_a_connection_where_the_server_speaks_http2() -> Result<()> {
    let context = context("kube-http2")?;
    let firewall = Settings { flags: vec!["--network-policy=on".to_owned()], ..context.settings() };
    let agent = Agent::start(&context.fixture.cluster.world.node, firewall)?;
    context.until_answered(10, Host::Routed)?;
    until_no_error(&agent)?;
    let requests = context.api.requests();
    let watches: Vec<_> = requests.iter().filter(|request| request.is_watch()).collect();
    let used: BTreeSet<_> = watches.iter().map(|watch| watch.connection).collect();
    ensure!(watches.len() >= 6 && used.len() == 1, "{watches:?}");
    // The event of the agent's start too.
    eventually("an event", TIMEOUT, || {
        Ok(context.api.requests().iter().any(|request| request.method == "POST"))
    })?;
    assert_eq!(context.api.connections(), 1, "{:?}", context.api.requests());
    Ok(())
}

/// A proxy in front of the server may know no HTTP/2.
#[test]
fn a_server_that_speaks_http1_alone_is_followed() -> Result<()> {
    let context = context("kube-http1")?;
    context.api.behave(|behaviour| behaviour.only_http1 = true);
    let agent = context.start_agent()?;
    context.until_answered(10, Host::Routed)?;
    let watches = context.api.requests().into_iter().filter(ReceivedRequest::is_watch);
    let used: Vec<_> = watches.map(|watch| watch.connection).collect();
    let distinct: BTreeSet<_> = used.iter().collect();
    assert_eq!(distinct.len(), used.len(), "a watch for each connection: {used:?}");
    context.put_web("web", 10, &[Host::Remote])?;
    context.until_answered(10, Host::Remote)?;
    until_no_error(&agent)
}

/// What a proxy between them may make of it.
#[test]
fn a_page_is_not_taken_for_the_whole_list() -> Result<()> {
    let context = context("kube-page")?;
    context.put_web("second", 11, &[Host::Bridged])?;
    context.api.behave(|behaviour| behaviour.page = 1);
    let mut agent = context.spawn_agent()?;
    until_error(&agent, "only a part of the list")?;
    context.api.behave(|behaviour| behaviour.page = usize::MAX);
    agent.wait_programmed(6 * START_TIMEOUT)?;
    context.until_answered(11, Host::Bridged)?;
    until_no_error(&agent)
}

/// A server may change its mind, or be replaced by one that has no protobuf.
#[test]
fn another_encoding_in_the_middle_is_understood() -> Result<()> {
    let context = context("kube-either")?;
    let agent = context.start_agent()?;
    for (only_json, who) in [(true, Host::Remote), (false, Host::Bridged), (true, Host::Routed)] {
        context.api.behave(|behaviour| behaviour.only_json = only_json);
        context.api.cut_watches();
        context.put_web("web", 10, &[who])?;
        context.until_answered(10, who)?;
        context.api.expire_watches();
    }
    context.put_web("web", 10, &[Host::Remote])?;
    context.until_answered(10, Host::Remote)?;
    until_no_error(&agent)
}

/// Kubernetes 1.21 to 1.30, in both encodings.
#[test]
fn a_server_that_selects_no_fields_is_asked_for_all_services() -> Result<()> {
    for only_json in [true, false] {
        let context = context("kube-nofield")?;
        context.api.behave(|behaviour| {
            behaviour.only_json = only_json;
            behaviour.refuses_fields = true;
        });
        let agent = context.start_agent()?;
        let served = agent.status()?["services"].clone();
        let headless =
            json!({ "clusterIP": "None", "clusterIPs": ["None"], "ports": [{ "port": 80 }] });
        let metadata = json!({ "namespace": "default", "name": "headless" });
        context
            .api
            .put(&json!({ "apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": headless }))?;
        context.put_web("web", 10, &[Host::Remote])?;
        context.until_answered(10, Host::Remote)?;
        until_no_error(&agent)?;
        assert_eq!(agent.status()?["services"], served, "the other is nobody's to serve");
        let of_nodes = requests(&context, "nodes");
        let own = |request: &ReceivedRequest| {
            request.parameter("fieldSelector") == Some("metadata.name=node-1")
        };
        ensure!(of_nodes.iter().all(own), "{of_nodes:?}");
    }
    Ok(())
}

#[test]
fn a_watch_that_breaks_goes_on_where_it_was() -> Result<()> {
    let context = context("kube-resume")?;
    context.api.behave(|behaviour| behaviour.bookmarks = Duration::from_millis(50));
    let agent = context.start_agent()?;
    // Nothing happens to a Node, so that only a bookmark tells where its watch goes on.
    let node_watches = || -> Vec<u64> {
        let own = requests(&context, "nodes").into_iter();
        let watches = own
            .filter(|request| request.is_watch() && !request.is_stream() && request.status == 200);
        watches.filter_map(|request| request.parameter("resourceVersion")?.parse().ok()).collect()
    };
    for (round, who) in [Host::Remote, Host::Routed, Host::Bridged].into_iter().enumerate() {
        let before = node_watches().len();
        context.api.cut_watches();
        context.put_web("web", 10, &[who])?;
        context.until_answered(10, who).with_context(|| format!("round {round}"))?;
        eventually("the Node is watched again", TIMEOUT, || Ok(node_watches().len() > before))?;
    }
    // Each time longer, so that one watch lasts until its bookmark comes.
    let (mut cut, mut patience) = (Instant::now(), Duration::from_millis(100));
    eventually("a bookmark counts", TIMEOUT, || {
        if cut.elapsed() > patience {
            (cut, patience) = (Instant::now(), 2 * patience);
            context.api.cut_watches();
        }
        let versions = node_watches();
        Ok(versions.last() > versions.first())
    })?;
    for resource in ["services", "endpointslices", "nodes", "servicecidrs"] {
        assert_eq!(lists(&requests(&context, resource)), 1, "{resource} listed again");
    }
    until_no_error(&agent)
}

#[test]
fn a_watch_that_is_too_old_is_listed_anew() -> Result<()> {
    let mut context = context("kube-old")?;
    context.put_web("gone", 11, &[Host::Bridged])?;
    let agent = context.start_agent()?;
    context.until_answered(11, Host::Bridged)?;
    context.api.expire_watches();
    eventually("services are listed again", TIMEOUT, || {
        Ok(lists(&requests(&context, "services")) > 1)
    })?;
    context.put_web("web", 10, &[Host::Bridged])?;
    context.until_answered(10, Host::Bridged)?;
    change_behind_its_back(&mut context)?;
    context.go_on()?;
    context.until_unknown(11)?;
    context.until_answered(10, Host::Remote)?;
    until_no_error(&agent)
}

#[test]
fn what_is_gone_is_known_only_from_a_whole_list() -> Result<()> {
    for only_json in [true, false] {
        let mut context = context(if only_json { "kube-half-j" } else { "kube-half-p" })?;
        context.api.behave(|behaviour| behaviour.only_json = only_json);
        context.put_web("gone", 11, &[Host::Bridged])?;
        let agent = context.start_agent()?;
        context.until_answered(11, Host::Bridged)?;
        change_behind_its_back(&mut context)?;
        // "web" is all there is; half of a list of services or of slices says less than that.
        context.api.behave(|behaviour| behaviour.breaks_lists = usize::MAX);
        let before = context.api.requests().len();
        context.go_on()?;
        eventually("lists are tried", TIMEOUT, || {
            let since = &context.api.requests()[before..];
            let of = |resource: &str| {
                let tried: Vec<ReceivedRequest> = since
                    .iter()
                    .filter(|request| request.path.ends_with(resource))
                    .cloned()
                    .collect();
                lists(&tried)
            };
            Ok(of("/services") >= 3 && of("/endpointslices") >= 3)
        })?;
        context.until_answered(10, Host::Routed)?;
        context.until_answered(11, Host::Bridged)?;
        context.api.behave(|behaviour| behaviour.breaks_lists = 0);
        context.until_unknown(11)?;
        context.until_answered(10, Host::Remote)?;
        until_no_error(&agent)?;
    }
    Ok(())
}

#[test]
fn slow_answers_and_events_that_are_none() -> Result<()> {
    let context = context("kube-slow")?;
    context.api.behave(|behaviour| {
        behaviour.slow = Some((100, Duration::from_millis(2)));
        behaviour.garbage_every = Some(3);
    });
    let mut agent = context.spawn_agent()?;
    agent.wait_programmed(6 * START_TIMEOUT)?;
    context.until_answered(10, Host::Routed)?;
    for who in [Host::Remote, Host::Bridged, Host::Routed] {
        context.put_web("web", 10, &[who])?;
        context.until_answered(10, who)?;
    }
    Ok(())
}

#[test]
fn no_service_before_every_first_list_and_pods_at_once() -> Result<()> {
    let context = context("kube-owed")?;
    context.api.behave(|behaviour| behaviour.silent = vec!["endpointslices"]);
    let agent = context.spawn_agent()?;
    let waits = |for_what: &str| {
        let agent = &agent;
        let expected = json!([for_what]);
        move || Ok(agent.status().is_ok_and(|status| status["waitingFor"] == expected))
    };
    eventually("all but the slices are known", TIMEOUT, waits("endpoint slices"))?;
    assert_eq!(agent.status()?["pods"], 2, "the pods are programmed");
    context.until_unknown(10)?;
    context.api.behave(|behaviour| behaviour.silent = Vec::new());
    // Who waits is not answered later: that question is given up after a while.
    context.api.cut_watches();
    context.until_answered(10, Host::Routed)
}

#[test]
fn service_cidrs_are_no_condition() -> Result<()> {
    let unserved = context("kube-404")?;
    unserved.api.behave(|behaviour| behaviour.unserved = vec!["servicecidrs"]);
    let agent = unserved.start_agent()?;
    unserved.until_answered(10, Host::Routed)?;
    until_no_error(&agent)?;
    drop(unserved);
    let forbidden = context("kube-403")?;
    forbidden.api.behave(|behaviour| behaviour.forbidden = vec!["servicecidrs"]);
    let agent = forbidden.start_agent()?;
    forbidden.until_answered(10, Host::Routed)?;
    until_error(&agent, "ClusterRole must allow list and watch of ServiceCIDRs")
}

/// As Kubernetes 1.20: it has EndpointSlices in an older version alone.
#[test]
fn a_server_that_is_too_old_is_named_with_what_it_lacks() -> Result<()> {
    let context = context("kube-old")?;
    context.api.behave(|behaviour| {
        behaviour.unserved = vec!["endpointslices", "servicecidrs"];
        behaviour.refuses_fields = true;
        behaviour.refuses_streams = true;
    });
    let agent = context.spawn_agent()?;
    until_error(&agent, "EndpointSlices: ")?;
    until_error(&agent, "Kubernetes serves discovery.k8s.io/v1 since 1.21")?;
    let waits = |status: &Value| {
        let errors = status["errors"].as_array().map(Vec::len);
        status["waitingFor"] == json!(["endpoint slices"]) && errors == Some(1)
    };
    agent.until("everything else is known", TIMEOUT, waits).map(drop)
}

#[test]
fn a_token_that_is_replaced_is_read_again() -> Result<()> {
    let context = context("kube-token")?;
    context.api.behave(|behaviour| behaviour.tokens = vec!["the-second-token".to_owned()]);
    let mut agent = context.spawn_agent()?;
    until_error(&agent, "Unauthorized")?;
    context.api.publish_token("the-second-token")?;
    agent.wait_programmed(6 * START_TIMEOUT)?;
    context.until_answered(10, Host::Routed)?;
    // The next one, while it runs, and the server knows the old one no more.
    context.api.behave(|behaviour| behaviour.tokens = vec!["the-third-token".to_owned()]);
    context.api.cut_watches();
    until_error(&agent, "Unauthorized")?;
    context.until_answered(10, Host::Routed)?;
    context.api.publish_token("the-third-token\n")?;
    context.put_web("web", 10, &[Host::Remote])?;
    context.until_answered(10, Host::Remote)?;
    until_no_error(&agent)
}

#[test]
fn another_authority_is_trusted_when_it_is_published() -> Result<()> {
    let mut context = context("kube-ca")?;
    let agent = context.start_agent()?;
    context.until_answered(10, Host::Routed)?;
    context.api.stop();
    context.api.change_authority()?;
    context.go_on()?;
    context.put_web("web", 10, &[Host::Remote])?;
    until_error(&agent, "certificate")?;
    context.until_answered(10, Host::Routed)?;
    context.api.publish_authority()?;
    context.until_answered(10, Host::Remote)?;
    until_no_error(&agent)
}

/// As an hour without the API is, but for the hour.
#[test]
fn pods_come_and_go_while_the_api_is_away() -> Result<()> {
    let mut context = context("kube-away")?;
    context.fixture.cluster.wait_as(&json!({ "timeout": "20s", "onTimeout": "fail" }));
    let agent = context.start_agent()?;
    context.until_answered(10, Host::Routed)?;
    context.api.stop();
    until_error(&agent, "cannot be reached")?;
    pods_are_programmed(&context, &agent)?;
    // The same for an agent that has never seen the API, but that pods start isolated: nobody knows
    // which policies select them.
    context.fixture.cluster.wait_as(&json!({ "timeout": "1s", "onTimeout": "isolate" }));
    let mut agent = agent;
    agent.quiet();
    agent.terminate()?;
    let agent = context.spawn_agent()?;
    until_error(&agent, "cannot be reached")?;
    for error in agent.status()?["errors"].as_array().context("errors")? {
        let parts: Vec<_> = error.as_str().context("a text")?.split(": ").collect();
        let distinct: BTreeSet<_> = parts.iter().collect();
        assert_eq!(parts.len(), distinct.len(), "a part is said twice: {error}");
    }
    pods_are_programmed(&context, &agent)?;
    context.until_answered(10, Host::Routed)?;
    context.put_web("web", 10, &[Host::Remote])?;
    context.go_on()?;
    context.until_answered(10, Host::Remote)?;
    until_no_error(&agent)
}

/// Pods whose ADD waits for the agent, one after the other.
fn pods_are_programmed(context: &ApiContext<ApiServer>, agent: &Agent) -> Result<()> {
    for round in 0..3 {
        let pod = context.fixture.cluster.add_pod(&format!("p{round}"), Wiring::Bridged)?;
        assert_eq!(agent.status()?["pods"], 3, "the two of before, and this one");
        pod.detach(&context.fixture.cluster.world.node)?;
        eventually("it is forgotten", TIMEOUT, || Ok(agent.status()?["pods"] == 2))?;
    }
    Ok(())
}
