//! What happens to a packet on this node, step by step, and why.
//!
//! It is computed from the [`Plan`], as the rules are, so it cannot contradict them. Tests
//! with real packets compare it with the kernel.

mod announce;
mod arrival;
mod balancer;
mod egress;
mod hairpin;
mod host_port;
mod masquerade;
mod name;
mod named_protocol;
mod packet;
mod packet_error;
mod packet_target;
mod policy;
mod redirect;
#[cfg(test)]
mod tests;
mod verdict;
mod words;

use std::net::IpAddr;

use ipnetwork::IpNetwork;
use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use announce::Announced;
pub use balancer::VirtualServerRow;
pub use hairpin::without_hairpin;
pub use packet::FirstPacket;
pub use packet_error::PacketError;
pub use packet_target::PacketTarget;
pub use policy::{PolicyRow, TierRow};
pub use redirect::RedirectRow;
pub use verdict::PacketVerdict;

use self::arrival::arrival;
use crate::{
    Endpoints, Frontend, FrontendAddress, FrontendKey, FrontendKind, Listed, Outcome, Plan,
    Planner, Remark, ServicePlan,
};
use denizen_model::{
    ForeignService, Listing, ServiceName, SessionAffinity, TrafficPolicy, family_of,
};
use denizen_text::Printable;

/// One step of a packet's path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExplainStep {
    /// What is found, or done to the packet.
    pub what: String,
    pub why: String,
}

/// The explanation of a packet's path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explanation {
    pub verdict: PacketVerdict,
    /// `namespace/name:port` of the service behind its destination.
    pub service: Option<String>,
    /// The endpoints that it may go to, each with the same probability.
    pub endpoints: Vec<String>,
    /// Whether its source becomes the node's address.
    pub masquerade: bool,
    /// The endpoints that see the node's address as the source, if some but not all do.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub masqueraded: Vec<String>,
    /// The virtual server that chooses the endpoint, if IPVS does.
    #[serde(default, rename = "virtualServer", skip_serializing_if = "Option::is_none")]
    pub virtual_server: Option<VirtualServerRow>,
    /// The pod whose host port it is for.
    #[serde(default, rename = "hostPort", skip_serializing_if = "Option::is_none")]
    pub host_port: Option<String>,
    /// Whether it comes from a pod of this node.
    pub local: bool,
    /// What NetworkPolicies of this node's pods say, if any exists.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub policies: Vec<PolicyRow>,
    /// What happens inside pods whose TCP is redirected to their own proxy.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub redirects: Vec<RedirectRow>,
    pub steps: Vec<ExplainStep>,
}

/// Nothing can be explained yet: these first lists are missing.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("still waiting for {}", names(.0))]
pub struct NotYet(pub Vec<Listing>);

fn names(owed: &[Listing]) -> String {
    owed.iter().map(Listing::to_string).collect::<Vec<_>>().join(", ")
}

/// Explains what happens to the first packet of a connection, or to a ping. `rejected` returns the
/// rules of a frontend that the kernel rejected, each with the reason; `listed` returns the
/// kernel's real servers of a virtual server in the kernel's order, if the virtual server is as
/// planned.
///
/// # Errors
/// [`NotYet`] while services are not known.
pub fn explain(
    planner: &Planner,
    packet: &FirstPacket,
    rejected: impl Fn(&Frontend) -> Vec<String>,
    listed: &dyn Fn(&FrontendKey) -> Option<Vec<Listed>>,
) -> Result<Explanation, NotYet> {
    let plan = planner.plan();
    let services = plan.services().ok_or_else(|| NotYet(plan.waiting_for().into()))?;
    let foreign = planner.model().foreign_service(packet.destination);
    let context = ExplainContext { plan, services, packet, listed };
    let (steps, masqueraded) = (ExplainSteps::default(), Vec::new());
    let mut path = PacketPath { context, foreign, steps, masqueraded };
    let sender = path.source();
    let is_kept_out = path.is_kept_out(sender);
    let guards_first = plan.capabilities().guards_loopback_first;
    let explanation = match path.key() {
        Some(frontend) if !is_kept_out || !guards_first => {
            path.through(frontend, sender, &rejected(frontend))
        }
        Some(_) | None if is_kept_out => path.kept_out(sender),
        Some(_) | None => match host_port::find(path.context) {
            Some(found) if !path.is_answered(packet.destination) => {
                host_port::explain(path, found, sender)
            }
            Some(_) | None => path.past(sender),
        },
    };
    let explanation = policy::apply(plan, packet, explanation);
    Ok(redirect::inside(plan, packet, explanation))
}

