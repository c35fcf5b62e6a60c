//! The rules of one service port: its own chains, and its lines in shared chains. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use ipnetwork::IpNetwork;

use super::name::{
    ChainHash, ChainId, ChainName, EXTERNAL_SERVICES, MARK_MASQ, MASQ_IF_NOT_LOCAL, NODE_PORTS,
    PROXY_FIREWALL, SERVICES, ServiceChain,
};
use super::rule::{Match, Rule, Target, Tests, host, only_test};
use crate::why::Why;
use denizen_iptables::Table;
use denizen_model::{Protocol, ServicePortName, SessionAffinity, TrafficPolicy};
use denizen_plan::{
    Endpoints, Frontend, FrontendAddress, FrontendKey, FrontendKind, Masquerade, Outcome,
};

/// A chain in which every service has lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Shared {
    /// Refuses or drops packets to cluster IPs without a usable endpoint.
    UnservedInside,
    /// The same for frontends for traffic from outside.
    UnservedOutside,
    /// Drops packets that `loadBalancerSourceRanges` do not allow.
    Firewall,
    /// Finds the service of an address and port.
    Services,
    /// Finds the service of a node port.
    NodePorts,
}

impl Shared {
    pub const ALL: [Self; 5] = [
        Self::UnservedInside,
        Self::UnservedOutside,
        Self::Firewall,
        Self::Services,
        Self::NodePorts,
    ];

    /// Its table and its name.
    pub fn chain(self) -> ChainId {
        match self {
            Self::UnservedInside => (Table::Filter, SERVICES),
            Self::UnservedOutside => (Table::Filter, EXTERNAL_SERVICES),
            Self::Firewall => (Table::Filter, PROXY_FIREWALL),
            Self::Services => (Table::Nat, SERVICES),
            Self::NodePorts => (Table::Nat, NODE_PORTS),
        }
    }
}

/// The inputs of a service port's rules.
#[derive(Debug, Clone, Copy)]
pub struct ServicePort<'a> {
    pub name: &'a ServicePortName,
    /// Its frontends of one family.
    pub frontends: &'a BTreeMap<FrontendKey, Frontend>,
    /// The tests that detect a local pod's packet, one rule each.
    pub local: &'a [Tests],
    /// The tests that detect a packet to an address that serves node ports, one rule each.
    pub to_node: &'a [Tests],
}

/// A service port's rules.
#[derive(Debug, Default)]
pub struct ServicePortRules {
    /// The chains that are its own, in the nat table, sorted.
    pub chains: BTreeMap<ChainName, Vec<Rule>>,
    /// Its lines in chains that all services share.
    pub shared: Vec<(Shared, Rule)>,
}

/// Renders a service port's rules.
pub fn lower(port: ServicePort<'_>) -> ServicePortRules {
    let mut lowering =
        Lowering { port, hash: ChainHash::of(port.name, None), out: ServicePortRules::default() };
    lowering.shared();
    lowering.out.chains = lowering.chains();
    lowering.out
}

/// Only its lines in shared chains.
pub fn lower_shared(port: ServicePort<'_>) -> Vec<(Shared, Rule)> {
    let mut lowering =
        Lowering { port, hash: ChainHash::of(port.name, None), out: ServicePortRules::default() };
    lowering.shared();
    lowering.out.shared
}

struct Lowering<'a> {
    port: ServicePort<'a>,
    hash: ChainHash,
    out: ServicePortRules,
}

impl<'a> Lowering<'a> {
    fn chain(&self, kind: ServiceChain) -> ChainName {
        ChainName::OfService(kind, self.hash)
    }

    fn about(&self, what: &str) -> Arc<str> {
        format!("{} {what}", self.port.name).into()
    }

    /// The chain that balances under a policy.
    fn balance(&self, policy: TrafficPolicy) -> ChainName {
        self.chain(match policy {
            TrafficPolicy::Cluster => ServiceChain::Service,
            TrafficPolicy::Local => ServiceChain::Local,
        })
    }

