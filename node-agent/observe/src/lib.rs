//! Answers for people: status and metrics, dropped packets, traced packets, connections. It writes
//! no rule that decides anything: only `trace` adds tables, whose rules mark packets.

pub mod connections;
pub mod drops;
pub mod names;
pub mod status;
pub mod trace;
