//! The driver of IPVS, the kernel's load balancer, by generic netlink (linux/ip_vs.h).
//!
//! It knows virtual servers and their real servers, and no service. IPVS has no names and no
//! transactions: nothing in the kernel says which program made a virtual server, and each command
//! of a batch is done or rejected by itself.

#![deny(missing_docs)]

mod kernel;
mod load;
mod message;
mod server;
#[cfg(test)]
mod tests;

pub use kernel::{Ipvs, IpvsError, RejectedCommand};
pub use load::load;
pub use server::{
    FALLBACK, Info, IpvsCommand, ObservedServer, PERSISTENT, PORT_HASHED, RealServer, ServerKey,
    Timeouts, VirtualServer,
};
