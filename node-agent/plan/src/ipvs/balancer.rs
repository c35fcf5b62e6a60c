//! Who chooses among a frontend's endpoints.

use std::fmt;
use std::net::SocketAddr;

use crate::FrontendKey;
use denizen_model::{Family, ServicePortName};

/// Who chooses among the endpoints that [`Frontend::inside`](crate::Frontend::inside)
/// forwards to. ([`Frontend::outside`](crate::Frontend::outside) is nf_tables' always: under
/// policy Local, it forwards to other endpoints than the cluster IP.)
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Balancer {
    /// IPVS, at the virtual server at this cluster IP.
    Ipvs(FrontendKey),
    /// nf_tables.
    Nft(NotOnIpvs),
}

/// Why nf_tables chooses the endpoint, and not IPVS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotOnIpvs {
    /// There is nothing to choose: connections are refused or dropped.
    NoEndpoints,
    /// Session affinity. nf_tables remembers a client for all frontends of the service together,
    /// and for the time that the Service says. IPVS remembers it longer, and sends it to endpoints
    /// that are gone.
    Affinity,
    /// The service port has no cluster IP here: the cluster IP is the node's own address, or
    /// another service has that port there.
    NoClusterIp,
    /// Under policy Local, the cluster IP has other endpoints than this frontend.
    OtherEndpoints,
    /// Node ports are served on 127.0.0.1, too. IPVS sends nothing from there to other nodes.
    Loopback,
    /// Egress masquerade hides local pods from this endpoint. It marks packets in the forward hook,
    /// which IPVS's packets do not pass.
    Egress(SocketAddr),
    /// An older service port leads to this endpoint too. IPVS tells connections apart by client and
    /// endpoint alone, and a client may use one source port towards both service ports.
    SharedEndpoint { endpoint: SocketAddr, with: ServicePortName },
    /// The node has no address of this family that it could use as the source of its own
    /// connections.
    NoSource(Family),
}

impl fmt::Display for NotOnIpvs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoEndpoints => f.write_str("there are no endpoints"),
            Self::Affinity => f.write_str("session affinity is kept by nftables"),
            Self::NoClusterIp => f.write_str("the service port has no cluster IP of its own here"),
            Self::OtherEndpoints => {
                f.write_str("by its traffic policy it has other endpoints than the cluster IP")
            }
            Self::Loopback => f.write_str("node ports are served on 127.0.0.1, too"),
            Self::Egress(endpoint) => {
                write!(f, "egress masquerade hides pods from its endpoint {endpoint}")
            }
            Self::SharedEndpoint { endpoint, with } => {
                write!(f, "the older service port {with} has the endpoint {endpoint}, too")
            }
            Self::NoSource(family) => write!(f, "this node has no {family} address to send from"),
        }
    }
}
