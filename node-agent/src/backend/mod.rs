//! From decisions to the kernel. A backend never decides; it renders.

pub mod nftables;
pub mod why;
