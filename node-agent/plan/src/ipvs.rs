//! Which connections IPVS balances, at which virtual servers, and to which endpoints.
//!
//! nf_tables remains the gate: it decides what a frontend does, who is local, and what is refused
//! or masqueraded. Where a frontend forwards to the same endpoints as the cluster IP, nf_tables
//! need not choose one: it translates the frontend to the cluster IP, and IPVS chooses there. There
//! is one virtual server for each service port and family, at the cluster IP, so that one scheduler
//! knows all connections, and one client's port is never used twice towards one endpoint.

mod balancer;
mod hashed;
mod ipvs_plan;
mod scheduler;
mod server;

pub use balancer::{Balancer, NotOnIpvs};
pub use hashed::{HashTable, Hashed, Listed};
pub use ipvs_plan::IpvsPlan;
pub use scheduler::{Method, Scheduler};
pub use server::{PlannedServer, ServicePortKey, Share};
