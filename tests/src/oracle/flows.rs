//! The table of packets, `tests/flows.json`: what a service proxy does with them, case by case, and
//! how each is run with real connections.

mod context;
mod run;
pub mod table;

pub use run::run_cases;
