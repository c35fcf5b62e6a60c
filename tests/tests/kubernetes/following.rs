//! The agent's source of objects, alone: what it sends is what the API has.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use denizen_model::{Event, Listing, PodName};
use denizen_source::Features;
use denizen_source::kube::access::{Access, Credentials};
use denizen_source::kube::{self, PodScopes, PolicyRead, PolicyReads, SharedClient, WrongPolicy};
use denizen_tests::eventually::eventually;
use denizen_tests::node::cluster::NODE;
use denizen_tests::peers::api::Api;
use denizen_tests::peers::api::context::{ApiContext, TIMEOUT};
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot, watch};

/// The agent's source of objects, with the firewall on and services off.
pub(crate) struct Following {
    events: mpsc::Receiver<Vec<Event>>,
    pub(crate) wrong: mpsc::Receiver<WrongPolicy>,
    pub(crate) unknown: watch::Sender<BTreeSet<PodName>>,
    read: mpsc::Sender<PolicyRead>,
    done_reads: mpsc::Receiver<u64>,
    /// What was sent, in its order.
    pub(crate) sent: Vec<Event>,
    _stop: oneshot::Sender<()>,
}

pub(crate) fn client<A: Api>(context: &ApiContext<A>) -> SharedClient {
    let credentials = Credentials::Kubeconfig(context.api.kubeconfig().to_owned());
    SharedClient::new(Access { credentials, server: None })
}

/// Runs `task` on the node's network until the sender is dropped.
pub(crate) fn run_on_node<A: Api>(
    context: &ApiContext<A>,
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
    pub(crate) fn start<A: Api>(context: &ApiContext<A>) -> Result<Self> {
        Self::start_with(context, None)
    }

    /// Follows the pods of these scopes.
    pub(crate) fn start_with<A: Api>(
        context: &ApiContext<A>,
        pods: Option<PodScopes>,
    ) -> Result<Self> {
        let (send, events) = mpsc::channel(64);
        let (report, wrong) = mpsc::channel(64);
        let (unknown, names) = watch::channel(BTreeSet::new());
        let config = kube::KubeConfig {
            client: client(context),
            node_name: NODE.into(),
            since: "2026-01-01T00:00:00Z".parse()?,
            features: Features { services: false, network_policy: true, other_nodes: false },
            pods,
        };
        let (read, reads_requested) = mpsc::channel(64);
        let (done, done_reads) = mpsc::channel(64);
        let reads = PolicyReads { requests: reads_requested, done };
        let start = move || drop(kube::start(&config, &names, reads, &report, &send));
        let _stop = run_on_node(context, start)?;
        Ok(Self { events, wrong, unknown, read, done_reads, sent: Vec::new(), _stop })
    }

    /// Waits until what was sent is as `wanted`.
    pub(crate) fn until(&mut self, what: &str, wanted: impl Fn(&[Event]) -> bool) -> Result<()> {
        let waited = eventually(what, TIMEOUT, || {
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
    pub(crate) fn read(&self, ticket: u64) -> Result<()> {
        Ok(self.read.try_send(PolicyRead { namespace: "shop".into(), ticket })?)
    }

    pub(crate) fn until_done(&mut self, ticket: u64) -> Result<()> {
        let done = || Ok(self.done_reads.try_recv() == Ok(ticket));
        eventually(&format!("read {ticket} is done"), TIMEOUT, done)
    }

    pub(crate) fn until_read(&mut self, ticket: u64) -> Result<()> {
        self.read(ticket)?;
        self.until_done(ticket)
    }

    /// Waits until the pods with an address are these.
    pub(crate) fn until_pods(&mut self, expected: &[(&str, &str)]) -> Result<()> {
        let expected: BTreeMap<String, String> =
            expected.iter().map(|(name, app)| (format!("shop/{name}"), (*app).into())).collect();
        self.until(&format!("pods {expected:?}"), |sent| pods(sent) == expected)
    }
}

/// The last state of each pod that has a network of its own: its name, and the value of its label
/// `app`.
pub(crate) fn pods(sent: &[Event]) -> BTreeMap<String, String> {
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

pub(crate) fn pod(name: &str, app: &str, phase: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "namespace": "shop", "labels": { "app": app } },
        "spec": { "nodeName": NODE, "containers": [{ "name": "c", "image": "registry.example/c:1" }] },
        "status": { "phase": phase, "podIPs": [{ "ip": "10.1.0.1" }] },
    })
}

pub(crate) fn policy(rule: &Value) -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": { "name": "web", "namespace": "shop" },
        "spec": { "podSelector": {}, "policyTypes": ["Ingress"], "ingress": [rule] },
    })
}

pub(crate) fn pod_name(name: &str) -> PodName {
    PodName { namespace: "shop".into(), name: name.into() }
}
