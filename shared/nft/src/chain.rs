//! Chains, as a client declares them.

use std::sync::Arc;

use crate::rule::Rule;

/// A chain as it is declared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    /// The chain's name, unique in its table.
    pub name: Arc<str>,
    /// The hook that calls it; `None` for a chain that other chains jump or go to.
    pub base: Option<BaseChain>,
    /// What it is for, beside it on the node.
    pub why: &'static str,
    /// Its rules, in order.
    pub rules: Vec<Rule>,
}

/// What calls a base chain. Its policy is to accept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BaseChain {
    /// What its rules may do to packets.
    pub kind: ChainKind,
    /// The hook that calls it.
    pub hook: Hook,
    /// A chain is called before those of higher numbers.
    pub priority: i32,
}

/// What a base chain may do, and which packets it sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ChainKind {
    /// Translates addresses; sees the first packet of each connection.
    Nat,
    /// Sees every packet, and may not translate it.
    Filter,
}

impl ChainKind {
    /// The kernel's name of it (`NFTA_CHAIN_TYPE`).
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Nat => "nat",
            Self::Filter => "filter",
        }
    }
}

/// A hook of the network stack. Bridges have the same, with the same numbers; ARP has its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Hook {
    /// What arrives, before it is routed.
    Prerouting,
    /// What arrives for this node itself.
    Input,
    /// What is routed to another machine.
    Forward,
    /// What this node sends.
    Output,
    /// What leaves, after it is routed.
    Postrouting,
    /// ARP messages that arrive.
    ArpInput,
}

impl Hook {
    /// The hooks that IP packets pass.
    pub const ALL: [Self; 5] =
        [Self::Prerouting, Self::Input, Self::Forward, Self::Output, Self::Postrouting];

    /// `enum nf_inet_hooks`, `NF_BR_…`, `NF_ARP_IN`.
    pub fn number(self) -> u32 {
        match self {
            Self::Prerouting | Self::ArpInput => 0,
            Self::Input => 1,
            Self::Forward => 2,
            Self::Output => 3,
            Self::Postrouting => 4,
        }
    }

    /// The hook's name in nft's language.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Prerouting => "prerouting",
            Self::Input | Self::ArpInput => "input",
            Self::Forward => "forward",
            Self::Output => "output",
            Self::Postrouting => "postrouting",
        }
    }
}
