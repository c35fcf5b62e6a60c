//! Netlink as the kernel speaks it: messages, nested attributes, and one blocking socket.
//!
//! Both programs use it. It knows no subsystem: what a message means is its caller's business. It
//! is our own code on `nix`, because what the agent sends through it (one atomic batch of a million
//! attributes) is what this project exists for. The agent reads links and addresses as they change
//! through `rtnetlink` instead, which is asynchronous.

#![deny(missing_docs)]

mod capability;
mod message;
mod socket;

pub use capability::Capability;
pub use message::{Attributes, Message, Messages, Open, Writer, parse_messages};
pub use socket::{NetlinkError, Refusal, Socket};
