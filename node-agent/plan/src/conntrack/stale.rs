//! Decides which entries are stale, or forbidden. Pure.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;

use super::candidates::{StaleCandidates, can_move, keys_of};
use crate::{
    FirewallPlan, Frontend, HostPortPlan, Masquerade, Plan, Planner, PolicyFlow, SeenAs,
    ServicePlan, serving,
};
use denizen_model::{Family, ServicePortName, Snapshot};
use denizen_packet::{TrackedFlow, Treatment};

/// The kernel chooses clients' ports from here on (`net.ipv4.ip_local_port_range`).
const EPHEMERAL: u16 = 32768;

/// Decides what happens to entries, by the current facts.
///
/// An entry is healthy if its reply source serves the service of the frontend in its destination.
/// That endpoint need not be selected for new connections: hints and readiness decide which
/// endpoints get new connections, not which existing connections end.
#[derive(Debug)]
pub struct StaleFilter<'a> {
    candidates: &'a StaleCandidates,
    plan: &'a Plan,
    /// The plan of services and its facts; `None` while services are not known.
    known: Option<(&'a ServicePlan, Snapshot<'a>)>,
    /// The addresses of this node's pods.
    pods: HashSet<IpAddr>,
    /// Addresses of pods that do not run yet, since their ADDs wait.
    awaited: &'a HashSet<IpAddr>,
    /// The serving endpoints, cached for the service ports that were looked up.
    serving: HashMap<(ServicePortName, Family), BTreeSet<SocketAddr>>,
}

impl<'a> StaleFilter<'a> {
    /// A filter for entries that the candidates [concern](StaleCandidates::concern). `awaited`: the
    /// addresses of pods that do not run yet.
    pub fn new(
        candidates: &'a StaleCandidates,
        planner: &'a Planner,
        awaited: &'a HashSet<IpAddr>,
    ) -> Self {
        let plan = planner.plan();
        let pods = plan.recorded().iter();
        Self {
            candidates,
            plan,
            known: plan.services().zip(planner.model().snapshot()),
            pods: pods.flat_map(|pod| pod.ips.iter().copied()).collect(),
            awaited,
            serving: HashMap::new(),
        }
    }

    /// What happens to an entry; `None` if it stays as it is.
    pub fn treatment(&mut self, entry: &TrackedFlow) -> Option<Treatment> {
        if self.is_of_departed_pod(entry) {
            return Some(Treatment::Delete);
        }
        if self.is_stale(entry) {
            return Some(match entry.is_unanswered_syn {
                true => Treatment::DeleteUnanswered,
                false => Treatment::Delete,
            });
        }
        if !entry.is_marked && !self.candidates.may_forbid(entry) {
            return None;
        }
        let firewall = self.plan.firewall().filter(|firewall| firewall.is_known())?;
        match (entry.is_marked, is_refused(firewall, entry)) {
            (false, true) => Some(Treatment::Mark),
            (true, false) => Some(Treatment::Unmark),
            (true, true) | (false, false) => None,
        }
    }

    /// Whether an entry leads nowhere, or to the wrong endpoint. An answered TCP connection is
    /// never stale: it ends by itself, and must not be cut.
    fn is_stale(&mut self, entry: &TrackedFlow) -> bool {
        can_move(entry)
            && (self.is_of_gone_pod(entry)
                || self.hides_a_local_pod(entry)
                || self.misses_its_service(entry)
                || self.misses_its_host_port(entry))
    }

    /// Whether the connection belongs to a departed pod. As soon as a new pod with the address
    /// runs, its connections do not count as the departed pod's.
    fn is_of_departed_pod(&self, entry: &TrackedFlow) -> bool {
        let mut departed = self.candidates.departed_ends(entry);
        departed.any(|ip| !self.pods.contains(&ip) || self.awaited.contains(&ip))
    }

    /// Whether the flow of a pod that became known late was masqueraded as traffic from outside,
    /// and would not be now.
    fn hides_a_local_pod(&self, entry: &TrackedFlow) -> bool {
        let (source, reply_source) = (entry.source.ip(), entry.reply_source.ip());
        let is_hairpin = reply_source == source;
        if !self.candidates.is_late(source)
            || !self.pods.contains(&source)
            || !entry.is_masqueraded()
            || is_hairpin
        {
            return false;
        }
        let (Some((services, _)), Some([key, node_port])) = (self.known, keys_of(entry)) else {
            return false;
        };
        let frontend = services.frontend(&key).or_else(|| {
            let is_served = self.serves_node_ports(entry);
            services.frontend(&node_port).filter(|_| is_served)
        });
        let leaves = self.plan.node().egress.seen_as(reply_source) == Some(SeenAs::Node);
        !leaves
            && frontend.is_some_and(|frontend| frontend.masquerade == Masquerade::UnlessLocalPod)
    }

