//! How traffic of this node's own pods is detected: `--detect-local`.

mod first_packet;
mod masquerade_bit;
mod matrix;
mod modes;
mod port_bit;
mod strangers;
