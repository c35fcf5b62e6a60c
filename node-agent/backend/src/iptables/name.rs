//! Names of chains and sets. The chains have kube-proxy's names, so that existing tools keep
//! working, and so that either program can take over from the other in place.

use std::fmt;
use std::net::SocketAddr;

use data_encoding::BASE32;
use sha2::{Digest, Sha256};

use denizen_iptables::{Set, Table};
use denizen_model::{Family, ServicePortName};

/// What a chain of a service port or of an endpoint does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ServiceChain {
    /// Chooses among the endpoints of policy Cluster.
    Service,
    /// Chooses among the endpoints on this node (policy Local).
    Local,
    /// Traffic to external frontends.
    External,
    /// `loadBalancerSourceRanges`.
    SourceRanges,
    /// Translates to one endpoint.
    Endpoint,
}

impl ServiceChain {
    const ALL: [Self; 5] =
        [Self::Service, Self::Local, Self::External, Self::SourceRanges, Self::Endpoint];

    /// The prefix of the names of these chains.
    pub fn prefix(self) -> &'static str {
        match self {
            Self::Service => "KUBE-SVC-",
            Self::Local => "KUBE-SVL-",
            Self::External => "KUBE-EXT-",
            Self::SourceRanges => "KUBE-FW-",
            Self::Endpoint => "KUBE-SEP-",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ChainName {
    /// One of the kernel's own chains, which others use too.
    BuiltIn(&'static str),
    /// A constant chain.
    Fixed(&'static str),
    /// A chain of a service port or an endpoint.
    OfService(ServiceChain, ChainHash),
}

/// The end of a chain's name: a hash, since names of chains have at most 28 characters.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChainHash([u8; 16]);

impl fmt::Debug for ChainHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for ChainHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(std::str::from_utf8(&self.0).map_err(|_| fmt::Error)?)
    }
}

impl ChainHash {
    /// The hash of a service port's chains, or of an endpoint's (kube-proxy's `portProtoHash` and
    /// `servicePortEndpointChainName`).
    pub fn of(service_port: &ServicePortName, endpoint: Option<SocketAddr>) -> Self {
        let endpoint = endpoint.map(|at| at.to_string()).unwrap_or_default();
        let digest = Sha256::digest(format!("{service_port}{}{endpoint}", service_port.protocol));
        // 10 bytes are 16 characters.
        let mut text = [0; 16];
        BASE32.encode_mut(&digest[..10], &mut text);
        Self(text)
    }
}

impl ChainName {
    /// Whether this is a constant chain, or one of the kernel's own, with this name.
    pub fn is_called(&self, name: &str) -> bool {
        match self {
            Self::BuiltIn(own) | Self::Fixed(own) => *own == name,
            Self::OfService(..) => false,
        }
    }

    /// Its name, if it is a constant chain.
    pub fn fixed(self) -> Option<&'static str> {
        match self {
            Self::Fixed(name) => Some(name),
            Self::BuiltIn(_) | Self::OfService(..) => None,
        }
    }
}

impl fmt::Display for ChainName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BuiltIn(name) | Self::Fixed(name) => f.write_str(name),
            Self::OfService(kind, hash) => write!(f, "{}{hash}", kind.prefix()),
        }
    }
}

/// A chain, and the table that it is in.
pub type ChainId = (Table, ChainName);

pub const SERVICES: ChainName = ChainName::Fixed("KUBE-SERVICES");
pub const EXTERNAL_SERVICES: ChainName = ChainName::Fixed("KUBE-EXTERNAL-SERVICES");
pub const NODE_PORTS: ChainName = ChainName::Fixed("KUBE-NODEPORTS");
pub const POSTROUTING: ChainName = ChainName::Fixed("KUBE-POSTROUTING");
/// Marks for masquerade. The comment of its rule shows whether the chains are ours or kube-proxy's.
pub const MARK_MASQ: ChainName = ChainName::Fixed("KUBE-MARK-MASQ");
pub const MASQ_IF_NOT_LOCAL: ChainName = ChainName::Fixed("KUBE-MASQ-IF-NOT-LOCAL");
pub const FORWARD: ChainName = ChainName::Fixed("KUBE-FORWARD");
pub const PROXY_FIREWALL: ChainName = ChainName::Fixed("KUBE-PROXY-FIREWALL");
/// kube-proxy has no such chains, so these two have names of our own.
pub const FORWARDED: ChainName = ChainName::Fixed("DENIZEN-FORWARD");
pub const EGRESS: ChainName = ChainName::Fixed("DENIZEN-EGRESS");

/// Whether a chain belongs to a service or an endpoint, by its name.
pub fn is_a_services(name: &str) -> bool {
    ServiceChain::ALL.map(ServiceChain::prefix).into_iter().any(|prefix| name.starts_with(prefix))
}

