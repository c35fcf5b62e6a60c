//! The redirection of a pod's TCP to the pod's own proxy, in the pod's network namespace.
//!
//! The conflist's [`RedirectConfig`] and the pod's annotations decide what is redirected:
//! [`RedirectConfig::decide`], which is pure. An [`Installed`](install::Installed) redirection is
//! in the kernel.

mod consul;
mod entry;
mod inspect;
mod install;
mod iptables;
mod istio;
mod key;
mod listed;
mod location;
mod profile;
mod program;
mod reads;
mod verify;

pub(crate) use entry::{OnFailure, RedirectConfig};
pub(crate) use inspect::inspect;
pub(crate) use install::{differences, install, is_left, remove_obsolete};
pub(crate) use iptables::conflict;
pub use listed::Redirection;
pub(crate) use location::Location;
