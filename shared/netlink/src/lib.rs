//! Netlink as the kernel speaks it: messages, nested attributes, and one blocking socket.
//!
//! Both programs use it. It knows no subsystem: callers know what a message means. It is our own
//! code on `nix`, since the agent sends unusual amounts (a million attributes in one atomic batch).
//! The agent follows links and addresses through `rtnetlink` instead, which is asynchronous.

#![deny(missing_docs)]

mod capability;
mod message;
mod socket;

pub use capability::Capability;
pub use message::{Attributes, Message, Messages, Open, Writer, parse_messages};
pub use socket::{KernelRejection, NetlinkError, Socket};
