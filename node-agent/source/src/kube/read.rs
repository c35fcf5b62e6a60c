//! Reads the policies of a namespace, and those of the cluster, as they are now.
//!
//! A policy and a pod that it selects may be created together. Nothing orders the watches of two
//! kinds, so the policy may arrive after the pod. Therefore the policies of a pod's namespace are
//! read when the pod is added: the answer has every policy that was stored before. So are
//! ClusterNetworkPolicies, where they are served: first their versions alone, and the policies
//! themselves only if the watch has not brought one of them.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use hyper::Request;
use kube::Client;
use tokio::sync::{mpsc, oneshot, watch as latest};
use tokio::task::{JoinError, JoinSet};
use tokio::time::timeout;
use tracing::debug;

use super::answer::{ObjectAnswer, has_newer};
use super::client::SharedClient;
use super::envelope;
use super::exchange::Reply;
use super::failure::{Failure, Remedy};
use super::list_delay::ListDelay;
use super::traffic::Traffic;
use denizen_object::is_dns_name;
use denizen_text::describe;

/// Time limit for an answer, and for sending what it brings. After that, the pod's ADD goes on with
/// what is known.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// Asks for the policies of a namespace, and those of the cluster.
#[derive(Debug)]
pub struct PolicyRead {
    pub namespace: Arc<str>,
    /// [`PolicyReads::done`] gets this when the policies are sent.
    pub ticket: u64,
}

/// The requests, and where the end of each is reported. By then its policies are among the events
/// that were sent, or could not be read in time.
#[derive(Debug)]
pub struct PolicyReads {
    pub requests: mpsc::Receiver<PolicyRead>,
    /// Gets their tickets.
    pub done: mpsc::Sender<u64>,
}

/// Where ClusterNetworkPolicies are served, and how far their watch is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct WatchedTiers {
    /// `None` if they are not served.
    pub path: Option<String>,
    /// The version that the watch has reached; `None` before the first list.
    pub version: Option<String>,
}

/// The reader's connection to the follower of ClusterNetworkPolicies.
pub(super) struct TierReads {
    pub watched: latest::Receiver<WatchedTiers>,
    pub answers: mpsc::Sender<ObjectAnswer>,
}

/// What one request reads.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum ReadTarget {
    Namespace(Arc<str>),
    /// ClusterNetworkPolicies.
    Cluster,
}

/// Carries the requests out.
pub(super) struct PolicyReader {
    clients: SharedClient,
    reads: PolicyReads,
    /// Where the answers go: to the follower, which knows what its watch has brought.
    answers: mpsc::Sender<ObjectAnswer>,
    tiers: TierReads,
    client: Option<Arc<Client>>,
    /// Tickets by target, for which no request has been sent yet.
    waiting: BTreeMap<ReadTarget, Vec<u64>>,
    /// Tickets by target, for which a request is under way. Each target has one request at a time:
    /// tickets that come meanwhile share the next one.
    running: BTreeMap<ReadTarget, Vec<u64>>,
    /// How many requests each ticket waits for.
    unfinished: HashMap<u64, usize>,
    traffic: Arc<Traffic>,
    /// Ends with the first read: a pod is added.
    list_delay: Arc<ListDelay>,
}

type FinishedRead = (ReadTarget, Result<(), Failure>);

impl PolicyReader {
    pub(super) fn new(
        clients: SharedClient,
        reads: PolicyReads,
        answers: mpsc::Sender<ObjectAnswer>,
        tiers: TierReads,
        traffic: Arc<Traffic>,
        list_delay: Arc<ListDelay>,
    ) -> Self {
        let (waiting, running) = (BTreeMap::new(), BTreeMap::new());
        let unfinished = HashMap::new();
        let client = None;
        Self {
            clients,
            reads,
            answers,
            tiers,
            client,
            waiting,
            running,
            unfinished,
            traffic,
            list_delay,
        }
    }

    /// Runs until nobody asks, or nobody takes the answers.
    pub(super) async fn run(mut self) {
        let mut requests = JoinSet::new();
        loop {
            self.send(&mut requests).await;
            tokio::select! {
                () = self.answers.closed() => return,
                request = self.reads.requests.recv() => match request {
                    Some(PolicyRead { namespace, ticket }) => {
                        self.list_delay.cancel();
                        self.take(namespace, ticket);
                    }
                    None => return,
                },
                Some(ended) = requests.join_next() => self.end(ended).await,
            }
        }
    }

    fn take(&mut self, namespace: Arc<str>, ticket: u64) {
        let are_served = self.tiers.watched.borrow().path.is_some();
        let of_cluster = are_served.then_some(ReadTarget::Cluster);
        let targets = [ReadTarget::Namespace(namespace)].into_iter().chain(of_cluster);
        for target in targets {
            self.waiting.entry(target).or_default().push(ticket);
            *self.unfinished.entry(ticket).or_default() += 1;
        }
    }

