//! Network namespaces without a name and without a process of their own: a waiting thread is in
//! each. They end with the test, even if it is killed, and no two tests can share one by accident.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};
use nix::unistd::gettid;
use serde_json::Value;

type Job = Box<dyn FnOnce() + Send>;

/// A network namespace, alive as long as this value.
pub struct Namespace {
    path: PathBuf,
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Namespace {
    /// An empty namespace with its loopback up. Needs root: a test without root fails.
    pub fn new() -> Namespace {
        Self::of_a_thread(|| unshare(CloneFlags::CLONE_NEWNET).expect("the kernel tests need root"))
    }

    /// The existing namespace at `path`, with its loopback up.
    pub fn at(path: &Path) -> Namespace {
        let entered = File::open(path).expect("it is alive");
        Self::of_a_thread(move || {
            setns(entered, CloneFlags::CLONE_NEWNET).expect("the kernel tests need root");
        })
    }

    fn of_a_thread(enter: impl FnOnce() + Send + 'static) -> Namespace {
        let (jobs, todo) = channel::<Job>();
        let (ready, path) = channel();
        let thread = std::thread::spawn(move || {
            enter();
            without_duplicate_address_detection();
            ready
                .send(format!("/proc/{}/task/{}/ns/net", std::process::id(), gettid()))
                .expect("the test waits");
            todo.into_iter().for_each(|job| job());
        });
        let path = path.recv().expect("a new network namespace").into();
        let namespace = Namespace { path, jobs: Some(jobs), thread: Some(thread) };
        namespace.ip("link set lo up");
        namespace
    }

    /// Its path, as a runtime would pass it in `CNI_NETNS`.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Runs `job` in it.
    pub fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> T {
        let (done, result) = channel();
        let jobs = self.jobs.as_ref().expect("it ends with the value");
        jobs.send(Box::new(move || drop(done.send(job())))).expect("the thread is there");
        result.recv().expect("the job did not panic")
    }

    /// Starts `command` in it.
    pub fn spawn(&self, mut command: Command) -> Child {
        self.run(move || command.spawn().expect("the program is installed"))
    }

    /// Shows the file `other` in place of `file` to all that runs in the namespace.
    pub fn replace(&self, file: &'static str, other: &'static str) {
        self.run(move || {
            with_own_mounts();
            mount(Some(other), file, None::<&str>, MsFlags::MS_BIND, None::<&str>)
                .expect("both are there");
        });
    }

    /// Runs `ip` in the namespace, with `arguments` as on a command line; returns what it prints.
    pub fn ip(&self, arguments: &str) -> String {
        let mut ip = Command::new("ip");
        ip.args(arguments.split_whitespace()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let output = self.spawn(ip).wait_with_output().expect("ip ends");
        assert!(
            output.status.success(),
            "ip {arguments}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).expect("ip prints text")
    }

    /// What `ip -json` says of the links in the namespace whose name or alternative name is `name`.
    pub fn link(&self, name: &str) -> Value {
        let all: Value =
            serde_json::from_str(&self.ip("-json -details address show")).expect("ip prints JSON");
        let found = all.as_array().into_iter().flatten().find(|link| link["ifname"] == name);
        found.cloned().unwrap_or(Value::Null)
    }
}

impl Default for Namespace {
    fn default() -> Self {
        Namespace::new()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        self.jobs.take();
        if let Some(thread) = self.thread.take() {
            // A job's panic was already reported where the job was run.
            let _ = thread.join();
        }
    }
}

/// Gives the calling thread mounts of its own: only this thread and what it starts see what is
/// mounted from now on.
fn with_own_mounts() {
    unshare(CloneFlags::CLONE_NEWNS).expect("the kernel tests need root");
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount(None::<&str>, "/", None::<&str>, private, None::<&str>)
        .expect("it is a namespace of its own");
}

/// A small file system that only what runs in one [`Namespace`] sees. A test can fill it or make it
/// read-only. It goes with the namespace.
pub struct Disk<'a> {
    node: &'a Namespace,
    path: PathBuf,
}

impl Disk<'_> {
    /// Mounts a tmpfs with `options` at `path`, for `node`.
    pub fn mount<'a>(node: &'a Namespace, path: &Path, options: &'static str) -> Disk<'a> {
        let path = path.to_owned();
        let place = path.clone();
        node.run(move || {
            with_own_mounts();
            mount(Some("tmpfs"), &place, Some("tmpfs"), MsFlags::empty(), Some(options))
                .expect("a tmpfs");
        });
        Disk { node, path }
    }

    /// A path by which the test, outside the namespace's mounts, reaches the file system.
    pub fn path(&self) -> PathBuf {
        let thread =
            self.node.path().ancestors().nth(2).expect("/proc/<process>/task/<thread>/ns/net");
        thread.join("root").join(self.path.strip_prefix("/").expect("it is absolute"))
    }

    /// Makes the file system read-only.
    pub fn make_read_only(&self) {
        let path = self.path.clone();
        self.node.run(move || {
            let flags = MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
            mount(None::<&str>, &path, None::<&str>, flags, None::<&str>).expect("it is mounted");
        });
    }
}

/// The `bridge` and `ptp` plugins wait for duplicate address detection, a second and more for every
/// IPv6 pod; no test has a duplicate address.
fn without_duplicate_address_detection() {
    for scope in ["all", "default"] {
        let path = format!("/proc/sys/net/ipv6/conf/{scope}/accept_dad");
        let mut file = File::options().write(true).open(path).expect("the kernel has IPv6");
        file.write_all(b"0").expect("it is this namespace's own setting");
    }
}
