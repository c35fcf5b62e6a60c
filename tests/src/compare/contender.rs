//! The programs that are compared: how each is started and learns of a change.

use std::fs::{self, File};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::str::FromStr;

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;

use super::test_bed::{NODE, TestBed};
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
    KubeProxyRules,
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
            Self::KubeProxyRules => "nft -f of kube-proxy's rules".to_owned(),
        }
    }

    /// Starts it on the node.
    pub fn start(&self, test_bed: &TestBed) -> Result<RunningContender> {
        let folder = test_bed.folder.path();
        let log = folder.join("log");
        let mut command = match self {
            Self::Denizen { program } => denizen(program, test_bed),
            Self::KubeProxy { program, mode } => {
                let mut command = Command::new(program);
                command.arg("--config").arg(kube_proxy_config(*mode, test_bed)?);
                command
            }
            Self::KubeProxyRules => {
                nftables::start(&rules(test_bed, 0))?;
                return Ok(RunningContender { child: None, log });
            }
        };
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&log)?);
        let child = test_bed.node.run(|| command.spawn())?;
        let child = child.with_context(|| format!("cannot run {:?}", command.get_program()))?;
        Ok(RunningContender { child: Some(child), log })
    }

    /// An error if kube-proxy works in another mode: old ones fall back to iptables where the
    /// kernel has no IPVS.
    pub fn check_mode(&self, test_bed: &TestBed) -> Result<()> {
        let Self::KubeProxy { mode, .. } = self else { return Ok(()) };
        let url = http::url(Ipv4Addr::LOCALHOST.into(), METRICS, "/proxyMode");
        let found = http::fetch(&test_bed.node, &url, &[])?.body;
        ensure!(found.trim() == mode.name(), "it works in mode {found} instead");
        Ok(())
    }

    /// Replaces the last service's endpoint: this is change number `changes`.
    pub fn change(&self, test_bed: &TestBed, changes: usize) -> Result<()> {
        match self {
            Self::Denizen { .. } | Self::KubeProxy { .. } => test_bed.change(changes),
            Self::KubeProxyRules => {
                let (before, now) = (test_bed.served(changes - 1), test_bed.served(changes));
                let (before, now) = before.last().zip(now.last()).context("a service")?;
                nftables::replace(&rules(test_bed, changes), before, now)
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
fn denizen(program: &Path, test_bed: &TestBed) -> Command {
    let mut command = Command::new(program);
    command.args(["run", "--node-name", NODE, "--network-policy=off", "--cni-cache-dir="]);
    command.arg("--run-dir").arg(test_bed.folder.path().join("run"));
    command.arg("--kubeconfig").arg(test_bed.kubeconfig());
    command
}

fn kube_proxy_config(mode: KubeProxyMode, test_bed: &TestBed) -> Result<PathBuf> {
    let config = json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
        "mode": mode.name(), "hostnameOverride": NODE,
        "clientConnection": { "kubeconfig": test_bed.kubeconfig() },
        // A mode of local detection that every release has.
        "detectLocalMode": "ClusterCIDR", "clusterCIDR": NOBODY,
        // The machine's own limits stay as they are.
        "conntrack": { "maxPerCore": 0 },
    });
    let path = test_bed.folder.path().join("kube-proxy.yaml");
    fs::write(&path, config.to_string())?;
    Ok(path)
}

fn rules(test_bed: &TestBed, changes: usize) -> KubeProxy<'_> {
    KubeProxy {
        node: &test_bed.node,
        variant: Variant::Nft,
        services: test_bed.served(changes),
        cluster_cidr: NOBODY,
    }
}
