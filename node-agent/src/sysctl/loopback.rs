//! `route_localnet`, which node ports on 127.0.0.1 need: set back by a run that does not need it,
//! where it was denizen that set it.
//!
//! A file in the run directory remembers that. Both are gone after a reboot, and neither is touched
//! by a restart.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use tracing::{info, warn};

use super::file::{SettingError, apply};
use super::setting::{ROUTE_LOCALNET, Setting, Wanted};

/// The file that is there while the setting is 1 by denizen's doing.
const NOTE: &str = "route_localnet.set";

/// The setting, and what is remembered of it.
#[derive(Debug, Clone)]
pub struct Loopback {
    sysctls: PathBuf,
    note: PathBuf,
}

impl Loopback {
    /// The setting below the folder `sysctls`, remembered in `run_dir`. Nothing is read or written
    /// yet.
    pub fn new(sysctls: &Path, run_dir: &Path) -> Self {
        Self { sysctls: sysctls.to_owned(), note: run_dir.join(NOTE) }
    }

    /// Whether the kernel lets packets to loopback addresses in from other interfaces.
    pub fn is_open(&self) -> bool {
        #[expect(clippy::disallowed_methods, reason = "a setting of the kernel")]
        let now = fs::read_to_string(self.sysctls.join(ROUTE_LOCALNET));
        now.is_ok_and(|now| now.trim() == "1")
    }

    /// Does `set`, which may set it, and remembers it if so. Without the run directory that is not
    /// remembered: the setting then stays for good, behind the rule that keeps neighbours out.
    pub fn remembering<T>(&self, set: impl FnOnce() -> T) -> T {
        let was_open = self.is_open();
        let done = set();
        if !was_open && self.is_open() {
            let noted = File::options().write(true).create(true).truncate(true).open(&self.note);
            if let Err(error) = noted {
                let file = self.note.display();
                warn!(%file, %error, "no run will set {ROUTE_LOCALNET} back to 0: it cannot be remembered");
            }
        }
        done
    }

    /// Sets it back to 0 where denizen set it; whether it did.
    ///
    /// # Errors
    /// When it cannot be set.
    pub fn set_back(&self) -> Result<bool, SettingError> {
        if !self.note.is_file() {
            return Ok(false);
        }
        let was_open = self.is_open();
        let closed = Setting::new(
            ROUTE_LOCALNET,
            Wanted::Exactly(0),
            "denizen set it for node ports on 127.0.0.1, which are not asked for any more",
        );
        if let Some(error) = apply(&self.sysctls, &[closed]).pop() {
            return Err(error);
        }
        match fs::remove_file(&self.note) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                let file = self.note.display();
                warn!(%file, %error, "the setting is back at 0, but the note of it cannot be removed");
            }
            Ok(()) | Err(_) => info!("{ROUTE_LOCALNET} is back at 0"),
        }
        Ok(was_open)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(clippy::disallowed_methods, reason = "a test makes what it looks at")]
    #[test]
    fn it_is_set_back_where_denizen_set_it_and_nowhere_else() {
        let root = tempfile::tempdir().unwrap();
        let (sysctls, run_dir) = (root.path().join("sys"), root.path().join("run"));
        let file = sysctls.join(ROUTE_LOCALNET);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::create_dir(&run_dir).unwrap();
        let set = |value: &str| fs::write(&file, value).unwrap();
        let loopback = Loopback::new(&sysctls, &run_dir);
        // The operator's own.
        set("1\n");
        loopback.remembering(|| set("1\n"));
        assert!(!loopback.set_back().unwrap());
        assert!(loopback.is_open());
        // Ours.
        set("0\n");
        loopback.remembering(|| set("1\n"));
        // Another run that needs it finds it as it should be.
        loopback.remembering(|| ());
        let after_a_restart = Loopback::new(&sysctls, &run_dir);
        assert!(after_a_restart.set_back().unwrap());
        assert!(!loopback.is_open());
        // From then on it is nobody's.
        set("1\n");
        assert!(!after_a_restart.set_back().unwrap());
        assert!(loopback.is_open());
    }
}
