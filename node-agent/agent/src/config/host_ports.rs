//! The flag for host ports.

use clap::{Args, ValueEnum};

use denizen_plan::HostPortSettings;

/// `--host-ports`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum HostPortsMode {
    /// Leave them to another program.
    Off,
    /// Serve them.
    On,
    /// Serve them, but not on 127.0.0.0/8.
    WithoutLocalhost,
}

/// The flag, as written.
#[derive(Debug, Clone, Copy, Args)]
pub struct HostPortsArgs {
    /// Whether to serve the host ports that the CNI plugin has recorded, with any backend and with
    /// --services=off. without-localhost: not on 127.0.0.0/8
    #[arg(long, value_enum, value_name = "MODE", default_value = "off")]
    pub host_ports: HostPortsMode,
}

impl HostPortsArgs {
    /// How host ports are served; `None` if they are not.
    pub fn settings(self) -> Option<HostPortSettings> {
        match self.host_ports {
            HostPortsMode::Off => None,
            HostPortsMode::On => Some(HostPortSettings { localhost: true }),
            HostPortsMode::WithoutLocalhost => Some(HostPortSettings { localhost: false }),
        }
    }
}
