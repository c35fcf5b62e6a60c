//! What the agent's rules drop and refuse, and why, for `denizen-agent drops`.
//!
//! Every rule that drops or refuses packets counts them, and `count` reads these counters. The
//! kernel also notes whose they are ([`denizen_backend::refusals`]), and `refused` names those.
//!
//! To show the packets themselves (`--watch`), the agent puts a rule before each of those
//! ([`denizen_nft::sampled`]), for as long as a command asks for it. If the agent is killed
//! meanwhile, the command removes them (`leftover`). The command receives what the kernel reports
//! (`watch`). It reads all of that itself, as `trace` does.

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
