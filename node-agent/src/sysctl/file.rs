//! Reads and writes settings of the kernel.

use std::fs;
use std::io;
use std::path::Path;

use thiserror::Error;
use tracing::info;

use super::setting::Setting;

/// Where they usually are. What is below `net` is that of the network namespace of whoever looks,
/// also where that folder is mounted elsewhere.
pub const SYSCTLS: &str = "/proc/sys";

/// Why a setting is not as it should be.
#[derive(Debug, Error)]
pub enum SettingError {
    /// It is not there.
    #[error("{path} is not there ({hint}): {without}")]
    Missing {
        /// Its file.
        path: String,
        /// Why that may be.
        hint: &'static str,
        /// What does not work.
        without: &'static str,
    },
    /// It cannot be read, or is no number.
    #[error("{path} cannot be read: {without}")]
    Read {
        /// Its file.
        path: String,
        /// What may not work.
        without: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It cannot be changed.
    #[error("{path} is {now} and cannot be set to {wanted}: {without}")]
    Write {
        /// Its file.
        path: String,
        /// What it is.
        now: u64,
        /// What it should be.
        wanted: u64,
        /// What does not work.
        without: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// Makes every setting below `root` what it should be; whatever cannot be is named, and the others
/// go on.
pub fn apply(root: &Path, settings: &[Setting]) -> Vec<SettingError> {
    settings.iter().filter_map(|setting| apply_one(root, setting).err()).collect()
}

#[expect(clippy::disallowed_methods, reason = "a setting is no file: one write sets it whole")]
fn apply_one(root: &Path, setting: &Setting) -> Result<(), SettingError> {
    let Setting { path, wanted, without, is_vital: _ } = setting;
    let file = root.join(path);
    let now = fs::read_to_string(&file).and_then(|text| {
        let number = text.trim().parse::<u64>();
        number.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    });
    let now = now.map_err(|source| {
        let path = path.clone();
        if source.kind() == io::ErrorKind::NotFound {
            let hint = hint(&path);
            return SettingError::Missing { path, hint, without };
        }
        SettingError::Read { path, without, source }
    })?;
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
    info!(setting = path, from = now, to = wanted, "a setting of the kernel was changed");
    Ok(())
}

fn hint(path: &str) -> &'static str {
    if path.starts_with("net/bridge/") {
        "the kernel module br_netfilter is not loaded"
    } else {
        "this kernel does not have it"
    }
}

#[cfg(test)]
mod tests {
    use super::super::setting::Wanted;
    use super::*;

    #[expect(clippy::disallowed_methods, reason = "a test makes what it looks at")]
    #[test]
    fn only_what_differs_is_written_and_what_cannot_be_is_named() {
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
                setting("net/bridge/bridge-nf-call-iptables", Wanted::Exactly(1)),
                setting("net/word", Wanted::Exactly(1)),
                setting("net/low", Wanted::AtLeast(9)),
                setting("net/high", Wanted::AtLeast(9)),
                setting("net/same", Wanted::Exactly(9)),
            ],
        );
        let read = |name: &str| fs::read_to_string(file(name)).unwrap();
        assert_eq!(read("net/low"), "9");
        assert_eq!((read("net/high").as_str(), read("net/same").as_str()), ("50\n", "9\n"));
        let said: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(
            said,
            [
                "net/bridge/bridge-nf-call-iptables is not there (the kernel module br_netfilter is not \
                 loaded): nothing works",
                "net/word cannot be read: nothing works"
            ]
        );
    }
}
