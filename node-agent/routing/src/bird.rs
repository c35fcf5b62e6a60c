//! BIRD 2, which speaks BGP for this node: its configuration, its control socket, and the state of
//! its sessions.
//!
//! BIRD is a process of its own, so that a restart of the agent ends no session. Its configuration
//! does not contain the announcements: BIRD learns these from the kernel's table. So a change of a
//! service or a pod never reconfigures it.

mod address;
mod config;
mod control;
mod controller;
mod render;
mod sessions;
mod status;
#[cfg(test)]
mod tests;

pub use self::address::PeerAddress;
pub use self::config::{BgpPeer, BirdConfig};
pub use self::control::{BirdError, Control};
pub(crate) use self::controller::{BirdController, with_peers};
pub use self::render::{RenderInputs, RenderedConfig, password, render};
pub use self::sessions::{Session, sessions};
pub use self::status::BgpStatus;

pub const BGP_PORT: u16 = 179;
/// The directory for BIRD in the run directory.
pub const FOLDER: &str = "bird";
/// The configuration that BIRD starts with, in [`FOLDER`].
pub const CONFIGURATION: &str = "bird.conf";
/// The configuration that BIRD is asked to take, in [`FOLDER`].
pub const NEXT: &str = "bird.conf.next";
/// BIRD's control socket, in [`FOLDER`].
pub const SOCKET: &str = "bird.ctl";
