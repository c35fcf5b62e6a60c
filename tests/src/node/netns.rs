//! One network namespace: made with a unique name, entered by threads, gone when it is dropped.
//!
//! A killed test run cannot clean up. So the name contains the owner's process id, and the next run
//! removes namespaces whose owner no longer lives.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

use crate::eventually::eventually;
use crate::node::links::Links;

/// Where `ip netns` keeps its names, so that `ip netns exec` works on ours.
const FOLDER: &str = "/run/netns";

/// The network namespace of the calling thread.
const THIS_THREADS: &str = "/proc/thread-self/ns/net";

/// The arguments of `mount` that a bind mount does not need.
const NOTHING: Option<&str> = None;

/// A tmpfs for files.
const MEMORY: &str = "/dev/shm";

/// What the name of every namespace and folder of a test begins with; the owner's process id
/// follows.
const PREFIX: &str = "dz";

/// How long the kernel may take to make an interface's IPv6 addresses usable.
const IPV6_TIMEOUT: Duration = Duration::from_secs(10);

/// A network namespace of ours.
#[derive(Debug)]
pub struct Netns {
    name: String,
    kept: bool,
}

impl Netns {
    /// A new namespace whose name no other run has. `label` is for people who read `ip netns`.
    ///
    /// The first call in a process also removes what killed runs left.
    pub fn new(label: &str) -> Result<Self> {
        static LEFTOVERS: Once = Once::new();
        LEFTOVERS.call_once(remove_leftovers);
        Self::named(&unique(label))
    }

    /// Another name for the namespace that the file at `path` stands for. Dropping the value
    /// removes the name, and kills the processes in the namespace.
    pub fn of(path: &Path) -> Result<Self> {
        let namespace = Self { name: unique("of"), kept: false };
        File::create_new(namespace.path())?;
        let named = namespace.path();
        let bind = || mount(Some(THIS_THREADS), &named, NOTHING, MsFlags::MS_BIND, NOTHING);
        Self::run_at(path, bind)?.with_context(|| format!("cannot name {}", path.display()))?;
        Ok(namespace)
    }

    /// A new namespace of exactly this name, so that it can outlive this process (see
    /// [`Self::keep`]).
    pub fn named(name: &str) -> Result<Self> {
        static FOLDER_IS_SHARED: Once = Once::new();
        FOLDER_IS_SHARED.call_once(share_folder);
        let namespace = Self { name: name.to_owned(), kept: false };
        File::create_new(namespace.path())?;
        let made = thread::scope(|scope| scope.spawn(|| namespace.make()).join());
        made.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            .with_context(|| format!("cannot make the namespace {name}"))?;
        Ok(namespace)
    }

    /// Moves this thread into a new namespace, and gives the namespace its name: as `ip netns add`
    /// does, without starting a program.
    fn make(&self) -> Result<()> {
        unshare(CloneFlags::CLONE_NEWNET)?;
        mount(Some(THIS_THREADS), &self.path(), NOTHING, MsFlags::MS_BIND, NOTHING)?;
        if Path::new("/proc/net/if_inet6").exists() {
            // Duplicate address detection makes an IPv6 address unusable for its first second or
            // two.
            for key in ["accept_dad", "dad_transmits", "accept_ra"] {
                fs::write(Path::new("/proc/sys/net/ipv6/conf/default").join(key), "0")?;
            }
        }
        Links::open()?.up("lo")
    }

    /// Its name, as `ip netns exec` takes it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The file that stands for the namespace, as for `CNI_NETNS`.
    pub fn path(&self) -> PathBuf {
        Path::new(FOLDER).join(&self.name)
    }

    /// Keeps the namespace when this value is dropped.
    pub fn keep(&mut self) {
        self.kept = true;
    }

