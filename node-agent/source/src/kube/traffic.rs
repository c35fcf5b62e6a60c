//! What following one kind costs the API server, as counted here.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use super::envelope::Encoding;
use super::failure::{Failure, Remedy};

/// Why a list was requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ListReason {
    /// Nothing was known.
    Start,
    /// The list before failed.
    Retry,
    /// The server no longer has the changes since the known version.
    Expired,
    /// The server sent nothing for too long: it may never reach the known version.
    Silent,
    /// The server refused to go on from the known version.
    Refused,
}

impl ListReason {
    pub const ALL: [Self; 5] =
        [Self::Start, Self::Retry, Self::Expired, Self::Silent, Self::Refused];
}

impl fmt::Display for ListReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Start => "start",
            Self::Retry => "retry",
            Self::Expired => "expired",
            Self::Silent => "silent",
            Self::Refused => "refused",
        })
    }
}

/// Counts since the start.
#[derive(Debug, Default)]
pub struct Traffic {
    bytes: AtomicU64,
    events: AtomicU64,
    lists: [AtomicU64; ListReason::ALL.len()],
    json: AtomicU64,
    protobuf: AtomicU64,
}

impl Traffic {
    /// Bytes of all answers, as they are after TLS: compressed ones as they have arrived.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Events of watches, bookmarks included.
    pub fn events(&self) -> u64 {
        self.events.load(Ordering::Relaxed)
    }

    /// Lists that were requested for this reason.
    pub fn lists(&self, reason: ListReason) -> u64 {
        self.lists[reason as usize].load(Ordering::Relaxed)
    }

    /// Answers in JSON, and in protobuf.
    pub fn answers(&self) -> [(&'static str, u64); 2] {
        [
            ("json", self.json.load(Ordering::Relaxed)),
            ("protobuf", self.protobuf.load(Ordering::Relaxed)),
        ]
    }

    /// Why there will be a list after a failure. `listing`: whether it was a list that failed;
    /// `reason`: why there was one.
    pub(super) fn reason_after(
        &self,
        failure: &Failure,
        listing: bool,
        reason: ListReason,
    ) -> ListReason {
        if listing && reason == ListReason::Start && self.lists(ListReason::Start) == 0 {
            ListReason::Start
        } else if listing {
            ListReason::Retry
        } else if matches!(failure, Failure::TimedOut(_)) {
            ListReason::Silent
        } else if failure.remedy() == Remedy::RequestRejected {
            ListReason::Refused
        } else {
            ListReason::Expired
        }
    }

    pub(super) fn received(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn event(&self) {
        self.events.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn list(&self, reason: ListReason) {
        self.lists[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn answered(&self, encoding: Encoding) {
        let answers = match encoding {
            Encoding::Json => &self.json,
            Encoding::Protobuf => &self.protobuf,
        };
        answers.fetch_add(1, Ordering::Relaxed);
    }
}
