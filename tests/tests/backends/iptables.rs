//! The iptables backend.

mod live;
mod refused;
mod refused_module;
mod refused_unnamed;
mod variant;
