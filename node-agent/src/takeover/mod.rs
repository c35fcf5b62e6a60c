//! Removal of what another service proxy, or another backend of ours, left on this node.

pub mod ipvs;
mod predecessor;

pub(crate) use predecessor::Predecessor;
