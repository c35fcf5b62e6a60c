//! Follows real packets through every rule of this node by the kernel's own tracing, and compares
//! with what `explain` says of them.
//!
//! `denizen-agent trace` does this itself, with its own netlink sockets; it asks the running agent
//! only for names and for the explanation. The tables that mark the packets belong to the command:
//! the kernel removes them with its socket, however it ends, and the agent's loop never waits for a
//! trace. It needs `CAP_NET_ADMIN`, which the agent's container has.

mod compare;
mod follow;
mod journey;
mod prediction;
mod report;
mod rules;
mod table;
#[cfg(test)]
mod tests;

pub use compare::PacketAddresses;
pub use compare::{PacketFate, TraceComparison};
pub use follow::interface;
pub use follow::{PacketFollower, TraceError};
pub use prediction::Prediction;
pub use report::{
    HookReport, NamedAddress, PacketIdentity, RuleReport, TraceReport, TracedPackets,
};
pub use rules::{KUBE, TracedRules, comment_words, is_agents};
pub use table::TABLE_PREFIX;
