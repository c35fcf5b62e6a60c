//! The guest's files: what the harness executes, the libraries that these programs need, and the
//! kernel's modules.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use crate::binary;
use crate::conf;
use crate::node::netns::{checked, folder};

/// What the harness and the agent execute.
const PROGRAMS: [&str; 20] = [
    "conntrack",
    "ip",
    "ip6tables-legacy",
    "ip6tables-legacy-restore",
    "ip6tables-legacy-save",
    "ip6tables-nft",
    "ip6tables-nft-restore",
    "ip6tables-nft-save",
    "ipset",
    "iptables-legacy",
    "iptables-legacy-restore",
    "iptables-legacy-save",
    "iptables-nft",
    "iptables-nft-restore",
    "iptables-nft-save",
    "ipvsadm",
    "modprobe",
    "nft",
    "sh",
    "bridge",
];

/// Where programs are looked for.
const FOLDERS: [&str; 2] = ["/usr/sbin", "/usr/bin"];

/// The CNI plugins in front of ours.
const CNI: [&str; 3] = ["bridge", "host-local", "ptp"];

/// The parts of the kernel's modules that may be needed, by their paths below `kernel/`.
const MODULES: [&str; 18] = [
    "crypto",
    "drivers/net/dummy.ko",
    "drivers/net/veth.ko",
    "fs/fscache",
    "fs/lockd",
    "fs/netfs",
    "fs/nfs/nfs.ko",
    "fs/nfs/nfsv3.ko",
    "fs/nfs_common",
    "lib",
    "net/802",
    "net/8021q",
    "net/bridge",
    "net/ipv4",
    "net/ipv6",
    "net/llc",
    "net/netfilter",
    "net/sunrpc/sunrpc.ko",
];

/// The guest's `/etc/protocols`, by which `ipset` knows protocols.
const PROTOCOLS: &str = "icmp 1\ntcp 6\nudp 17\nipv6-icmp 58\nsctp 132\n";

/// Empty folders: mount points, and more.
const EMPTY: [&str; 6] = ["dev", "proc", "run", "sys", "tmp", "etc"];

/// A root folder that is being filled. If this run is killed, the next one removes it.
#[derive(Debug)]
pub(super) struct Image {
    folder: TempDir,
    root: PathBuf,
}

/// The whole image in one file, as long as the value lives.
#[derive(Debug)]
pub(super) struct Packed {
    _folder: TempDir,
    /// Where it is.
    pub(super) path: PathBuf,
}

impl Image {
    /// An image with everything that a guest may need, with the modules of one kernel version.
    pub(super) fn with_everything(modules: &Path) -> Result<Self> {
        let folder = folder()?;
        let root = folder.path().join("root");
        fs::create_dir(&root)?;
        let image = Self { folder, root };
        for name in EMPTY {
            fs::create_dir(image.root.join(name))?;
        }
        fs::write(image.root.join("etc/protocols"), PROTOCOLS)?;
        for name in ["bin", "sbin", "lib", "lib64"] {
            let target =
                fs::read_link(Path::new("/").join(name)).context("Debian has /usr merged")?;
            symlink(target, image.root.join(name))?;
        }
        for name in PROGRAMS {
            let found = FOLDERS
                .iter()
                .map(|folder| Path::new(folder).join(name))
                .find(|path| path.exists());
            image.add_program(&found.with_context(|| format!("{name} is not there"))?)?;
        }
        for name in CNI {
            image.add_program(&binary::cni_plugins().join(name))?;
        }
        image.add_extensions()?;
        image.add_ours()?;
        image.add_conf()?;
        image.add_modules(modules)?;
        Ok(image)
    }

    /// The image in the kernel's format.
    pub(super) fn packed(self) -> Result<Packed> {
        let path = self.folder.path().join("image");
        let mut cpio = Command::new("sh");
        cpio.args(["-c", "find . -print0 | cpio --quiet --null --create --format=newc"]);
        let status =
            cpio.current_dir(&self.root).stdout(Stdio::from(File::create(&path)?)).status()?;
        ensure!(status.success(), "cannot pack the guest's files: {status}");
        fs::remove_dir_all(&self.root)?;
        Ok(Packed { _folder: self.folder, path })
    }