/// The sender, as the rules detect it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sender {
    Node,
    Pod,
    Other,
}

/// The packet to explain, and the facts by which it is explained.
#[derive(Clone, Copy)]
struct ExplainContext<'a> {
    plan: &'a Plan,
    services: &'a ServicePlan,
    packet: &'a FirstPacket,
    listed: &'a dyn Fn(&FrontendKey) -> Option<Vec<Listed>>,
}

impl ExplainContext<'_> {
    fn is_own(&self, address: IpAddr) -> bool {
        self.plan.node().addresses.contains(&address)
    }
}

/// The steps of an explanation so far.
#[derive(Default)]
struct ExplainSteps(Vec<ExplainStep>);

impl ExplainSteps {
    fn add(&mut self, what: impl Into<String>, why: impl Into<String>) {
        self.0.push(ExplainStep { what: what.into(), why: why.into() });
    }
}

/// A packet on its way through this node.
struct PacketPath<'a> {
    context: ExplainContext<'a>,
    /// The Service of another proxy that has the destination as its cluster IP.
    foreign: Option<(&'a ServiceName, &'a ForeignService)>,
    steps: ExplainSteps,
    masqueraded: Vec<String>,
}

impl<'a> PacketPath<'a> {
    fn step(&mut self, what: impl Into<String>, why: impl Into<String>) {
        self.steps.add(what, why);
    }

    fn source(&mut self) -> Sender {
        let detection = &self.context.plan.node().detection;
        let from = self.context.packet.source;
        if self.context.is_own(from) && self.context.packet.interface.is_none() {
            self.step(format!("{from} is this node itself"), words::NODE);
            return Sender::Node;
        }
        let pods = self.context.plan.recorded();
        let arrival = arrival(pods, self.context.packet);
        let (what, why, sender) = match detection.local(pods, from, arrival) {
            Some(local) => {
                let (what, why) = words::local(from, &local, arrival);
                (what, why, Sender::Pod)
            }
            None => {
                let why = words::not_local(&detection.detector).to_owned();
                (words::foreign(from, arrival), why, Sender::Other)
            }
        };
        self.step(what, why);
        sender
    }