    fn shared(&mut self) {
        for frontend in self.port.frontends.values() {
            match &frontend.inside {
                Outcome::Forward(_) => self.enter(frontend),
                Outcome::Reject => self.refuse(frontend),
                Outcome::Drop => self.drop(frontend),
            }
            // Drops traffic from outside that arrives in the filter table untranslated: KUBE-EXT
            // leads only connections of this node and its pods to endpoints.
            if let (Outcome::Forward(_), Some(Outcome::Drop | Outcome::Reject)) =
                (&frontend.inside, &frontend.outside)
            {
                self.drop(frontend);
            }
        }
    }

    /// Adds the frontend's jump to its chain and, with source ranges, the rule that drops other
    /// sources.
    fn enter(&mut self, frontend: &Frontend) {
        let about = self.about(&frontend.kind.to_string());
        let FrontendKey { protocol, port, .. } = frontend.key;
        let to_port = Match::Port(protocol, port.get());
        let external = self.chain(ServiceChain::External);
        let (shared, why, tests, chain) = match (frontend.key.address, frontend.kind) {
            (FrontendAddress::Node(_), _) => {
                (Shared::NodePorts, Why::FindNodePort, vec![to_port], external)
            }
            (FrontendAddress::Ip(ip), kind) => {
                let chain = match kind {
                    FrontendKind::ClusterIp => self.balance(frontend.policy),
                    FrontendKind::LoadBalancerIp if frontend.sources.is_some() => {
                        self.chain(ServiceChain::SourceRanges)
                    }
                    FrontendKind::LoadBalancerIp
                    | FrontendKind::ExternalIp
                    | FrontendKind::NodePort => external,
                };
                let tests = vec![Match::Destination(host(ip)), to_port];
                if frontend.sources.is_some() {
                    let drop = Rule::new(Why::MayNotEnter, &about, tests.clone(), Target::Drop);
                    self.out.shared.push((Shared::Firewall, drop));
                }
                (Shared::Services, Why::FindService, tests, chain)
            }
        };
        let rule = Rule::new(why, &about, tests, Target::Jump(chain));
        self.out.shared.push((shared, rule));
    }

    fn refuse(&mut self, frontend: &Frontend) {
        let protocol = frontend.key.protocol;
        let why = match protocol {
            Protocol::Tcp => Why::RefuseTcp,
            Protocol::Udp | Protocol::Sctp => Why::Refuse,
        };
        self.unserved(frontend, "has no endpoints", why, Target::Reject(protocol));
    }

    fn drop(&mut self, frontend: &Frontend) {
        self.unserved(frontend, "has no local endpoints", Why::NoLocalEndpoint, Target::Drop);
    }

    fn unserved(&mut self, frontend: &Frontend, what: &str, why: Why, target: Target) {
        let about = self.about(what);
        let FrontendKey { address, protocol, port } = frontend.key;
        let to_port = Match::Port(protocol, port.get());
        let shared = match frontend.kind {
            FrontendKind::ClusterIp => Shared::UnservedInside,
            FrontendKind::NodePort | FrontendKind::LoadBalancerIp | FrontendKind::ExternalIp => {
                Shared::UnservedOutside
            }
        };
        let rules: Vec<Rule> = match address {
            FrontendAddress::Ip(ip) => {
                let tests = [Match::Destination(host(ip)), to_port];
                vec![Rule::new(why, &about, tests, target)]
            }
            FrontendAddress::Node(_) => {
                let rule = |to_node: &Tests| {
                    Rule::new(why, &about, [to_port.clone()], target).also(to_node.iter().cloned())
                };
                self.port.to_node.iter().map(rule).collect()
            }
        };
        self.out.shared.extend(rules.into_iter().map(|rule| (shared, rule)));
    }

