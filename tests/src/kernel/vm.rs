//! An emulated machine with Debian's stock kernel, for what the kernel under the tests cannot do:
//! ipvs is a module, and a kernel without modules has none. The machine has no network and no disk,
//! and runs the program `guest`, which uses the same harness as the tests outside.

mod image;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use self::image::Image;
use crate::binary;
use crate::test_length;

/// What `guest` prints last when all went well.
pub const VERDICT: &str = "the guest's verdict: all is well";

/// The words by which `guest` reports a test that fails.
pub const FAILED: &str = "FAILED after";

/// How long a guest may take. It takes some minutes; the machine may be slow, or busy.
pub fn bound() -> Duration {
    Duration::from_secs(test_length::in_full(3500, 2700) as u64)
}

/// The machine has a serial console, and nothing else. The emulator executes string instructions
/// byte by byte: without ERMS, by which a processor claims to be quick with them, the kernel copies
/// by words, and the whole guest takes a quarter less of our time.
const MACHINE: &str = "-cpu max,-erms -m 1024 -nodefaults -no-user-config -no-reboot -display none \
                       -serial stdio";

/// Options of every guest's kernel. `norandmaps`: the emulator caches translated code by address,
/// and with programs at the same addresses whenever they are executed, a guest that executes many
/// takes two fifths less of our time. `mitigations=off`: the emulator looks up the target of every
/// indirect jump, and mitigations of processors' faults add many. The kernel need not test its
/// cryptography either, which is half of a boot, nor zero what it allocates.
const KERNEL_WORDS: &str = "console=ttyS0 quiet panic=-1 norandmaps mitigations=off \
                            cryptomgr.notests init_on_alloc=0";

/// The processors of a guest.
#[derive(Debug, Clone, Copy)]
pub enum Processors {
    /// One that executes 250 million instructions per second of the guest's own time. While it is
    /// idle, the guest's time costs none of ours; and a busy machine outside makes nothing late
    /// inside.
    OfItsOwnTime,
    /// Two that run at the same time, for what only happens when one changes what the other reads.
    /// Their time is that of the machine outside.
    TwoAtOnce,
}

impl Processors {
    fn flags(self) -> &'static str {
        match self {
            Self::OfItsOwnTime => "-accel tcg -icount shift=2,sleep=off",
            Self::TwoAtOnce => "-accel tcg,thread=multi -smp 2",
        }
    }
}

/// The variable that tells the guest what to run.
pub const BOOT: &str = "BOOT";

/// A value of [`BOOT`]: an ordinary node.
pub const NODE: &str = "node";

/// A value of [`BOOT`]: the backend ipvs.
pub const IPVS: &str = "ipvs";

/// A value of [`BOOT`]: a kernel without IPv6.
pub const WITHOUT_IPV6: &str = "without-ipv6";

/// A value of [`BOOT`]: NetworkPolicies change while clients connect.
pub const CHURN: &str = "churn";

/// A value of [`BOOT`]: what the backend ipvs costs. No test boots it.
pub const BENCH: &str = "bench";

/// The guest's variable for how many services [`BENCH`] has.
pub const SERVICES: &str = "SERVICES";

/// The guest's variable for a part of a test's [`word`]: no other test runs.
pub const ONLY: &str = "ONLY";

/// To run one test only, set this variable to a part of its name.
const ONLY_OUTSIDE: &str = "DENIZEN_GUEST_PLAY";

/// Where the programs are in the guest. Words of the command line that the kernel does not know
/// become init's environment.
const PATH: &str = "PATH=/usr/sbin:/usr/bin";

/// The kernel of the Debian release that the tests run on, as `tests/packages` unpacks it, or the
/// one in the folder that `DENIZEN_GUEST_KERNEL` names.
#[derive(Debug)]
struct GuestKernel {
    image: PathBuf,
    /// `lib/modules/<version>`.
    modules: PathBuf,
}

impl GuestKernel {
    fn find() -> Result<Self> {
        let folder = match std::env::var_os("DENIZEN_GUEST_KERNEL") {
            Some(folder) => folder.into(),
            None => {
                let built = binary::folder()?;
                built.parent().context("cargo's folder has a parent")?.join("guest-kernel")
            }
        };
        let only = |folder: PathBuf, prefix: &str| -> Result<PathBuf> {
            let entries = fs::read_dir(&folder).with_context(|| {
                format!("no kernel in {}: start tests by `tests/run`", folder.display())
            })?;
            let mut named = entries
                .flatten()
                .filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix));
            let entry = named
                .next()
                .with_context(|| format!("nothing like {prefix} in {}", folder.display()))?;
            Ok(entry.path())
        };
        Ok(Self {
            image: only(folder.join("boot"), "vmlinuz-")?,
            modules: only(folder.join("lib/modules"), "")?,
        })
    }
}

/// The emulator. It ends with this value.
struct Machine(Child);

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A test's name as one word of a kernel's command line.
pub fn word(name: &str) -> String {
    name.to_lowercase().replace(' ', "_")
}

/// Boots the guest to run this [`BOOT`], with `words` also on its kernel's command line, and waits
/// until it has switched itself off. Its output goes to standard error as it comes.
///
/// # Errors
/// When the output lacks [`VERDICT`].
pub fn run(processors: Processors, boot: &str, words: &str) -> Result<()> {
    let only = word(&std::env::var(ONLY_OUTSIDE).unwrap_or_default());
    let words = format!("{BOOT}={boot} {ONLY}={only} {} {words}", test_length::variable());
    let kernel = GuestKernel::find()?;
    let image = Image::with_everything(&kernel.modules)?.packed()?;
    let mut machine = Machine(started(&kernel, &image.path, processors, &words)?);
    let output = machine.0.stdout.take().context("the guest's console")?;
    let (line, lines) = mpsc::channel();
    std::thread::spawn(move || {
        let mut lines = BufReader::new(output).split(b'\n').map_while(Result::ok);
        lines.try_for_each(|bytes| line.send(bytes))
    });
    let bound = bound();
    let (deadline, mut is_well, mut failed) = (Instant::now() + bound, false, Vec::new());
    while let Ok(bytes) = lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
        let text = String::from_utf8_lossy(&bytes).trim_end().to_owned();
        eprintln!("{text}");
        is_well |= text == VERDICT;
        failed.extend(text.contains(FAILED).then_some(text));
    }
    ensure!(is_well, "it failed, or did not end within {bound:?}: {}", failed.join("\n"));
    Ok(())
}

fn started(
    kernel: &GuestKernel,
    image: &Path,
    processors: Processors,
    words: &str,
) -> Result<Child> {
    let mut emulator = Command::new("qemu-system-x86_64");
    emulator.args(processors.flags().split(' ').chain(MACHINE.split(' ')));
    emulator.arg("-kernel").arg(&kernel.image);
    emulator.arg("-initrd").arg(image);
    emulator.args(["-append", &format!("{KERNEL_WORDS} {words} {PATH}")]);
    emulator.stdin(Stdio::null()).stdout(Stdio::piped());
    emulator.spawn().context("cannot run qemu-system-x86_64")
}
