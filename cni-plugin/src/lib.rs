//! The chained CNI plugin `denizen`: it records the interface and the addresses of each pod of this
//! node.
//!
//! One call is one process. It checks the variables ([`Environment`]) and standard input (the
//! configuration), reads the kernel, changes the state file, and prints the result. There is no
//! async runtime, and nothing changes but the state file and, if the configuration asks for it, a
//! table in the pod's own network namespace.

#![deny(missing_docs)]
#![deny(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "they panic if the reader has gone or the disk is full: `command::report` does not"
)]

mod adopt;
mod command;
mod config;
mod environment;
mod error;
mod host_port;
mod kernel;
mod prev_result;
mod redirect;
mod run;
mod time;
mod version;
mod wait;

pub use adopt::{Adopter, AdoptionRequest, NotAdopted};
pub use command::inspect;
pub use config::{ANNOTATIONS, REPLACED_PORTMAP};
pub use environment::Environment;
pub use error::CniError;
pub use host_port::{PORT_MAPPINGS, cached_host_ports};
pub use redirect::Redirection;
pub use run::{CallResult, run, understand};
pub use version::CniVersion;
