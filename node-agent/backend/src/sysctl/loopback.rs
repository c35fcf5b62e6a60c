//! `route_localnet`, which node ports on 127.0.0.1 need. A later run that does not need it sets it
//! back, if denizen set it.
//!
//! A file in the run directory remembers that. A reboot resets both; a restart changes neither.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use tracing::{info, warn};

use super::file::{SettingError, apply};
use super::setting::{ROUTE_LOCALNET, Setting, WantedValue};

/// The file that exists while the setting is 1 because denizen set it.
const NOTE: &str = "route_localnet.set";

/// The setting, and the note that denizen set it.
#[derive(Debug, Clone)]
pub struct Loopback {
    sysctls: PathBuf,
    note: PathBuf,
}

impl Loopback {
    /// The setting below the folder `sysctls`, with its note in `run_dir`. Nothing is read or
    /// written yet.
    pub fn new(sysctls: &Path, run_dir: &Path) -> Self {
        Self { sysctls: sysctls.to_owned(), note: run_dir.join(NOTE) }
    }

    /// Whether the kernel accepts packets to loopback addresses from other interfaces.
    pub fn is_open(&self) -> bool {
        #[expect(clippy::disallowed_methods, reason = "a kernel setting")]
        let now = fs::read_to_string(self.sysctls.join(ROUTE_LOCALNET));
        now.is_ok_and(|now| now.trim() == "1")
    }

    /// Runs `set`, and writes the note if `set` changed the setting to 1. Without the run directory
    /// there is no note: the setting then stays for good, protected by the rule against neighbours.
    pub fn remembering<T>(&self, set: impl FnOnce() -> T) -> T {
        let was_open = self.is_open();
        let done = set();
        if !was_open && self.is_open() {
            let noted = File::options().write(true).create(true).truncate(true).open(&self.note);
            if let Err(error) = noted {
                let file = self.note.display();
                warn!(
                    %file,
                    %error,
                    "cannot write the note by which a later run would set {ROUTE_LOCALNET} back to 0"
                );
            }
        }
        done
    }

    /// Sets it back to 0 if denizen set it. Returns whether it did.
    ///
    /// # Errors
    /// [`SettingError`] if it cannot be set.
    pub fn set_back(&self) -> Result<bool, SettingError> {
        if !self.note.is_file() {
            return Ok(false);
        }
        let was_open = self.is_open();
        let closed = Setting::new(
            ROUTE_LOCALNET,
            WantedValue::Exactly(0),
            "denizen set it for node ports on 127.0.0.1, which are off now",
        );
        if let Some(error) = apply(&self.sysctls, &[closed]).pop() {
            return Err(error);
        }
        match fs::remove_file(&self.note) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                let file = self.note.display();
                warn!(%file, %error, "the setting is back at 0, but its note cannot be removed");
            }
            Ok(()) | Err(_) => info!("{ROUTE_LOCALNET} is back at 0"),
        }
        Ok(was_open)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(clippy::disallowed_methods, reason = "a test creates its files")]
    #[test]
    fn it_is_set_back_only_if_denizen_set_it() {
        let root = tempfile::tempdir().unwrap();
        let (sysctls, run_dir) = (root.path().join("sys"), root.path().join("run"));
        let file = sysctls.join(ROUTE_LOCALNET);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::create_dir(&run_dir).unwrap();
        let set = |value: &str| fs::write(&file, value).unwrap();
        let loopback = Loopback::new(&sysctls, &run_dir);
        // Set by the operator.
        set("1\n");
        loopback.remembering(|| set("1\n"));
        assert!(!loopback.set_back().unwrap());
        assert!(loopback.is_open());
        // Set by denizen.
        set("0\n");
        loopback.remembering(|| set("1\n"));
        // Another run that needs it finds it already set.
        loopback.remembering(|| ());
        let after_a_restart = Loopback::new(&sysctls, &run_dir);
        assert!(after_a_restart.set_back().unwrap());
        assert!(!loopback.is_open());
        // From then on denizen does not own it.
        set("1\n");
        assert!(!after_a_restart.set_back().unwrap());
        assert!(loopback.is_open());
    }
}
