//! Where the rules of an attachment are.

use std::borrow::Cow;

use crate::kernel::Netns;

/// The table of the family `inet` in a pod's network namespace, for the interface that kubelet's
/// runtimes give the pod.
const TABLE: &str = "denizen-redirect";
const MAIN_INTERFACE: &str = "eth0";

/// A pod's network namespace, and the table that one attachment has there.
///
/// Attachments of one pod have a table each: runtimes make several at the same time, and no ADD may
/// touch the rules of another attachment.
pub(crate) struct Location<'a> {
    pub(crate) netns: &'a Netns,
    pub(super) table: Cow<'static, str>,
}

impl<'a> Location<'a> {
    /// The location of the attachment with this interface.
    pub(crate) fn of(netns: &'a Netns, if_name: &str) -> Self {
        let table = match if_name {
            MAIN_INTERFACE => TABLE.into(),
            other => format!("{TABLE}-{other}").into(),
        };
        Self { netns, table }
    }
}
