//! Figures of session affinity: how many clients the kernel remembers, and whether there is room
//! for more.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How many clients are remembered.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Affinity {
    /// The clients remembered now, by family and map. Empty if no service has session affinity, or
    /// if the kernel's maps cannot be read.
    pub clients: Vec<Clients>,
    /// What happened to new clients while the map of all clients was full, since the rules were
    /// programmed.
    pub crowded: FullMapCounts,
}

/// How many clients one map of the kernel has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Clients {
    /// The clients' family, as metrics have it: `IPv4` or `IPv6`.
    pub family: String,
    /// The map's name in the kernel.
    pub map: String,
    pub clients: u32,
    /// The most clients that the map can hold.
    pub room: u32,
}

/// How new clients were remembered while the map of all clients was full.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FullMapCounts {
    /// Remembered for the whole time-out: local pods, and the clients within each service port's
    /// budget.
    pub reserved: u64,
    /// Remembered for a short time.
    pub briefly: u64,
    pub not: u64,
}

impl Affinity {
    /// What an operator should know: which maps are full right now.
    pub fn warnings(&self) -> impl Iterator<Item = String> + '_ {
        let full = self.clients.iter().filter(|map| map.clients >= map.room);
        full.map(|Clients { family, map, room, .. }| {
            format!(
                "session affinity: the map {map} ({family}) is full with {room} clients; see \
                 conf/reference/session-affinity.md"
            )
        })
    }
}

impl fmt::Display for Affinity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let clients: u64 = self.clients.iter().map(|map| u64::from(map.clients)).sum();
        write!(f, "{clients}")?;
        let FullMapCounts { reserved, briefly, not } = self.crowded;
        if reserved + briefly + not > 0 {
            write!(
                f,
                "; while the map was full: {reserved} new clients in the reserve, {briefly} for a \
                 short time, {not} not remembered"
            )?;
        }
        Ok(())
    }
}
