//! The flags about what programs the kernel, and what depends on that.

use clap::{ArgAction, Args, ValueEnum};

use super::{ConfigError, cidrs};
use crate::backend::BackendName;
use crate::backend::iptables::Variant;
use crate::plan::NodePortAddresses;

/// What programs the kernel, as asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BackendChoice {
    /// nftables where the kernel can do what it needs, else iptables.
    Auto,
    /// nftables.
    Nftables,
    /// iptables, in chains named as kube-proxy's.
    Iptables,
}

/// What programs the kernel, as written.
#[derive(Debug, Clone, Args)]
pub struct BackendArgs {
    /// What programs the kernel
    #[arg(long, visible_alias = "proxy-mode", value_enum, default_value = "auto")]
    pub backend: BackendChoice,

    /// With iptables: whose tables; by default those of the variant that this node uses, found out
    /// as kubelet does
    #[arg(long, value_enum)]
    pub iptables_variant: Option<Variant>,

    /// Which of the node's addresses serve node ports: "primary", "all", "all,localhost" (127.0.0.1
    /// too), or CIDRs; by default primary with nftables and all with iptables, as kube-proxy has it
    #[arg(long, value_name = "CIDR,…")]
    pub nodeport_addresses: Option<String>,

    /// With iptables: serve node ports on 127.0.0.1 too, where all addresses serve them
    #[arg(long, value_name = "BOOL", default_value_t = true, action = ArgAction::Set)]
    pub iptables_localhost_nodeports: bool,
}

impl BackendArgs {
    /// The backend that was asked for; `None` where it is to be found out.
    pub fn chosen(&self) -> Option<BackendName> {
        match self.backend {
            BackendChoice::Auto => None,
            BackendChoice::Nftables => Some(BackendName::Nftables),
            BackendChoice::Iptables => Some(BackendName::Iptables),
        }
    }

    /// Where node ports are served.
    pub(super) fn node_ports(
        &self,
        backend: BackendName,
    ) -> Result<NodePortAddresses, ConfigError> {
        let usual = match backend {
            BackendName::Nftables => "primary",
            BackendName::Iptables => "all",
        };
        let localhost = backend == BackendName::Iptables && self.iptables_localhost_nodeports;
        match self.nodeport_addresses.as_deref().unwrap_or(usual).trim() {
            "primary" => Ok(NodePortAddresses::Primary),
            "all" => Ok(NodePortAddresses::All { localhost }),
            // KEP-6032's words.
            "all,localhost" | "localhost,all" => Ok(NodePortAddresses::All { localhost: true }),
            list => {
                let values = list.split(',').map(str::trim).collect();
                cidrs("--nodeport-addresses", values).map(NodePortAddresses::In)
            }
        }
    }
}
