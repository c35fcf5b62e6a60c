//! The backend that was chosen, when the agent started, for as long as it runs.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::thread::JoinHandle;
use std::time::Duration;

use ipnetwork::IpNetwork;
use thiserror::Error;
use tracing::info;

use super::iptables::{self, Iptables, IptablesError, Whose};
use super::nftables::{self, Nftables, NftablesError};
use super::{Affinity, Backend, BackendName, Repair, SetSize, Told};
use crate::describe::describe;
use crate::iptables::Variant;
use crate::model::{Egress, PodSet};
use crate::plan::{Detector, Frontend, FrontendKey, NodePortAddresses, NodeSide, Plan};
use denizen_netlink::NetlinkError;

/// Any backend with a kernel.
#[derive(Debug)]
pub enum Chosen {
    /// Services are data in maps of nf_tables.
    Nftables(Box<Nftables>),
    /// Services are chains of iptables.
    Iptables(Box<Iptables>),
}

/// Why the chosen backend's kernel is not as it should be.
#[derive(Debug, Error)]
pub enum ChosenError {
    /// nf_tables'.
    #[error(transparent)]
    Nftables(#[from] NftablesError),
    /// iptables'.
    #[error(transparent)]
    Iptables(#[from] IptablesError),
    /// The bridge's table cannot be had, and nothing else tells a pod from its neighbour on the
    /// bridge.
    #[error("--detect-local pod-state=port-exact cannot be had on this node, with any backend")]
    Ports(#[source] NftablesError),
    /// There is no netlink to be had.
    #[error("cannot open netlink to nf_tables")]
    Netlink(#[from] NetlinkError),
}

/// A backend, and why it is this one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// Which.
    pub backend: BackendName,
    /// Why.
    pub why: String,
}

/// What `--backend auto` stands for on this node: nftables where the kernel can do all that it
/// needs to tell local traffic apart so, found out by tables that are taken back before anybody
/// sees them.
///
/// # Errors
/// When iptables could do no better: which of a bridge's ports a packet came in through,
/// only the bridge's own table tells.
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

macro_rules! whichever {
    ($self:expr, $backend:ident => $do:expr) => {
        match $self {
            Chosen::Nftables($backend) => $do,
            Chosen::Iptables($backend) => $do,
        }
    };
}

impl Chosen {
    /// Opens the backend of that name in this thread's network namespace. `variant` is the iptables
    /// to use, where that is not to be found out.
    ///
    /// # Errors
    /// [`ChosenError`] when the kernel, or the programs, are not to be had.
    pub fn open(name: BackendName, variant: Option<Variant>) -> Result<Self, ChosenError> {
        Ok(match name {
            BackendName::Nftables => Self::Nftables(Box::new(Nftables::open()?)),
            BackendName::Iptables => Self::Iptables(Box::new(Iptables::open(variant)?)),
        })
    }

    /// The portid by which nf_tables' notifications name this backend's own changes, where it goes
    /// by them.
    pub fn portid(&self) -> Option<u32> {
        match self {
            Self::Nftables(nftables) => Some(nftables.portid()),
            Self::Iptables(iptables) => iptables.portid(),
        }
    }

    /// Removes what the other backend, or the other variant of iptables, left behind. Called when
    /// this one's rules are all in the kernel: until then the other's serve. The thread must be
    /// waited for before the process ends: a program that it has begun would go on, and take the
    /// next agent's rules away.
    pub fn remove_predecessor(&mut self) -> Removal {
        let variant = match self {
            Self::Nftables(_) => None,
            Self::Iptables(iptables) => match iptables.remove_tables() {
                Ok(tables) => {
                    removed("the nftables backend's tables are removed", tables);
                    Some(iptables.variant())
                }
                Err(error) => return std::thread::spawn(move || Err(error)),
            },
        };
        std::thread::spawn(move || {
            let (what, chains) = match variant {
                Some(used) => (
                    "the chains in the other variant's tables are removed",
                    iptables::cleanup_other_than(used)?,
                ),
                None if iptables::was_here() => (
                    "the iptables backend's chains are removed",
                    iptables::cleanup(Whose::Denizens)?,
                ),
                None => return Ok(()),
            };
            removed(what, chains);
            Ok(())
        })
    }
}

/// A thread that removes what another backend left; why it could not.
pub type Removal = JoinHandle<Result<(), IptablesError>>;

fn removed(what: &str, count: usize) {
    if count > 0 {
        info!(count, "{what}");
    }
}

impl Told for Chosen {
    fn set_pods(&mut self, pods: &PodSet) {
        whichever!(self, backend => backend.set_pods(pods));
    }

    fn set_hairpins(&mut self, addresses: &BTreeSet<IpAddr>) {
        whichever!(self, backend => backend.set_hairpins(addresses));
    }

    fn set_node_port_addresses(&mut self, wanted: &NodePortAddresses, addresses: &[IpAddr]) {
        whichever!(self, backend => backend.set_node_port_addresses(wanted, addresses));
    }

    fn set_health_ports(&mut self, ports: &BTreeSet<NonZeroU16>) {
        whichever!(self, backend => backend.set_health_ports(ports));
    }

    fn set_frontends(&mut self, plan: &Plan, keys: &BTreeSet<FrontendKey>) {
        whichever!(self, backend => backend.set_frontends(plan, keys));
    }

    fn set_complete(&mut self) {
        whichever!(self, backend => backend.set_complete());
    }

    fn set_detector(&mut self, detector: &Detector, ranges: &[IpNetwork]) {
        whichever!(self, backend => backend.set_detector(detector, ranges));
    }

    fn set_egress(&mut self, egress: Option<&Egress>) {
        whichever!(self, backend => backend.set_egress(egress));
    }

    fn set_node_side(&mut self, node_side: &NodeSide) {
        whichever!(self, backend => backend.set_node_side(node_side));
    }

    fn set_service_ranges(&mut self, ranges: &[IpNetwork]) {
        whichever!(self, backend => backend.set_service_ranges(ranges));
    }
}

impl Backend for Chosen {
    type Error = ChosenError;

    fn sync(&mut self) -> Result<Repair, ChosenError> {
        whichever!(self, backend => Ok(backend.sync()?))
    }

    fn resync(&mut self) -> Result<Repair, ChosenError> {
        whichever!(self, backend => Ok(backend.resync()?))
    }

    fn sizes(&self) -> Vec<SetSize> {
        whichever!(self, backend => backend.sizes())
    }

    fn left_frontends(&mut self) -> Vec<FrontendKey> {
        whichever!(self, backend => backend.left_frontends())
    }

    fn missed_lookups(&mut self) -> Result<u64, ChosenError> {
        whichever!(self, backend => Ok(backend.missed_lookups()?))
    }

    fn affinity(&mut self) -> Result<Affinity, ChosenError> {
        whichever!(self, backend => Ok(backend.affinity()?))
    }

    fn is_settled(&self) -> bool {
        whichever!(self, backend => backend.is_settled())
    }

    fn has_pods(&self) -> bool {
        whichever!(self, backend => backend.has_pods())
    }

    fn look_every(&self) -> Duration {
        whichever!(self, backend => backend.look_every())
    }

    fn refused(&self) -> Vec<String> {
        whichever!(self, backend => backend.refused())
    }

    fn rejected(&self, frontend: &Frontend) -> Vec<String> {
        whichever!(self, backend => backend.rejected(frontend))
    }

    fn serves(&self) -> bool {
        whichever!(self, backend => backend.serves())
    }

    fn contended(&self) -> Option<&str> {
        whichever!(self, backend => backend.contended())
    }

    fn repaired(&mut self) -> Repair {
        whichever!(self, backend => backend.repaired())
    }

    async fn news(&mut self) {
        whichever!(self, backend => backend.news().await);
    }
}