    /// The chains to which shared chains, or other chains of the port, jump.
    fn chains(&self) -> BTreeMap<ChainName, Vec<Rule>> {
        let mut chains = BTreeMap::new();
        let balanced = self.balanced();
        for (policy, endpoints) in &balanced {
            chains.insert(self.balance(*policy), self.balance_rules(*policy, endpoints));
        }
        let all: BTreeSet<SocketAddr> = balanced
            .iter()
            .flat_map(|(_, endpoints)| endpoints.iter().map(|e| e.address))
            .collect();
        for at in all {
            chains.insert(self.endpoint(at), self.endpoint_rules(at));
        }
        let external = || self.served_frontends().filter(|f| f.kind != FrontendKind::ClusterIp);
        if let Some(frontend) = external().next() {
            chains.insert(self.chain(ServiceChain::External), self.external_rules(frontend));
        }
        if self.served_frontends().any(|f| f.sources.is_some()) {
            chains.insert(self.chain(ServiceChain::SourceRanges), self.source_ranges());
        }
        chains
    }

    /// The frontends that have endpoints.
    fn served_frontends(&self) -> impl Iterator<Item = &'a Frontend> + use<'a> {
        let all = self.port.frontends.values();
        all.filter(|frontend| frontend.inside.endpoints().is_some())
    }

