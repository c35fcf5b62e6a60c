//! Settings of the kernel that the rules need beside them.
//!
//! Which settings are wanted is pure ([`setting`], [`conntrack`]); [`file`](mod@file) alone reads
//! and writes them, and [`reconciler`] remembers which of them it could not set.

pub mod conntrack;
pub mod file;
pub mod loopback;
pub mod reconciler;
pub mod setting;

pub use conntrack::Conntrack;
pub use file::SYSCTLS;
pub use loopback::Loopback;
pub use reconciler::{Reconciler, set_up};
pub use setting::{Setting, Wanted, live, on_loopback};
