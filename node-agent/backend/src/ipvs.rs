//! The backend ipvs: IPVS balances what nf_tables sends to it, and nf_tables decides everything
//! else.
//!
//! A connection that IPVS is to balance goes to its service's cluster IP: nf_tables marks it for
//! masquerade, refuses it, and so on, as in the backend nftables, and translates the destination
//! from any other frontend to that address. A route makes the address local, so that the packet
//! passes the input hook, where IPVS takes it.

mod backend;
mod gate;
mod host;
mod kernel;
mod rendering;
mod servers;
mod state;
#[cfg(test)]
mod tests;

pub use self::backend::{IpvsBackend, IpvsBackendError};
pub use self::host::ServersError;
pub use self::kernel::Kernel;
pub use self::rendering::{IpvsRendering, render};
