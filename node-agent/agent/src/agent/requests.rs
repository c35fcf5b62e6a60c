//! Answers what comes through the agent's socket.

use std::collections::{HashMap, HashSet};
use std::iter;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use denizen_state::socket::{WaitAnswer, WaitFor};
use nix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};

use super::{Agent, QUEUE, now};
use crate::control::{Asked, ExplainQuery, Request};
use denizen_model::{Event, LocalPod};
use denizen_observe::trace::Prediction;
use denizen_plan::conntrack::StaleCandidates;
use denizen_plan::explain::{Explanation, FirstPacket, without_hairpin};
use denizen_source::kube::PolicyRead;

/// A plugin's ADD or DEL that waits for its pod.
pub(super) struct Waiting {
    asked: WaitFor,
    answer: oneshot::Sender<Value>,
    since: Instant,
    read: Read,
}

/// Whether the policies of a new pod's namespace are as new as its ADD.
#[derive(Clone, Copy, PartialEq)]
enum Read {
    /// Not yet.
    Due,
    /// They are asked for, with this ticket.
    Asked(u64),
    /// They are, or cannot be had in time.
    Done,
}

/// How long ago this was, in nanoseconds of `CLOCK_MONOTONIC`; `None` if it is yet to come.
fn since(nanoseconds: u64) -> Option<Duration> {
    let now = Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC).ok()?);
    now.checked_sub(Duration::from_nanos(nanoseconds))
}

fn or_error(answer: anyhow::Result<Value>) -> Value {
    answer.unwrap_or_else(|error| json!({ "error": error.to_string() }))
}

impl Agent {
    /// Answers a request and those that wait behind it. Returns whether programming succeeded, if
    /// one of them led to it.
    pub(super) fn answer_all(
        &mut self,
        first: Asked,
        requests: &mut mpsc::Receiver<Asked>,
    ) -> Option<bool> {
        let mut programmed = self.answer(first);
        // Bounded, so that a flood of requests does not delay other work.
        for _ in 0..QUEUE {
            let Ok(asked) = requests.try_recv() else { break };
            programmed = self.answer(asked).or(programmed);
        }
        // Once for all of them: hundreds of ADDs may wait.
        self.release();
        programmed
    }

    /// Returns whether programming succeeded, if the request led to it.
    fn answer(&mut self, Asked { request, answer }: Asked) -> Option<bool> {
        let mut programmed = None;
        let value = match request {
            Request::WaitFor(asked) => {
                self.waiting.push(Waiting {
                    since: self.asked(&asked),
                    asked,
                    answer,
                    read: Read::Due,
                });
                return None;
            }
            Request::Explain { explain } => {
                or_error(self.explained(&explain).map(|(packet, explanation)| {
                    let off = self.hairpin_ports.off();
                    json!(without_hairpin(self.engine.plan(), &packet, off, explanation))
                }))
            }
            Request::Announce { announce } => match (&self.announcer, &self.bird) {
                (Some(announcer), Some(bird)) => {
                    bird.answer(announcer.explain(announce), answer);
                    return None;
                }
                (Some(announcer), None) => json!(announcer.explain(announce)),
                (None, _) => json!({ "error": "nothing is announced: see --routing-mode" }),
            },
            Request::Trace { trace } => or_error(self.explained(&trace).map(|(packet, it)| {
                let backend = self.backend.to_string();
                json!(Prediction::of(self.engine.plan(), &packet, it, backend))
            })),
            Request::Sample { .. } => {
                let (value, done) = self.sample();
                programmed = done;
                value
            }
            Request::Names { .. } => json!(self.engine.names()),
            Request::VirtualServers { .. } => json!(self.engine.virtual_servers()),
            Request::Status { .. } => json!(self.status()),
            Request::View { view } => json!(self.view(&view)),
            Request::Measure { .. } => {
                let status = self.status();
                self.engine.measure(&status, &self.publisher.metrics);
                Value::Null
            }
        };
        let _ = answer.send(value);
        programmed
    }

    /// When a plugin asked: now, if it does not say. Notes how late its request is taken.
    fn asked(&self, asked: &WaitFor) -> Instant {
        let now = now();
        let Some(delay) = asked.asked_at.and_then(since) else { return now };
        self.publisher.metrics.own.plugin_request_delay.observe(delay.as_secs_f64());
        now.checked_sub(delay).unwrap_or(now)
    }

