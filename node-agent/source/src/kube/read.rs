//! Reads the policies of a namespace as they are now.
//!
//! A policy and a pod that it selects may be created together. Nothing orders the watches of two
//! kinds, so the policy may arrive after the pod. Therefore the policies of a pod's namespace are
//! read when the pod is added: the answer has every policy that was stored before.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use hyper::Request;
use kube::Client;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinError, JoinSet};
use tokio::time::timeout;
use tracing::debug;

use super::access::Access;
use super::answer::ObjectAnswer;
use super::exchange::Reply;
use super::failure::{Failure, Remedy};
use super::spread::Spread;
use super::traffic::Traffic;
use crate::object::is_dns_name;
use denizen_text::describe;

/// Time limit for an answer, and for sending what it brings. After that, the pod's ADD goes on with
/// what is known.
const ANSWER: Duration = Duration::from_secs(1);

/// Asks for the policies of a namespace.
#[derive(Debug)]
pub struct PolicyRead {
    pub namespace: Arc<str>,
    /// [`PolicyReads::done`] gets this when the policies are sent.
    pub ticket: u64,
}

/// The requests, and where the end of each is reported: its policies are among the events that were
/// sent, or could not be had in time.
#[derive(Debug)]
pub struct PolicyReads {
    pub asked: mpsc::Receiver<PolicyRead>,
    /// Gets their tickets.
    pub done: mpsc::Sender<u64>,
}

/// Carries the requests out.
pub(super) struct PolicyReader {
    access: Access,
    reads: PolicyReads,
    /// Where the answers go: to whoever knows what the watch has brought.
    answers: mpsc::Sender<ObjectAnswer>,
    client: Option<Client>,
    /// Namespaces for which no request has been sent.
    waiting: BTreeMap<Arc<str>, Vec<u64>>,
    /// Namespaces whose request is under way. A namespace has one request at a time: tickets that
    /// come meanwhile share the next one.
    running: BTreeMap<Arc<str>, Vec<u64>>,
    traffic: Arc<Traffic>,
    /// Ends with the first read: a pod is added.
    spread: Arc<Spread>,
}

type FinishedRead = (Arc<str>, Result<(), Failure>);

impl PolicyReader {
    pub(super) fn new(
        access: Access,
        reads: PolicyReads,
        answers: mpsc::Sender<ObjectAnswer>,
        traffic: Arc<Traffic>,
        spread: Arc<Spread>,
    ) -> Self {
        let (waiting, running) = (BTreeMap::new(), BTreeMap::new());
        Self { access, reads, answers, client: None, waiting, running, traffic, spread }
    }

    /// Runs until nobody asks, or nobody takes the answers.
    pub(super) async fn run(mut self) {
        let mut requests = JoinSet::new();
        loop {
            self.send(&mut requests).await;
            tokio::select! {
                () = self.answers.closed() => return,
                asked = self.reads.asked.recv() => match asked {
                    Some(PolicyRead { namespace, ticket }) => {
                        self.spread.end();
                        self.waiting.entry(namespace).or_default().push(ticket);
                    }
                    None => return,
                },
                Some(ended) = requests.join_next() => self.end(ended).await,
            }
        }
    }

    /// Sends what is not under way.
    async fn send(&mut self, requests: &mut JoinSet<FinishedRead>) {
        let due = |namespace: &Arc<str>| !self.running.contains_key(namespace);
        let due: Vec<_> = self.waiting.extract_if(.., |namespace, _| due(namespace)).collect();
        for (namespace, tickets) in due {
            if self.client.is_none() {
                self.client = self.access.client().await.ok();
            }
            match &self.client {
                Some(client) if is_dns_name(&namespace) => {
                    let (client, answers) = (client.clone(), self.answers.clone());
                    let traffic = self.traffic.clone();
                    requests.spawn(request(client, namespace.clone(), answers, traffic));
                    self.running.insert(namespace, tickets);
                }
                Some(_) | None => self.report(tickets).await,
            }
        }
    }

    async fn end(&mut self, ended: Result<FinishedRead, JoinError>) {
        let (namespace, result) = match ended {
            Ok(ended) => ended,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_cancelled) => return,
            },
        };
        if let Err(failure) = result {
            debug!(%namespace, error = describe(&failure), "read policies in vain");
            if failure.remedy() == Remedy::NewCredentials {
                self.client = None;
            }
        }
        let tickets = self.running.remove(&namespace).unwrap_or_default();
        self.report(tickets).await;
    }

    async fn report(&self, tickets: Vec<u64>) {
        for ticket in tickets {
            // Nobody may be there any more.
            let _ = self.reads.done.send(ticket).await;
        }
    }
}

async fn request(
    client: Client,
    namespace: Arc<str>,
    answers: mpsc::Sender<ObjectAnswer>,
    traffic: Arc<Traffic>,
) -> FinishedRead {
    // Without a resource version: the newest state, not one that a server's cache may lag behind.
    let path = format!("/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies");
    let read = async {
        let request = Request::get(path).body(Vec::new());
        let request = request.expect("a path of DNS names is valid");
        let reply = Reply::to(&client, request, &traffic).await?;
        let (encoding, body) = (reply.encoding, reply.whole().await?);
        let (untaken, taken) = oneshot::channel();
        if answers.send(ObjectAnswer { encoding, body, _untaken: Some(untaken) }).await.is_ok() {
            // It ends when the answer is dropped.
            let _ = taken.await;
        }
        Ok(())
    };
    let result = timeout(ANSWER, read).await.unwrap_or(Err(Failure::TimedOut(ANSWER)));
    (namespace, result)
}
