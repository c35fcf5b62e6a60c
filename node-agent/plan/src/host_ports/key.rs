//! The key by which packets to a host port are looked up.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;
use std::ops::RangeInclusive;

use crate::{FrontendAddress, FrontendKey};
use denizen_model::{Family, HostPort, HostPortAddress, Protocol, family_of};

/// Where packets to a host port are addressed to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostPortKey {
    pub at: HostPortPlace,
    pub protocol: Protocol,
    pub port: NonZeroU16,
}

/// The address of a [`HostPortKey`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum HostPortPlace {
    Ip(IpAddr),
    /// Every address of this family at which host ports are served.
    Any(Family),
}

impl HostPortKey {
    pub fn family(&self) -> Family {
        match self.at {
            HostPortPlace::Ip(ip) => family_of(ip),
            HostPortPlace::Any(family) => family,
        }
    }

    /// The keys of a host port as requested.
    pub(super) fn of(requested: HostPort) -> impl Iterator<Item = Self> {
        let HostPort { at, protocol, port, .. } = requested;
        at.families().map(move |family| Self {
            at: match at {
                HostPortAddress::Ip(ip) => HostPortPlace::Ip(ip),
                HostPortAddress::Any | HostPortAddress::AnyOf(_) => HostPortPlace::Any(family),
            },
            protocol,
            port,
        })
    }
}

impl HostPortKey {
    /// Every key at this place.
    pub(super) fn all_at(at: HostPortPlace) -> RangeInclusive<Self> {
        let first = Self { at, protocol: Protocol::Tcp, port: NonZeroU16::MIN };
        first..=Self { at, protocol: Protocol::Sctp, port: NonZeroU16::MAX }
    }

    /// The keys over which a service's frontend takes precedence.
    pub(super) fn shadowed_by(frontend: &FrontendKey, node_ports: &BTreeSet<IpAddr>) -> Vec<Self> {
        let FrontendKey { address, protocol, port } = *frontend;
        let family = frontend.family();
        let named = match address {
            FrontendAddress::Ip(ip) => vec![ip],
            FrontendAddress::Node(_) => {
                node_ports.iter().copied().filter(|ip| family_of(*ip) == family).collect()
            }
        };
        let at = named.into_iter().map(HostPortPlace::Ip).chain([HostPortPlace::Any(family)]);
        at.map(|at| Self { at, protocol, port }).collect()
    }
}

impl fmt::Display for HostPortKey {
    /// As in `192.168.0.2:8080/tcp`, or `8080/tcp` at every address.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, protocol, port } = self;
        match at {
            HostPortPlace::Ip(ip) => write!(f, "{}/{protocol}", SocketAddr::new(*ip, port.get())),
            HostPortPlace::Any(_) => write!(f, "{port}/{protocol}"),
        }
    }
}
