//! The backend that was chosen when the agent started.

use std::fmt;
use std::future::pending;

use serde::Serialize;
use thiserror::Error;
use tracing::info;

use super::iptables::{self, Iptables, IptablesError};
use super::ipvs::{self, IpvsBackend, IpvsBackendError, Kernel as IpvsKernel, ServersError};
use super::nftables::{self, Nftables};
use super::{Backend, BackendName, Figures, Repair, Report};
use denizen_iptables::Variant;
use denizen_netlink::NetlinkError;
use denizen_nft::{Kernel, NftError};
use denizen_plan::{Detector, Frontend, FrontendKey, Listed, Plan, PlanChanges};
use denizen_text::describe;

/// The backend in use, with its connections to the kernel.
#[derive(Debug)]
pub enum Chosen {
    /// Services are data in maps of nf_tables.
    Nftables(Box<Nftables>),
    /// Services are chains of iptables.
    Iptables(Box<Iptables>),
    /// Services are data in maps of nf_tables, and IPVS balances where it can.
    Ipvs(Box<IpvsBackend>),
    /// Nothing is programmed: another program serves services.
    None,
}

/// Why the chosen backend failed.
#[derive(Debug, Error)]
pub enum ChosenError {
    #[error(transparent)]
    Nftables(#[from] NftError),
    #[error(transparent)]
    Iptables(#[from] IptablesError),
    #[error(transparent)]
    Ipvs(#[from] IpvsBackendError),
    /// An earlier run's virtual servers could not be removed.
    #[error("cannot remove the virtual servers of the ipvs backend")]
    Servers(#[from] ServersError),
    /// The kernel does not accept the bridge's table, and nothing else detects a forged pod address
    /// on a bridge.
    #[error("--detect-local pod-state=port-exact cannot be had on this node, with any backend")]
    Ports(#[source] NftError),
    /// Netlink cannot be opened.
    #[error("cannot open netlink to nf_tables")]
    Netlink(#[from] NetlinkError),
}

/// Which backend to open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackendConfig {
    pub name: BackendName,
    /// With iptables: the variant; `None` to detect it.
    pub iptables_variant: Option<Variant>,
}

/// The chosen backend, and the reason for the choice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    pub backend: BackendName,
    pub why: String,
}

/// The backend for `--backend auto` on this node: nftables if the kernel supports everything that
/// this backend needs with this detector, else iptables. The check adds tables in a batch that is
/// never committed.
///
/// # Errors
/// If the detector is [`Detector::PodPort`] and the kernel rejects the bridge's table, which the
/// iptables backend needs for it as well.
pub fn automatic(detector: &Detector) -> Result<Choice, ChosenError> {
    let ports = if detector.knows_ports() { nftables::probe_ports() } else { Ok(()) };
    let ports = match (detector, ports) {
        (Detector::PodPort, Err(error)) => return Err(ChosenError::Ports(error)),
        (_, ports) => ports,
    };
    Ok(match ports.and_then(|()| nftables::probe()) {
        Ok(()) => Choice {
            backend: BackendName::Nftables,
            why: "this kernel can do all that it needs".to_owned(),
        },
        Err(error) => Choice {
            backend: BackendName::Iptables,
            why: format!("nftables cannot be used here: {}", describe(&error)),
        },
    })
}

impl Chosen {
    /// Opens a backend in this thread's network namespace.
    ///
    /// # Errors
    /// [`ChosenError`] if the kernel or the backend's programs cannot be used.
    pub fn open(config: BackendConfig) -> Result<Self, ChosenError> {
        Ok(match config.name {
            BackendName::Nftables => {
                let mut nftables = Nftables::open()?;
                // Unused ports of the routed addresses are refused from the first rule on.
                // Otherwise a program that listens on the node would answer there.
                nftables.change_routed_addresses(&IpvsKernel::routed()?);
                Self::Nftables(Box::new(nftables))
            }
            BackendName::Iptables => {
                Self::Iptables(Box::new(Iptables::open(config.iptables_variant)?))
            }
            BackendName::Ipvs => Self::Ipvs(Box::new(IpvsBackend::open()?)),
            BackendName::None => Self::None,
        })
    }

    /// The portid by which the kernel's notifications name this backend's own changes of nf_tables;
    /// `None` if it has no table there.
    pub fn portid(&self) -> Option<u32> {
        match self {
            Self::Nftables(nftables) => Some(nftables.portid()),
            Self::Iptables(iptables) => iptables.portid(),
            Self::Ipvs(ipvs) => Some(ipvs.nftables().portid()),
            Self::None => None,
        }
    }

    /// A second connection to nf_tables. Neither connection's commits count as foreign changes in
    /// the other's tables.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn sibling_connection(&self) -> Result<Kernel, NetlinkError> {
        match self {
            Self::Nftables(nftables) => nftables.sibling_connection(),
            Self::Iptables(iptables) => iptables.sibling_connection(),
            Self::Ipvs(ipvs) => ipvs.nftables().sibling_connection(),
            Self::None => Kernel::open(),
        }
    }

    /// Removes the nf_tables tables and the virtual servers that another backend of ours left. Call
    /// it once all rules of this backend are in the kernel: until then the other backend's rules
    /// serve. Returns the variant of iptables that this backend uses, if it uses one.
    ///
    /// # Errors
    /// The kernel's.
    pub fn remove_other_tables(&mut self) -> Result<Option<Variant>, ChosenError> {
        self.leave_ipvs()?;
        let (count, variant) = match self {
            Self::Nftables(_) | Self::Ipvs(_) => (0, None),
            Self::Iptables(iptables) => (iptables.remove_tables()?, Some(iptables.variant())),
            Self::None => (Nftables::remove_all_but_arp(&mut Kernel::open()?)?, None),
        };
        if count > 0 {
            info!(count, "the nftables backend's tables are removed");
        }
        match self {
            Self::Ipvs(_) => {}
            Self::Nftables(_) | Self::Iptables(_) | Self::None => {
                Nftables::remove_arp(&mut self.sibling_connection()?)?;
            }
        }
        Ok(variant)
    }

    /// Removes the virtual servers that the backend ipvs left, and their addresses' routes. As long
    /// as an address is routed here, rules refuse new connections to it.
    fn leave_ipvs(&mut self) -> Result<(), ChosenError> {
        match self {
            Self::Ipvs(_) => {}
            Self::Nftables(nftables) => {
                let drained = IpvsKernel::drain();
                nftables.change_routed_addresses(&IpvsKernel::routed()?);
                nftables.sync()?;
                drained?;
            }
            Self::Iptables(_) | Self::None => {
                nftables::only_refuse(&mut self.sibling_connection()?, &IpvsKernel::routed()?)?;
                IpvsKernel::drain()?;
            }
        }
        Ok(())
    }
}

/// A plan, rendered by a backend.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum RenderedPlan {
    /// Tables of nf_tables.
    Nftables(denizen_nft::Rendering),
    /// The input of `iptables-restore`, and the sets of pods.
    Iptables(iptables::IptablesRendering),
    /// Tables of nf_tables, and virtual servers.
    Ipvs(ipvs::IpvsRendering),
}

impl RenderedPlan {
    /// The rules that this backend would program. Needs no kernel.
    pub fn of(name: BackendName, plan: &Plan) -> Self {
        match name {
            BackendName::Nftables => Self::Nftables(nftables::render(plan)),
            BackendName::Ipvs => Self::Ipvs(ipvs::render(plan)),
            BackendName::Iptables => Self::Iptables(iptables::render(plan)),
            BackendName::None => Self::Nftables(denizen_nft::Rendering::empty()),
        }
    }
}

impl fmt::Display for RenderedPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nftables(rules) => rules.fmt(f),
            Self::Iptables(rules) => rules.fmt(f),
            Self::Ipvs(rules) => rules.fmt(f),
        }
    }
}

