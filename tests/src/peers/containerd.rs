//! A real container runtime on the node: containerd with its CRI plugin, which executes real CNI
//! chains for its sandboxes.
//!
//! It runs in the node's network namespace, with other namespaces of its own. The process
//! namespace: whatever it started ends with it, however it ends. The mount namespace: its `/run`,
//! `/var/lib/cni` and the pods' namespaces are visible to nobody else.

pub mod container;
mod cri;
mod image;
pub mod kubelet;

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

pub use self::cri::{Cri, LinuxSandbox, PortMapping, SandboxConfig, SandboxSecurity};
use crate::binary;
use crate::eventually::observed;
use crate::node::netns::{Netns, checked};

/// The image that sandboxes are made from.
const PAUSE: &str = "denizen.test/pause:1";

/// Denizen's image, as `conf/kubernetes` names it.
pub const DENIZEN: &str = concat!("docker.io/library/denizen:", env!("CARGO_PKG_VERSION"));

/// The variants of denizen's image in `conf/Containerfile`.
#[derive(Debug, Clone, Copy)]
pub enum ContainerImage {
    /// Two static programs.
    Nftables,
    /// With Debian's iptables and ipset.
    Iptables,
    /// With Debian's BIRD.
    Bird,
}

/// How long containerd may take to start on a busy machine.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Makes the mounts, and then starts containerd. Mounts are shared, as with systemd, but with
/// nobody outside. Arguments: the folders that become `/var/lib` and `/var/lib/cni`, and the
/// configuration.
const START: &str = r#"
set -e
mount --make-rshared /
mount -t tmpfs tmpfs /run
mount --bind "$1" /var/lib
mount --bind "$2" /var/lib/cni
exec containerd --config "$3"
"#;

/// A running containerd. Dropping it ends it and everything it started, and prints its log.
#[derive(Debug)]
pub struct Containerd {
    child: Child,
    folder: PathBuf,
}

impl Containerd {
    /// The folder of its CNI configurations, made in `folder`. It must be filled before the start.
    pub fn conf_dir(folder: &Path) -> Result<PathBuf> {
        made(folder, "net.d")
    }

    /// The folder of its CNI plugins, with links to Debian's.
    pub fn bin_dir(folder: &Path) -> Result<PathBuf> {
        let bin = made(folder, "bin")?;
        for plugin in fs::read_dir(binary::cni_plugins())?.flatten() {
            let link = bin.join(plugin.file_name());
            if !link.is_symlink() {
                symlink(plugin.path(), link)?;
            }
        }
        Ok(bin)
    }

