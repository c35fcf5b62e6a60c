//! The Kubernetes API: Services, EndpointSlices, this Node and ServiceCIDRs, and for the pod
//! firewall Pods, Namespaces, NetworkPolicies and ClusterNetworkPolicies, live.
//!
//! | file | knows |
//! | --- | --- |
//! | [`access`] | which server, with which credentials |
//! | `token` | a bearer token in a file that may be replaced |
//! | `client` | connections that detect a dead server, and who shares them |
//! | `kinds` | paths and selectors of the requests |
//! | `discovery` | whether ClusterNetworkPolicies are served, and in which version |
//! | `node_trigger` | follows the other nodes' Nodes once there is a ClusterNetworkPolicy |
//! | `index` | which objects were sent, and what changed; pure |
//! | `follow` | lists, watches, and what to do when they fail |
//! | [`probe`] | asks a server once what it is and permits, for `check` |
//! | `lookup` | asks for single pods that the watch has not brought yet |
//! | `pods` | several streams of pods, and one view of them |
//! | `read` | reads the policies of a namespace as they are now |
//! | `answer` | which objects in answers to `lookup` and `read` the watch has not brought yet |
//! | `failure` | what failed, and what to do about it |
//! | `backoff` | how long to wait |
//! | `recovery` | wakes the other kinds when the server answers again |
//! | `exchange` | one request, and its answer as it arrives |
//! | `frames` | cuts an answer into events or objects as it arrives; pure |
//! | `envelope` | the parts of an answer around its objects, in protobuf and JSON; pure |
//! | `silence` | whether a watch that was silent may go on |
//! | `served` | where ClusterNetworkPolicies are served, and who needs to know it |
//! | `list_delay` | spreads the first lists of many agents |
//! | `traffic` | counts what following a kind costs |
//!
//! A task of its own follows each kind. It lists once, from the server's cache and in one request,
//! then watches from there. (A list as a stream of events costs the server several times as much:
//! it encodes each object for each client anew. Pages may come from etcd.) A list is sent as one
//! change when it is complete, with the deletions since the last one; until then the previous state
//! stays in force. An object that cannot be used is named, and its last known state stays in force.
//!
//! This is built on kube's client, not on kube-runtime's `watcher`. Version 5.0.0 was tried with
//! one kind and a type that holds an object's JSON, on a busy machine:
//!
//! - If the server ends a watch at once, the watcher asks again at once: 22 requests a second. It
//!   yields nothing in between, so no back-off around it can slow it down. This module asked 6
//!   times in 10 s.
//! - If a streamed list breaks off, the watcher asks for the whole list again in the same way: 110
//!   times and 274 MB in 10 s, without an error to report. This module asked 6 times.
//! - It has no other way to list if a server refuses streams, and no time limit for an answer. Both
//!   would have to be built around it. A second watcher, such as one with new credentials, begins
//!   with a list.
//!
//! In its favour: it handles pages, bookmarks and resumption as this module does, and a broken
//! object does not end a list if the type accepts any JSON.

pub mod access;
mod answer;
pub(crate) mod backoff;
mod client;
mod discovery;
mod envelope;
mod exchange;
mod failure;
mod follow;
mod frames;
mod gunzip;
mod index;
mod kinds;
mod list_delay;
mod lookup;
mod node_trigger;
mod pods;
pub mod probe;
mod read;
mod recovery;
mod sent_table;
mod served;
mod silence;
#[cfg(test)]
mod tests;
mod token;
mod traffic;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use tokio::sync::{mpsc, watch as latest};

use self::answer::ObjectAnswer;
use self::follow::KindFollower;
use self::list_delay::ListDelay;
use self::lookup::PodLookup;
use self::node_trigger::{NodeFollowerStart, NodeFollowerTrigger, node_follower_trigger};
use self::pods::{PodFollowers, PodFollowersConfig, StreamProgress, StreamScope};
use self::read::{PolicyReader, TierReads, WatchedTiers};
use self::recovery::Recovery;
use super::{Features, Outlet};
use denizen_model::{Event, PodName, PolicyName};
use denizen_object::ObjectKind;

/// Maximum number of answers about single objects that wait for the follower of their kind.
const WAITING: usize = 16;

pub use self::client::SharedClient;
pub use self::envelope::Unreadable;
pub use self::pods::{NodeCount, PodScope, PodScopes};
pub use self::read::{PolicyRead, PolicyReads};
pub use self::traffic::{ListReason, Traffic};