impl Backend for Chosen {
    type Error = ChosenError;

    fn update(&mut self, plan: &Plan, changes: &PlanChanges) {
        match self {
            Self::Nftables(nftables) => nftables.update(plan, changes),
            Self::Iptables(iptables) => iptables.update(plan, changes),
            Self::Ipvs(ipvs) => ipvs.update(plan, changes),
            Self::None => {}
        }
    }

    fn sync(&mut self) -> Result<Repair, ChosenError> {
        Ok(match self {
            Self::Nftables(nftables) => nftables.sync()?,
            Self::Iptables(iptables) => iptables.sync()?,
            Self::Ipvs(ipvs) => ipvs.sync()?,
            Self::None => Repair::default(),
        })
    }

    fn resync(&mut self) -> Result<Repair, ChosenError> {
        Ok(match self {
            Self::Nftables(nftables) => nftables.resync()?,
            Self::Iptables(iptables) => iptables.resync()?,
            Self::Ipvs(ipvs) => ipvs.resync()?,
            Self::None => Repair::default(),
        })
    }

    fn has_foreign_change(&mut self) -> bool {
        match self {
            Self::Ipvs(ipvs) => ipvs.has_foreign_change(),
            Self::Nftables(_) | Self::Iptables(_) | Self::None => false,
        }
    }

    fn report(&mut self) -> Report {
        match self {
            Self::Nftables(nftables) => nftables.report(),
            Self::Iptables(iptables) => iptables.report(),
            Self::Ipvs(ipvs) => ipvs.report(),
            Self::None => Report { has_pods: true, ..Report::default() },
        }
    }

    fn figures(&mut self) -> Figures {
        match self {
            Self::Nftables(nftables) => nftables.figures(),
            Self::Iptables(iptables) => iptables.figures(),
            Self::Ipvs(ipvs) => ipvs.figures(),
            Self::None => Figures::default(),
        }
    }

    fn sample_drops(&mut self, on: bool) -> bool {
        match self {
            Self::Nftables(nftables) => nftables.sample_drops(on),
            Self::Iptables(iptables) => iptables.sample_drops(on),
            Self::Ipvs(ipvs) => ipvs.sample_drops(on),
            Self::None => false,
        }
    }

    fn rejected(&self, frontend: &Frontend) -> Vec<String> {
        match self {
            Self::Nftables(nftables) => nftables.rejected(frontend),
            Self::Iptables(iptables) => iptables.rejected(frontend),
            Self::Ipvs(ipvs) => ipvs.rejected(frontend),
            Self::None => Vec::new(),
        }
    }

    fn listed(&mut self, server: &FrontendKey) -> Option<Vec<Listed>> {
        match self {
            Self::Ipvs(ipvs) => ipvs.listed(server),
            Self::Nftables(_) | Self::Iptables(_) | Self::None => None,
        }
    }

    async fn wait(&mut self) {
        match self {
            Self::Nftables(nftables) => nftables.wait().await,
            Self::Iptables(iptables) => iptables.wait().await,
            Self::Ipvs(ipvs) => ipvs.wait().await,
            Self::None => pending().await,
        }
    }
}
