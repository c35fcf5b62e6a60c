//! What a process holds.

use std::fmt;

use anyhow::{Context, Result};

/// In megabytes.
#[derive(Debug, Clone, Copy)]
pub struct Memory {
    pub resident: f64,
    pub at_most: f64,
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} MB resident, {:.1} MB at most", self.resident, self.at_most)
    }
}

/// What the process of this id holds.
pub fn megabytes(id: u32) -> Result<Memory> {
    let text = std::fs::read_to_string(format!("/proc/{id}/status"))?;
    let of = |name: &str| -> Result<f64> {
        let line = text.lines().find_map(|line| line.strip_prefix(name)).context("no such line")?;
        let kibibytes: f64 = line.split_whitespace().next().context("no number")?.parse()?;
        Ok(kibibytes * 1024.0 / 1e6)
    };
    Ok(Memory { resident: of("VmRSS:")?, at_most: of("VmHWM:")? })
}
