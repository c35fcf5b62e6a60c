//! The connections of a node on one page: how many each service has, and the newest. Pure.

use std::cmp::Reverse;
use std::time::Duration;

use super::{NamedConnection, Totals, Tracked};
use crate::names::Names;

/// How many of the newest connections are remembered.
const NEWEST: usize = 20;

/// The summary of a conntrack table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Summary {
    /// How many there are, by service.
    pub totals: Totals,
    /// The newest, the newest first; arbitrary ones if the kernel does not know when they began.
    pub newest: Vec<NamedConnection>,
    /// When the table was read, since 1970.
    pub at: Duration,
}

/// Makes a summary from connections one by one.
#[derive(Debug)]
pub struct SummaryBuilder<'a> {
    names: &'a Names,
    now: Duration,
    totals: Totals,
    newest: Vec<Tracked>,
}

impl<'a> SummaryBuilder<'a> {
    /// A summary of no connections. `now` is since 1970.
    pub fn new(names: &'a Names, now: Duration) -> Self {
        Self { names, now, totals: Totals::default(), newest: Vec::new() }
    }

    pub fn add(&mut self, tracked: &Tracked) {
        self.totals.add(&NamedConnection::of(tracked, self.names, self.now));
        self.newest.push(*tracked);
        // Not at every addition: sorting costs more.
        if self.newest.len() >= 10 * NEWEST {
            self.keep_newest();
        }
    }

    fn keep_newest(&mut self) {
        self.newest.sort_by_key(|tracked| Reverse(tracked.began));
        self.newest.truncate(NEWEST);
    }

    pub fn summary(mut self) -> Summary {
        self.keep_newest();
        let named = |tracked: &Tracked| NamedConnection::of(tracked, self.names, self.now);
        Summary {
            newest: self.newest.iter().map(named).collect(),
            totals: self.totals,
            at: self.now,
        }
    }
}
