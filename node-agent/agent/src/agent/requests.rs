//! Answers what comes through the agent's socket.

use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::view::{self, status};
use super::{Agent, QUEUE};
use crate::control::{Asked, ExplainQuery, Request, server_addresses};
use crate::engine::Engine;
use denizen_observe::status::metrics::set_gauges;
use denizen_observe::trace::Prediction;
use denizen_plan::explain::{Explanation, FirstPacket, without_hairpin};

fn or_error(answer: anyhow::Result<Value>) -> Value {
    answer.unwrap_or_else(|error| json!({ "error": error.to_string() }))
}

/// Answers a request and those that wait behind it. Returns whether programming succeeded, if
/// one of them led to it.
pub(super) fn answer_all(
    agent: &mut Agent,
    first: Asked,
    requests: &mut mpsc::Receiver<Asked>,
) -> Option<bool> {
    let mut programmed = answer(agent, first);
    // Bounded, so that a flood of requests does not delay other work.
    for _ in 0..QUEUE {
        let Ok(asked) = requests.try_recv() else { break };
        programmed = answer(agent, asked).or(programmed);
    }
    // Once for all of them: hundreds of ADDs may wait.
    agent.release();
    programmed
}

/// Returns whether programming succeeded, if the request led to it.
fn answer(agent: &mut Agent, Asked { request, answer }: Asked) -> Option<bool> {
    let mut programmed = None;
    let value = match request {
        Request::WaitFor(asked) => {
            agent.plugin_waits.push(asked, answer, &agent.publisher.metrics);
            return None;
        }
        Request::Explain { explain } => {
            or_error(explained(&mut agent.engine, &explain).map(|(packet, explanation)| {
                let off = agent.bridges.hairpin_off();
                json!(without_hairpin(agent.engine.plan(), &packet, off, explanation))
            }))
        }
        Request::Announce { announce } => match (&agent.announcer, &agent.bird) {
            (Some(announcer), Some(bird)) => {
                bird.answer(announcer.explain(announce), answer);
                return None;
            }
            (Some(announcer), None) => json!(announcer.explain(announce)),
            (None, _) => json!({ "error": "nothing is announced: see --routing-mode" }),
        },
        Request::Trace { trace } => {
            or_error(explained(&mut agent.engine, &trace).map(|(packet, explanation)| {
                let backend = agent.backend.to_string();
                json!(Prediction::of(agent.engine.plan(), &packet, explanation, backend))
            }))
        }
        Request::Sample { .. } => match agent.sampling.begin(&mut agent.engine) {
            Some((sampled, is_new)) => {
                programmed = is_new.then(|| agent.program(false));
                json!(sampled)
            }
            None => json!({
                "error": "no rule of this agent's in nf_tables drops packets: services are not in \
                          nf_tables (--backend), and NetworkPolicies are not enforced here"
            }),
        },
        Request::Names { .. } => json!(agent.engine.names()),
        Request::VirtualServers { .. } => json!(server_addresses(agent.engine.plan())),
        Request::Status { .. } => json!(status(agent)),
        Request::View { view } => json!(view::view(agent, &view)),
        Request::Measure { .. } => {
            let status = status(agent);
            let sizes = agent.engine.take_set_sizes();
            set_gauges(&agent.publisher.metrics, &status, sizes, agent.engine.plan());
            Value::Null
        }
    };
    let _ = answer.send(value);
    programmed
}

fn explained(
    engine: &mut Engine,
    query: &ExplainQuery,
) -> anyhow::Result<(FirstPacket, Explanation)> {
    let packet = FirstPacket::resolve(engine.plan(), &query.from, &query.to)?;
    let explanation = engine.explain(&packet)?;
    Ok((packet, explanation))
}
