//! A naive reader of nftables rules, written from what nft's manual and the kernel say, and knowing
//! nothing of who made the rules: it reads the text, and walks a packet through it. What it does
//! not know is an error, never skipped.
//!
//! Rules of type nat see first packets of connections alone, and are read as those meet them.

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

pub use hooks::{Arrival, Layer, ReadEnd, ReadFate, Reader, Stop};
pub use packet::ReadPacket;
pub use value::PacketType;
