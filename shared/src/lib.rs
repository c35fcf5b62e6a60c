//! The contract between Denizen's two programs: the state file ([`state`]), the agent's socket
//! ([`socket`]) and their directory ([`run_dir`]).
//!
//! Nothing here is async, and nothing here knows Kubernetes or a kernel interface.

mod change;
pub mod error;
mod format;
#[doc(hidden)]
pub mod fuzzing;
mod lock;
pub mod regular;
pub mod run_dir;
pub mod socket;
pub mod state;
mod state_editor;
pub mod store;
mod successor;
mod trust;
