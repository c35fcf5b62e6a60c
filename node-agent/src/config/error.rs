//! What may be wrong with the command line.

use thiserror::Error;

use super::ObjectsError;
use crate::plan::MarkBit;

/// What is wrong with the command line.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum ConfigError {
    /// Removing the need for it is what denizen is for.
    #[error(
        "denizen never needs a cluster CIDR: leave {0} out for pod-state, which knows this node's pods \
         exactly, or use --detect-local bridge=NAME, bridge-port, interface-prefix=PREFIX or node-cidr"
    )]
    ClusterCidr(&'static str),
    /// No such mode.
    #[error(
        "--detect-local {0:?}: there is pod-state[=port-exact], bridge=NAME,…, bridge-port, interface-prefix=PREFIX,… and \
         node-cidr[=CIDR,…]"
    )]
    Mode(String),
    /// A mode wants a value, or wants none.
    #[error("--detect-local {mode}: {problem}")]
    Value {
        /// The mode.
        mode: &'static str,
        /// What is wrong.
        problem: String,
    },
    /// Not a CIDR.
    #[error("{flag}: {value:?} is not a CIDR such as 10.0.0.0/24")]
    Cidr {
        /// Where it stands.
        flag: &'static str,
        /// What stands there.
        value: String,
    },
    /// Not an address to listen at.
    #[error(
        "{flag}: {value:?} is not an IP address with or without a port, such as 127.0.0.1:10249 or [::1]:10249"
    )]
    Listen {
        /// Where it stands.
        flag: &'static str,
        /// What stands there.
        value: String,
    },
    /// Not a list of gates.
    #[error("--feature-gates: {0:?} is not NAME=true or NAME=false")]
    Gate(String),
    /// Nothing to follow, or nobody to ask.
    #[error(transparent)]
    Objects(#[from] ObjectsError),
    /// Two meanings for one bit of the mark.
    #[error("--masquerade-bit and --bridge-port-bit are the same: {0}")]
    SameBit(MarkBit),
    /// The node's name is not known.
    #[error("--node-name is not given, and the host name cannot be read: {0}")]
    NodeName(String),
}
