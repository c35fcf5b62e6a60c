//! Hosts in network namespaces, real packets: what the kernel tests stand on.

pub mod cni;
