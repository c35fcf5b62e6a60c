//! What the agent's rules drop and refuse, and why, for `denizen-agent drops`.
//!
//! Every rule that drops or refuses packets counts them, and `count` reads these counters. Rules
//! also note the packets' flows in the kernel's sets ([`denizen_backend::refusals`]), and `refused`
//! names these flows.
//!
//! To show the packets themselves (`--watch`), the agent puts a sampling rule before each rule that
//! drops or refuses ([`denizen_nft::sampled`]), for as long as a command asks for it. If the agent
//! is killed meanwhile, the command removes the sampling rules (`leftover`). The command receives
//! what the kernel reports (`watch`). It reads counters, flows and reports itself, as `trace` does,
//! and not through the agent.

mod count;
mod leftover;
mod refused;
#[cfg(test)]
mod tests;
mod watch;

pub use count::{DropCount, DropCounts, DropVerdict, count};
pub use leftover::remove_samples;
pub use refused::{NamedFlow, RefusedFlows, refused};
pub use watch::{DropWatch, DroppedPacket, PacketReport, WatchError};
