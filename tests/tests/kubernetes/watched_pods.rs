//! `--watch-pods namespaces`: an agent that knows the pods of some namespaces alone permits what
//! one that knows all does, and never more.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use denizen_tests::agent::{Agent, Settings};
use denizen_tests::eventually::eventually;
use denizen_tests::node::cluster::{NODE, OTHER_NODE};
use denizen_tests::node::fixture::{Host, PORT};
use denizen_tests::node::netns::Netns;
use denizen_tests::node::pod::{Pod, Wiring};
use denizen_tests::packets::probe::{ANSWER_TIMEOUT, Outcome, Probe, Protocol};
use denizen_tests::peers::api::context::{
    ApiContext, TIMEOUT, until_error, until_no_error, with_faulty_apis,
};
use denizen_tests::peers::api::{Api, ApiServer, ReceivedRequest};
use serde_json::{Value, json};

/// What is not answered by then is asked again, or is dropped.
const SHORT: Duration = Duration::from_millis(700);

/// The most namespaces that are followed one by one.
const MOST: usize = 32;

fn namespace(name: &str, team: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": {
            "name": name,
            "labels": { "kubernetes.io/metadata.name": name, "team": team },
        },
    })
}

/// What no pod may lack.
fn container() -> Value {
    json!({ "name": "c", "image": "registry.example/c:1" })
}

/// Permits what comes from namespaces of this team.
fn permits(team: &str) -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": { "name": team, "namespace": "default" },
        "spec": {
            "podSelector": {}, "policyTypes": ["Ingress"],
            "ingress": [
                { "from": [{ "namespaceSelector": { "matchLabels": { "team": team } } }] },
            ],
        },
    })
}

fn isolates() -> Value {
    let mut policy = permits("nobody");
    policy["spec"]["ingress"] = json!([]);
    policy
}

/// A ClusterNetworkPolicy of tier Admin with these rules about what reaches every pod.
fn admin(ingress: &Value) -> Value {
    json!({
        "apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy",
        "metadata": { "name": "admin" },
        "spec": {
            "tier": "Admin", "priority": 0, "subject": { "namespaces": {} }, "ingress": ingress,
        },
    })
}

fn from_team(action: &str, team: &str) -> Value {
    let namespaces = json!({ "matchLabels": { "team": team } });
    json!({ "action": action, "from": [{ "namespaces": namespaces }] })
}

fn from_every_pod(action: &str) -> Value {
    json!({ "action": action, "from": [{ "namespaces": {} }] })
}

/// An agent that follows some namespaces alone.
struct Watched<'c> {
    context: &'c mut ApiContext<ApiServer>,
    flags: Vec<String>,
}

impl<'c> Watched<'c> {
    fn new(context: &'c mut ApiContext<ApiServer>, flags: &[&str]) -> Result<Self> {
        context.put_node()?;
        context.api.put(&namespace("default", "own"))?;
        let own = ["--network-policy=on", "--watch-pods=namespaces"];
        let flags = own.iter().chain(flags).map(|flag| (*flag).to_owned()).collect();
        let watched_pods = Self { context, flags };
        let bridged = watched_pods.add("a", Wiring::Bridged)?;
        let routed = watched_pods.add("b", Wiring::Routed)?;
        watched_pods.context.fixture.replace_pods(bridged, routed)?;
        Ok(watched_pods)
    }

    fn settings(&self) -> Settings {
        let mut settings = self.context.settings();
        settings.flags.extend_from_slice(&self.flags);
        settings
    }

    fn start(&self) -> Result<Agent> {
        let agent = Agent::start(&self.context.fixture.cluster.world.node, self.settings())?;
        agent.until("everything is known", TIMEOUT, |status| {
            status["networkPolicy"]["waitingFor"] == json!([])
        })?;
        Ok(agent)
    }

