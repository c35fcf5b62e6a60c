//! The programs that are compared: how each is started and learns of a change.

use std::fs::{self, File};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::str::FromStr;

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;

use super::ground::{Ground, NODE};
use crate::kernel::iptables::Variant;
use crate::packets::http;
use crate::peers::api::release;
use crate::peers::kube_proxy::{KubeProxy, NOBODY, nftables};

/// The port of kube-proxy's metrics and of `/proxyMode`.
const METRICS: u16 = 10249;

/// kube-proxy's `mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KubeProxyMode {
    Nftables,
    Iptables,
    Ipvs,
}

impl KubeProxyMode {
    fn name(self) -> &'static str {
        match self {
            Self::Nftables => "nftables",
            Self::Iptables => "iptables",
            Self::Ipvs => "ipvs",
        }
    }
}

impl FromStr for KubeProxyMode {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let all = [Self::Nftables, Self::Iptables, Self::Ipvs];
        let found = all.into_iter().find(|mode| mode.name() == text);
        found.with_context(|| format!("{text} is no mode: nftables, iptables or ipvs"))
    }
}

/// A program that is measured.
#[derive(Debug, Clone)]
pub enum Contender {
    Denizen {
        program: PathBuf,
    },
    KubeProxy {
        program: PathBuf,
        mode: KubeProxyMode,
    },
    /// `nft -f` of the rules that kube-proxy's nftables mode would write: the kernel's part alone.
    Shape,
}

/// A contender that runs. It ends with this value.
#[derive(Debug)]
pub struct RunningContender {
    child: Option<Child>,
    log: PathBuf,
}

impl Contender {
    /// What the table calls it.
    pub fn name(&self) -> String {
        match self {
            Self::Denizen { .. } => "Denizen".to_owned(),
            Self::KubeProxy { program, mode } => {
                let release = release(program).map(|release| format!(" {release}"));
                format!("kube-proxy{} ({})", release.unwrap_or_default(), mode.name())
            }
            Self::Shape => "nft -f of kube-proxy's rules".to_owned(),
        }
    }

    /// Starts it on the node.
    pub fn start(&self, ground: &Ground) -> Result<RunningContender> {
        let folder = ground.folder.path();
        let log = folder.join("log");
        let mut command = match self {
            Self::Denizen { program } => denizen(program, ground),
            Self::KubeProxy { program, mode } => {
                let mut command = Command::new(program);
                command.arg("--config").arg(kube_proxy_config(*mode, ground)?);
                command
            }
            Self::Shape => {
                nftables::start(&rules(ground, 0))?;
                return Ok(RunningContender { child: None, log });
            }
        };
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&log)?);
        let child = ground.node.run(|| command.spawn())?;
        let child = child.with_context(|| format!("cannot run {:?}", command.get_program()))?;
        Ok(RunningContender { child: Some(child), log })
    }

    /// An error if kube-proxy works in another mode: old ones fall back to iptables where the
    /// kernel has no IPVS.
    pub fn check_mode(&self, ground: &Ground) -> Result<()> {
        let Self::KubeProxy { mode, .. } = self else { return Ok(()) };
        let url = http::url(Ipv4Addr::LOCALHOST.into(), METRICS, "/proxyMode");
        let found = http::fetch(&ground.node, &url, &[])?.body;
        ensure!(found.trim() == mode.name(), "it works in mode {found} instead");
        Ok(())
    }

    /// Replaces the last service's endpoint: this is change number `changes`.
    pub fn change(&self, ground: &Ground, changes: usize) -> Result<()> {
        match self {
            Self::Denizen { .. } | Self::KubeProxy { .. } => ground.change(changes),
            Self::Shape => {
                let (before, now) = (ground.served(changes - 1), ground.served(changes));
                let (before, now) = before.last().zip(now.last()).context("a service")?;
                nftables::replace(&rules(ground, changes), before, now)
            }
        }
    }
}

impl RunningContender {
    /// The process id; `None` for `nft -f`, which has ended.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// An error if the process has ended, with the reason from its log.
    pub fn is_alive(&mut self) -> Result<()> {
        let Some(child) = &mut self.child else { return Ok(()) };
        if let Some(status) = child.try_wait()? {
            let log = fs::read_to_string(&self.log).unwrap_or_default();
            bail!("it has ended ({status}): {}", reason(&log));
        }
        Ok(())
    }
}

impl Drop for RunningContender {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Why a program has ended, by its log: Go's stacks come after the fatal error.
fn reason(log: &str) -> &str {
    let is_fatal = |line: &&str| {
        line.strip_prefix('F').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    let line = log.lines().find(is_fatal).or_else(|| log.lines().last());
    line.unwrap_or("it said nothing")
}

/// Denizen with services only, to be comparable with kube-proxy.
fn denizen(program: &Path, ground: &Ground) -> Command {
    let mut command = Command::new(program);
    command.args(["run", "--node-name", NODE, "--network-policy=off", "--cni-cache-dir="]);
    command.arg("--run-dir").arg(ground.folder.path().join("run"));
    command.arg("--kubeconfig").arg(ground.kubeconfig());
    command
}

fn kube_proxy_config(mode: KubeProxyMode, ground: &Ground) -> Result<PathBuf> {
    let config = json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
        "mode": mode.name(), "hostnameOverride": NODE,
        "clientConnection": { "kubeconfig": ground.kubeconfig() },
        // A mode of local detection that every release has.
        "detectLocalMode": "ClusterCIDR", "clusterCIDR": NOBODY,
        // The machine's own limits stay as they are.
        "conntrack": { "maxPerCore": 0 },
    });
    let path = ground.folder.path().join("kube-proxy.yaml");
    fs::write(&path, config.to_string())?;
    Ok(path)
}

fn rules(ground: &Ground, changes: usize) -> KubeProxy<'_> {
    KubeProxy {
        node: &ground.node,
        variant: Variant::Nft,
        services: ground.served(changes),
        cluster_cidr: NOBODY,
    }
}
