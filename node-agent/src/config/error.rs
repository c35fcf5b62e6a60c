//! Errors of the command line.

use thiserror::Error;

use super::ObjectsError;
use crate::plan::MarkBit;

/// An error of the command line.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum ConfigError {
    /// A cluster CIDR, which denizen does not use.
    #[error(
        "denizen needs no cluster CIDR: remove {0}. The default, pod-state, detects local pods exactly. \
         Other modes: --detect-local bridge=NAME, bridge-port, interface-prefix=PREFIX or node-cidr"
    )]
    ClusterCidr(&'static str),
    /// No such mode.
    #[error(
        "--detect-local {0:?} is not a mode: use pod-state[=port-exact], bridge=NAME,…, bridge-port, interface-prefix=PREFIX,… or \
         node-cidr[=CIDR,…]"
    )]
    Mode(String),
    /// A mode needs a value, or accepts none.
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
        /// The flag.
        flag: &'static str,
        /// Its value.
        value: String,
    },
    /// Not an address to listen at.
    #[error(
        "{flag}: {value:?} is not an IP address with or without a port, such as 127.0.0.1:10249 or [::1]:10249"
    )]
    Listen {
        /// The flag.
        flag: &'static str,
        /// Its value.
        value: String,
    },
    /// Not a list of gates.
    #[error("--feature-gates: {0:?} is not NAME=true or NAME=false")]
    Gate(String),
    /// No usable source of objects.
    #[error(transparent)]
    Objects(#[from] ObjectsError),
    /// Two flags use one bit of the mark.
    #[error("--masquerade-bit and --bridge-port-bit are the same: {0}")]
    SameBit(MarkBit),
    /// The node's name is not known.
    #[error("--node-name is not given, and the host name cannot be read: {0}")]
    NodeName(String),
}
