//! The chained CNI plugin `denizen`: it records which interface and addresses each pod of this node
//! has.
//!
//! One call is one process: the variables and standard input are checked ([`Environment`], the
//! configuration), the kernel is asked, the state file is changed, the result goes out. There is no
//! async runtime, and nothing is changed but the state file.

mod adopt;
mod command;
mod config;
mod environment;
mod error;
mod kernel;
mod prev_result;
mod run;
mod time;
mod version;
mod wait;

pub use adopt::{Adopter, NotAdopted, Remembered};
pub use environment::Environment;
pub use error::CniError;
pub use run::{Outcome, run, understand};
pub use version::CniVersion;
