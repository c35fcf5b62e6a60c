//! What must become of a packet, by those who do not know how denizen makes it so: tables written by
//! hand, and a reader of rules.

pub mod detection;
pub mod flows;
pub mod reader;