/// What to follow, and for which node.
#[derive(Debug, Clone)]
pub struct KubeConfig {
    pub client: SharedClient,
    pub node_name: Arc<str>,
    /// When the agent started: triggers before it do not count for the latency.
    pub since: Timestamp,
    /// The features whose objects are followed.
    pub features: Features,
    /// Which pods are followed; `None` for all.
    pub pods: Option<PodScopes>,
}

/// A policy of any kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AnyPolicy {
    /// A NetworkPolicy.
    OfNamespace(PolicyName),
    /// A ClusterNetworkPolicy.
    OfCluster(Arc<str>),
}

impl fmt::Display for AnyPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OfNamespace(policy) => write!(f, "{policy}"),
            Self::OfCluster(policy) => write!(f, "{policy}"),
        }
    }
}

/// A policy that is not understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrongPolicy {
    pub policy: AnyPolicy,
    /// What is wrong, for a person: one line for each mistake.
    pub text: String,
}

/// The ends of a follower's channels.
struct FollowerChannels {
    outlet: Outlet,
    answers: mpsc::Receiver<ObjectAnswer>,
    wrong_policies: mpsc::Sender<WrongPolicy>,
    traffic: Arc<Traffic>,
    list_delay: Arc<ListDelay>,
    /// Only the follower of ClusterNetworkPolicies has this.
    node_trigger: Option<NodeFollowerTrigger>,
    /// Only the follower of other Nodes has this: the trigger starts it.
    start: Option<NodeFollowerStart>,
    /// Only the follower of ClusterNetworkPolicies has this.
    watched: Option<latest::Sender<WatchedTiers>>,
    scope: StreamScope,
    progress: Arc<StreamProgress>,
    /// The version that the first list must not be older than.
    floor: Option<String>,
}

impl FollowerChannels {
    /// Those of a kind that is followed whole, from the start on, whatever other kinds there are.
    fn new(
        outlet: Outlet,
        answers: mpsc::Receiver<ObjectAnswer>,
        wrong_policies: mpsc::Sender<WrongPolicy>,
        traffic: Arc<Traffic>,
        list_delay: Arc<ListDelay>,
    ) -> Self {
        Self {
            outlet,
            answers,
            wrong_policies,
            traffic,
            list_delay,
            node_trigger: None,
            start: None,
            watched: None,
            scope: StreamScope::All,
            progress: Arc::default(),
            floor: None,
        }
    }
}

/// A kind that is followed.
#[derive(Debug)]
pub struct Followed {
    pub kind: ObjectKind,
    /// Its current problems.
    pub problems: latest::Receiver<Vec<String>>,
    pub traffic: Arc<Traffic>,
}

/// Starts a task for each kind that a feature needs, which sends what the API serves until the
/// receiver is closed.
///
/// `reads` are carried out until its sender is dropped. Each pod in `unknown` is asked for by name,
/// unless the watch brings it within 20 ms, and again until it is no longer in the set.
/// `wrong_policies` gets each wrong policy once for each text.
pub fn start(
    config: &KubeConfig,
    unknown: &latest::Receiver<BTreeSet<PodName>>,
    reads: PolicyReads,
    wrong_policies: &mpsc::Sender<WrongPolicy>,
    events: &mpsc::Sender<Vec<Event>>,
) -> Vec<Followed> {
    let features = config.features;
    let starter = FollowerStarter {
        config,
        add_client: config.client.apart(),
        wrong_policies,
        events,
        list_delay: Arc::new(ListDelay::new()),
        recovery: Recovery::new(),
    };
    let (answers, tier_answers) = mpsc::channel(WAITING);
    let (watched, at_tiers) = latest::channel(WatchedTiers::default());
    let mut policy_reads = Some((reads, TierReads { watched: at_tiers, answers }));
    // If routes need the other Nodes, the follower of this node's Node brings them too.
    let needs_start = features.need(ObjectKind::ClusterNetworkPolicy) && !features.other_nodes;
    let (node_trigger, start) = needs_start.then(node_follower_trigger).unzip();
    let mut tiers = Some(TierChannels { answers: tier_answers, watched, node_trigger });
    let follow = |kind| match kind {
        ObjectKind::Pod => starter.pods(unknown.clone()),
        ObjectKind::NetworkPolicy => starter.network_policies(policy_reads.take()),
        ObjectKind::ClusterNetworkPolicy => starter.cluster_network_policies(tiers.take()),
        ObjectKind::Node
        | ObjectKind::OtherNode
        | ObjectKind::Service
        | ObjectKind::EndpointSlice
        | ObjectKind::ServiceCidr
        | ObjectKind::Namespace => starter.kind(kind, None),
    };
    let followed = features.kinds().map(follow);
    followed.chain(start.map(|start| starter.kind(ObjectKind::OtherNode, Some(start)))).collect()
}