    /// The endpoints of each traffic policy that some frontend has. All frontends of a service port
    /// with one policy have the same endpoints.
    fn balanced(&self) -> Vec<(TrafficPolicy, &'a Endpoints)> {
        let mut found: Vec<(TrafficPolicy, &'a Endpoints)> = Vec::new();
        for frontend in self.served_frontends() {
            let inside = match frontend.kind {
                FrontendKind::ClusterIp => frontend.policy,
                FrontendKind::NodePort
                | FrontendKind::LoadBalancerIp
                | FrontendKind::ExternalIp => TrafficPolicy::Cluster,
            };
            let outside = frontend.outside.as_ref().and_then(Outcome::endpoints);
            let sides = [(inside, frontend.inside.endpoints()), (TrafficPolicy::Local, outside)];
            for (policy, endpoints) in sides {
                if let Some(endpoints) = endpoints
                    && found.iter().all(|(known, _)| *known != policy)
                {
                    found.push((policy, endpoints));
                }
            }
        }
        found
    }

    fn affinity(&self) -> Option<u32> {
        let affinity = self.port.frontends.values().next().map(|frontend| frontend.affinity);
        match affinity {
            Some(SessionAffinity::ClientIp { seconds }) => Some(seconds),
            Some(SessionAffinity::None) | None => None,
        }
    }

    fn endpoint(&self, at: SocketAddr) -> ChainName {
        ChainName::OfService(ServiceChain::Endpoint, ChainHash::of(self.port.name, Some(at)))
    }

    fn balance_rules(&self, policy: TrafficPolicy, endpoints: &Endpoints) -> Vec<Rule> {
        let mut rules = self.mark_rules(policy);
        let to = |at: SocketAddr| self.about(&format!("-> {at}"));
        if let Some(seconds) = self.affinity() {
            let recall = |at: SocketAddr| {
                let chain = self.endpoint(at);
                Rule::new(
                    Why::Recall,
                    &to(at),
                    [Match::Recent(chain, seconds)],
                    Target::Jump(chain),
                )
            };
            rules.extend(endpoints.iter().map(|e| recall(e.address)));
        }
        let left = (1..=u32::try_from(endpoints.count()).unwrap_or(u32::MAX)).rev();
        rules.extend(endpoints.iter().zip(left).map(|(endpoint, left)| {
            let chance = (left > 1).then_some(Match::OneIn(left));
            let (about, chain) = (to(endpoint.address), self.endpoint(endpoint.address));
            Rule::new(Why::Choose, &about, chance, Target::Jump(chain))
        }));
        rules
    }

    /// KEP-2450's first rule: connections to a cluster IP that are not from a local pod are
    /// masqueraded.
    fn mark_rules(&self, policy: TrafficPolicy) -> Vec<Rule> {
        let own = |f: &&Frontend| f.kind == FrontendKind::ClusterIp && f.policy == policy;
        let mut rules = Vec::new();
        for frontend in self.served_frontends().filter(own) {
            let FrontendAddress::Ip(ip) = frontend.key.address else {
                continue;
            };
            let about = self.about("cluster IP");
            let to_port = Match::Port(frontend.key.protocol, frontend.key.port.get());
            let tests = [Match::Destination(host(ip)), to_port];
            let mark = |why, chain| Rule::new(why, &about, tests.clone(), Target::Jump(chain));
            rules.push(match (frontend.masquerade, self.port.local) {
                (Masquerade::Always, _) => mark(Why::MasqueradeAll, MARK_MASQ),
                (Masquerade::UnlessLocalPod, []) => mark(Why::ComesFromElsewhere, MARK_MASQ),
                (Masquerade::UnlessLocalPod, local) => match only_test(local) {
                    Some(test) => mark(Why::ComesFromElsewhere, MARK_MASQ).also([test.inverted()]),
                    None => mark(Why::AskWhoSends, MASQ_IF_NOT_LOCAL),
                },
            });
        }
        rules
    }

    fn endpoint_rules(&self, at: SocketAddr) -> Vec<Rule> {
        let about = self.about(&format!("-> {at}"));
        let from_itself = [Match::Source(host(at.ip()))];
        let mut tests = vec![Match::Protocol(self.port.name.protocol)];
        let why = if self.affinity().is_some() {
            tests.push(Match::Remember(self.endpoint(at)));
            Why::ChooseAndRemember
        } else {
            Why::ToEndpoint
        };
        vec![
            Rule::new(Why::Hairpin, &about, from_itself, Target::Jump(MARK_MASQ)),
            Rule::new(why, &about, tests, Target::Translate(at)),
        ]
    }

    fn external_rules(&self, frontend: &Frontend) -> Vec<Rule> {
        let about = self.about("from outside");
        let to = |policy| Target::Jump(self.balance(policy));
        let Some(outside) = &frontend.outside else {
            return vec![
                Rule::new(Why::AnyNode, &about, [], Target::Jump(MARK_MASQ)),
                Rule::new(Why::Choose, &about, [], to(TrafficPolicy::Cluster)),
            ];
        };
        // KEP-2450's second rule: a local pod's connection never leaves for the load balancer and
        // back.
        let inside = |is: &Tests| {
            let rule = Rule::new(Why::PodsAreInside, &about, [], to(TrafficPolicy::Cluster));
            rule.also(is.iter().cloned())
        };
        let from_node = |target| Rule::new(Why::NodeIsInside, &about, [Match::FromNode], target);
        let mut rules: Vec<Rule> = self.port.local.iter().map(inside).collect();
        rules.push(from_node(Target::Jump(MARK_MASQ)));
        rules.push(from_node(to(TrafficPolicy::Cluster)));
        if outside.endpoints().is_some() {
            rules.push(Rule::new(Why::StayOnNode, &about, [], to(TrafficPolicy::Local)));
        }
        rules
    }

    /// Packets from allowed sources go on to KUBE-EXT. Other packets return untranslated, and the
    /// filter table drops them.
    fn source_ranges(&self) -> Vec<Rule> {
        let about = self.about("load balancer IP");
        let mut addresses_of: BTreeMap<IpNetwork, Vec<IpNetwork>> = BTreeMap::new();
        let mut restricted = 0;
        for frontend in self.served_frontends() {
            if let (Some(sources), FrontendAddress::Ip(ip)) =
                (&frontend.sources, frontend.key.address)
            {
                restricted += 1;
                for range in sources.iter() {
                    addresses_of.entry(*range).or_default().push(host(ip));
                }
            }
        }
        let rule = |tests: Vec<Match>| {
            let target = Target::Jump(self.chain(ServiceChain::External));
            Rule::new(Why::MayEnter, &about, tests, target)
        };
        let each = addresses_of.into_iter().flat_map(|(range, at)| match at {
            at if at.len() == restricted => vec![vec![Match::Source(range)]],
            at => at
                .into_iter()
                .map(|ip| vec![Match::Source(range), Match::Destination(ip)])
                .collect(),
        });
        each.map(rule).collect()
    }
}