    /// Runs `work` on a thread inside this namespace.
    ///
    /// A socket belongs for its whole life to the namespace it was made in, and a child process to
    /// that of the thread that spawned it: both may be returned and used outside.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        Self::run_at(&self.path(), work)
    }

    /// Runs `work` on a thread inside the namespace that the file at `path` stands for, even if it
    /// is not one of ours.
    pub fn run_at<T: Send>(path: &Path, work: impl FnOnce() -> T + Send) -> Result<T> {
        let file = opened(path)?;
        thread::scope(|scope| {
            let inside = scope.spawn(move || -> Result<T> {
                setns(file, CloneFlags::CLONE_NEWNET).context("cannot enter the namespace")?;
                Ok(work())
            });
            inside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Runs `work` on a thread of its own inside this namespace and does not wait for it.
    pub fn spawn<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<JoinHandle<Result<T>>> {
        let file = opened(&self.path())?;
        Ok(thread::spawn(move || {
            setns(file, CloneFlags::CLONE_NEWNET).context("cannot enter the namespace")?;
            Ok(work())
        }))
    }

    /// Waits until `interface` has a link-local address and no tentative one. The kernel adds that
    /// address, and makes all others usable, some time after the link is up: it sends no neighbour
    /// solicitation before, and answers none.
    pub fn wait_for_ipv6(&self, interface: &str) -> Result<()> {
        const LINK_LOCAL: &str = "fe80";
        const TENTATIVE: u8 = 0x40;
        eventually(&format!("{interface} has usable IPv6 addresses"), IPV6_TIMEOUT, || {
            let all = self.run(|| fs::read_to_string("/proc/thread-self/net/if_inet6"))??;
            let (mut has_link_local, mut has_tentative) = (false, false);
            for line in all.lines() {
                let fields: Vec<&str> = line.split_whitespace().collect();
                if let [address, _index, _length, _scope, flags, name] = *fields
                    && name == interface
                {
                    has_link_local |= address.starts_with(LINK_LOCAL);
                    has_tentative |= u8::from_str_radix(flags, 16)? & TENTATIVE != 0;
                }
            }
            Ok(has_link_local && !has_tentative)
        })
    }

    /// Sets a `net.*` sysctl in this namespace.
    pub fn sysctl(&self, key: &str, value: &str) -> Result<()> {
        let path = Path::new("/proc/sys").join(key.replace('.', "/"));
        self.run(|| fs::write(&path, value))?
            .with_context(|| format!("cannot set {key} in {}", self.name))
    }

    /// Changes the namespace's links, addresses and routes without starting a program.
    pub fn change(&self, work: impl FnOnce(&mut Links) -> Result<()> + Send) -> Result<()> {
        self.run(|| work(&mut Links::open()?))?.with_context(|| format!("in {}", self.name))
    }

    /// Runs `ip` in the namespace, one command per line.
    pub fn ip(&self, commands: &str) -> Result<()> {
        self.feed("ip", &["-batch", "-"], commands)
    }

    /// Loads a ruleset written in nft's language.
    pub fn nft(&self, ruleset: &str) -> Result<()> {
        self.feed("nft", &["-f", "-"], ruleset)
    }

    /// `nf_call_iptables` and `nf_call_ip6tables` of a bridge in the namespace, as the kernel
    /// reports them.
    pub fn bridge_switches(&self, bridge: &str) -> Result<[Value; 2]> {
        let text = self.output("ip", &["-d", "-j", "link", "show", bridge])?;
        let links: Value = serde_json::from_str(&text)?;
        let data = &links[0]["linkinfo"]["info_data"];
        Ok(["nf_call_iptables", "nf_call_ip6tables"].map(|switch| data[switch].clone()))
    }

    /// Runs a program in here and returns what it printed; an error unless it succeeded.
    pub fn output(&self, program: &str, arguments: &[&str]) -> Result<String> {
        let output = self.run(|| checked(Command::new(program).args(arguments)))??;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Runs a program in here that reads `input`; an error unless it succeeded.
    pub fn feed(&self, program: &str, arguments: &[&str], input: &str) -> Result<()> {
        let output = self.run(|| -> Result<Output> {
            let mut child = Command::new(program)
                .args(arguments)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .with_context(|| format!("cannot run {program}"))?;
            child.stdin.take().context("no standard input")?.write_all(input.as_bytes())?;
            Ok(child.wait_with_output()?)
        })??;
        let stderr = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{program} in {} failed: {stderr}\n{input}", self.name);
        Ok(())
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        if !self.kept {
            remove(&self.name);
        }
    }
}

/// A name that no other run has.
fn unique(label: &str) -> String {
    static COUNTER: AtomicU32 = AtomicU32::new(0);
    let counter = COUNTER.fetch_add(1, Ordering::Relaxed);
    format!("{PREFIX}{}-{counter}-{label}", std::process::id())
}

fn opened(path: &Path) -> Result<File> {
    File::open(path).with_context(|| format!("cannot open namespace {}", path.display()))
}

/// Makes `ip` create the folder, as a mount point whose mounts other mount namespaces see.
fn share_folder() {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    if mounts.contains(&format!(" {FOLDER} ")) {
        return;
    }
    let name = unique("first");
    let _ = Command::new("ip").args(["netns", "add", &name]).status();
    remove(&name);
}

/// Removes the namespace `name` and first ends whatever still runs in it.
pub fn remove(name: &str) {
    let path = Path::new(FOLDER).join(name);
    for pid in processes_in(&path) {
        // It may have ended by itself in the meantime, which is what we want.
        let _ = kill(pid, Signal::SIGKILL);
    }
    let _ = umount2(&path, MntFlags::MNT_DETACH);
    let _ = fs::remove_file(&path);
}

/// Names of the namespaces that exist on this machine and begin with `prefix`.
pub fn names_with(prefix: &str) -> Vec<String> {
    let Ok(entries) = fs::read_dir(FOLDER) else {
        return Vec::new();
    };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| name.starts_with(prefix)).collect()
}

/// The processes that run inside the namespace that the file at `path` stands for.
fn processes_in(path: &Path) -> Vec<Pid> {
    let identity =
        |path: &Path| fs::metadata(path).map(|metadata| (metadata.dev(), metadata.ino())).ok();
    let (Some(namespace), Ok(entries)) = (identity(path), fs::read_dir("/proc")) else {
        return Vec::new();
    };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let pids = names.filter_map(|name| name.parse().ok()).map(Pid::from_raw);
    let is_in = |pid: &Pid| identity(Path::new(&format!("/proc/{pid}/ns/net"))) == Some(namespace);
    pids.filter(|pid| *pid != Pid::this() && is_in(pid)).collect()
}

/// A folder for one test's files, in memory as a real node's run directory is: the plugin syncs
/// what it records. Removed when it is dropped; its name contains the owner's process id, as a
/// namespace's does.
pub fn folder() -> Result<TempDir> {
    let prefix = format!("{PREFIX}{}-", std::process::id());
    tempfile::Builder::new()
        .prefix(&prefix)
        .tempdir_in(MEMORY)
        .context("cannot make a folder in memory")
}

/// Removes the namespaces and folders of test processes that no longer live.
fn remove_leftovers() {
    for name in names_with(PREFIX).iter().filter(|name| is_nobodys(name)) {
        remove(name);
    }
    for entry in fs::read_dir(MEMORY).into_iter().flatten().flatten() {
        if entry.file_name().to_str().is_some_and(is_nobodys) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Whether a name of ours contains the id of a process that no longer lives.
fn is_nobodys(name: &str) -> bool {
    let digits = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next());
    let owner = digits.and_then(|digits| digits.parse::<u32>().ok());
    owner.is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists())
}

/// Runs a command to its end; an error that carries what it printed unless it succeeded.
pub fn checked(command: &mut Command) -> Result<Output> {
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    if !output.status.success() {
        let (stdout, stderr) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        bail!("{command:?} failed with {}: {stdout}{stderr}", output.status);
    }
    Ok(output)
}
