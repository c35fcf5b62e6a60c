//! The backend ipvs, next to `ipvsadm`, and taking over from a kube-proxy in ipvs mode.

pub(crate) mod backend;
pub(crate) mod cleared;
pub(crate) mod connections;
pub(crate) mod cost;
pub(crate) mod draining;
pub(crate) mod driver;
pub(crate) mod earlier;
pub(crate) mod figures;
pub(crate) mod handover;
pub(crate) mod hashed;
pub(crate) mod host_ports;
pub(crate) mod hosts;
pub(crate) mod kills;
pub(crate) mod leaving;
pub(crate) mod modules;
pub(crate) mod neighbours;
pub(crate) mod policies;
pub(crate) mod takeover;
