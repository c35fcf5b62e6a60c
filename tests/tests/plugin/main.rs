//! The CNI plugin, and the pods that it records: real chains, the state file, and what becomes of
//! records when something goes wrong.

#![allow(clippy::disallowed_methods, reason = "tests read clocks and files; denizen does not")]

mod adoption;
mod bad_calls;
mod chains;
mod check;
mod crash;
mod disk;
mod isolate;
mod orders;
mod pruning;
#[path = "../redirection/redirection.rs"]
mod redirection;
mod removal;
mod spec;
mod stderr;
mod wait;