    /// The pod of the other node, in this namespace.
    fn remote(&self, namespace: &str) -> Value {
        let ips = &self.context.fixture.cluster.world.addresses().remote;
        let ips: Vec<Value> = ips.iter().map(|ip| json!({ "ip": ip })).collect();
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": "remote", "namespace": namespace, "labels": { "app": "x" } },
            "spec": { "nodeName": OTHER_NODE, "containers": [container()] },
            "status": { "phase": "Running", "podIPs": ips },
        })
    }

    /// What comes of connections from the pod of the other node to both pods of this one, in both
    /// families.
    fn probe(&self, timeout: Duration) -> Vec<Outcome> {
        let fixture = &self.context.fixture;
        let all = [&fixture.bridged, &fixture.routed].into_iter().flat_map(|pod| &pod.addresses);
        let requests = all.map(|ip| Probe::tcp(SocketAddr::new(*ip, PORT)).timeout(timeout));
        requests.map(|probe| probe.send_in(&fixture.cluster.world.remote)).collect()
    }

    fn until(&self, what: &str, passes: bool) -> Result<()> {
        eventually(what, TIMEOUT, || {
            Ok(self.probe(SHORT).iter().all(|outcome| match passes {
                true => outcome.endpoint().is_some(),
                false => *outcome == Outcome::Dropped,
            }))
        })
    }

    /// They stay dropped.
    fn ensure_dropped(&self) -> Result<()> {
        for _ in 0..2 {
            let outcomes = self.probe(SHORT);
            ensure!(outcomes.iter().all(|outcome| *outcome == Outcome::Dropped), "{outcomes:?}");
        }
        Ok(())
    }

    /// Adds a pod of this node that the API knows.
    fn add(&self, name: &str, wiring: Wiring) -> Result<Pod> {
        let cluster = &self.context.fixture.cluster;
        let netns = Netns::new(&format!("byns-{name}"))?;
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": name, "namespace": "default" },
            "spec": { "nodeName": NODE, "containers": [container()] },
            "status": { "phase": "Pending" },
        });
        self.put(&pod)?;
        let uid = self.context.api.uid(&pod)?;
        Pod::attach_with_uid(&cluster.world.node, netns, (name, &uid), cluster.chain(wiring))
    }

    fn put(&self, object: &Value) -> Result<()> {
        self.context.api.put(object)
    }

    /// Requests for pods of this namespace, or (`None`) of all that are not this node's.
    fn requests(&self, namespace: Option<&str>) -> Vec<ReceivedRequest> {
        let path = match namespace {
            Some(namespace) => pods_of(namespace),
            None => "/api/v1/pods".to_owned(),
        };
        let is_own = |request: &ReceivedRequest| {
            request
                .parameter("fieldSelector")
                .is_some_and(|fields| fields.contains("spec.nodeName="))
        };
        let requests = self.context.api.requests().into_iter();
        requests.filter(|request| request.path == path && !is_own(request)).collect()
    }
}

fn pods_of(namespace: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/pods")
}

fn watched(status: &Value) -> &Value {
    &status["networkPolicy"]["watchedPods"]
}

/// A policy isolates at once, and permits when the list of the namespace that it names is complete.
/// So does a restart. An ADD waits for that list.
#[test]
fn a_policy_that_names_a_new_namespace() -> Result<()> {
    with_faulty_apis("byns-new", |context| {
        let watched_pods = Watched::new(context, &[])?;
        let wait = json!({ "timeout": "5s", "onTimeout": "fail" });
        watched_pods.context.fixture.cluster.wait_as(&wait);
        let agent = watched_pods.start()?;
        watched_pods.put(&namespace("peers", "a"))?;
        watched_pods.put(&watched_pods.remote("peers"))?;
        watched_pods.until("no policy isolates", true)?;

        let silence = || {
            watched_pods
                .context
                .api
                .behave(|behaviour| behaviour.silent_paths = vec![pods_of("peers")]);
        };
        silence();
        watched_pods.put(&permits("a"))?;
        watched_pods.until("the policy isolates", false)?;
        agent.until("status says what is missing", TIMEOUT, |status| {
            watched(status)["waitingFor"] == json!(["peers"])
        })?;
        watched_pods.ensure_dropped()?;
        let added = watched_pods.add("early", Wiring::Bridged);
        ensure!(added.is_err(), "an ADD did not wait for the list");

        watched_pods.context.api.behave(|behaviour| behaviour.silent_paths.clear());
        watched_pods.until("the list is complete", true)?;
        let status = agent.until("status says what is known", TIMEOUT, |status| {
            watched(status)["namespaces"] == json!(["peers"])
                && watched(status)["waitingFor"] == json!([])
        })?;
        assert_eq!(watched(&status)["scope"], "namespaces", "{status}");
        assert_eq!(watched(&status)["allKnown"], false, "{status}");
        let _late = watched_pods.add("late", Wiring::Bridged)?;
        ensure!(watched_pods.requests(None).is_empty(), "all pods were asked for");

        // What an agent before programmed stays until everything that is needed is known again.
        agent.terminate()?;
        silence();
        let node = &watched_pods.context.fixture.cluster.world.node;
        let agent = Agent::spawn(node, watched_pods.settings())?;
        eventually("it waits for pods", TIMEOUT, || {
            // It may not listen yet.
            let status = agent.status().unwrap_or_default();
            Ok(status["networkPolicy"]["waitingFor"] == json!(["pods"]))
        })?;
        watched_pods.until("what is established stays", true)?;
        watched_pods.context.api.behave(|behaviour| behaviour.silent_paths.clear());
        agent.until("everything is known", TIMEOUT, |status| {
            status["networkPolicy"]["waitingFor"] == json!([])
        })?;
        watched_pods.until("it is permitted still", true)
    })
}

