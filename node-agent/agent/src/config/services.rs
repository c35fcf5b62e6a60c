//! Whether services are served, and at which addresses.

use clap::{Args, ValueEnum};
use denizen_plan::PermittedRanges;
use ipnetwork::IpNetwork;

use super::{ConfigError, HostPortsArgs, NodeSideArgs};

/// `--services`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ServicesMode {
    /// Serve them.
    On,
    /// Leave them to another program.
    Off,
}

/// The flags, as written.
#[derive(Debug, Clone, Args)]
pub struct ServicesArgs {
    /// Whether to serve Services. off: another program, such as kube-proxy, does, and denizen
    /// enforces NetworkPolicies beside it
    #[arg(long, value_enum, value_name = "MODE", default_value = "on")]
    pub services: ServicesMode,

    /// The ranges whose addresses Services may have as external IPs (CVE-2020-8554). Without any,
    /// every address
    #[arg(long, value_name = "CIDR,…", value_delimiter = ',')]
    pub external_ip_ranges: Vec<IpNetwork>,

    /// The ranges whose addresses Services may have as load balancer IPs. Without any, every
    /// address
    #[arg(long, value_name = "CIDR,…", value_delimiter = ',')]
    pub load_balancer_ip_ranges: Vec<IpNetwork>,
}

impl ServicesArgs {
    /// Whether services are served.
    pub fn are_served(&self) -> bool {
        match self.services {
            ServicesMode::On => true,
            ServicesMode::Off => false,
        }
    }

    /// The addresses that services may have.
    pub(super) fn permitted(&self) -> PermittedRanges {
        PermittedRanges {
            external_ips: self.external_ip_ranges.clone(),
            load_balancer_ips: self.load_balancer_ip_ranges.clone(),
        }
    }

    /// Checks that the other flags ask for nothing that only comes with services.
    ///
    /// # Errors
    /// [`ConfigError::WithoutServices`].
    pub(super) fn check(
        &self,
        node_side: &NodeSideArgs,
        host_ports: HostPortsArgs,
    ) -> Result<(), ConfigError> {
        if self.are_served() {
            return Ok(());
        }
        let opens_for_services = node_side.open_forward && host_ports.settings().is_none();
        let flags = [
            ("--open-forward", opens_for_services),
            ("--service-metrics", node_side.service_metrics),
            ("--egress-masquerade-config", node_side.egress_masquerade_config.is_some()),
        ];
        match flags.into_iter().find(|(_, is_set)| *is_set) {
            Some((flag, _)) => Err(ConfigError::WithoutServices(flag)),
            None => Ok(()),
        }
    }
}