/// Whether a chain is kube-proxy's or ours, by its name alone, since a restarted agent remembers
/// nothing. Canaries and kubelet's chains are not.
pub fn is_a_proxys(table: Table, name: &str) -> bool {
    // kube-proxy before 1.24 had KUBE-XLB- instead of KUBE-EXT- and KUBE-SVL-.
    let of_a_service = || is_a_services(name) || name.starts_with("KUBE-XLB-");
    let fixed: &[ChainName] = match table {
        Table::Filter => &[SERVICES, EXTERNAL_SERVICES, NODE_PORTS, FORWARD, PROXY_FIREWALL],
        Table::Nat => &[SERVICES, NODE_PORTS, POSTROUTING, MARK_MASQ, MASQ_IF_NOT_LOCAL],
        Table::Security => &[FORWARDED, EGRESS],
    };
    // Chains of kube-proxy's ipvs mode. In the filter table KUBE-FIREWALL is kubelet's.
    let with_ipvs: &[&str] = match table {
        Table::Filter => &[
            "KUBE-NODE-PORT",
            "KUBE-SOURCE-RANGES-FIREWALL",
            "KUBE-IPVS-FILTER",
            "KUBE-IPVS-OUT-FILTER",
        ],
        Table::Nat => &["KUBE-NODE-PORT", "KUBE-LOAD-BALANCER", "KUBE-FIREWALL"],
        Table::Security => &[],
    };
    fixed.iter().any(|fixed| matches!(fixed, ChainName::Fixed(it) if *it == name))
        || with_ipvs.contains(&name)
        || (table == Table::Nat && of_a_service())
}

/// The prefix of the comment of our rule in KUBE-MARK-MASQ. It shows that the chains are ours: when
/// kube-proxy takes over, it writes that rule without a comment.
pub const OWNER: &str = "denizen: ";

/// A set of local pods: addresses, each with its input interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IpsetName {
    /// All local pods.
    Pods(Family),
    /// Bridged pods whose port of the bridge must match too.
    BridgedPods(Family),
}

impl IpsetName {
    /// All of them, in the order in which they are filled: a pod whose port matters must be in its
    /// port's set first.
    pub const ALL: [Self; 4] = [
        Self::BridgedPods(Family::V4),
        Self::BridgedPods(Family::V6),
        Self::Pods(Family::V4),
        Self::Pods(Family::V6),
    ];

    /// The family of its addresses.
    pub const fn family(self) -> Family {
        match self {
            Self::Pods(version) | Self::BridgedPods(version) => version,
        }
    }

    /// The set in the kernel.
    pub const fn set(self) -> Set {
        let name = match self {
            Self::Pods(Family::V4) => "DENIZEN-PODS-4",
            Self::Pods(Family::V6) => "DENIZEN-PODS-6",
            Self::BridgedPods(Family::V4) => "DENIZEN-BRIDGED-4",
            Self::BridgedPods(Family::V6) => "DENIZEN-BRIDGED-6",
        };
        Set { name, family: self.family() }
    }

    /// Its name in the kernel.
    pub fn as_str(self) -> &'static str {
        self.set().name
    }

    /// The inverse of [`Self::set`].
    pub fn of(set: Set) -> Option<Self> {
        Self::ALL.into_iter().find(|name| name.set() == set)
    }
}

/// The sets of [`IpsetName::ALL`].
pub const SETS: [Set; 4] = {
    let [a, b, c, d] = IpsetName::ALL;
    [a.set(), b.set(), c.set(), d.set()]
};

#[cfg(test)]
mod tests {
    use super::*;
    use denizen_model::{Protocol, ServiceName};

    /// Values seen on real nodes.
    #[test]
    fn names_are_kube_proxys() {
        let api = ServicePortName {
            service: ServiceName::new("default", "kubernetes"),
            port: "https".into(),
            protocol: Protocol::Tcp,
        };
        let service = ChainName::OfService(ServiceChain::Service, ChainHash::of(&api, None));
        assert_eq!(service.to_string(), "KUBE-SVC-NPX46M4PTMTKRN6Y");
        let endpoints = [
            ("172.16.0.11:6443", "KUBE-SEP-23Y66C2VAJ3WDEMI"),
            ("172.16.0.12:6443", "KUBE-SEP-47TYMEKETDMXSVAN"),
            ("172.16.0.13:6443", "KUBE-SEP-CZKGMRCAIW3ENCXY"),
        ];
        for (at, name) in endpoints {
            let hash = ChainHash::of(&api, Some(at.parse().unwrap()));
            assert_eq!(ChainName::OfService(ServiceChain::Endpoint, hash).to_string(), name);
        }
    }

    #[test]
    fn a_proxys_chains_are_told_by_their_names() {
        let cases = [
            (Table::Nat, "KUBE-SVC-NPX46M4PTMTKRN6Y", true),
            (Table::Nat, "KUBE-XLB-NPX46M4PTMTKRN6Y", true),
            (Table::Filter, "KUBE-SVC-NPX46M4PTMTKRN6Y", false),
            (Table::Nat, "KUBE-MASQ-IF-NOT-LOCAL", true),
            (Table::Filter, "KUBE-FORWARD", true),
            (Table::Nat, "KUBE-FORWARD", false),
            (Table::Nat, "KUBE-MARK-DROP", false),
            (Table::Nat, "KUBE-PROXY-CANARY", false),
            (Table::Nat, "KUBE-LOAD-BALANCER", true),
            (Table::Nat, "KUBE-FIREWALL", true),
            (Table::Filter, "KUBE-FIREWALL", false),
            (Table::Security, "DENIZEN-EGRESS", true),
            (Table::Nat, "DENIZEN-EGRESS", false),
            (Table::Nat, "CNI-HOSTPORT-DNAT", false),
        ];
        for (table, name, ours) in cases {
            assert_eq!(is_a_proxys(table, name), ours, "{table} {name}");
        }
    }
}