/// What a ClusterNetworkPolicy denies by labels is denied to pods of namespaces that nobody has
/// listed; and what it passes on by labels is not accepted from them by a later rule.
#[test]
fn a_cluster_network_policy_holds_before_all_pods_are_known() -> Result<()> {
    with_faulty_apis("byns-cnp", |context| {
        let watched_pods = Watched::new(context, &[])?;
        watched_pods.context.api.define_tiers()?;
        watched_pods.put(&namespace("peers", "a"))?;
        watched_pods.put(&namespace("other", "b"))?;
        watched_pods.put(&watched_pods.remote("other"))?;
        let agent = watched_pods.start()?;
        watched_pods.until("no policy isolates", true)?;

        let all = || vec!["/api/v1/pods".to_owned()];
        watched_pods.context.api.behave(|behaviour| behaviour.silent_paths = all());
        watched_pods.put(&admin(&json!([from_team("Deny", "b")])))?;
        watched_pods.until("the Deny holds", false)?;
        agent.until("all pods are awaited", TIMEOUT, |status| {
            watched(status)["scope"] == "all" && watched(status)["allKnown"] == false
        })?;
        watched_pods.ensure_dropped()?;
        watched_pods.put(&isolates())?;
        let rules = json!([from_team("Pass", "b"), from_every_pod("Accept")]);
        watched_pods.put(&admin(&rules))?;
        agent.until("both are in force", TIMEOUT, |status| {
            status["networkPolicy"]["policies"] == 1
                && status["networkPolicy"]["clusterPolicies"] == 1
        })?;
        watched_pods.ensure_dropped()?;

        watched_pods.context.api.behave(|behaviour| behaviour.silent_paths.clear());
        agent.until("all pods are known", TIMEOUT, |status| watched(status)["allKnown"] == true)?;
        watched_pods.ensure_dropped()?;
        watched_pods.put(&namespace("other", "c"))?;
        watched_pods.until("it is known whom the Pass is not about", true)
    })
}

/// Its watch begins once and does not end.
#[test]
fn a_label_that_flaps() -> Result<()> {
    with_faulty_apis("byns-flap", |context| {
        let watched_pods = Watched::new(context, &[])?;
        watched_pods.put(&namespace("peers", "a"))?;
        watched_pods.put(&watched_pods.remote("peers"))?;
        watched_pods.put(&permits("a"))?;
        let agent = watched_pods.start()?;
        watched_pods.until("it is permitted", true)?;
        for _ in 0..5 {
            watched_pods.put(&namespace("peers", "b"))?;
            watched_pods.until("it is not permitted", false)?;
            agent.until("its pods are known", TIMEOUT, |status| {
                watched(status)["namespaces"] == json!(["peers"])
            })?;
            watched_pods.put(&namespace("peers", "a"))?;
            watched_pods.until("it is permitted again", true)?;
        }
        let (watches, lists): (Vec<_>, Vec<_>) =
            watched_pods.requests(Some("peers")).into_iter().partition(ReceivedRequest::is_watch);
        assert_eq!((watches.len(), lists.len()), (1, 1), "{watches:?} {lists:?}");
        Ok(())
    })
}