    /// Starts containerd in the node's network namespace, and waits until it answers. Its files are
    /// in `folder`, except the results of its CNI calls, which are in `cni_cache`.
    pub fn start(node: &Netns, folder: &Path, cni_cache: &Path) -> Result<Self> {
        let config = folder.join("config.toml");
        fs::write(&config, configuration(folder)?)?;
        let state = made(folder, "var-lib")?;
        made(&state, "cni")?;
        fs::create_dir_all(cni_cache)?;
        let log = File::create(folder.join("log"))?;
        let mut command = Command::new("unshare");
        command.args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]);
        command.args(["sh", "-c", START, "sh"]).arg(state).arg(cni_cache).arg(config);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let child = node.run(|| command.spawn())?.context("cannot run unshare")?;
        let folder = folder.to_owned();
        let mut runtime = Self { child, folder };
        runtime.wait("answering", |runtime| runtime.cri().map(drop))?;
        runtime.import(&image::pause(&made(&runtime.folder, "image-pause")?, PAUSE)?)?;
        Ok(runtime)
    }

    /// Waits until containerd has loaded a CNI configuration.
    pub fn wait_network(&mut self) -> Result<()> {
        self.wait("ready", |runtime| match runtime.cri()?.not_ready()? {
            None => Ok(()),
            Some(why) => anyhow::bail!("{why}"),
        })
    }

    /// A new connection to containerd's CRI plugin.
    pub fn cri(&self) -> Result<Cri> {
        Cri::connect(&self.folder.join("containerd.sock"))
    }

    /// Runs `work` in the network namespace that a pod's record names.
    pub fn run_in_pod<T: Send>(&self, netns: &str, work: impl FnOnce() -> T + Send) -> Result<T> {
        Netns::run_at(&self.as_seen_here(Path::new(netns)), work)
    }

    /// Gives the network namespace that a pod's record names another name, for `ip netns` and for
    /// this harness.
    pub fn pod_netns(&self, netns: &str) -> Result<Netns> {
        Netns::of(&self.as_seen_here(Path::new(netns)))
    }

    /// Mounts a folder of this machine at `at`, among containerd's mounts.
    pub fn bind(&self, folder: &Path, at: &str) -> Result<()> {
        fs::create_dir_all(self.as_seen_here(Path::new(at)))?;
        let mut command = Command::new("nsenter");
        command.args(["--mount", "--target", &self.child.id().to_string()]);
        checked(command.args(["mount", "--bind"]).arg(folder).arg(at))?;
        Ok(())
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }

    /// The path by which this process reaches a path among containerd's mounts.
    fn as_seen_here(&self, path: &Path) -> PathBuf {
        let root = PathBuf::from(format!("/proc/{}/root", self.child.id()));
        root.join(path.strip_prefix("/").unwrap_or(path))
    }

    fn wait(&mut self, what: &str, mut so: impl FnMut(&Self) -> Result<()>) -> Result<()> {
        let try_it = || -> Result<Result<()>> {
            let result = so(self);
            ensure!(result.is_ok() || self.child.try_wait()?.is_none(), "it has ended: {result:?}");
            Ok(result)
        };
        observed(what, START_TIMEOUT, try_it, Result::is_ok).with_context(|| self.log())?
    }

    /// Imports denizen's image, as `tests/image` built it.
    pub fn import_denizen(&self, image: ContainerImage) -> Result<()> {
        let name = match image {
            ContainerImage::Nftables => "nftables",
            ContainerImage::Iptables => "iptables",
            ContainerImage::Bird => "bird",
        };
        self.import(&binary::image(name)?)
    }

    /// Pulls an image for every platform from a registry without TLS that the node reaches. Returns
    /// its digest and its platforms, as containerd reports them.
    pub fn pull(&self, node: &Netns, image: &str) -> Result<(String, String)> {
        let mut pull = self.images();
        let flags = ["pull", "--plain-http", "--all-platforms", "--snapshotter", "native"];
        node.run(|| checked(pull.args(flags).arg(image)))??;
        let listed = checked(self.images().args(["list", &format!("name=={image}")]))?;
        let listed = String::from_utf8(listed.stdout)?;
        let row: Vec<&str> = listed.lines().nth(1).unwrap_or_default().split_whitespace().collect();
        // REF TYPE DIGEST SIZE UNIT PLATFORMS LABELS
        let column = |number: usize| row.get(number).map(|text| (*text).to_owned());
        column(2).zip(column(5)).with_context(|| format!("{image} is not there: {listed}"))
    }

    /// Gives an image a second name.
    pub fn tag(&self, image: &str, name: &str) -> Result<()> {
        checked(self.images().args(["tag", image, name]))?;
        Ok(())
    }

    fn import(&self, archive: &Path) -> Result<()> {
        checked(self.images().args(["import", "--snapshotter", "native"]).arg(archive))
            .with_context(|| format!("cannot import {}", archive.display()))?;
        Ok(())
    }

    fn images(&self) -> Command {
        let mut command = Command::new("ctr");
        command.arg("--address").arg(self.folder.join("containerd.sock"));
        command.args(["--namespace", "k8s.io", "images"]);
        command
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        // `--kill-child`: when `unshare` ends, the first process of its process namespace ends, and
        // with it all others.
        let _ = self.child.kill();
        let _ = self.child.wait();
        eprintln!("--- containerd's log\n{}---", self.log());
    }
}

fn made(folder: &Path, name: &str) -> Result<PathBuf> {
    let path = folder.join(name);
    fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
    Ok(path)
}

/// containerd's configuration. Here cgroups may be of version 1, a process's `oom_score_adj` must
/// not be lowered, and no overlay file system is possible.
fn configuration(folder: &Path) -> Result<String> {
    let conf_dir = Containerd::conf_dir(folder)?;
    let bin_dir = Containerd::bin_dir(folder)?;
    let (folder, conf_dir, bin_dir) = (folder.display(), conf_dir.display(), bin_dir.display());
    Ok(format!(
        r#"version = 2
root = "{folder}/root"
state = "{folder}/state"
disabled_plugins = ["io.containerd.internal.v1.opt"]

[grpc]
address = "{folder}/containerd.sock"

[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{PAUSE}"
restrict_oom_score_adj = true
disable_apparmor = true
netns_mounts_under_state_dir = true

[plugins."io.containerd.grpc.v1.cri".cni]
conf_dir = "{conf_dir}"
bin_dir = "{bin_dir}"

[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "native"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
SystemdCgroup = false
"#
    ))
}