/// The ends that only the follower of ClusterNetworkPolicies has.
struct TierChannels {
    answers: mpsc::Receiver<ObjectAnswer>,
    watched: latest::Sender<WatchedTiers>,
    node_trigger: Option<NodeFollowerTrigger>,
}

/// Starts the tasks of each kind, with what they share.
struct FollowerStarter<'a> {
    config: &'a KubeConfig,
    /// For requests that a pod's ADD waits for: they do not share a connection with long lists.
    add_client: SharedClient,
    wrong_policies: &'a mpsc::Sender<WrongPolicy>,
    events: &'a mpsc::Sender<Vec<Event>>,
    list_delay: Arc<ListDelay>,
    recovery: Recovery,
}

impl FollowerStarter<'_> {
    /// Follows a kind of which no single objects are read. If there is a `start`, waits for it
    /// first.
    fn kind(&self, kind: ObjectKind, start: Option<NodeFollowerStart>) -> Followed {
        let (_, answers) = mpsc::channel(WAITING);
        let (channels, followed) = self.channels(kind, answers);
        self.follow(kind, FollowerChannels { start, ..channels });
        followed
    }

    /// Pods, and the task that asks for `unknown` ones by name.
    fn pods(&self, unknown: latest::Receiver<BTreeSet<PodName>>) -> Followed {
        let (answer, answers) = mpsc::channel(WAITING);
        let (channels, followed) = self.channels(ObjectKind::Pod, answers);
        let (client, traffic) = (self.add_client.clone(), followed.traffic.clone());
        tokio::spawn(PodLookup::new(client, unknown, answer, traffic.clone()).run());
        let Some(scopes) = self.config.pods.clone() else {
            self.follow(ObjectKind::Pod, channels);
            return followed;
        };
        let FollowerChannels { outlet, answers, wrong_policies, list_delay, .. } = channels;
        let followers = PodFollowersConfig {
            config: self.config.clone(),
            scopes,
            outlet,
            answers,
            wrong_policies,
            traffic,
            list_delay,
            recovery: self.recovery.clone(),
        };
        tokio::spawn(PodFollowers::new(followers).run());
        followed
    }

    /// NetworkPolicies, and the task that carries `reads` out.
    fn network_policies(&self, reads: Option<(PolicyReads, TierReads)>) -> Followed {
        let (answer, answers) = mpsc::channel(WAITING);
        let (channels, followed) = self.channels(ObjectKind::NetworkPolicy, answers);
        if let Some((reads, tiers)) = reads {
            let (client, traffic) = (self.add_client.clone(), followed.traffic.clone());
            let list_delay = self.list_delay.clone();
            let reader = PolicyReader::new(client, reads, answer, tiers, traffic, list_delay);
            tokio::spawn(reader.run());
        }
        self.follow(ObjectKind::NetworkPolicy, channels);
        followed
    }

    fn cluster_network_policies(&self, tiers: Option<TierChannels>) -> Followed {
        let kind = ObjectKind::ClusterNetworkPolicy;
        let Some(TierChannels { answers, watched, node_trigger }) = tiers else {
            return self.kind(kind, None);
        };
        let (channels, followed) = self.channels(kind, answers);
        self.follow(kind, FollowerChannels { node_trigger, watched: Some(watched), ..channels });
        followed
    }

    /// A follower's ends of its channels, and the caller's.
    fn channels(
        &self,
        kind: ObjectKind,
        answers: mpsc::Receiver<ObjectAnswer>,
    ) -> (FollowerChannels, Followed) {
        let (outlet, problems) = Outlet::new(self.events.clone());
        let traffic = Arc::new(Traffic::default());
        let (wrong_policies, list_delay) = (self.wrong_policies.clone(), self.list_delay.clone());
        let channels =
            FollowerChannels::new(outlet, answers, wrong_policies, traffic.clone(), list_delay);
        (channels, Followed { kind, problems, traffic })
    }

    fn follow(&self, kind: ObjectKind, channels: FollowerChannels) {
        tokio::spawn(KindFollower::new(kind, self.config, channels, self.recovery.clone()).run());
    }
}