    /// Whether the entry belongs to a pod that is gone. If another pod has the address by now, the
    /// entry is that pod's.
    fn is_of_gone_pod(&self, entry: &TrackedFlow) -> bool {
        [entry.source, entry.reply_source].iter().any(|end| {
            let ip = end.ip();
            self.candidates.is_gone_pod(ip) && !self.pods.contains(&ip) && !self.is_own(ip)
        })
    }

    /// Whether a link of this node has the address.
    fn is_own(&self, address: IpAddr) -> bool {
        self.plan.node().addresses.contains(&address)
    }

    /// Whether the entry's destination serves node ports. If all of the node's own addresses do,
    /// some may be on no link; translation then tells that the destination is one of them.
    fn serves_node_ports(&self, entry: &TrackedFlow) -> bool {
        let node_ports = &self.plan.node().node_ports;
        node_ports.addresses.contains(&entry.destination.ip())
            || node_ports.are_everywhere(entry.family()) && entry.is_translated()
    }

    fn misses_its_service(&mut self, entry: &TrackedFlow) -> bool {
        let (Some((services, world)), Some([key, node_port])) = (self.known, keys_of(entry)) else {
            return false;
        };
        let is_served = self.serves_node_ports(entry);
        let at_node = is_served || self.is_own(entry.destination.ip());
        let claims = [Some(key), at_node.then_some(node_port)].map(|key| services.frontend(&key?));
        let claimed = claims.iter().flatten();
        if claimed.clone().count() == 0 {
            // The frontend is gone. If DNAT did not change the entry, it was not through our rules.
            let was_ours = self.candidates.is_frontend(&key)
                || at_node && self.candidates.is_frontend(&node_port);
            return was_ours && entry.is_translated();
        }
        if claims[0].is_some_and(|claim| !claim.permits(entry.source.ip())) {
            // The rules drop only a flow's first packet: the others would go on to the endpoint.
            return true;
        }
        if claimed.clone().any(|claim| self.serves(claim, world, entry.reply_source)) {
            return false;
        }
        // On the node's other addresses the port belongs to another program, unless DNAT changed
        // the entry.
        claims[0].is_some() || is_served || entry.is_translated()
    }

    /// Whether a flow to a host port goes where the port led earlier: to another pod, or to the
    /// node itself.
    fn misses_its_host_port(&self, entry: &TrackedFlow) -> bool {
        let none = HostPortPlan::default();
        let plan = self.plan.host_ports().unwrap_or(&none);
        let former = self.candidates.former_endpoints(entry, |ip| plan.serves_any_at(ip));
        let former: Vec<_> = former.collect();
        let port = NonZeroU16::new(entry.destination.port());
        let Some((protocol, port)) = entry.protocol().zip(port).filter(|_| !former.is_empty())
        else {
            return false;
        };
        let is_former = || former.iter().any(|former| former.contains(&entry.reply_source));
        match plan.at(entry.destination.ip(), protocol, port) {
            Some((_, served)) if served.endpoint == entry.reply_source => false,
            Some(_) => !entry.is_translated() || is_former(),
            None => entry.is_translated() && is_former(),
        }
    }

    fn serves(&mut self, claim: &Frontend, world: Snapshot<'_>, reply_source: SocketAddr) -> bool {
        let (name, family) = (&claim.service_port, claim.key.family());
        let key = (name.clone(), family);
        let all = self.serving.entry(key).or_insert_with(|| {
            let service = world.service(&name.service);
            let mut ports = service.into_iter().flat_map(|service| &service.ports);
            let port = ports.find(|port| port.name == name.port && port.protocol == name.protocol);
            port.map(|port| serving(port, family, world.slices(&name.service))).unwrap_or_default()
        });
        all.contains(&reply_source)
    }
}

/// Whether no policy permits a connection in the direction of its first packet. If the server may
/// have sent that packet, the other direction must be permitted as well.
fn is_refused(firewall: &FirewallPlan, entry: &TrackedFlow) -> bool {
    let is_rejected = |client: SocketAddr, server: SocketAddr| {
        let flow = PolicyFlow {
            source: client.ip(),
            destination: server.ip(),
            protocol: entry.protocol(),
            port: NonZeroU16::new(server.port()),
        };
        firewall.rejection(&flow).is_some()
    };
    let (source, answers) = (entry.source, entry.reply_source);
    is_rejected(source, answers) || looks_like_answer(entry) && is_rejected(answers, source)
}

/// Whether an entry's first packet looks like one from a server, judging by the ports.
///
/// A policy may forbid a connection that conntrack has not seen: between pods on one bridge whose
/// frames were not filtered until then. The firewall drops the client's packets, and takes the
/// server's next packet for the first one of a connection from the server to the client, which
/// policies mostly permit: the client's packets would count as answers.
///
/// Ports are only a reason to forbid more. A client chooses its own port, and may have conntrack
/// forget the connection: a forbidden one, from a low port to a high one, looks like this too.
fn looks_like_answer(entry: &TrackedFlow) -> bool {
    entry.is_mid_stream
        && !entry.is_translated()
        && entry.source.port() < EPHEMERAL
        && entry.reply_source.port() >= EPHEMERAL
}
