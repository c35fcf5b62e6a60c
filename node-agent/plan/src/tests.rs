//! Tables: what is decided about which facts, as kube-proxy decides it.

mod addresses;
mod claims;
mod frontends;
mod health_checks;
mod ipvs;
mod owners;
mod selecting;
