//! What is done to a tracked flow.

/// What is done to an entry of the conntrack table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Treatment {
    /// It is deleted: the next packet begins a new connection.
    Delete,
    /// It is deleted if it still [`is_unanswered_syn`](crate::TrackedFlow::is_unanswered_syn).
    DeleteUnanswered,
    /// Its mark gets the bit, by which rules recognise its packets.
    Mark,
    /// Its mark loses that bit.
    Unmark,
}

impl Treatment {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Delete, Self::DeleteUnanswered, Self::Mark, Self::Unmark];

    /// Whether the entry is gone afterwards.
    pub fn deletes(self) -> bool {
        match self {
            Self::Delete | Self::DeleteUnanswered => true,
            Self::Mark | Self::Unmark => false,
        }
    }
}
