//! How the switches of bridges were before denizen turned them on, in a file of the run directory.

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use denizen_state::regular;
use serde::{Deserialize, Serialize};
use tracing::warn;

/// The file's name in the run directory.
const NAME: &str = "bridges.json";

/// Size limit in bytes, more than the bridges of any node take.
const LONGEST: u64 = 1 << 20;

/// How a bridge's switches were.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SavedSwitches {
    pub(super) bridge: String,
    /// Its index, which distinguishes it from a later bridge of the same name.
    pub(super) index: u32,
    /// `nf_call_iptables` and `nf_call_ip6tables`.
    pub(super) switches: [bool; 2],
    /// It learned from frames to link-local groups before denizen turned that off.
    #[serde(default)]
    pub(super) learned: bool,
}

#[derive(Debug)]
pub(super) struct SavedSwitchesFile(PathBuf);

impl SavedSwitchesFile {
    pub(super) fn of(run_dir: &Path) -> Self {
        Self(run_dir.join(NAME))
    }

    /// All that is remembered; nothing if the file is missing or cannot be read.
    pub(super) fn read(&self) -> Vec<SavedSwitches> {
        let text = regular::read_to_string(&self.0, LONGEST).ok();
        text.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default()
    }

    /// Remembers a bridge, unless it is remembered already: later values are denizen's own.
    pub(super) fn remember(&self, bridge: &str, index: u32, switches: [bool; 2]) {
        let mut all = self.read();
        if all.iter().any(|former| former.index == index && former.bridge == bridge) {
            return;
        }
        all.retain(|former| former.bridge != bridge);
        all.push(SavedSwitches { bridge: bridge.to_owned(), index, switches, learned: false });
        self.write(&all);
    }

    /// Notes that a bridge that is remembered learned from frames to link-local groups.
    pub(super) fn note_learning(&self, bridge: &str) {
        let mut all = self.read();
        let known = all.iter_mut().filter(|former| former.bridge == bridge);
        known.for_each(|former| former.learned = true);
        self.write(&all);
    }

    /// Replaces all that is remembered. Without the run directory, switches stay on for good.
    pub(super) fn write(&self, all: &[SavedSwitches]) {
        let written = if all.is_empty() { self.remove() } else { self.replace(all) };
        if let Err(error) = written {
            let file = self.0.display();
            warn!(%file, %error, "cannot remember how nf_call_iptables of bridges was");
        }
    }

    fn remove(&self) -> io::Result<()> {
        match fs::remove_file(&self.0) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }

    /// If the process is killed, either the old or the new file is there.
    fn replace(&self, all: &[SavedSwitches]) -> io::Result<()> {
        let next = self.0.with_extension("next");
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&next)?;
        file.write_all(&serde_json::to_vec(all)?)?;
        fs::rename(&next, &self.0)
    }
}