/// What is permitted before, in between and after is not dropped for a moment.
#[test]
fn from_the_most_namespaces_to_all_pods_and_back() -> Result<()> {
    with_faulty_apis("byns-bound", |context| {
        let watched_pods = Watched::new(context, &["--watch-pods-linger=3s"])?;
        for number in 0..MOST {
            watched_pods.put(&namespace(&format!("peers-{number}"), "a"))?;
        }
        watched_pods.put(&watched_pods.remote("peers-7"))?;
        watched_pods.put(&permits("a"))?;
        let agent = watched_pods.start()?;
        watched_pods.until("it is permitted", true)?;
        let scope = |scope: &'static str, all_known: bool| {
            move |status: &Value| {
                watched(status)["scope"] == scope && watched(status)["allKnown"] == all_known
            }
        };
        agent.until("each is followed", TIMEOUT, scope("namespaces", false))?;
        let dropped = || Ok::<_, anyhow::Error>(agent.status()?["networkPolicy"]["dropped"].take());
        let before = dropped()?;
        let done = AtomicBool::new(false);
        thread::scope(|threads| -> Result<()> {
            let probing = threads.spawn(|| -> Result<usize> {
                let mut count = 0;
                while !done.load(Ordering::Relaxed) {
                    let outcomes = watched_pods.probe(ANSWER_TIMEOUT);
                    let passes = outcomes.iter().all(|outcome| outcome.endpoint().is_some());
                    ensure!(passes, "after {count} rounds: {outcomes:?}");
                    count += 1;
                }
                Ok(count)
            });
            let changed = (|| {
                for _ in 0..2 {
                    watched_pods.put(&namespace("one-more", "a"))?;
                    agent.until("all are followed", TIMEOUT, scope("all", true))?;
                    watched_pods.put(&namespace("one-more", "b"))?;
                    agent.until("each is followed again", TIMEOUT, scope("namespaces", false))?;
                }
                Ok(())
            })();
            done.store(true, Ordering::Relaxed);
            let rounds = probing.join().expect("it does not panic");
            changed.and(rounds).map(drop)
        })?;
        // Whoever sends a packet again does not notice that one was dropped.
        assert_eq!(dropped()?, before);
        ensure!(!watched_pods.requests(None).is_empty(), "all pods were never asked for");
        Ok(())
    })
}

/// Its address may be another pod's, of a namespace that nobody follows, before its end is known.
#[test]
fn a_pod_that_should_have_ended_permits_nothing() -> Result<()> {
    with_faulty_apis("byns-reuse", |context| {
        let watched_pods = Watched::new(context, &[])?;
        watched_pods.put(&namespace("peers", "a"))?;
        watched_pods.put(&permits("a"))?;
        let agent = watched_pods.start()?;
        let mut ended = watched_pods.remote("peers");
        watched_pods.put(&ended)?;
        watched_pods.until("it is permitted", true)?;
        // Another one has the address, and nobody has heard that this one has ended.
        watched_pods.put(&namespace("other", "b"))?;
        watched_pods.put(&watched_pods.remote("other"))?;
        watched_pods.context.api.end_pod(&ended, 2)?;
        watched_pods.until("its grace period is over", false)?;
        ended["status"]["conditions"] = json!([{ "type": "Ready", "status": "False" }]);
        watched_pods.put(&ended)?;
        watched_pods.ensure_dropped()?;

        let mut next = watched_pods.remote("peers");
        watched_pods.context.api.delete(&next)?;
        watched_pods.put(&next)?;
        watched_pods.until("one of the same name is permitted", true)?;
        next["status"]["phase"] = "Succeeded".into();
        watched_pods.put(&next)?;
        watched_pods.until("it has ended", false)?;
        assert_eq!(watched(&agent.status()?)["namespaces"], json!(["peers"]));
        Ok(())
    })
}