    /// Where a path of this machine lies in the image. Makes the folder for it.
    fn place(&self, path: &Path) -> Result<PathBuf> {
        let parent = path.parent().context("a file lies in a folder")?.canonicalize()?;
        let inside = self.root.join(parent.strip_prefix("/")?);
        fs::create_dir_all(&inside)?;
        Ok(inside.join(path.file_name().context("a file has a name")?))
    }

    /// Adds a file by its path, and by all the names that symbolic links on the path give it.
    fn add(&self, path: &Path) -> Result<()> {
        let (to, real) =
            (self.place(path)?, path.canonicalize().with_context(|| path.display().to_string())?);
        let same = self.place(&real)?;
        if !same.exists() {
            fs::copy(&real, &same)?;
        }
        if to != same && !to.exists() {
            symlink(&real, &to)?;
        }
        Ok(())
    }

    fn add_program(&self, path: &Path) -> Result<()> {
        self.add(path)?;
        self.add_libraries(&[path.to_owned()])
    }

    /// Adds the libraries that these programs need.
    fn add_libraries(&self, programs: &[PathBuf]) -> Result<()> {
        // For a static program, `ldd` reports no library and fails.
        let listed = Command::new("ldd").args(programs).output().context("cannot run ldd")?;
        let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
        // If there are several programs, `ldd` prints each name with a colon.
        let is_library = |word: &&str| word.starts_with('/') && !word.ends_with(':');
        let libraries = listed.split_whitespace().filter(is_library);
        libraries.map(Path::new).try_for_each(|library| self.add(library))
    }

    /// Adds iptables' extensions, some of which need a library that nothing else does.
    fn add_extensions(&self) -> Result<()> {
        let multiarch =
            fs::read_dir("/usr/lib")?.flatten().map(|entry| entry.path().join("xtables"));
        for folder in multiarch.filter(|folder| folder.is_dir()) {
            let extensions = fs::read_dir(folder)?.map(|entry| Ok(entry?.path()));
            let extensions: Vec<PathBuf> = extensions.collect::<Result<_>>()?;
            extensions.iter().try_for_each(|extension| self.add(extension))?;
            self.add_libraries(&extensions)?;
        }
        Ok(())
    }

    /// Adds our programs, in one folder as cargo has them, without debug information; `guest` is
    /// init.
    fn add_ours(&self) -> Result<()> {
        let at = self.root.join("denizen");
        fs::create_dir(&at)?;
        for name in ["denizen", "denizen-agent", "guest"] {
            let program = binary::ours(name)?;
            checked(Command::new("strip").arg("-o").arg(at.join(name)).arg(&program))?;
            self.add_libraries(&[program])?;
        }
        symlink("denizen/guest", self.root.join("init"))?;
        Ok(())
    }

    /// Adds what an operator installs, where [`conf::folder`] looks for it.
    fn add_conf(&self) -> Result<()> {
        let inside = |path: &str| self.root.join(path.trim_start_matches('/'));
        fs::create_dir_all(inside(env!("CARGO_MANIFEST_DIR")))?;
        let from = conf::folder().canonicalize()?;
        let to = self.place(&from)?;
        checked(Command::new("cp").arg("--recursive").arg(from).arg(to)).map(drop)
    }

    fn add_modules(&self, modules: &Path) -> Result<()> {
        let version = modules.file_name().context("a kernel has a version")?;
        let to = self.root.join("usr/lib/modules").join(version);
        for part in MODULES {
            let (from, to) = (modules.join("kernel").join(part), to.join("kernel").join(part));
            // Kernels move modules: newer ones have fscache in netfs.
            if !from.exists() {
                continue;
            }
            fs::create_dir_all(to.parent().context("a part lies in a folder")?)?;
            checked(Command::new("cp").arg("--recursive").arg(from).arg(to))?;
        }
        for list in ["modules.builtin", "modules.builtin.modinfo", "modules.order"] {
            fs::copy(modules.join(list), to.join(list))?;
        }
        checked(Command::new("depmod").arg("--basedir").arg(&self.root).arg(version)).map(drop)
    }
}
