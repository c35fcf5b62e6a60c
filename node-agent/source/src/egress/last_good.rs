//! The last good egress file, kept in the run directory. A restart with a bad file uses it. A
//! reboot removes it, together with the rules.

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use denizen_state::regular;
use serde_json::json;

use denizen_model::Egress;

/// The file's name in the run directory.
pub const NAME: &str = "egress.json";

/// Size limit in bytes, more than any list of ranges needs.
pub(super) const MAX_FILE_BYTES: u64 = 1 << 20;

/// The path of the copy.
#[derive(Debug)]
pub(super) struct LastGood(PathBuf);

impl LastGood {
    pub(super) fn of(run_dir: &Path) -> Self {
        Self(run_dir.join(NAME))
    }

    /// The last good file as text; `None` if there was none since the last boot.
    pub(super) fn read(&self) -> Option<String> {
        regular::read_to_string(&self.0, MAX_FILE_BYTES).ok()
    }

    /// Writes the copy in the egress file's format, with every range written out. If the agent is
    /// killed meanwhile, the old or the new copy remains.
    pub(super) fn write(&self, egress: &Egress) -> io::Result<()> {
        let kept: Vec<String> = egress.kept.iter().map(ToString::to_string).collect();
        let text = json!({
            "nonMasqueradeCIDRs": kept, "masqLinkLocal": true, "masqLinkLocalIPv6": true,
        });
        let next = self.0.with_extension("next");
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&next)?;
        file.write_all(text.to_string().as_bytes())?;
        fs::rename(&next, &self.0)
    }

    /// Removes the copy: egress masquerade is off.
    pub(super) fn remove(&self) -> io::Result<()> {
        match fs::remove_file(&self.0) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }
}