    fn explained(&mut self, query: &ExplainQuery) -> anyhow::Result<(FirstPacket, Explanation)> {
        let packet = FirstPacket::resolve(self.engine.plan(), &query.from, &query.to)?;
        let explanation = self.engine.explain(&packet)?;
        Ok((packet, explanation))
    }

    /// The addresses of pods whose ADDs wait.
    pub(super) fn awaited(&self) -> HashSet<IpAddr> {
        let waiting = self.waiting.iter().filter(|it| !it.asked.removed && !it.answer.is_closed());
        let pods = waiting.filter_map(|it| self.engine.recorded(&it.asked.wait_for));
        pods.flat_map(|pod| pod.ips.iter().copied()).collect()
    }

    /// Answers every ADD whose pod is programmed and has no connections of an earlier one, and
    /// every DEL whose pod left nothing; drops those that gave up.
    pub(super) fn release(&mut self) {
        self.read_policies();
        let engine = &self.engine;
        let searched = || iter::once(engine.stale_candidates()).chain(self.flush.unsearched());
        let is_clean = !searched().any(StaleCandidates::has_departed);
        // A table that cannot be read keeps no pod from its start.
        let is_own = |pod: &LocalPod| {
            is_clean
                || self.flush.problem().is_some()
                || !searched().any(|it| it.has_departed_of(&pod.ips))
        };
        let is_done = |waiting: &Waiting| {
            engine.has_programmed(&waiting.asked)
                && match engine.recorded(&waiting.asked.wait_for) {
                    Some(pod) => waiting.read == Read::Done && is_own(pod),
                    None => is_clean,
                }
        };
        let done = self.waiting.extract_if(.., |it| it.answer.is_closed() || is_done(it));
        for waiting in done {
            let answered =
                waiting.answer.send(json!(WaitAnswer { programmed: true, reason: None }));
            let outcome = if answered.is_ok() { "programmed" } else { "gave_up" };
            let (own, took) = (&self.publisher.metrics.own, waiting.since.elapsed().as_secs_f64());
            if waiting.asked.removed {
                own.plugin_removal_wait.observe(took);
            } else {
                own.plugin_waits.get_or_create(&[("outcome", outcome)]).inc();
                own.plugin_wait.observe(took);
            }
        }
    }

    /// Asks for the policies of new pods' namespaces: a policy that was stored before a pod may
    /// come through its watch later.
    fn read_policies(&mut self) {
        // Pods of one namespace that come together share a read.
        let mut asked: HashMap<Arc<str>, Read> = HashMap::new();
        for waiting in self.waiting.iter_mut().filter(|it| it.read == Read::Due) {
            let Some(recorded) = self.engine.recorded(&waiting.asked.wait_for) else { continue };
            let Some(pod) = &recorded.pod else {
                waiting.read = Read::Done;
                continue;
            };
            let read = asked.entry(pod.namespace.clone()).or_insert_with_key(|namespace| {
                self.last_ticket += 1;
                let (namespace, ticket) = (namespace.clone(), self.last_ticket);
                // Nobody reads them if they are not enforced, or come from manifests.
                match self.sources.read_policies.try_send(PolicyRead { namespace, ticket }) {
                    Ok(()) => Read::Asked(ticket),
                    Err(_) => Read::Done,
                }
            });
            waiting.read = *read;
        }
    }

    /// Takes the events that were sent before a read was done, and those of the other reads that
    /// are done. Then their ADDs wait only until the events are programmed.
    pub(super) fn policies_read(
        &mut self,
        ticket: u64,
        events: &mut mpsc::Receiver<Vec<Event>>,
    ) -> Option<bool> {
        let mut done = HashSet::from([ticket]);
        while let Ok(ticket) = self.sources.policies_read.try_recv() {
            done.insert(ticket);
        }
        for waiting in &mut self.waiting {
            if matches!(waiting.read, Read::Asked(ticket) if done.contains(&ticket)) {
                waiting.read = Read::Done;
            }
        }
        let programmed = self.take(Vec::new(), events);
        self.release();
        programmed
    }
}
