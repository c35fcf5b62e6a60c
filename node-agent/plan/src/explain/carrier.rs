//! Who chooses among endpoints, where the backend has virtual servers.

use serde::{Deserialize, Serialize};

use super::Way;
use super::words;
use crate::{
    Carrier, Endpoints, Frontend, FrontendAddress, FrontendKey, HashTable, Hashed, Method,
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
    /// The endpoint that this client gets, if a hash chooses it, of the client or of the service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chosen: Option<String>,
}

impl Way<'_> {
    /// Says who chooses among these endpoints. `bound`: what decides is
    /// [`Frontend::outside`].
    pub(super) fn choose(
        &mut self,
        frontend: &Frontend,
        bound: bool,
        endpoints: &Endpoints,
    ) -> Option<VirtualServerRow> {
        let carrier = self.plan.ipvs().map(|ipvs| ipvs.carrier(frontend));
        let key = match carrier {
            Some(Carrier::Ipvs(key)) if !bound => key,
            Some(Carrier::Ipvs(_)) => {
                self.choose_by_rules(endpoints);
                self.step(words::NOT_IPVS, words::BOUND);
                return None;
            }
            Some(Carrier::Nft(reason)) => {
                self.choose_by_rules(endpoints);
                self.step(words::NOT_IPVS, reason.to_string());
                return None;
            }
            None => {
                self.choose_by_rules(endpoints);
                return None;
            }
        };
        let server = self.plan.ipvs()?.servers().get(&key)?;
        let (address, scheduler) = (key.to_string(), server.scheduler.to_string());
        self.step(words::candidates(endpoints), by(server.scheduler.method));
        let what = format!("IPVS chooses, at the virtual server {address}, by {scheduler}");
        self.step(what, words::BY_IPVS);
        let draining = server.endpoints.iter().filter(|(_, share)| **share == Share::Draining);
        let draining: Vec<String> = draining.map(|(at, _)| at.to_string()).collect();
        if !draining.is_empty() {
            self.step(format!("not to {}", draining.join(", ")), words::DRAINING);
        }
        let chosen = self.hashed(&key, server.scheduler);
        Some(VirtualServerRow { address, scheduler, draining, chosen })
    }

    /// Adds which endpoint the client gets, if a hash chooses it.
    fn hashed(&mut self, server: &FrontendKey, scheduler: Scheduler) -> Option<String> {
        let listed = (self.listed)(server)?;
        let hashed = match (scheduler.method, server.address) {
            (Method::Dh, FrontendAddress::Ip(ip)) => ip,
            _ => self.packet.source,
        };
        match HashTable::new(scheduler, &listed)?.choose(hashed, self.packet.source_port) {
            Hashed::To(endpoint) => {
                self.step(format!("it gets {endpoint}"), words::HASHED);
                Some(endpoint.to_string())
            }
            Hashed::Nobody => {
                self.step("it gets nobody and is refused", words::HASHED_TO_NOBODY);
                None
            }
            Hashed::ByPort => {
                self.step("whom it gets depends on its port", words::BY_PORT);
                None
            }
        }
    }

    fn choose_by_rules(&mut self, endpoints: &Endpoints) {
        self.step(words::endpoints(endpoints), words::choice(endpoints));
    }
}

/// How a method chooses. Weights are equal, so methods that differ only in weights are the same.
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
