//! How a virtual server chooses among its endpoints.

use std::fmt;

use denizen_model::RequestedScheduler;

/// The kernel's schedulers (`net/netfilter/ipvs/ip_vs_<name>.c`). All weights are equal here.
///
/// `ovf` is not among them: it counts connections against weights, and refuses all above them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum Method {
    /// One after the other.
    #[default]
    Rr,
    /// As [`Self::Rr`], by weight.
    Wrr,
    /// The one with the fewest connections from this node.
    Lc,
    /// As [`Self::Lc`], by weight.
    Wlc,
    /// By the destination's address; then the one with the fewest connections.
    Lblc,
    /// As [`Self::Lblc`], with several endpoints for one destination.
    Lblcr,
    /// By a hash of the destination's address.
    Dh,
    /// By a hash of the client's address.
    Sh,
    /// By a hash of the client's address, of which little changes when an endpoint comes or goes
    /// (Maglev).
    Mh,
    /// The one with the shortest expected delay.
    Sed,
    /// An idle one; if there is none, as [`Self::Sed`].
    Nq,
    /// The first of those with the greatest weight.
    Fo,
    /// The one with fewer connections of two that are drawn at random.
    Twos,
}

impl Method {
    pub const ALL: [Self; 13] = [
        Self::Rr,
        Self::Wrr,
        Self::Lc,
        Self::Wlc,
        Self::Lblc,
        Self::Lblcr,
        Self::Dh,
        Self::Sh,
        Self::Mh,
        Self::Sed,
        Self::Nq,
        Self::Fo,
        Self::Twos,
    ];

    /// The kernel's name for the method.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rr => "rr",
            Self::Wrr => "wrr",
            Self::Lc => "lc",
            Self::Wlc => "wlc",
            Self::Lblc => "lblc",
            Self::Lblcr => "lblcr",
            Self::Dh => "dh",
            Self::Sh => "sh",
            Self::Mh => "mh",
            Self::Sed => "sed",
            Self::Nq => "nq",
            Self::Fo => "fo",
            Self::Twos => "twos",
        }
    }

    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|method| method.name() == name)
    }

    /// Whether an endpoint may stay with weight 0. `dh` would refuse the clients that it hashes to
    /// such an endpoint.
    pub(super) fn supports_weight_0(self) -> bool {
        self != Self::Dh
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A scheduler with its flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Scheduler {
    pub method: Method,
    /// `sh` and `mh`: where the endpoint that a client is hashed to takes no connections, another
    /// one gets the client; otherwise the client is refused.
    pub fallback: bool,
    /// `sh` and `mh`: the client's port is hashed too.
    pub hashes_port: bool,
}

/// Schedulers or flags that a service asks for and that do not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct UnknownScheduler<'a> {
    pub method: Option<&'a str>,
    pub flag: Option<&'a str>,
}

impl Scheduler {
    /// This method with its usual flags. `mh` hashes the port, as in kube-proxy. `sh` and `mh` fall
    /// back: an endpoint with weight 0 keeps its share of the hashes, and its clients would be
    /// refused.
    pub fn new(method: Method) -> Self {
        let hashes_port = method == Method::Mh;
        let fallback = hashes_port || method == Method::Sh;
        Self { method, fallback, hashes_port }
    }

    /// The scheduler that a service's annotations request, and what in them is unknown. An unknown
    /// scheduler becomes [`Method::Rr`], as in kube-router. `default` is for services without such
    /// annotations.
    pub(crate) fn for_service(
        default: Self,
        requested: Option<&RequestedScheduler>,
    ) -> (Self, UnknownScheduler<'_>) {
        let Some(requested) = requested else {
            return (default, UnknownScheduler { method: None, flag: None });
        };
        let found = requested.name.as_deref().map(|name| Method::named(name).ok_or(name));
        let scheduler = match found {
            None => default,
            Some(named) => Self::new(named.unwrap_or_default()),
        };
        let (scheduler, flag) = match requested.flags.as_deref() {
            Some(flags) => scheduler.with_flags(flags),
            None => (scheduler, None),
        };
        (scheduler, UnknownScheduler { method: found.and_then(Result::err), flag })
    }

    /// These flags instead of the usual ones, and the first that does not exist. Only `sh` and `mh`
    /// have flags.
    fn with_flags(self, flags: &str) -> (Self, Option<&str>) {
        let mut with = match self.method {
            Method::Sh | Method::Mh => Self { hashes_port: false, ..Self::new(self.method) },
            Method::Rr
            | Method::Wrr
            | Method::Lc
            | Method::Wlc
            | Method::Lblc
            | Method::Lblcr
            | Method::Dh
            | Method::Sed
            | Method::Nq
            | Method::Fo
            | Method::Twos => return (self, flags.split(',').map(str::trim).next()),
        };
        let mut unknown = None;
        for flag in flags.split(',').map(str::trim).filter(|flag| !flag.is_empty()) {
            match flag {
                "flag-1" => with.fallback = true,
                "flag-2" => with.hashes_port = true,
                other => unknown = unknown.or(Some(other)),
            }
        }
        (with, unknown)
    }
}

impl fmt::Display for Scheduler {
    /// As `ipvsadm` writes it: `mh (mh-fallback, mh-port)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { method, fallback, hashes_port } = self;
        let flags = match (fallback, hashes_port) {
            (false, false) => return method.fmt(f),
            (true, false) => format!("{method}-fallback"),
            (false, true) => format!("{method}-port"),
            (true, true) => format!("{method}-fallback, {method}-port"),
        };
        write!(f, "{method} ({flags})")
    }
}
