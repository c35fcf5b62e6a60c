//! The flag that leaves services to another program, and what it does not go together with.

use clap::{Args, ValueEnum};

use super::{ConfigError, NodeSideArgs};

/// `--services`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ServicesMode {
    /// Serve them.
    On,
    /// Leave them to another program.
    Off,
}

/// The flag, as written.
#[derive(Debug, Clone, Copy, Args)]
pub struct ServicesArgs {
    /// Whether to serve Services. off: another program, such as kube-proxy, does, and denizen
    /// enforces NetworkPolicies beside it
    #[arg(long, value_enum, value_name = "MODE", default_value = "on")]
    pub services: ServicesMode,
}

impl ServicesArgs {
    /// Whether services are served.
    pub fn are_served(self) -> bool {
        match self.services {
            ServicesMode::On => true,
            ServicesMode::Off => false,
        }
    }

    /// Checks that the other flags ask for nothing that only comes with services.
    ///
    /// # Errors
    /// [`ConfigError::WithoutServices`].
    pub(super) fn check(self, node_side: &NodeSideArgs) -> Result<(), ConfigError> {
        if self.are_served() {
            return Ok(());
        }
        let asked = [
            ("--open-forward", node_side.open_forward),
            ("--egress-masquerade-config", node_side.egress_masquerade_config.is_some()),
        ];
        match asked.into_iter().find(|(_, is_asked)| *is_asked) {
            Some((flag, _)) => Err(ConfigError::WithoutServices(flag)),
            None => Ok(()),
        }
    }
}
