//! Netlink as the kernel speaks it: messages, nested attributes, a socket. It knows no subsystem.
//!
//! Own code on `nix`, since what is sent through it (one atomic batch of a million attributes) is what this
//! project exists for; links and addresses go through `rtnetlink`.

mod message;
mod socket;

pub use message::{Attributes, Message, Messages, Writer, parse_messages};
pub use socket::{NetlinkError, Refusal, Socket, answer};
