//! The contract between Denizen's two programs: their directory ([`RunDir`], [`run_dir`]), the
//! state file in it ([`State`]), the messages on the agent's socket ([`socket`]), what both change
//! in the kernel ([`firewall`]), what the plugin alone changes in a pod ([`redirect`]), and how
//! JSON is read ([`json`]).
//!
//! Nothing here is async, and nothing here knows Kubernetes or a kernel interface.

#![deny(missing_docs)]

#[cfg(test)]
mod arbitrary;
mod change;
mod error;
pub mod firewall;
mod format;
#[doc(hidden)]
pub mod fuzzing;
mod host_port;
pub mod json;
mod lock;
pub mod redirect;
pub mod regular;
pub mod run_dir;
pub mod socket;
mod state;
mod state_editor;
mod state_reader;
mod store;
mod successor;
mod trust;

pub use error::StateError;
pub use host_port::{HostPort, HostPortFamily, HostPortProtocol};
pub use state::{Attachment, AttachmentId, Epoch, Generation, HostInterface, PodRef, State};
pub use state_reader::StateReader;
pub use store::RunDir;
