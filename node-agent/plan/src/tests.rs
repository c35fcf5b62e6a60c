//! Tables: what is decided about which facts (kube-proxy's rules, as `reference.md` §3 and §4 tell
//! them).

mod addresses;
mod claims;
mod frontends;
mod health_checks;
mod ipvs;
mod owners;
mod selecting;
