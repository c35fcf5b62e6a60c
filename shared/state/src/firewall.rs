//! The one thing that the plugin changes in the pod firewall's tables, if no agent runs.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::Path;

/// The name of the firewall's tables, one in each IP family.
pub const TABLE: &str = "denizen-firewall";

/// The set, in each of the tables, of the source addresses of pods that are not decided about yet.
/// Packets from and to them are dropped.
pub const PENDING: &str = "pending";

/// File name, in the run directory, of the note that there is no firewall on this node. Without
/// the note, a node without the tables is one whose agent has not run yet.
pub const OFF: &str = "network-policy.off";

/// Writes or removes the note that there is no firewall on this node.
///
/// # Errors
/// When the file cannot be made or removed.
pub fn note_whether_off(run_dir: &Path, is_off: bool) -> io::Result<()> {
    let note = run_dir.join(OFF);
    if is_off {
        return File::options().write(true).create(true).truncate(true).open(note).map(drop);
    }
    match fs::remove_file(note) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Whether an agent has noted that there is no firewall on this node.
pub fn is_off(run_dir: &Path) -> bool {
    run_dir.join(OFF).is_file()
}
