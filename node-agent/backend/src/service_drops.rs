//! The reasons for which services' rules drop and refuse packets, and the counts.

use crate::why::Why;

/// Why services' rules dropped or refused a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ServiceDropReason {
    /// The service has no endpoint: refused.
    NoEndpoints,
    /// Policy Local, and no endpoint is on this node.
    NoLocalEndpoints,
    /// `loadBalancerSourceRanges` do not have the source.
    SourceRanges,
    /// No service has this port of a cluster IP: refused.
    UnusedPort,
    /// No service has this address of the service ranges.
    UnusedAddress,
    /// It came from elsewhere and is for a loopback address.
    Loopback,
    /// Connection tracking cannot assign it to a connection. Only with iptables, as in kube-proxy.
    Invalid,
}

impl ServiceDropReason {
    pub const ALL: [Self; 7] = [
        Self::NoEndpoints,
        Self::NoLocalEndpoints,
        Self::SourceRanges,
        Self::UnusedPort,
        Self::UnusedAddress,
        Self::Loopback,
        Self::Invalid,
    ];

    /// The value of the metric's label.
    pub fn name(self) -> &'static str {
        match self {
            Self::NoEndpoints => "no_endpoints",
            Self::NoLocalEndpoints => "no_local_endpoints",
            Self::SourceRanges => "source_ranges",
            Self::UnusedPort => "unused_port",
            Self::UnusedAddress => "unused_address",
            Self::Loopback => "loopback",
            Self::Invalid => "invalid",
        }
    }

    /// The `Why` of each rule that drops or refuses for this reason.
    pub fn rules(self) -> &'static [Why] {
        match self {
            Self::NoEndpoints => &[Why::RefuseTcp, Why::Refuse],
            Self::NoLocalEndpoints => &[Why::NoLocalEndpoint],
            Self::SourceRanges => &[Why::MayNotEnter],
            Self::UnusedPort => &[Why::UnusedPort],
            Self::UnusedAddress => &[Why::Unallocated],
            Self::Loopback => &[Why::Martian],
            Self::Invalid => &[Why::Invalid],
        }
    }

    /// The reason of the rules whose comment is this text.
    pub fn of_text(text: &str) -> Option<Self> {
        let has = |reason: &Self| reason.rules().iter().any(|why| why.text() == text);
        Self::ALL.into_iter().find(has)
    }
}

/// Packets that services' rules dropped or refused, by reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ServiceDrops([u64; ServiceDropReason::ALL.len()]);

impl ServiceDrops {
    /// The number of packets for this reason.
    pub fn of(&self, reason: ServiceDropReason) -> u64 {
        self.0[reason as usize]
    }

    pub fn add(&mut self, reason: ServiceDropReason, packets: u64) {
        self.0[reason as usize] += packets;
    }
}
