//! Explains who chooses among endpoints, nf_tables or IPVS, if the backend has virtual servers.

use serde::{Deserialize, Serialize};

use super::{ExplainContext, ExplainSteps, words};
use crate::{
    Balancer, Endpoints, Frontend, FrontendAddress, FrontendKey, HashTable, Hashed, Method,
    Scheduler, Share,
};

/// The virtual server that chooses the endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VirtualServerRow {
    /// Address, port and protocol, as `10.96.0.10:80/tcp`.
    pub address: String,
    /// The scheduler, with its flags.
    pub scheduler: String,
    /// Endpoints with weight 0: they keep the connections that they have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub draining: Vec<String>,
    /// The endpoint that this client gets, if the scheduler hashes the client's or the service's
    /// address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chosen: Option<String>,
}

/// Adds the step that says who chooses among these endpoints. `by_outside`: [`Frontend::outside`]
/// decides.
pub(super) fn choose(
    context: ExplainContext<'_>,
    frontend: &Frontend,
    by_outside: bool,
    endpoints: &Endpoints,
    steps: &mut ExplainSteps,
) -> Option<VirtualServerRow> {
    let balancer = context.plan.ipvs().map(|ipvs| ipvs.balancer(frontend));
    let key = match balancer {
        Some(Balancer::Ipvs(key)) if !by_outside => key,
        Some(Balancer::Ipvs(_)) => {
            choose_by_rules(endpoints, steps);
            steps.add(words::NOT_IPVS, words::BY_OUTSIDE);
            return None;
        }
        Some(Balancer::Nft(reason)) => {
            choose_by_rules(endpoints, steps);
            steps.add(words::NOT_IPVS, reason.to_string());
            return None;
        }
        None => {
            choose_by_rules(endpoints, steps);
            return None;
        }
    };
    let server = context.plan.ipvs()?.servers().get(&key)?;
    let (address, scheduler) = (key.to_string(), server.scheduler.to_string());
    steps.add(words::candidates(endpoints), by(server.scheduler.method));
    let what = format!("IPVS chooses, at the virtual server {address}, by {scheduler}");
    steps.add(what, words::BY_IPVS);
    let draining = server.endpoints.iter().filter(|(_, share)| **share == Share::Draining);
    let draining: Vec<String> = draining.map(|(at, _)| at.to_string()).collect();
    if !draining.is_empty() {
        steps.add(format!("not to {}", draining.join(", ")), words::DRAINING);
    }
    let chosen = hashed(context, &key, server.scheduler, steps);
    Some(VirtualServerRow { address, scheduler, draining, chosen })
}

/// Adds which endpoint the client gets, if a hash chooses it.
fn hashed(
    context: ExplainContext<'_>,
    server: &FrontendKey,
    scheduler: Scheduler,
    steps: &mut ExplainSteps,
) -> Option<String> {
    let listed = (context.listed)(server)?;
    let hashed = match (scheduler.method, server.address) {
        (Method::Dh, FrontendAddress::Ip(ip)) => ip,
        _ => context.packet.source,
    };
    match HashTable::new(scheduler, &listed)?.choose(hashed, context.packet.source_port) {
        Hashed::To(endpoint) => {
            steps.add(format!("it gets {endpoint}"), words::HASHED);
            Some(endpoint.to_string())
        }
        Hashed::Nobody => {
            steps.add("no endpoint takes it: it is refused", words::HASHED_TO_NOBODY);
            None
        }
        Hashed::ByPort => {
            steps.add("the endpoint depends on the client's port", words::BY_PORT);
            None
        }
    }
}

fn choose_by_rules(endpoints: &Endpoints, steps: &mut ExplainSteps) {
    steps.add(words::endpoints(endpoints), words::choice(endpoints));
}

/// How a method chooses, as text. Weights are equal here, so methods that differ only in weights
/// have the same text.
fn by(method: Method) -> &'static str {
    match method {
        Method::Rr | Method::Wrr => "one after the other, for each new connection",
        Method::Lc | Method::Wlc => "the one with the fewest connections from this node",
        Method::Lblc | Method::Lblcr => {
            "the one that the virtual server's address had last, until it has too many connections"
        }
        Method::Dh => "by a hash of the virtual server's address, so always the same one",
        Method::Sh => "by a hash of the client",
        Method::Mh => "by a hash of the client, of which little changes with the endpoints",
        Method::Sed => "the one with the shortest expected delay",
        Method::Nq => "an idle one; if there is none, the one with the shortest expected delay",
        Method::Fo => "always the same one, until it is gone",
        Method::Twos => "of two that are drawn at random, the one with fewer connections",
    }
}
