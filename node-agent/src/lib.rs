//! The node agent: it knows a node's services, decides what happens to their packets, and programs
//! the kernel's rules.
//!
//! Facts flow in ([`source`] → [`model`]), decisions are computed ([`plan`]), differences flow out
//! ([`backend`]). Everything between the first arrow and the last is pure. [`engine`] joins the
//! layers; [`agent`] alone knows the clock.

pub mod agent;
pub mod attachments;
pub mod backend;
pub mod bird;
pub mod check;
pub mod cli;
pub mod config;
pub mod connections;
pub mod conntrack;
pub mod control;
pub mod describe;
pub mod drops;
mod duration;
pub mod engine;
pub mod events;
pub mod explain;
#[cfg(test)]
mod fixture;

pub mod firewall;
pub mod forward;
pub mod http;
pub mod install;
mod memory;
pub mod model;
pub mod names;
pub mod plan;
pub mod printable;
#[cfg(test)]
mod reference;
pub mod routes;
pub mod source;
pub mod status;
pub mod sysctl;
pub mod takeover;
pub mod trace;
