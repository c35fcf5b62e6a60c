//! The agent's socket: one JSON line asks, one JSON line answers.

use serde::{Deserialize, Serialize};

use crate::state::{AttachmentId, Epoch, Generation};

/// What the plugin asks after it has recorded an attachment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WaitFor {
    /// The attachment whose pod must be programmed.
    pub wait_for: AttachmentId,
    /// The state file's epoch after the record was written.
    pub epoch: Epoch,
    /// The state file's generation after the record was written.
    pub generation: Generation,
}

/// What the agent answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WaitAnswer {
    /// The kernel treats this pod's packets as a local pod's from now on.
    pub programmed: bool,
    /// Why not, for a person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}
