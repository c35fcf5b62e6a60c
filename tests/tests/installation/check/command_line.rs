//! Its exit codes, and its page for a person.

use anyhow::{Result, ensure};
use denizen_tests::agent::check::CheckedNode;
use denizen_tests::binary;
use std::process::Command;

#[test]
fn a_wrong_flag_has_an_exit_code_of_its_own() -> Result<()> {
    for flag in
        ["--sysctl-dir=/nowhere", "--nodeport-addresses=x", "--unknown", "--config=/nowhere"]
    {
        let output = Command::new(binary::ours("denizen-agent")?).args(["check", flag]).output()?;
        let printed = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.code() == Some(2) && output.stdout.is_empty(), "{flag}: {output:?}");
        let name = flag.split('=').next().unwrap_or_default().trim_start_matches('-');
        ensure!(printed.contains(name) || printed.contains("/nowhere"), "{flag}: {printed}");
    }
    Ok(())
}

#[test]
fn a_person_reads_groups_reasons_and_what_to_do() -> Result<()> {
    let node = CheckedNode::new("check-page")?;
    node.netns.sysctl("net.ipv4.ip_forward", "0")?;
    let agent = binary::ours("denizen-agent")?;
    let mut command = Command::new(agent);
    command.arg("check").args(node.flags());
    let output = node.netns.run(|| command.output())??;
    let text = String::from_utf8_lossy(&output.stdout);
    for line in [
        "kernel\n  ok       permissions ",
        "\nsettings\n  FAILURE  forwarding ",
        "what to do: sysctl -w net.ipv4.ip_forward=1, ",
        ", warning 0, failure 1, ",
    ] {
        ensure!(text.contains(line), "{line:?}: {text}");
    }
    assert_eq!(output.status.code(), Some(1));
    Ok(())
}
