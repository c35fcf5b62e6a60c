//! What the pod firewall needs of the API: Pods, Namespaces and NetworkPolicies, and single pods.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use denizen_model::{Event, Listing, PodName};
use denizen_model::{Notice, NoticeReason, NoticeSubject};
use denizen_source::Features;
use denizen_source::events::Notices;
use denizen_source::kube::access::{Access, Credentials};
use denizen_source::kube::{self, PolicyRead, PolicyReads, WrongPolicy};
use denizen_tests::eventually::eventually;
use denizen_tests::node::cluster::NODE;
use denizen_tests::peers::api::context::{ApiContext, BOUND};
use denizen_tests::peers::api::{Api, ApiServer, ReceivedRequest};
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot, watch};

/// The agent's source of objects, with the firewall on and services off.
pub(crate) struct Following {
    events: mpsc::Receiver<Vec<Event>>,
    wrong: mpsc::Receiver<WrongPolicy>,
    pub(crate) unknown: watch::Sender<BTreeSet<PodName>>,
    read: mpsc::Sender<PolicyRead>,
    done_reads: mpsc::Receiver<u64>,
    /// What was sent, in its order.
    sent: Vec<Event>,
    _stop: oneshot::Sender<()>,
}

fn access(context: &ApiContext<ApiServer>) -> Access {
    let credentials = Credentials::Kubeconfig(context.api.kubeconfig().to_owned());
    Access { credentials, server: None }
}

/// Runs `task` on the node's network until the sender is dropped.
fn run_on_node(
    context: &ApiContext<ApiServer>,
    task: impl FnOnce() + Send + 'static,
) -> Result<oneshot::Sender<()>> {
    let (stop, stopped) = oneshot::channel::<()>();
    context.fixture.cluster.world.node.spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async {
            task();
            let _ = stopped.await;
        });
    })?;
    Ok(stop)
}

impl Following {
    pub(crate) fn start(context: &ApiContext<ApiServer>) -> Result<Self> {
        let (send, events) = mpsc::channel(64);
        let (report, wrong) = mpsc::channel(64);
        let (unknown, names) = watch::channel(BTreeSet::new());
        let config = kube::KubeConfig {
            access: access(context),
            node_name: NODE.into(),
            since: "2026-01-01T00:00:00Z".parse()?,
            features: Features { services: false, network_policy: true, other_nodes: false },
            pods: None,
        };
        let (read, reads_requested) = mpsc::channel(64);
        let (done, done_reads) = mpsc::channel(64);
        let reads = PolicyReads { asked: reads_requested, done };
        let start = move || drop(kube::start(&config, &names, reads, &report, &send));
        let _stop = run_on_node(context, start)?;
        Ok(Self { events, wrong, unknown, read, done_reads, sent: Vec::new(), _stop })
    }

    /// Waits until what was sent is as `wanted`.
    pub(crate) fn until(&mut self, what: &str, wanted: impl Fn(&[Event]) -> bool) -> Result<()> {
        let waited = eventually(what, BOUND, || {
            while let Ok(batch) = self.events.try_recv() {
                self.sent.extend(batch);
            }
            Ok(wanted(&self.sent))
        });
        waited.with_context(|| format!("{:?}", self.sent))
    }

    pub(crate) fn until_listed(&mut self) -> Result<()> {
        self.until("everything is listed", |sent| {
            // The node's addresses are another source's.
            let mut all = Listing::FIREWALL.iter().filter(|all| **all != Listing::Addresses);
            all.all(|listing| sent.contains(&Event::Listed(*listing)))
        })
    }

    /// Has the policies of namespace `shop` read.
    fn read(&self, ticket: u64) -> Result<()> {
        Ok(self.read.try_send(PolicyRead { namespace: "shop".into(), ticket })?)
    }

    fn until_done(&mut self, ticket: u64) -> Result<()> {
        let done = || Ok(self.done_reads.try_recv() == Ok(ticket));
        eventually(&format!("read {ticket} is done"), BOUND, done)
    }

    pub(crate) fn until_read(&mut self, ticket: u64) -> Result<()> {
        self.read(ticket)?;
        self.until_done(ticket)
    }

    /// Waits until the pods with an address are these.
    fn until_pods(&mut self, expected: &[(&str, &str)]) -> Result<()> {
        let expected: BTreeMap<String, String> =
            expected.iter().map(|(name, app)| (format!("shop/{name}"), (*app).into())).collect();
        self.until(&format!("pods {expected:?}"), |sent| pods(sent) == expected)
    }
}

/// The last state of each pod that has a network of its own: its name, and the value of its label
/// `app`.
fn pods(sent: &[Event]) -> BTreeMap<String, String> {
    let mut pods = BTreeMap::new();
    for event in sent {
        let Event::ClusterPod(name, pod) = event else { continue };
        match pod {
            Some(pod) if pod.host_network => pods.remove(&name.to_string()),
            Some(pod) => {
                let app = pod.labels.get("app").unwrap_or_default();
                pods.insert(name.to_string(), app.to_owned())
            }
            None => pods.remove(&name.to_string()),
        };
    }
    pods
}

