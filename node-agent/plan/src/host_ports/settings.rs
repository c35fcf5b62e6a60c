//! What the operator configures for host ports.

/// Settings for all host ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostPortSettings {
    /// Whether host ports are served on 127.0.0.0/8, too, to the node itself.
    pub localhost: bool,
}
