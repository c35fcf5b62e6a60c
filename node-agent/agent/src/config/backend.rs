//! The flags for the backend, and what depends on it.

use clap::{ArgAction, Args, ValueEnum};

use super::ConfigError;
use super::cidr::cidrs;
use denizen_backend::BackendName;
use denizen_backend::chosen::BackendConfig;
use denizen_iptables::Variant;
use denizen_model::Family;
use denizen_plan::{Method, NodePortAddresses};

/// The requested backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BackendChoice {
    /// nftables if the kernel supports what it needs, else iptables.
    Auto,
    /// nftables.
    Nftables,
    /// iptables, in chains named as kube-proxy's.
    Iptables,
    /// nftables, and IPVS balances where it can.
    Ipvs,
}

/// The flags for the backend, as written.
#[derive(Debug, Clone, Args)]
pub struct BackendArgs {
    /// The kernel facility that implements services
    #[arg(long, visible_alias = "proxy-mode", value_enum, default_value = "auto")]
    pub backend: BackendChoice,

    /// With iptables: which variant's tables to use. The default is the variant that this node
    /// uses, detected as kubelet does
    #[arg(long, value_enum)]
    pub iptables_variant: Option<Variant>,

    /// With ipvs: how services choose among endpoints that do not say it themselves, by the name of
    /// the kernel's scheduler: rr, lc, wlc, sh, mh, sed, nq, …
    #[arg(long, value_name = "NAME", default_value_t = Method::Rr, value_parser = scheduler)]
    pub ipvs_scheduler: Method,

    /// The node's addresses that serve node ports: "primary", "all", "all,localhost" (127.0.0.1
    /// too), or CIDRs. The default is kube-proxy's: primary with nftables, all with iptables
    #[arg(long, value_name = "CIDR,…")]
    pub nodeport_addresses: Option<String>,

    /// With iptables, and if all addresses serve node ports: 127.0.0.1 serves them too
    #[arg(long, value_name = "BOOL", default_value_t = true, action = ArgAction::Set)]
    pub iptables_localhost_nodeports: bool,
}

impl BackendArgs {
    /// The requested backend; `None` for `auto`.
    pub fn chosen(&self) -> Option<BackendName> {
        match self.backend {
            BackendChoice::Auto => None,
            BackendChoice::Nftables => Some(BackendName::Nftables),
            BackendChoice::Iptables => Some(BackendName::Iptables),
            BackendChoice::Ipvs => Some(BackendName::Ipvs),
        }
    }

    /// The backend to open. `auto` is the backend that `auto` selects.
    pub fn config(&self, auto: BackendName) -> BackendConfig {
        let name = self.chosen().unwrap_or(auto);
        BackendConfig { name, iptables_variant: self.iptables_variant }
    }

    /// The addresses that serve node ports.
    pub(super) fn node_ports(
        &self,
        backend: BackendName,
    ) -> Result<NodePortAddresses, ConfigError> {
        let usual = match backend {
            BackendName::Nftables | BackendName::Ipvs => "primary",
            BackendName::Iptables => "all",
            BackendName::None => return Ok(NodePortAddresses::In(Vec::new())),
        };
        let localhost = backend == BackendName::Iptables && self.iptables_localhost_nodeports;
        match self.nodeport_addresses.as_deref().unwrap_or(usual).trim() {
            "primary" => Ok(NodePortAddresses::Primary),
            "all" => Ok(NodePortAddresses::All { localhost }),
            // KEP-6032's values.
            "all,localhost" | "localhost,all" => Ok(NodePortAddresses::All { localhost: true }),
            list => {
                let ranges = NodePortAddresses::In(cidrs(list)?);
                // kube-proxy's way to say `all`.
                Ok(match Family::BOTH.into_iter().all(|family| ranges.are_all(family)) {
                    true => NodePortAddresses::All { localhost },
                    false => ranges,
                })
            }
        }
    }
}

fn scheduler(name: &str) -> Result<Method, String> {
    let names = || Method::ALL.map(Method::name).join(", ");
    Method::named(name).ok_or_else(|| format!("IPVS has these: {}", names()))
}
