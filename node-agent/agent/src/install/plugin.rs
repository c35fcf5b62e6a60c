//! Installs the plugin's program, atomically, and only if it runs on this node.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use denizen_state::regular;
use thiserror::Error;

use super::conflist::PLUGIN;

/// The file name of the new program until it is known to run.
const NEXT: &str = ".denizen-next";

/// Size limit in bytes, a hundred times that of a debug build.
const LARGEST: u64 = 1 << 30;

/// Why the program cannot be installed.
#[derive(Debug, Error)]
pub enum PluginError {
    /// It cannot be read or written.
    #[error("cannot {doing} {}", path.display())]
    Io {
        doing: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// It is not denizen, or not for this machine.
    #[error("{} does not answer VERSION as the CNI plugin does: {answer}", path.display())]
    Strange {
        path: PathBuf,
        /// Its answer, or the error.
        answer: String,
    },
}

/// Copies the program `from` into `folder`, unless it is already there. Returns whether it did. The
/// old program stays until the new one has answered a VERSION call, and is then replaced at once: a
/// runtime never finds a missing or partial program.
///
/// # Errors
/// [`PluginError`]; the old program is unchanged.
pub fn put(from: &Path, folder: &Path) -> Result<bool, PluginError> {
    let failed = |doing, path: &Path| {
        let path = path.to_owned();
        move |source| PluginError::Io { doing, path, source }
    };
    let program = bytes(from).map_err(failed("read", from))?;
    let (place, next) = (folder.join(PLUGIN), folder.join(NEXT));
    if bytes(&place).is_ok_and(|there| there == program) && check(&place).is_ok() {
        return Ok(false);
    }
    write(&next, &program).map_err(failed("write", &next))?;
    if let Err(error) = check(&next) {
        let _ = fs::remove_file(&next);
        return Err(error);
    }
    fs::rename(&next, &place).map_err(failed("rename", &next))?;
    Ok(true)
}

fn bytes(path: &Path) -> io::Result<Vec<u8>> {
    regular::read(path, LARGEST)
}

fn write(path: &Path, program: &[u8]) -> io::Result<()> {
    let _ = fs::remove_file(path);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o755).open(path)?;
    file.write_all(program)?;
    file.sync_all()
}

/// The release of the plugin at `path`, which must answer as the plugin does.
///
/// # Errors
/// [`PluginError`].
pub fn release(path: &Path) -> Result<String, PluginError> {
    bytes(path).map_err(|source| PluginError::Io {
        doing: "read",
        path: path.to_owned(),
        source,
    })?;
    check(path)?;
    // Without CNI's variables, the plugin prints its name and release.
    #[expect(clippy::disallowed_methods, reason = "only the program itself knows its release")]
    let output = Command::new(path).env_clear().stdin(Stdio::null()).output();
    let stderr = output.map(|output| String::from_utf8_lossy(&output.stderr).into_owned());
    let strange = |answer: String| PluginError::Strange { path: path.to_owned(), answer };
    let stderr = stderr.map_err(|error| strange(error.to_string()))?;
    let begin = format!("{PLUGIN} ");
    let release = stderr.strip_prefix(&begin).and_then(|rest| Some(rest.split_once(':')?.0));
    release.map(str::to_owned).ok_or_else(|| strange(stderr.clone()))
}

/// Checks that the program at `path` answers as the plugin does.
#[expect(clippy::disallowed_methods, reason = "only a test run shows that it runs on this node")]
fn check(path: &Path) -> Result<(), PluginError> {
    let unexpected = |answer: String| PluginError::Strange { path: path.to_owned(), answer };
    let mut child = Command::new(path)
        .env_clear()
        .env("CNI_COMMAND", "VERSION")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| unexpected(error.to_string()))?;
    // A program that does not read its input may still answer.
    let input = child.stdin.take().map(|mut input| input.write_all(br#"{"cniVersion":"1.0.0"}"#));
    drop(input);
    let output = child.wait_with_output().map_err(|error| unexpected(error.to_string()))?;
    let answer = String::from_utf8_lossy(&output.stdout).into_owned();
    let speaks = serde_json::from_str::<serde_json::Value>(&answer).is_ok_and(|answer| {
        answer["supportedVersions"].as_array().is_some_and(|versions| !versions.is_empty())
    });
    match output.status.success() && speaks {
        true => Ok(()),
        false => Err(unexpected(format!("{} {answer}", output.status))),
    }
}
