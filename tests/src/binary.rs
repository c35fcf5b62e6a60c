//! Where the programs under test are.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

/// Debian's folder of CNI plugins; `DENIZEN_CNI_PLUGINS` names another.
const CNI_PLUGINS: &str = "/usr/lib/cni";

/// The folder that cargo builds into, found from this very program, which cargo built too:
/// `target/debug/deps/test-…` or `target/debug/quickstart`.
pub fn folder() -> Result<PathBuf> {
    let own = std::env::current_exe().context("cannot tell where this program lies")?;
    let folder = own.parent().context("a program lies in a folder")?;
    let built = if folder.ends_with("deps") { folder.parent().unwrap_or(folder) } else { folder };
    Ok(built.to_owned())
}

/// One of denizen's own programs, built beside this one.
pub fn ours(name: &str) -> Result<PathBuf> {
    let path = folder()?.join(name);
    ensure!(path.exists(), "{} is not there: run `cargo build --workspace` first", path.display());
    Ok(path)
}

/// A variant of denizen's image, in which programs are executed that were built for it alone.
pub fn image(variant: &str) -> Result<PathBuf> {
    let built = folder()?;
    let folder = built.parent().context("cargo's folder has a parent")?;
    let path = folder.join("image").join(format!("{variant}.tar"));
    ensure!(path.exists(), "{} is not there: run `tests/image` first", path.display());
    Ok(path)
}

/// What `tests/run` installed of Helm: a folder of modules for Python.
pub fn helm() -> Result<PathBuf> {
    let built = folder()?;
    let path = built.parent().context("cargo's folder has a parent")?.join("helm");
    ensure!(path.exists(), "{} is not there: `tests/run` installs it", path.display());
    Ok(path)
}

/// What `tests/run` unpacked of BIRD: the root of its files.
pub fn bird() -> Result<PathBuf> {
    let built = folder()?;
    let path = built.parent().context("cargo's folder has a parent")?.join("bird");
    ensure!(path.exists(), "{} is not there: `tests/run` unpacks it", path.display());
    Ok(path)
}

/// What `tests/run` unpacked of a registry for images: the program.
pub fn registry() -> Result<PathBuf> {
    let built = folder()?;
    let folder = built.parent().context("cargo's folder has a parent")?.join("registry");
    let path = folder.join("usr/bin/docker-registry");
    ensure!(path.exists(), "{} is not there: `tests/run` unpacks it", path.display());
    Ok(path)
}

/// One of the previous release's programs: `DENIZEN_PREVIOUS_RELEASE` names their folder.
pub fn previous(name: &str) -> Option<PathBuf> {
    std::env::var_os("DENIZEN_PREVIOUS_RELEASE").map(|folder| Path::new(&folder).join(name))
}

/// The folder of the CNI plugins that go in front of ours.
pub fn cni_plugins() -> PathBuf {
    std::env::var_os("DENIZEN_CNI_PLUGINS")
        .map_or_else(|| PathBuf::from(CNI_PLUGINS), PathBuf::from)
}
