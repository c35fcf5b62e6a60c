//! What people ask of an agent: its status and metrics, what the rules drop, where a packet went,
//! which connections there are. It reads and never writes.

pub mod connections;
pub mod drops;
pub mod names;
pub mod status;
pub mod trace;
