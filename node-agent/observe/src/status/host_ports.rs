//! The state of host ports.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The state of host ports.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HostPortsStatus {
    /// Host ports that lead to a pod, in each family counted once.
    pub served: usize,
    /// Recorded pods that ask for host ports.
    pub asking_pods: usize,
    /// What is not served as asked for, each with the reason.
    pub conflicts: Vec<String>,
}

impl fmt::Display for HostPortsStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { served, asking_pods, conflicts } = self;
        let conflicts = conflicts.len();
        write!(f, "{served} served for {asking_pods} pods, {conflicts} not as asked for")
    }
}
