//! The node agent: it knows a node's services, decides what happens to their packets, and programs
//! the kernel's rules.
//!
//! Facts flow in ([`denizen_source`] → [`denizen_model`]), decisions are computed
//! ([`denizen_plan`]), differences flow out ([`denizen_backend`]). Everything between the first
//! arrow and the last is pure. [`engine`] joins the layers; [`agent`] alone knows the clock.

#![deny(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "they panic if the reader has gone or the disk is full: `denizen_text` has others"
)]

pub mod agent;
pub mod check;
pub mod cli;
pub mod config;
pub mod control;
pub mod engine;
mod flush;
pub mod http;
pub mod install;
pub mod log;
mod memory;
#[cfg(test)]
mod reference;
