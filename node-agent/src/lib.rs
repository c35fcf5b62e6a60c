//! The node agent: what a node's services are, what becomes of their packets, and the kernel's
//! rules that make it so.
//!
//! Facts flow in ([`source`] → [`model`]), decisions are computed ([`plan`]), differences flow out
//! ([`backend`]). Everything between the first arrow and the last is pure. [`engine`] joins the
//! layers; [`agent`] alone knows the clock.

pub mod agent;
pub mod backend;
pub mod cli;
pub mod config;
pub mod control;
pub mod describe;
pub mod engine;
pub mod explain;
#[cfg(test)]
mod fixture;
pub mod host;
pub mod http;
pub mod install;
mod memory;
pub mod model;
pub mod notice;
pub mod plan;
pub mod printable;
pub mod records;
pub mod source;
pub mod status;
