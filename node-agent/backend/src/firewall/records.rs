//! What the plugin writes into the tables: the addresses of pods that nobody has decided about.
//!
//! It isolates a pod when the agent does not answer in time, for instance because it is stopped.
//! Such an agent finds the address in the kernel, maybe before it has read the pod's record.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;

use super::schema::SetName;
use denizen_model::Family;
use denizen_nft::{Delta, read_address};
use denizen_plan::Plan;

type Read = Box<dyn Fn() -> BTreeSet<IpAddr> + Send + Sync>;

/// Reads the addresses of the pods that are recorded now.
pub struct Records(Read);

impl Records {
    /// As `read` does.
    pub fn new(read: impl Fn() -> BTreeSet<IpAddr> + Send + Sync + 'static) -> Self {
        Self(Box::new(read))
    }
}

impl Default for Records {
    /// No pod is recorded that is not in the plan.
    fn default() -> Self {
        Self::new(BTreeSet::new)
    }
}

impl fmt::Debug for Records {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Records")
    }
}

/// What the plugin has added.
#[derive(Debug, Default)]
pub(super) struct Isolated {
    /// Addresses that are decided about, or nobody's, so that they are pending no more.
    pub removed: usize,
    /// Whether some stay: their pods are recorded, and not in the plan yet.
    pub is_left: bool,
}

impl Isolated {
    /// Finds them among what is to be deleted. Those of pods that are not in the plan yet are not
    /// deleted.
    pub(super) fn in_delta(
        delta: &mut Delta,
        plan: &Plan,
        version: Family,
        records: &Records,
    ) -> Self {
        let pending = |(set, _): &&_| *set == SetName::Pending.id();
        let found = delta.delete.iter().filter(pending).count();
        if found == 0 {
            return Self::default();
        }
        // Read after the kernel: a pod is recorded before it is isolated.
        let mut unread = (records.0)();
        let known = plan.recorded().iter().flat_map(|pod| &pod.ips);
        known.for_each(|ip| _ = unread.remove(ip));
        delta.delete.retain(|(set, key)| {
            let address = read_address(version, key.as_bytes());
            *set != SetName::Pending.id() || !address.is_some_and(|ip| unread.contains(&ip))
        });
        let removed = delta.delete.iter().filter(pending).count();
        Self { removed, is_left: removed < found }
    }
}
