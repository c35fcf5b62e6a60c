//! `tests/quickstart --keep`: what it tells people to try works on the node that it leaves.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use denizen_tests::node::netns::checked;

/// Takes the node away, whatever became of the test.
struct Cleanup;

impl Drop for Cleanup {
    fn drop(&mut self) {
        let _ = Command::new(quickstart()).arg("--cleanup").status();
    }
}

fn quickstart() -> &'static str {
    env!("CARGO_BIN_EXE_quickstart")
}

/// What a command that succeeds prints.
fn output_of(command: &mut Command) -> Result<String> {
    Ok(String::from_utf8_lossy(&checked(command)?.stdout).into_owned())
}

#[test]
fn the_commands_that_are_printed_work_on_the_node_that_is_left_up() -> Result<()> {
    let _cleanup = Cleanup;
    let output = output_of(Command::new(quickstart()).arg("--keep"))?;
    let (_, left) = output.split_once("The node is left up").context("no end")?;
    let commands = left.lines().filter_map(|line| line.strip_prefix("      "));
    // The editor waits for a person, and the last one takes the node away.
    let is_tried = |line: &&str| !line.starts_with("$EDITOR") && !line.contains("--cleanup");
    let commands: Vec<&str> = commands.filter(is_tried).collect();
    ensure!(commands.len() >= 5, "{left}");
    for command in &commands {
        output_of(Command::new("bash").args(["-c", command]))?;
    }
    let check = commands.iter().find(|command| command.contains("denizen-agent check"));
    let check = check.with_context(|| format!("no check: {left}"))?;
    let found = output_of(Command::new("bash").args(["-c", check]))?;
    ensure!(found.contains("warning 0, failure 0"), "{found}");
    Ok(())
}