    /// The frontend that the packet is addressed to.
    fn key(&self) -> Option<&'a Frontend> {
        let FirstPacket { destination, transport: PacketTarget::Port(protocol, port), .. } =
            *self.context.packet
        else {
            return None;
        };
        let at = |address| self.context.services.frontend(&FrontendKey { address, protocol, port });
        at(FrontendAddress::Ip(destination)).or_else(|| {
            let node_port = self.context.plan.node().node_ports.addresses.contains(&destination)
                && !self.is_answered(destination)
                && self.service_range_of(destination).is_none();
            if node_port { at(FrontendAddress::Node(family_of(destination))) } else { None }
        })
    }

    fn service_range_of(&self, address: IpAddr) -> Option<IpNetwork> {
        let mut ranges = self.context.plan.node().service_ranges.iter().copied();
        ranges.find(|range| range.contains(address))
    }

    /// Whether the address is a cluster IP, and the backend handles all ports of it.
    fn is_answered(&self, address: IpAddr) -> bool {
        let at = FrontendAddress::Ip(address);
        let is_it = |f: &Frontend| f.kind == FrontendKind::ClusterIp && f.key.address == at;
        self.context.plan.capabilities().unused_addresses
            && self.context.services.frontends().any(is_it)
    }

    /// Whether the packet is addressed to loopback but comes from outside, so that a rule drops it.
    /// IPv6 needs no such rule.
    fn is_kept_out(&self, sender: Sender) -> bool {
        let policy = self.context.plan.policy();
        let is_guarded =
            policy.services || policy.host_ports.is_some_and(|settings| settings.localhost);
        let is_loopback =
            matches!(self.context.packet.destination, IpAddr::V4(ip) if ip.is_loopback());
        is_guarded
            && is_loopback
            && sender != Sender::Node
            && self.context.packet.interface.as_deref() != Some("lo")
    }

    fn kept_out(mut self, sender: Sender) -> Explanation {
        let to = self.context.packet.destination_text();
        self.step(format!("{to} is dropped"), words::LOOPBACK);
        self.finish(PacketVerdict::Drop, None, None, false, sender)
    }

    /// Explains a packet to an address and port that no service has.
    fn past(mut self, sender: Sender) -> Explanation {
        let to = self.context.packet.destination_text();
        let destination = self.context.packet.destination;
        let verdict = if let Some(service) = self.context.services.claims_own(destination) {
            let what = format!(
                "{to} is left alone: it is a cluster IP of {service}, and this node's own address"
            );
            self.step(what, words::OWN_ADDRESS);
            PacketVerdict::Untouched
        } else if let Some((service, kind)) = self.context.services.refused(destination) {
            let what =
                format!("{to} is left alone: it is {} {kind} of {service}", words::article(kind));
            self.step(what, words::not_permitted(kind));
            PacketVerdict::Untouched
        } else if let Some(service) = self.context.services.left_out(destination) {
            let what = format!("{to} is left alone: it is one of too many addresses of {service}");
            self.step(what, words::TOO_MANY_ADDRESSES);
            PacketVerdict::Untouched
        } else if self.is_answered(destination) {
            self.step(format!("{to} is refused"), words::unused(self.context.packet.transport));
            PacketVerdict::Reject
        } else if let Some((service, ForeignService { proxy, .. })) = self.foreign {
            let what = format!(
                "{to} is a cluster IP of {service}, which belongs to another proxy: {proxy:?}"
            );
            let is_checked = self.service_range_of(destination).is_some();
            self.step(what, words::foreign_service(is_checked));
            PacketVerdict::Foreign
        } else if let Some(range) = self.service_range_of(destination) {
            self.step(format!("{to} is dropped: it lies in {range}"), words::UNALLOCATED);
            PacketVerdict::Drop
        } else {
            let are_known = self.context.plan.policy().services;
            let why = words::no_service(self.context.packet.transport, are_known);
            self.step(format!("{to} is left alone"), why);
            PacketVerdict::Untouched
        };
        let masquerade = verdict == PacketVerdict::Untouched
            && egress::leaves_untouched(self.context, sender, &mut self.steps);
        self.finish(verdict, None, None, masquerade, sender)
    }

    fn through(mut self, frontend: &Frontend, sender: Sender, rejected: &[String]) -> Explanation {
        let service = frontend.service_port.to_string();
        let to = self.context.packet.destination_text();
        self.step(
            format!("{to} is {} {} of {service}", words::article(frontend.kind), frontend.kind),
            words::kind(frontend.kind),
        );
        if !rejected.is_empty() {
            for reason in rejected {
                self.step(words::REJECTED, reason.as_str());
            }
            return self.finish(PacketVerdict::Unknown, Some(service), None, false, sender);
        }
        if let Some(allowed) = &frontend.sources
            && !self.may_enter(allowed)
        {
            return self.finish(PacketVerdict::Drop, Some(service), None, false, sender);
        }
        self.note_open_family(frontend);
        let outside = frontend.outside.as_ref().filter(|_| sender == Sender::Other);
        let outcome = outside.unwrap_or(&frontend.inside);
        self.step(
            words::policy(frontend, outside.is_some()),
            words::policy_why(frontend, sender != Sender::Other),
        );
        match outcome {
            Outcome::Reject => {
                self.step("refused", words::NO_ENDPOINTS);
                self.finish(PacketVerdict::Reject, Some(service), None, false, sender)
            }
            Outcome::Drop => {
                self.step("dropped without an answer", words::NO_LOCAL_ENDPOINT);
                self.finish(PacketVerdict::Drop, Some(service), None, false, sender)
            }
            Outcome::Forward(endpoints) => {
                self.forward(frontend, outside.is_some(), endpoints, sender)
            }
        }
    }

    fn forward(
        mut self,
        frontend: &Frontend,
        by_outside: bool,
        endpoints: &Endpoints,
        sender: Sender,
    ) -> Explanation {
        let virtual_server =
            balancer::choose(self.context, frontend, by_outside, endpoints, &mut self.steps);
        if let SessionAffinity::ClientIp { seconds } = frontend.affinity {
            self.step(words::affinity(seconds), words::AFFINITY);
        }
        let masquerade = masquerade::masquerade(
            self.context,
            frontend,
            by_outside,
            endpoints,
            sender,
            &mut self.steps,
        );
        self.masqueraded = masquerade.endpoints;
        let service = Some(frontend.service_port.to_string());
        let explanation = self.finish(
            PacketVerdict::Forward,
            service,
            Some(endpoints),
            masquerade.applies,
            sender,
        );
        Explanation { virtual_server, ..explanation }
    }

    /// Whether the source may use the load balancer IP.
    fn may_enter(&mut self, allowed: &[IpNetwork]) -> bool {
        let source = self.context.packet.source;
        match allowed.iter().find(|range| range.contains(source)) {
            Some(range) => {
                self.step(format!("{source} may use it: it lies in {range}"), words::SOURCE_RANGES);
                true
            }
            None => {
                self.step(format!("{source} may not use it, and is dropped"), words::SOURCE_RANGES);
                false
            }
        }
    }

    /// All clients may use a load balancer IP of a family without a source range.
    fn note_open_family(&mut self, frontend: &Frontend) {
        let family = frontend.key.family();
        let is_it = |remark: &Remark| {
            let of = (&frontend.service_port.service, family);
            matches!(remark, Remark::OpenFamily { service, family } if (service, *family) == of)
        };
        if frontend.kind == FrontendKind::LoadBalancerIp
            && self.context.services.remarks().any(is_it)
        {
            self.step(
                format!("all clients may use it: the Service has no source range of {family}"),
                words::OPEN_FAMILY,
            );
        }
    }

    fn finish(
        self,
        verdict: PacketVerdict,
        service: Option<String>,
        endpoints: Option<&Endpoints>,
        masquerade: bool,
        sender: Sender,
    ) -> Explanation {
        let endpoints =
            endpoints.into_iter().flat_map(Endpoints::iter).map(|e| e.address.to_string());
        Explanation {
            verdict,
            service,
            endpoints: endpoints.collect(),
            masquerade,
            masqueraded: self.masqueraded,
            virtual_server: None,
            host_port: None,
            local: sender == Sender::Pod,
            policies: Vec::new(),
            redirects: Vec::new(),
            steps: self.steps.0,
        }
    }
}

impl std::fmt::Display for Explanation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (n, step) in (1..).zip(&self.steps) {
            writeln!(f, "{n}. {}\n   {}", Printable(&step.what), Printable(&step.why))?;
        }
        let source = match self.verdict {
            PacketVerdict::Forward | PacketVerdict::Untouched if self.masquerade => ", masqueraded",
            PacketVerdict::Forward => ", source kept",
            PacketVerdict::Untouched
            | PacketVerdict::Foreign
            | PacketVerdict::Reject
            | PacketVerdict::Drop
            | PacketVerdict::Unknown => "",
        };
        writeln!(f, "=> {}{source}", self.verdict)
    }
}

fn policy_name(kind: FrontendKind, policy: TrafficPolicy) -> String {
    let which = match kind {
        FrontendKind::ClusterIp => "internalTrafficPolicy",
        FrontendKind::NodePort | FrontendKind::LoadBalancerIp | FrontendKind::ExternalIp => {
            "externalTrafficPolicy"
        }
    };
    format!("{which} {policy:?}")
}
