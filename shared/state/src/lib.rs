//! The contract between Denizen's two programs: their directory ([`RunDir`], [`run_dir`]), the
//! state file in it ([`State`]), the messages on the agent's socket ([`socket`]), what both change
//! in the kernel ([`firewall`]), what the plugin alone changes in a pod ([`redirect`]), and how
//! JSON is read ([`json`]).
//!
//! Nothing here is async, and nothing here knows Kubernetes or a kernel interface.

#![deny(missing_docs)]

#[cfg(all(test, feature = "files"))]
mod arbitrary;
#[cfg(feature = "files")]
mod change;
#[cfg(feature = "files")]
mod error;
pub mod firewall;
#[cfg(feature = "files")]
mod format;
#[cfg(feature = "files")]
#[doc(hidden)]
pub mod fuzzing;
mod host_port;
pub mod json;
#[cfg(feature = "files")]
mod lock;
pub mod redirect;
#[cfg(feature = "files")]
pub mod regular;
pub mod run_dir;
pub mod socket;
mod state;
#[cfg(feature = "files")]
mod state_editor;
#[cfg(feature = "files")]
mod state_reader;
#[cfg(feature = "files")]
mod store;
#[cfg(feature = "files")]
mod successor;
#[cfg(feature = "files")]
mod trust;

#[cfg(feature = "files")]
pub use error::StateError;
pub use host_port::{HostPort, HostPortFamily, HostPortProtocol};
pub use state::{Attachment, AttachmentId, Epoch, Generation, HostInterface, PodRef, State};
#[cfg(feature = "files")]
pub use state_reader::StateReader;
#[cfg(feature = "files")]
pub use store::RunDir;