fn pod(name: &str, app: &str, phase: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "namespace": "shop", "labels": { "app": app } },
        "spec": { "nodeName": NODE, "containers": [{ "name": "c" }] },
        "status": { "phase": phase, "podIPs": [{ "ip": "10.1.0.1" }] },
    })
}

fn policy(rule: &Value) -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": { "name": "web", "namespace": "shop" },
        "spec": { "podSelector": {}, "policyTypes": ["Ingress"], "ingress": [rule] },
    })
}

pub(crate) fn pod_name(name: &str) -> PodName {
    PodName { namespace: "shop".into(), name: name.into() }
}

#[test]
fn pods_are_followed_until_they_end() -> Result<()> {
    for refuses_fields in [false, true] {
        let context = ApiContext::own("kube-pods")?;
        context.api.behave(|manners| manners.refuses_fields = refuses_fields);
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
    eventually("pods are listed and watched again", BOUND, || {
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

/// Many nodes lose the server at one moment: each goes on where it was.
#[test]
fn after_a_restart_of_the_server_nobody_lists_again() -> Result<()> {
    const AGENTS: usize = 20;
    let mut context = ApiContext::own("kube-many")?;
    context.api.put_all(&[pod("web", "web", "Running"), policy(&json!({}))])?;
    let mut agents = (0..AGENTS).map(|_| Following::start(&context)).collect::<Result<Vec<_>>>()?;
    for agent in &mut agents {
        agent.until_listed()?;
        agent.until_pods(&[("web", "web")])?;
    }
    let lists = |context: &ApiContext<ApiServer>| {
        // Each agent counts the nodes once.
        let counts = |request: &&ReceivedRequest| request.path.ends_with("/nodes");
        let requests = context.api.requests();
        let answered = requests.iter().filter(|request| request.is_page() && request.status == 200);
        answered.filter(|request| !counts(request)).count()
    };
    let before = lists(&context);
    context.api.stop();
    context.api.put(&pod("db", "db", "Running"))?;
    context.go_on()?;
    for agent in &mut agents {
        agent.until_pods(&[("db", "db"), ("web", "web")])?;
    }
    assert_eq!(before, 3 * AGENTS, "one for each kind and agent");
    assert_eq!(lists(&context), before, "{:?}", context.api.requests());
    Ok(())
}

/// What an ADD waits for does not wait behind lists.
#[test]
fn a_pod_is_asked_for_while_a_list_has_no_end() -> Result<()> {
    let context = ApiContext::own("kube-endless")?;
    context.api.put_all(&[pod("web", "web", "Running"), pod("db", "db", "Running")])?;
    context.api.behave(|manners| manners.never_ends_lists = true);
    let mut following = Following::start(&context)?;
    following.unknown.send_replace([pod_name("web")].into());
    following.until_pods(&[("web", "web")])
}

#[test]
fn a_pod_that_the_watch_has_not_brought_is_asked_for() -> Result<()> {
    let context = ApiContext::own("kube-lookup")?;
    // The list of pods begins, and does not end.
    context.api.behave(|manners| manners.never_ends_lists = true);
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
    context.api.behave(|manners| manners.late.push("networkpolicies"));
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
    context.api.behave(|manners| manners.late.clear());
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
    context.api.behave(|manners| manners.silent.push("networkpolicies"));
    let path = "/apis/networking.k8s.io/v1/namespaces/shop/networkpolicies";
    let reads = || context.api.requests().iter().filter(|request| request.path == path).count();
    following.read(1)?;
    eventually("the first is under way", BOUND, || Ok(reads() == 1))?;
    (2..=9).try_for_each(|ticket| following.read(ticket))?;
    (1..=9).try_for_each(|ticket| following.until_done(ticket))?;
    assert_eq!(reads(), 2);
    context.api.behave(|manners| manners.silent.clear());
    following.until_read(10)
}

#[test]
fn a_wrong_policy_is_reported_once_for_each_text() -> Result<()> {
    let context = ApiContext::own("kube-wrong")?;
    // In protobuf, a field that is not known has a number.
    context.api.behave(|manners| manners.only_json = true);
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
    eventually("another text", BOUND, || Ok(!following.wrong.is_empty()))?;
    assert!(following.wrong.try_recv()?.text.contains("spec.ingress[0]"));
    ensure!(following.wrong.try_recv().is_err(), "one for each text");
    Ok(())
}

/// Every node sees the same mistake, and a cluster may have 5,000 nodes.
#[test]
fn all_nodes_write_one_event_about_a_wrong_policy() -> Result<()> {
    let context = ApiContext::own("kube-wrong-event")?;
    let access = access(&context);
    let _stop = run_on_node(&context, move || {
        for node in ["node-1", "node-2"] {
            let notices = Notices::to_api(access.clone(), Arc::from(node));
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
    eventually("both nodes have written", BOUND, || Ok(writes() == 4))?;
    let events = context.api.objects("events");
    assert_eq!(events.len(), 2, "{events:?}");
    let first = &events[0];
    assert_eq!(first["reason"], "InvalidNetworkPolicy");
    assert_eq!(first["regarding"]["kind"], "NetworkPolicy");
    assert_eq!(first["type"], "Warning");
    Ok(())
}
