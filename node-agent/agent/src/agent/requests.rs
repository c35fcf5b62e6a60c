//! Answers what comes through the agent's socket and its HTTP servers.

use tokio::sync::mpsc;
use tracing::info;

use super::view::{self, status};
use super::{Agent, QUEUE};
use crate::control::{AgentRequest, ExplainQuery, server_addresses};
use crate::engine::Engine;
use crate::log::LogLevelQuery;
use denizen_observe::status::metrics::{SyncExtent, set_gauges};
use denizen_observe::trace::Prediction;
use denizen_plan::explain::{Explanation, FirstPacket, without_hairpin};

/// Answers a request and those that wait behind it. Returns whether programming succeeded, if one
/// of the requests caused a pass.
pub(super) fn answer_all(
    agent: &mut Agent,
    first: AgentRequest,
    requests: &mut mpsc::Receiver<AgentRequest>,
) -> Option<bool> {
    let mut programmed = answer(agent, first);
    // Bounded, so that a flood of requests does not delay other work.
    for _ in 0..QUEUE {
        let Ok(request) = requests.try_recv() else { break };
        programmed = answer(agent, request).or(programmed);
    }
    // Once for all requests: hundreds of ADDs may wait.
    agent.release();
    programmed
}

/// Returns whether programming succeeded; `None` if the request caused no pass. A client that is
/// gone is not an error.
pub(super) fn answer(agent: &mut Agent, request: AgentRequest) -> Option<bool> {
    match request {
        AgentRequest::WaitFor(wait_for, reply) => {
            agent.plugin_waits.push(wait_for, reply, &agent.publisher.metrics);
        }
        AgentRequest::Explain(query, reply) => {
            let explained = explained(&mut agent.engine, &query).map(|(packet, explanation)| {
                let off = agent.bridges.hairpin_off();
                without_hairpin(agent.engine.plan(), &packet, off, explanation)
            });
            let _ = reply.send(explained);
        }
        AgentRequest::Announce(address, reply) => {
            let Some(announced) = agent.routing.explain(address) else {
                let _ = reply.send(Err("nothing is announced: see --routing-mode".to_owned()));
                return None;
            };
            // BIRD may be slow to answer; the loop does not wait for it.
            tokio::spawn(async move { reply.send(Ok(announced.await)) });
        }
        AgentRequest::Trace(query, reply) => {
            let explained = explained(&mut agent.engine, &query).map(|(packet, explanation)| {
                let backend = agent.backend.to_string();
                Prediction::of(agent.engine.plan(), &packet, explanation, backend)
            });
            let _ = reply.send(explained);
        }
        AgentRequest::Sample(reply) => {
            let Some((sampled, is_new)) = agent.sampling.begin(&mut agent.engine) else {
                let error = "no rule of this agent's in nf_tables drops packets: services are not in \
                             nf_tables (--backend), and NetworkPolicies are not enforced here";
                let _ = reply.send(Err(error.to_owned()));
                return None;
            };
            let programmed = is_new.then(|| agent.pass(SyncExtent::Partial));
            let _ = reply.send(Ok(sampled));
            return programmed;
        }
        AgentRequest::Names(reply) => drop(reply.send(Ok(agent.engine.names()))),
        AgentRequest::VirtualServers(reply) => {
            let _ = reply.send(Ok(server_addresses(agent.engine.plan())));
        }
        AgentRequest::LogLevel(query, reply) => {
            let level = agent.log.apply(&query).map_err(|error| error.to_string());
            if let (Ok(level), false) = (&level, query == LogLevelQuery::Show) {
                info!(level = level.level, "log level changed");
            }
            let _ = reply.send(level);
        }
        AgentRequest::Status(reply) => drop(reply.send(Ok(status(agent)))),
        AgentRequest::View(query, reply) => drop(reply.send(Ok(view::view(agent, &query)))),
        AgentRequest::Measure(reply) => {
            let status = status(agent);
            let Agent { engine, publisher, .. } = agent;
            set_gauges(&publisher.metrics, &status, engine.figures(), engine.plan());
            let _ = reply.send(Ok(()));
        }
    }
    None
}

fn explained(
    engine: &mut Engine,
    query: &ExplainQuery,
) -> Result<(FirstPacket, Explanation), String> {
    let packet = FirstPacket::resolve(engine.plan(), &query.from, &query.to);
    let packet = packet.map_err(|error| error.to_string())?;
    let explanation = engine.explain(&packet).map_err(|error| error.to_string())?;
    Ok((packet, explanation))
}
