//! What differs between two plans of host ports.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use super::TakenPort;
use super::key::HostPortKey;
use super::remark::HostPortRemark;

/// What differs from the plan before.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct HostPortChanges {
    /// For each host port that leads elsewhere now, or nowhere, where it led before; `None` for a
    /// new host port.
    pub former: BTreeMap<HostPortKey, Option<SocketAddr>>,
    /// Host ports that are new, gone, or another pod's.
    pub served: BTreeSet<HostPortKey>,
    /// Requested ports that a service takes now, or no longer takes.
    pub taken: BTreeSet<TakenPort>,
    /// Addresses at which host ports that name no address begin or cease to be served.
    pub addresses: BTreeSet<IpAddr>,
    /// What is new among the remarks.
    pub remarks: Vec<HostPortRemark>,
}

/// Remarks, each with how many decisions have it: one host port is decided in each family.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Remarks(BTreeMap<HostPortRemark, usize>);

impl Remarks {
    pub fn iter(&self) -> impl Iterator<Item = &HostPortRemark> + Clone {
        self.0.keys()
    }

    /// Replaces the remarks of one decision. Remarks that no decision had before are added to
    /// `added`.
    pub fn replace(
        &mut self,
        former: &[HostPortRemark],
        now: &[HostPortRemark],
        added: &mut Vec<HostPortRemark>,
    ) {
        for remark in now {
            let count = self.0.entry(remark.clone()).or_default();
            *count += 1;
            if *count == 1 {
                added.push(remark.clone());
            }
        }
        for remark in former {
            let count = self.0.get_mut(remark);
            if count.is_some_and(|count| {
                *count -= 1;
                *count == 0
            }) {
                self.0.remove(remark);
            }
        }
    }
}
