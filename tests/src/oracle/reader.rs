//! A naive reader of nftables rules, written from nft's manual and the kernel, without knowledge of
//! the program that wrote the rules: it reads the text, and walks a packet through it. Anything
//! that it does not know is an error, never skipped.
//!
//! nat chains see only the first packet of a connection, and only such packets are walked here.

mod check;
mod hooks;
mod packet;
mod parse;
mod rule;
mod syntax;
mod token;
mod value;
mod walk;

#[cfg(test)]
mod tests;

pub use hooks::{Arrival, HookFamily, HookVisit, ReadEnd, ReadFate, Reader};
pub use packet::ReadPacket;
pub use value::PacketType;
