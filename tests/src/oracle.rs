//! What must become of a packet, independent of how denizen implements it: tables written by hand,
//! and a reader of rules.

pub mod detection;
pub mod flows;
pub mod reader;
