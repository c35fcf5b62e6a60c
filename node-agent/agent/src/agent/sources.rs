//! Starts the sources, each with its configuration, and the writer of events.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use tokio::sync::{mpsc, watch};

use super::pod_scope::PodScopeChooser;
use crate::config::{Config, Objects};
use denizen_backend::firewall::Records;
use denizen_model::{Event, PodName};
use denizen_model::{Notice, NoticeReason, NoticeSubject};
use denizen_observe::status::ApiTraffic;
use denizen_source::attachments;
use denizen_source::events::Notices;
use denizen_source::kube::{
    AnyPolicy, Followed, ListReason, PodScopes, PolicyRead, PolicyReads, SharedClient, Traffic,
    WrongPolicy,
};
use denizen_source::{Outlet, egress, kube, manifests, node, state_file};

/// The current problems of each source.
pub(super) type Problems = Vec<watch::Receiver<Vec<String>>>;

/// What following one kind has cost the API server.
pub(super) struct ApiCounts {
    kind: &'static str,
    traffic: Arc<Traffic>,
}

impl ApiCounts {
    pub(super) fn to_status(&self) -> ApiTraffic {
        let Self { kind, traffic } = self;
        let named = |reason: ListReason| (reason.to_string(), traffic.lists(reason));
        let lists = ListReason::ALL.map(named).into_iter().filter(|(_, count)| *count > 0);
        let answers = traffic.answers().into_iter().filter(|(_, count)| *count > 0);
        ApiTraffic {
            kind: (*kind).to_owned(),
            bytes: traffic.bytes(),
            events: traffic.events(),
            lists: lists.collect(),
            answers: answers.map(|(encoding, count)| (encoding.to_owned(), count)).collect(),
        }
    }
}

/// The most reads of policies that may wait for the source, or, done, for the loop.
const READS: usize = 256;

/// The tasks that send facts to the loop, and what the loop exchanges with them.
pub(super) struct Sources {
    pub(super) problems: Problems,
    /// What each kind costs the API server, if objects come from it.
    pub(super) api: Vec<ApiCounts>,
    /// Interfaces that look like a pod's but have no record.
    pub(super) unrecorded: watch::Receiver<attachments::Unrecorded>,
    /// The attachments that the plugin would redirect now.
    pub(super) selected: watch::Receiver<attachments::Selected>,
    /// Tells the source which local pods' labels are needed and not known.
    pub(super) unknown_pods: watch::Sender<BTreeSet<PodName>>,
    /// Tells the source the namespaces of new pods, so that it reads their policies.
    pub(super) read_policies: mpsc::Sender<PolicyRead>,
    /// The tickets of reads that are done, or cannot be done in time.
    pub(super) policies_read: mpsc::Receiver<u64>,
    /// Chooses which pods are followed; `None` if all pods are, or if pods come from manifests.
    pub(super) pod_scope: Option<PodScopeChooser>,
}

/// Starts all sources. Also returns their API client, for the writer of events; `None` if objects
/// come from manifests.
pub(super) async fn start(
    config: &Config,
    wrong_policies: &mpsc::Sender<WrongPolicy>,
    events: &mpsc::Sender<Vec<Event>>,
) -> anyhow::Result<(Sources, Option<SharedClient>)> {
    let (unknown_pods, unknown) = watch::channel(BTreeSet::new());
    let (read_policies, requests) = mpsc::channel(READS);
    let (done, policies_read) = mpsc::channel(READS);
    let reads = PolicyReads { requests, done };
    let (pod_scope, scopes) = PodScopeChooser::open(config).unzip();
    let FollowedObjects { mut problems, api, client } =
        follow_objects(config, scopes, &unknown, reads, wrong_policies, events).await?;
    let mut outlet = || {
        let (outlet, found) = Outlet::new(events.clone());
        problems.push(found);
        outlet
    };
    let (file_sender, state_file) = watch::channel(state_file::LastState::default());
    tokio::spawn(state_file::run(
        state_file::StateFileConfig { run_dir: config.run_dir.clone() },
        file_sender,
        outlet(),
    ));
    let (links_sender, links) = watch::channel(Arc::default());
    tokio::spawn(node::run(outlet(), links_sender));
    let shown = attachments::PublishedAttachments { links, state_file };
    let (show_unrecorded, unrecorded) = watch::channel(attachments::Unrecorded::default());
    let (show_selected, selected) = watch::channel(attachments::Selected::default());
    let findings =
        attachments::FindingSenders { unrecorded: show_unrecorded, selected: show_selected };
    tokio::spawn(attachments::keep(config.records(), shown.clone(), outlet()));
    tokio::spawn(attachments::follow(config.run_dir.clone(), shown.clone(), outlet()));
    tokio::spawn(attachments::find(config.records(), shown, findings, outlet()));
    if let Some(file) = &config.egress {
        tokio::spawn(egress::run(file.clone(), outlet()));
    }
    let sources = Sources {
        problems,
        api,
        unrecorded,
        selected,
        unknown_pods,
        read_policies,
        policies_read,
        pod_scope,
    };
    Ok((sources, client))
}

