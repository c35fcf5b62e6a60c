//! Reads which pods are recorded now, to judge the elements that the plugin wrote into the tables.
//!
//! The plugin isolates a pod when the agent does not answer in time, for instance because it is
//! stopped. An agent that starts after that finds the pod's address in the kernel, maybe before it
//! has read the pod's record.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;

type Read = Box<dyn Fn() -> BTreeSet<IpAddr> + Send + Sync>;

/// Reads the addresses of the pods that are recorded now.
pub struct Records(Read);

impl Records {
    /// With a function that reads the state file.
    pub fn new(read: impl Fn() -> BTreeSet<IpAddr> + Send + Sync + 'static) -> Self {
        Self(Box::new(read))
    }

    pub(super) fn read(&self) -> BTreeSet<IpAddr> {
        (self.0)()
    }
}

impl Default for Records {
    /// For tests and rendering: no pod is recorded that is not in the plan.
    fn default() -> Self {
        Self::new(BTreeSet::new)
    }
}

impl fmt::Debug for Records {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Records")
    }
}
