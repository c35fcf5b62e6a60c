//! Which connections IPVS balances, at which virtual servers, and who answers there.
//!
//! nf_tables remains the gate: it decides what a frontend does, who is local, and what is refused
//! or masqueraded. Where it forwards to the endpoints that the cluster IP has too, it need not
//! choose one: it translates the frontend to the cluster IP, and IPVS chooses there. There is one
//! virtual server for each service port and family, at the cluster IP, so that one scheduler knows
//! all connections, and one client's port is never used twice towards one endpoint.

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
