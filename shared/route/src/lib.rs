//! The driver of routes, by rtnetlink (linux/rtnetlink.h).
//!
//! It knows routes and their tables, and no service, pod or node. A route has no name: a restarted
//! program, which remembers nothing, recognises its own routes by their protocol number. There are
//! no transactions: each command is done or rejected by itself.

#![deny(missing_docs)]

mod kernel;
mod message;
mod route;
#[cfg(test)]
mod tests;
mod watch;

pub use kernel::{RejectedRoute, RouteError, Routes};
pub use route::{
    LOCAL, MAIN, ObservedRoute, Path, PolicyRoutingRule, Route, RouteCommand, RouteKey, RouteTarget,
};
pub use watch::{RouteChange, RouteWatch};

/// The protocol number of Denizen's routes. No routing daemon uses it (`/etc/iproute2/rt_protos`).
pub const PROTOCOL: u8 = 213;