struct FollowedObjects {
    problems: Problems,
    api: Vec<ApiCounts>,
    client: Option<SharedClient>,
}

/// Starts the source of the cluster's objects.
async fn follow_objects(
    config: &Config,
    pods: Option<PodScopes>,
    unknown: &watch::Receiver<BTreeSet<PodName>>,
    reads: PolicyReads,
    wrong_policies: &mpsc::Sender<WrongPolicy>,
    events: &mpsc::Sender<Vec<Event>>,
) -> anyhow::Result<FollowedObjects> {
    let node_name = &config.policy.settings.node_name;
    match &config.objects {
        Objects::Manifests(folder) => {
            let (objects, problems) = Outlet::new(events.clone());
            let folder = manifests::ManifestsConfig {
                folder: folder.clone(),
                node_name: node_name.to_string(),
                features: config.features,
            };
            tokio::spawn(manifests::run(folder, objects));
            Ok(FollowedObjects { problems: vec![problems], api: Vec::new(), client: None })
        }
        Objects::Api(access) => {
            // Unusable credentials at the start are a mistake that the operator should see at once.
            let client = SharedClient::new(access.clone());
            client.get().await.context("cannot use the Kubernetes API")?;
            let config = kube::KubeConfig {
                client: client.clone(),
                node_name: node_name.clone(),
                since: jiff::Timestamp::now(),
                features: config.features,
                pods,
            };
            let followed = kube::start(&config, unknown, reads, wrong_policies, events);
            let api = |Followed { kind, problems, traffic }: Followed| {
                (problems, ApiCounts { kind: kind.plural(), traffic })
            };
            let (problems, api) = followed.into_iter().map(api).unzip();
            Ok(FollowedObjects { problems, api, client: Some(client) })
        }
    }
}

/// Starts the writer of events, if objects come from the API. The first event is the agent's start.
/// Wrong policies are reported as events.
pub(super) fn notices(
    config: &Config,
    client: Option<SharedClient>,
    mut wrong: mpsc::Receiver<WrongPolicy>,
) -> Notices {
    let Some(client) = client else {
        return Notices::nowhere();
    };
    let notices = Notices::to_api(client, config.policy.settings.node_name.clone());
    notices.send(Notice {
        about: NoticeSubject::Node,
        reason: NoticeReason::Starting,
        text: String::new(),
    });
    let sender = notices.clone();
    tokio::spawn(async move {
        while let Some(WrongPolicy { policy, text }) = wrong.recv().await {
            let (about, reason) = match policy {
                AnyPolicy::OfNamespace(policy) => {
                    (NoticeSubject::NetworkPolicy(policy), NoticeReason::InvalidNetworkPolicy)
                }
                AnyPolicy::OfCluster(policy) => (
                    NoticeSubject::ClusterNetworkPolicy(policy),
                    NoticeReason::InvalidClusterNetworkPolicy,
                ),
            };
            sender.send(Notice { about, reason, text });
        }
    });
    notices
}

/// The egress configuration before anything is programmed: a restart must not let connections leave
/// for a moment with a pod's address as their source.
pub(super) fn egress_at_start(config: &Config) -> Option<Event> {
    let Some(egress) = &config.egress else {
        egress::forget(&config.run_dir);
        return None;
    };
    egress::at_start(egress).map(Event::Egress)
}

/// Reads the addresses of recorded pods directly from the state file when the firewall asks: the
/// events of that file's source may be late.
pub(super) fn records(run_dir: &Path) -> Records {
    let config = state_file::StateFileConfig { run_dir: run_dir.to_owned() };
    Records::new(move || {
        let pods = state_file::read(&config).ok().flatten();
        pods.into_iter().flat_map(|set| set.pods).flat_map(|pod| pod.ips).collect()
    })
}
