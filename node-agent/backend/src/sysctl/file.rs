//! Reads and writes kernel settings.

use std::fs;
use std::io;
use std::path::Path;

use thiserror::Error;
use tracing::info;

use super::setting::Setting;

/// The default directory of the kernel's settings. Files below `net` belong to the reader's network
/// namespace, even if that folder is mounted elsewhere.
pub const SYSCTLS: &str = "/proc/sys";

/// Where the settings of IPVS are. If its module is not loaded, they are all missing: the backend
/// reports that once.
const IPVS: &str = "net/ipv4/vs/";

/// Why a setting does not have the wanted value.
#[derive(Debug, Error)]
pub enum SettingError {
    /// Its file does not exist.
    #[error("{path} does not exist ({hint}): {without}")]
    Missing {
        /// The setting's file.
        path: String,
        /// The probable cause.
        hint: &'static str,
        /// What does not work without it.
        without: &'static str,
    },
    /// It cannot be read, or is not a number.
    #[error("{path} cannot be read: {without}")]
    Read {
        /// The setting's file.
        path: String,
        /// What may not work.
        without: &'static str,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// It cannot be changed.
    #[error("{path} is {now} and cannot be set to {wanted}: {without}")]
    Write {
        /// The setting's file.
        path: String,
        /// The current value.
        now: u64,
        /// The wanted value.
        wanted: u64,
        /// What does not work without it.
        without: &'static str,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

/// Gives every setting below `root` its wanted value. Returns the errors of those that could not be
/// set; the others are set.
pub fn apply(root: &Path, settings: &[Setting]) -> Vec<SettingError> {
    settings.iter().filter_map(|setting| apply_one(root, setting).err()).collect()
}

/// The value of the setting in the file `path` below `root`.
///
/// # Errors
/// It cannot be read, or is not a number.
#[expect(clippy::disallowed_methods, reason = "a setting is not a regular file")]
pub fn value(root: &Path, path: &str) -> io::Result<u64> {
    let text = fs::read_to_string(root.join(path))?;
    let number = text.trim().parse();
    number.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

#[expect(clippy::disallowed_methods, reason = "a setting is not a regular file: one write sets it")]
fn apply_one(root: &Path, setting: &Setting) -> Result<(), SettingError> {
    let Setting { path, wanted, without, is_vital: _ } = setting;
    let file = root.join(path);
    let now = match value(root, path) {
        Ok(now) => now,
        Err(source) if source.kind() == io::ErrorKind::NotFound => {
            if path.starts_with(IPVS) {
                return Ok(());
            }
            return Err(SettingError::Missing { path: path.clone(), hint: hint(path), without });
        }
        Err(source) => return Err(SettingError::Read { path: path.clone(), without, source }),
    };
    if wanted.is_met_by(now) {
        return Ok(());
    }
    let wanted = wanted.number();
    fs::write(&file, wanted.to_string()).map_err(|source| SettingError::Write {
        path: path.clone(),
        now,
        wanted,
        without,
        source,
    })?;
    info!(setting = path, from = now, to = wanted, "kernel setting changed");
    Ok(())
}

fn hint(path: &str) -> &'static str {
    if path.starts_with("net/bridge/") {
        "the kernel module br_netfilter is not loaded"
    } else {
        "this kernel does not support it"
    }
}

#[cfg(test)]
mod tests {
    use super::super::setting::WantedValue;
    use super::*;

    #[expect(clippy::disallowed_methods, reason = "a test creates its files")]
    #[test]
    fn only_differing_settings_are_written_and_failures_are_named() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("net/netfilter/full")).unwrap();
        let setting = |path, wanted| Setting::new(path, wanted, "nothing works");
        let file = |name: &str| root.path().join(name);
        fs::write(file("net/low"), "5\n").unwrap();
        fs::write(file("net/high"), "50\n").unwrap();
        fs::write(file("net/same"), "9\n").unwrap();
        fs::write(file("net/word"), "off\n").unwrap();
        let errors = apply(
            root.path(),
            &[
                setting("net/bridge/bridge-nf-call-iptables", WantedValue::Exactly(1)),
                setting("net/ipv4/vs/conntrack", WantedValue::Exactly(1)),
                setting("net/word", WantedValue::Exactly(1)),
                setting("net/low", WantedValue::AtLeast(9)),
                setting("net/high", WantedValue::AtLeast(9)),
                setting("net/same", WantedValue::Exactly(9)),
            ],
        );
        let read = |name: &str| fs::read_to_string(file(name)).unwrap();
        assert_eq!(read("net/low"), "9");
        assert_eq!((read("net/high").as_str(), read("net/same").as_str()), ("50\n", "9\n"));
        let messages: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(
            messages,
            [
                "net/bridge/bridge-nf-call-iptables does not exist (the kernel module br_netfilter is not \
                 loaded): nothing works",
                "net/word cannot be read: nothing works"
            ]
        );
    }
}
