//! The table of packets, `tests/flows.json`: what a service proxy does with them, case by case, and
//! how each is played with real connections.

mod context;
mod play;
pub mod table;

pub use play::play;
