//! What `conf/release` needs to build a release is asked for before anything is compiled.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};
use denizen_tests::conf::folder;
use tempfile::TempDir;

/// What the scripts themselves are written in.
const SHELL: [&str; 8] = ["bash", "env", "dirname", "realpath", "mkdir", "mktemp", "rm", "uname"];

/// A machine that has the shell's own programs and those that a test gives it.
struct Machine {
    folder: TempDir,
}

impl Machine {
    /// With cargo, which says that it was started and fails, and with a compiler that has these
    /// targets' libraries.
    fn new(targets: &[&str]) -> Result<Self> {
        let machine = Self { folder: tempfile::tempdir()? };
        fs::create_dir(machine.path("bin"))?;
        for name in SHELL {
            let program = ["/usr/bin", "/bin"].map(|at| Path::new(at).join(name));
            let program = program.into_iter().find(|at| at.exists()).context(name)?;
            symlink(program, machine.path("bin").join(name))?;
        }
        machine.put("cargo", "echo compiling >&2; exit 7")?;
        for target in targets {
            fs::create_dir_all(machine.path(target))?;
        }
        let libraries = machine.path("").display().to_string();
        // rustc --print target-libdir --target TARGET
        machine.put("rustc", &format!("echo {libraries}/$4"))?;
        Ok(machine)
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    fn put(&self, name: &str, script: &str) -> Result<()> {
        let file = self.path("bin").join(name);
        fs::write(&file, format!("#!/bin/sh\n{script}\n"))?;
        Ok(fs::set_permissions(&file, fs::Permissions::from_mode(0o755))?)
    }

    fn run(&self, script: &str, architecture: &str) -> Result<Output> {
        let mut command = Command::new(folder().join("release").join(script));
        command.args([architecture, "out"]).current_dir(self.folder.path());
        command.env_clear().env("PATH", self.path("bin")).env("HOME", "/nonexistent");
        Ok(command.output()?)
    }
}

const AMD64: &str = "x86_64-unknown-linux-musl";
const ARM64: &str = "aarch64-unknown-linux-musl";

#[test]
fn what_is_missing_is_named_in_one_line_before_anything_is_compiled() -> Result<()> {
    let cases: [(&str, &str, &[&str], &[&str]); 5] = [
        ("programs", "amd64", &[AMD64], &["apt-get install musl-tools"]),
        (
            "programs",
            "amd64",
            &[],
            &["apt-get install musl-tools", "rustup target add x86_64-unknown-linux-musl"],
        ),
        (
            "programs",
            "arm64",
            &[],
            &[
                "apt-get install gcc-aarch64-linux-gnu",
                "rustup target add aarch64-unknown-linux-musl",
            ],
        ),
        ("build", "amd64", &[AMD64], &["apt-get install", "musl-tools", " jq"]),
        ("build", "arm64", &[ARM64], &["gcc-aarch64-linux-gnu", " jq"]),
    ];
    for (script, architecture, targets, words) in cases {
        let output = Machine::new(targets)?.run(script, architecture)?;
        let printed = String::from_utf8(output.stderr)?;
        ensure!(!output.status.success(), "{script}: {printed}");
        ensure!(printed.lines().count() == 1, "{script} {architecture}: not one line: {printed}");
        for word in words {
            ensure!(printed.contains(word), "{script} {architecture}: no {word:?}: {printed}");
        }
    }
    Ok(())
}

#[test]
fn a_machine_that_has_everything_compiles() -> Result<()> {
    let machine = Machine::new(&[AMD64])?;
    machine.put("musl-gcc", "exit 0")?;
    let printed = String::from_utf8(machine.run("programs", "amd64")?.stderr)?;
    ensure!(printed == "compiling\n", "{printed}");
    machine.put("jq", "exit 0")?;
    let printed = String::from_utf8(machine.run("build", "amd64")?.stderr)?;
    ensure!(printed == "compiling\n", "{printed}");
    Ok(())
}

/// README's commands for an installation come after what they need.
#[test]
fn the_readme_names_what_the_commands_need() -> Result<()> {
    let readme = fs::read_to_string(folder().join("../README.md"))?;
    let (_, section) = readme.split_once("\n## Install it in a cluster\n").context("no section")?;
    let (before, _) = section.split_once("conf/release/programs amd64").context("no command")?;
    for word in ["podman", "musl-tools", "rustup target add x86_64-unknown-linux-musl", "kubectl"] {
        ensure!(before.contains(word), "{word}: {before}");
    }
    Ok(())
}
