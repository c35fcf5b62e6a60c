//! What happens to a new connection, and which endpoints may get it.

use std::net::SocketAddr;
use std::sync::Arc;

/// An endpoint that may get connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint {
    pub address: SocketAddr,
    pub local: bool,
}

/// Endpoints to choose from, each as likely as the others.
///
/// Invariant: never empty; sorted by address, one entry for each address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoints(Arc<[Endpoint]>);

impl Endpoints {
    /// From endpoints in any order; `None` if there are none.
    pub fn new(mut endpoints: Vec<Endpoint>) -> Option<Self> {
        endpoints.sort_unstable();
        endpoints.dedup_by_key(|endpoint| endpoint.address);
        (!endpoints.is_empty()).then(|| Self(endpoints.into()))
    }

    /// In order of address.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Endpoint> {
        self.0.iter()
    }

    /// The number of endpoints; at least one.
    pub fn count(&self) -> usize {
        self.0.len()
    }
}

/// What happens to a new connection to one frontend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Forward(Endpoints),
    /// There are no endpoints. The connection is refused at once, so that the client does not wait
    /// for a time-out.
    Reject,
    /// Other nodes have endpoints, but policy Local forbids them. The connection is dropped: the
    /// client retries and may then be routed to another node. A refusal would end the connection.
    Drop,
}

impl Outcome {
    /// The endpoints that connections are forwarded to; none if they are refused.
    pub fn endpoints(&self) -> Option<&Endpoints> {
        match self {
            Self::Forward(endpoints) => Some(endpoints),
            Self::Reject | Self::Drop => None,
        }
    }
}
