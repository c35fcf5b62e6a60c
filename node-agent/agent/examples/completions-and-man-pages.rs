//! Writes the shell completions and man pages of `denizen-agent`, for a package:
//! `cargo run -p denizen-agent --example completions-and-man-pages DIR`.
//!
//! An example, so that the agent itself does not contain what makes them.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap_complete::Shell;
use denizen_agent::cli::command;

fn main() -> Result<()> {
    let folder = PathBuf::from(std::env::args_os().nth(1).context("name a directory")?);
    let (completions, pages) = (folder.join("completions"), folder.join("man1"));
    for folder in [&completions, &pages] {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    for shell in [Shell::Bash, Shell::Fish, Shell::Zsh] {
        clap_complete::generate_to(shell, &mut command(), "denizen-agent", &completions)
            .with_context(|| format!("cannot write the completions for {shell}"))?;
    }
    clap_mangen::generate_to(command(), &pages).context("cannot write the man pages")
}
