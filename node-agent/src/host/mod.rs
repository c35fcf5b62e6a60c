//! What surrounds the rules on this host and decides whether they work: settings of the kernel, and
//! others' chains that drop what is forwarded ([`forward`]).
//!
//! What settings are wanted is pure ([`setting`], [`conntrack`]); [`sysctl`] alone reads and
//! writes, and [`reconciler`] remembers what it could not.

pub mod conntrack;
pub mod files;
pub mod forward;
pub mod ipvs;
pub mod loopback;
pub mod reconciler;
pub mod setting;
pub mod sysctl;

pub use conntrack::Conntrack;
pub use loopback::Loopback;
pub use reconciler::{Reconciler, set_up};
pub use setting::{Setting, Wanted, live, on_loopback};
