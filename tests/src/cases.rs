//! What holds with every backend: played on the kernel under the tests, and with ipvs in a guest.

pub mod counted_connections;
pub mod host_ports;
pub mod refused_flows;
