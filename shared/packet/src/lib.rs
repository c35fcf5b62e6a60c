//! Words for packets that drivers and the model share: the family of their addresses, and their
//! transport protocol.

#![deny(missing_docs)]

mod family;
mod protocol;

pub use family::{Family, family_of};
pub use protocol::Protocol;