    /// Sends the requests that are waiting, for targets without a request under way.
    async fn send(&mut self, requests: &mut JoinSet<FinishedRead>) {
        let due = |target: &ReadTarget| !self.running.contains_key(target);
        let due: Vec<_> = self.waiting.extract_if(.., |target, _| due(target)).collect();
        for (target, tickets) in due {
            if self.client.is_none() {
                self.client = self.clients.get().await.ok();
            }
            let Some(client) = self.client.clone() else {
                self.report(tickets).await;
                continue;
            };
            let list = PolicyList { client, traffic: self.traffic.clone() };
            match &target {
                ReadTarget::Namespace(namespace) if is_dns_name(namespace) => {
                    let read = read_namespace(list, namespace.clone(), self.answers.clone());
                    requests.spawn(in_time(target.clone(), read));
                }
                ReadTarget::Namespace(_) => {
                    self.report(tickets).await;
                    continue;
                }
                ReadTarget::Cluster => {
                    let watched = self.tiers.watched.borrow().clone();
                    let read = read_cluster(list, watched, self.tiers.answers.clone());
                    requests.spawn(in_time(target.clone(), read));
                }
            }
            self.running.insert(target, tickets);
        }
    }

    async fn end(&mut self, ended: Result<FinishedRead, JoinError>) {
        let (target, result) = match ended {
            Ok(ended) => ended,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_cancelled) => return,
            },
        };
        if let Err(failure) = result {
            debug!(?target, error = describe(&failure), "read policies in vain");
            if failure.remedy() == Remedy::NewCredentials {
                self.clients.discard(self.client.take()).await;
            }
        }
        let tickets = self.running.remove(&target).unwrap_or_default();
        self.report(tickets).await;
    }

    async fn report(&mut self, tickets: Vec<u64>) {
        for ticket in tickets {
            let unfinished = self.unfinished.get_mut(&ticket);
            if let Some(count) = unfinished.filter(|count| **count > 1) {
                *count -= 1;
                continue;
            }
            self.unfinished.remove(&ticket);
            // The loop may have ended.
            let _ = self.reads.done.send(ticket).await;
        }
    }
}

async fn in_time(
    target: ReadTarget,
    read: impl Future<Output = Result<(), Failure>>,
) -> FinishedRead {
    let result =
        timeout(ANSWER_TIMEOUT, read).await.unwrap_or(Err(Failure::TimedOut(ANSWER_TIMEOUT)));
    (target, result)
}

async fn read_namespace(
    list: PolicyList,
    namespace: Arc<str>,
    answers: mpsc::Sender<ObjectAnswer>,
) -> Result<(), Failure> {
    let path = format!("/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies");
    hand_over(list.get(&path, envelope::ACCEPT).await?, &answers).await;
    Ok(())
}

/// Reads ClusterNetworkPolicies. They are many, and the same for every pod of the node; usually the
/// watch has brought all.
async fn read_cluster(
    list: PolicyList,
    watched: WatchedTiers,
    answers: mpsc::Sender<ObjectAnswer>,
) -> Result<(), Failure> {
    let Some(path) = watched.path else { return Ok(()) };
    let versions = list.get(&path, envelope::ACCEPT_METADATA).await?;
    if has_newer(versions.encoding, &versions.body, watched.version.as_deref()) {
        hand_over(list.get(&path, envelope::ACCEPT).await?, &answers).await;
    }
    Ok(())
}

/// Waits until the objects of an answer are sent.
async fn hand_over(answer: ObjectAnswer, answers: &mpsc::Sender<ObjectAnswer>) {
    let (untaken, taken) = oneshot::channel();
    if answers.send(ObjectAnswer { _untaken: Some(untaken), ..answer }).await.is_ok() {
        // The wait ends when the answer is dropped.
        let _ = taken.await;
    }
}

/// Asks for lists of policies.
struct PolicyList {
    client: Arc<Client>,
    traffic: Arc<Traffic>,
}

impl PolicyList {
    /// Without a resource version: the newest state, not one that a server's cache may lag behind.
    async fn get(&self, path: &str, accept: &'static str) -> Result<ObjectAnswer, Failure> {
        let request = Request::get(path).body(Vec::new());
        let request = request.expect("a path of DNS names is valid");
        let reply = Reply::accepting(accept, &self.client, request, &self.traffic).await?;
        let (encoding, body) = (reply.encoding, reply.whole().await?);
        Ok(ObjectAnswer { encoding, body, _untaken: None })
    }
}
