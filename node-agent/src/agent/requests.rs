//! Answers what comes through the agent's socket.

use std::time::Instant;

use denizen_state::socket::{WaitAnswer, WaitFor};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::{Agent, now};
use crate::control::{Asked, ExplainQuery, Request};
use crate::explain::{Explanation, Packet};
use crate::trace::Prediction;

/// A plugin's ADD or DEL that waits for its pod.
pub(super) struct Waiting {
    asked: WaitFor,
    answer: oneshot::Sender<Value>,
    since: Instant,
}

fn or_error(answer: anyhow::Result<Value>) -> Value {
    answer.unwrap_or_else(|error| json!({ "error": error.to_string() }))
}

impl Agent {
    pub(super) fn answer(&mut self, Asked { request, answer }: Asked) {
        let value = match request {
            Request::WaitFor(asked) => {
                let since = now();
                self.waiting.push(Waiting { asked, answer, since });
                return self.release();
            }
            Request::Explain { explain } => {
                or_error(self.explained(&explain).map(|(_, explanation)| json!(explanation)))
            }
            Request::Trace { trace } => or_error(self.explained(&trace).map(|(packet, it)| {
                let backend = self.backend.to_string();
                json!(Prediction::of(self.engine.plan(), &packet, it, backend))
            })),
            Request::Status { .. } => json!(self.status()),
            Request::View { view } => json!(self.view(&view)),
            Request::Measure { .. } => {
                let status = self.status();
                self.engine.measure(&status, &self.publisher.metrics);
                Value::Null
            }
        };
        let _ = answer.send(value);
    }

    fn explained(&self, query: &ExplainQuery) -> anyhow::Result<(Packet, Explanation)> {
        let packet = Packet::resolve(self.engine.plan(), &query.from, &query.to)?;
        let explanation = self.engine.explain(&packet)?;
        Ok((packet, explanation))
    }

    /// Answers every ADD whose pod is programmed, and every DEL whose pod left nothing; drops those
    /// that gave up.
    pub(super) fn release(&mut self) {
        let engine = &self.engine;
        let is_clean = !engine.has_departed() && !self.flush.has_departed();
        let is_done = |asked: &WaitFor| {
            engine.has_programmed(asked) && (is_clean || engine.is_recorded(&asked.wait_for))
        };
        let done = self.waiting.extract_if(.., |w| w.answer.is_closed() || is_done(&w.asked));
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
}
