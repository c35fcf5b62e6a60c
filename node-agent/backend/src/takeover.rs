//! Removal of what another service proxy, or another backend of ours, left on this node, and how it
//! is recognised.

mod found;
pub mod iptables;
mod iptables_nft;
pub mod ipvs;
mod kube_proxy_nftables;
mod owner;
mod predecessor;

pub use found::{FoundError, kube_proxys};
pub use kube_proxy_nftables::remove_kube_proxys;
pub use owner::Owner;
pub use predecessor::Predecessor;
