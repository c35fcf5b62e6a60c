//! Cgroups with the CPU weights that follow from containers' CPU requests.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::conf;

/// Where cgroups of version 1 have their CPU weights.
const VERSION_1: &str = "/sys/fs/cgroup/cpu";
/// The root of cgroups of version 2.
const VERSION_2: &str = "/sys/fs/cgroup";

/// A cgroup. Its processes must have ended, or left, when it is dropped.
#[derive(Debug)]
pub struct CpuGroup(PathBuf);

/// Moves this process back to the root.
///
/// # Errors
/// The kernel's.
pub fn leave() -> Result<()> {
    Ok(fs::write(Path::new(root()).join("cgroup.procs"), std::process::id().to_string())?)
}

impl CpuGroup {
    /// A new cgroup below the root.
    pub fn new(label: &str, millis: u64) -> Result<Self> {
        Self::at(&Path::new(root()).join(format!("dz-{label}-{}", std::process::id())), millis)
    }

    /// A new cgroup in this one, for a container that requests this many thousandths of a
    /// processor: it gets the weight that kubelet and runc would give it.
    pub fn child(&self, name: &str, millis: u64) -> Result<Self> {
        Self::at(&self.0.join(name), millis)
    }

    fn at(path: &Path, millis: u64) -> Result<Self> {
        if !is_version_1() {
            let parent = path.parent().context("no parent")?;
            fs::write(parent.join("cgroup.subtree_control"), "+cpu")
                .context("processes have no weights here")?;
        }
        fs::create_dir(path).with_context(|| format!("cannot make {}", path.display()))?;
        let group = Self(path.to_owned());
        let shares = (millis * 1024 / 1000).max(2);
        match is_version_1() {
            true => fs::write(path.join("cpu.shares"), shares.to_string())?,
            false => {
                let weight = 1 + (shares - 2) * 9999 / 262_142;
                fs::write(path.join("cpu.weight"), weight.to_string())?;
            }
        }
        Ok(group)
    }

    /// Moves a process into the cgroup.
    pub fn take(&self, process: u32) -> Result<()> {
        Ok(fs::write(self.procs(), process.to_string())?)
    }

    /// The file `cgroup.procs`: a process that writes 0 to it enters the cgroup.
    pub fn procs(&self) -> PathBuf {
        self.0.join("cgroup.procs")
    }
}

impl Drop for CpuGroup {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir(&self.0) {
            eprintln!("{} stays: {error}", self.0.display());
        }
    }
}

fn root() -> &'static str {
    if is_version_1() { VERSION_1 } else { VERSION_2 }
}

fn is_version_1() -> bool {
    Path::new(VERSION_1).join("cpu.shares").exists()
}

/// The CPU that the agent's container requests in `conf/`, in thousandths of a processor.
pub fn requested() -> Result<u64> {
    let containers = conf::containers(conf::DAEMON_SET)?;
    let agent = containers.iter().find(|container| container["name"] == "agent");
    let request = &agent.context("no agent")?["resources"]["requests"]["cpu"];
    let text = request.as_str().unwrap_or_default();
    ensure!(text.ends_with('m'), "{request} is not in thousandths");
    Ok(text.trim_end_matches('m').parse()?)
}
