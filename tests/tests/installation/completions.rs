//! Shell completions and man pages, as a package has them.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use anyhow::{Result, ensure};
use denizen_agent::cli::command;
use denizen_tests::binary;
use denizen_tests::node::netns::checked;

#[test]
fn every_command_has_a_man_page_and_bash_takes_its_completions() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let program = binary::ours("examples/completions-and-man-pages")?;
    checked(Command::new(program).arg(folder.path()))?;
    let completions = folder.path().join("completions");
    let bash = completions.join("denizen-agent.bash");
    checked(Command::new("bash").arg("-n").arg(&bash))?;
    let bash = fs::read_to_string(bash)?;
    for file in ["denizen-agent.fish", "_denizen-agent"] {
        ensure!(!fs::read_to_string(completions.join(file))?.is_empty(), "{file}");
    }
    let pages = fs::read_dir(folder.path().join("man1"))?;
    let pages: BTreeSet<String> = pages
        .map(|page| Ok(page?.file_name().to_string_lossy().into_owned()))
        .collect::<Result<_>>()?;
    for sub in command().get_subcommands() {
        let name = sub.get_name();
        ensure!(pages.contains(&format!("denizen-agent-{name}.1")), "{name}: {pages:?}");
        ensure!(bash.contains(name), "{name}");
        for flag in sub
            .get_arguments()
            .filter(|argument| !argument.is_hide_set())
            .filter_map(clap::Arg::get_long)
        {
            ensure!(bash.contains(&format!("--{flag}")), "{name} --{flag}");
            let page = folder.path().join(format!("man1/denizen-agent-{name}.1"));
            let page = fs::read_to_string(page)?.replace("\\-", "-");
            ensure!(page.contains(&format!("--{flag}")), "{name} --{flag}");
        }
    }
    ensure!(pages.contains("denizen-agent.1"), "{pages:?}");
    Ok(())
}
