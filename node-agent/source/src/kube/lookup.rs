//! Asks for single pods of this node that the watch has not brought yet: a pod's ADD waits for its
//! labels.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use hyper::Request;
use kube::Client;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep_until, timeout};
use tracing::debug;

use super::answer::ObjectAnswer;
use super::backoff::Backoff;
use super::client::SharedClient;
use super::envelope::Encoding;
use super::exchange::Reply;
use super::failure::{Failure, Remedy};
use super::traffic::Traffic;
use denizen_model::PodName;
use denizen_object::is_dns_name;
use denizen_text::describe;

/// How long the watch has before a pod is asked for. It normally brings the pod before its sandbox
/// exists.
const FIRST: Duration = Duration::from_millis(20);

/// The most requests at a time.
const MAX_REQUESTS: usize = 4;

/// Time limit for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// The pause while nothing is due.
const NEVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// The pods that are asked for until nobody needs them any more.
pub(super) struct PodLookup {
    clients: SharedClient,
    unknown: watch::Receiver<BTreeSet<PodName>>,
    /// Where the answers go: to the follower, which knows what its watch has brought.
    answers: mpsc::Sender<ObjectAnswer>,
    client: Option<Arc<Client>>,
    attempts: BTreeMap<PodName, LookupAttempt>,
    traffic: Arc<Traffic>,
}

struct LookupAttempt {
    /// When to send the next request; `None` while a request is under way.
    due: Option<Instant>,
    backoff: Backoff,
}

type FinishedLookup = (PodName, Result<(Encoding, Vec<u8>), Failure>);

impl PodLookup {
    pub(super) fn new(
        clients: SharedClient,
        unknown: watch::Receiver<BTreeSet<PodName>>,
        answers: mpsc::Sender<ObjectAnswer>,
        traffic: Arc<Traffic>,
    ) -> Self {
        Self { clients, unknown, answers, client: None, attempts: BTreeMap::new(), traffic }
    }

    /// Runs until nobody names unknown pods, or nobody takes the answers.
    pub(super) async fn run(mut self) {
        let mut requests = JoinSet::new();
        loop {
            self.update();
            self.ask(&mut requests).await;
            let due = self.attempts.values().filter_map(|attempt| attempt.due).min();
            let next = due.filter(|_| requests.len() < MAX_REQUESTS);
            tokio::select! {
                () = self.answers.closed() => return,
                changed = self.unknown.changed() => if changed.is_err() { return },
                Some(ended) = requests.join_next() => self.take(ended).await,
                () = sleep_until(next.unwrap_or_else(|| Instant::now() + NEVER)) => {}
            }
        }
    }

    /// Takes over the current set of unknown pods. A pod whose name cannot be in a path is never
    /// asked for: the API has no such pod.
    fn update(&mut self) {
        let unknown = self.unknown.borrow_and_update();
        self.attempts.retain(|name, _| unknown.contains(name));
        for name in unknown.iter().filter(|name| is_in_api(name)) {
            self.attempts.entry(name.clone()).or_insert_with(|| LookupAttempt {
                due: Some(Instant::now() + FIRST),
                backoff: Backoff::default(),
            });
        }
    }

    /// Sends the requests that are due.
    async fn ask(&mut self, requests: &mut JoinSet<FinishedLookup>) {
        let now = Instant::now();
        let is_due = |attempt: &LookupAttempt| attempt.due.is_some_and(|due| due <= now);
        if self.client.is_none() && self.attempts.values().any(is_due) {
            match self.clients.get().await {
                Ok(client) => self.client = Some(client),
                Err(error) => debug!(error = describe(&error), "cannot ask for a pod"),
            }
        }
        for (name, attempt) in &mut self.attempts {
            if !is_due(attempt) || requests.len() >= MAX_REQUESTS {
                continue;
            }
            match &self.client {
                Some(client) => {
                    attempt.due = None;
                    requests.spawn(request(client.clone(), name.clone(), self.traffic.clone()));
                }
                None => attempt.due = Some(now + attempt.backoff.pause(None)),
            }
        }
    }

    async fn take(&mut self, ended: Result<FinishedLookup, JoinError>) {
        let (name, answer) = match ended {
            Ok(ended) => ended,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_cancelled) => return,
            },
        };
        let mut asked = None;
        match answer {
            // If the answer cannot be handed over, the pod is asked for again.
            Ok((encoding, body)) => {
                drop(self.answers.try_send(ObjectAnswer { encoding, body, _untaken: None }));
            }
            Err(failure) => {
                debug!(pod = %name, error = describe(&failure), "asked for a pod in vain");
                if failure.remedy() == Remedy::NewCredentials {
                    self.clients.discard(self.client.take()).await;
                }
                asked = failure.asked();
            }
        }
        // Even after an answer: it may be about an earlier pod of this name.
        if let Some(attempt) = self.attempts.get_mut(&name) {
            attempt.due = Some(Instant::now() + attempt.backoff.pause(asked));
        }
    }
}

fn is_in_api(name: &PodName) -> bool {
    is_dns_name(&name.namespace) && is_dns_name(&name.name)
}

async fn request(client: Arc<Client>, name: PodName, traffic: Arc<Traffic>) -> FinishedLookup {
    let path = format!("/api/v1/namespaces/{}/pods/{}", name.namespace, name.name);
    let answer = async {
        let request = Request::get(path).body(Vec::new());
        let request = request.expect("a path of DNS names is valid");
        let reply = Reply::to(&client, request, &traffic).await?;
        Ok((reply.encoding, reply.whole().await?))
    };
    let answer =
        timeout(ANSWER_TIMEOUT, answer).await.unwrap_or(Err(Failure::TimedOut(ANSWER_TIMEOUT)));
    (name, answer)
}
