//! iptables: services are chains, named and shaped as kube-proxy's, for nodes and habits that have iptables.
//!
//! `service` and `fixed` lower the plan to rules, `ruleset` knows which chains a change touches, and the text
//! of a rule (`rule`) is the very text that `iptables-save` reads back.

mod fixed;
mod name;
mod pods;
mod rule;
mod ruleset;
mod service;
#[cfg(test)]
mod tests;
mod text;
mod told;

pub use text::Rendering;
pub use told::Wanted;
