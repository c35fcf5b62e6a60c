//! Errors of the command line.

use thiserror::Error;

use super::ObjectsError;
use super::cidr::NotACidr;
use denizen_plan::MarkBit;

/// An invalid command line.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum ConfigError {
    /// Addresses for node ports that are not CIDRs.
    #[error("--nodeport-addresses: {0}")]
    NodePortAddresses(#[from] NotACidr),
    /// Not an address to listen at.
    #[error(
        "{flag}: {value:?} is not an IP address with or without a port, such as 127.0.0.1:10249 or \
         [::1]:10249"
    )]
    Listen { flag: &'static str, value: String },
    /// Not a list of gates.
    #[error("--feature-gates: {0:?} is not NAME=true or NAME=false")]
    Gate(String),
    /// No usable source of objects.
    #[error(transparent)]
    Objects(#[from] ObjectsError),
    /// Neither services nor NetworkPolicies nor routes nor host ports.
    #[error(
        "--services=off, --network-policy=off, --routing-mode=off and --host-ports=off leave nothing \
         to do: serve services, enforce NetworkPolicies with --network-policy=on, route with \
         --routing-mode, or serve host ports with --host-ports=on"
    )]
    NothingToDo,
    /// Load balancer or external IPs are to be announced, without ranges that limit them: anyone
    /// who may write a Service could have any address announced.
    #[error(
        "--announce-services: whoever may write a Service chooses its external IPs: name the ranges of \
         external IPs and load balancer IPs that may be announced with --announce-ranges"
    )]
    NoAnnounceRanges,
    /// BIRD is to be configured, but its peers are not given.
    #[error(
        "--routing-mode=bird needs --bird, or routing.bird in the file: with whom BIRD speaks BGP"
    )]
    NoBird,
    /// A flag that only has an effect if this agent serves services.
    #[error(
        "{0} is part of serving services, which --services=off leaves to another program: remove one \
         of the two"
    )]
    WithoutServices(&'static str),
    /// Two flags use one bit of the mark.
    #[error("--masquerade-bit and --bridge-port-bit are the same: {0}")]
    SameBit(MarkBit),
    /// The node's name is not known.
    #[error("--node-name is not given, and the host name cannot be read: {0}")]
    NodeName(String),
}
