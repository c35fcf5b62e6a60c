//! The agent's socket: each request and each answer is one JSON line.

use serde::{Deserialize, Serialize};

use crate::state::{AttachmentId, Epoch, Generation};

/// The plugin's request after it has recorded an attachment, or removed its record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WaitFor {
    /// The attachment whose pod must be programmed, or no longer be programmed after a DEL.
    pub wait_for: AttachmentId,
    /// The state file's epoch after the record was written or removed.
    pub epoch: Epoch,
    /// The state file's generation after the record was written or removed.
    pub generation: Generation,
    /// Whether the attachment was removed: a DEL waits. Older plugins do not send this field.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub removed: bool,
    /// When the plugin asked: nanoseconds of the kernel's `CLOCK_MONOTONIC`, which all processes of
    /// a machine share. Older plugins do not send this field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked_at: Option<u64>,
}

/// The agent's answer to [`WaitFor`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WaitAnswer {
    /// Whether the kernel now treats this pod's packets as a local pod's; after a DEL: no longer
    /// does.
    pub programmed: bool,
    /// Why not, as text for a person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}
