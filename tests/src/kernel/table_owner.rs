//! Tables of nf_tables with an owner: a process that alone may change them.

use std::io::Write;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::eventually::eventually;
use crate::kernel::ruleset::tables;
use crate::node::netns::Netns;

/// How long anything may take.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A process that owns a table, which the kernel lets nobody else change. Both go with this value.
#[derive(Debug)]
pub struct TableOwner(Child);

impl TableOwner {
    /// The owner of the table `denizen` of that family.
    pub fn table(node: &Netns, family: &str) -> Result<Self> {
        Self::named(node, &format!("{family} denizen"))
    }

    /// The owner of a table, given by family and name.
    pub fn named(node: &Netns, table: &str) -> Result<Self> {
        let spawn =
            || Command::new("nft").arg("-i").stdin(Stdio::piped()).stdout(Stdio::null()).spawn();
        let mut owner = Self(node.run(spawn)??);
        let input = owner.0.stdin.as_mut().context("no standard input")?;
        writeln!(input, "add table {table} {{ flags owner; }}")?;
        let name = format!("table {table}");
        eventually("it has its table", TIMEOUT, || Ok(tables(node)?.contains(&name)))?;
        Ok(owner)
    }

    /// The id of the owning process.
    pub fn process(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for TableOwner {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