/// A namespace whose pods cannot be listed is named, and concerns nobody else.
#[test]
fn a_namespace_that_cannot_be_listed() -> Result<()> {
    with_faulty_apis("byns-bad", |context| {
        let watched_pods = Watched::new(context, &[])?;
        let wait = json!({ "timeout": "20s", "onTimeout": "fail" });
        watched_pods.context.fixture.cluster.wait_as(&wait);
        watched_pods.put(&namespace("peers", "a"))?;
        watched_pods.put(&watched_pods.remote("peers"))?;
        for name in ["forbidden", "garbled"] {
            watched_pods.put(&namespace(name, "a"))?;
        }
        watched_pods.put(&permits("a"))?;
        watched_pods.context.api.behave(|behaviour| {
            behaviour.forbidden_paths = vec![pods_of("forbidden")];
            behaviour.garbled_paths = vec![pods_of("garbled")];
        });
        let agent = watched_pods.start()?;
        watched_pods.until("the others are not touched", true)?;
        for name in ["forbidden", "garbled"] {
            until_error(&agent, &format!("of namespace {name}: "))?;
        }
        agent.until("status names both", TIMEOUT, |status| {
            watched(status)["failed"] == json!(["forbidden", "garbled"])
                && watched(status)["namespaces"] == json!(["peers"])
        })?;
        let added = watched_pods.add("late", Wiring::Routed);
        let _late = added.context("an ADD waits for no list that cannot be had")?;
        watched_pods.context.api.behave(|behaviour| {
            behaviour.forbidden_paths.clear();
            behaviour.garbled_paths.clear();
        });
        agent.until("both are known", TIMEOUT, |status| {
            watched(status)["namespaces"] == json!(["forbidden", "garbled", "peers"])
                && watched(status)["failed"] == json!([])
        })?;
        until_no_error(&agent)
    })
}

/// Where ranges stand for every pod, an empty selector has nobody watch all pods. Who has an
/// address elsewhere is no pod.
#[test]
fn an_empty_selector_with_pod_ranges() -> Result<()> {
    with_faulty_apis("byns-ranges", |context| {
        let ranges = "--pod-ranges=192.168.77.0/24,fd00:77::/64";
        let watched_pods = Watched::new(context, &[ranges])?;
        watched_pods.put(&namespace("peers", "a"))?;
        watched_pods.put(&isolates())?;
        let agent = watched_pods.start()?;
        watched_pods.until("nobody is permitted", false)?;
        let mut every_pod = isolates();
        every_pod["spec"]["ingress"] = json!([{ "from": [{ "namespaceSelector": {} }] }]);
        watched_pods.put(&every_pod)?;
        watched_pods.until("every pod is permitted", true)?;
        let fixture = &watched_pods.context.fixture;
        for ip in fixture.bridged.addresses.iter().chain(&fixture.routed.addresses) {
            let to = SocketAddr::new(*ip, PORT);
            let outcome = Probe::tcp(to).timeout(SHORT).send_in(&fixture.cluster.world.client);
            ensure!(outcome == Outcome::Dropped, "no pod: {outcome:?}");
            let explained = fixture.explain(&agent, Host::Remote, to, Protocol::Tcp)?;
            ensure!(format!("{:?}", explained.steps).contains("--pod-ranges"), "{explained:?}");
        }
        ensure!(watched_pods.requests(None).is_empty(), "all pods were asked for");
        Ok(())
    })
}

/// A small cluster's pods are all followed, and by one watch beside that of this node's.
#[test]
fn in_a_small_cluster_all_pods_are_followed() -> Result<()> {
    with_faulty_apis("byns-small", |context| {
        let mut watched_pods = Watched::new(context, &[])?;
        watched_pods.flags = ["--network-policy=on", "--watch-pods=auto"].map(str::to_owned).into();
        watched_pods.put(&namespace("peers", "a"))?;
        watched_pods.put(&watched_pods.remote("peers"))?;
        watched_pods.put(&permits("a"))?;
        let agent = watched_pods.start()?;
        watched_pods.until("it is permitted", true)?;
        let status = agent.status()?;
        let why = watched(&status)["why"].as_str().unwrap_or_default();
        ensure!(
            watched(&status)["scope"] == "all" && why.contains("nodes at the start: 1,"),
            "{status}"
        );
        ensure!(watched_pods.requests(Some("peers")).is_empty());
        assert_eq!(
            watched_pods.requests(None).iter().filter(|request| request.is_watch()).count(),
            1
        );
        Ok(())
    })
}
