//! `tests/compare`: what it says without its files, and that it measures what it says. Never a time.

use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};
use denizen_tests::binary;
use denizen_tests::conf;

fn compare(words: &[&str]) -> Result<Output> {
    let mut command = Command::new(conf::folder().join("../tests/compare"));
    command.args(words).output().context("tests/compare")
}

/// It begins nothing that takes minutes.
#[test]
fn without_its_files_it_says_where_they_are() -> Result<()> {
    let elsewhere = "/nowhere/kube-proxy";
    for (words, said) in [
        (&[][..], "from the Kubernetes release page"),
        (&["--kube-proxy", elsewhere], "/nowhere/kube-proxy: there is no such program"),
        (&["--kube-proxy"], "its value is missing"),
        (&["--shape", "--apiserver", "/bin/sh"], "it must be called kube-apiserver"),
        (&["--fast"], "what is --fast?"),
    ] {
        let output = compare(words)?;
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{words:?}: {error}");
        ensure!(error.contains(said) && error.lines().count() == 1, "{words:?}: {error}");
        ensure!(output.stdout.is_empty(), "{output:?}");
    }
    let help = String::from_utf8(compare(&["--help"])?.stdout)?;
    ensure!(help.contains("kubernetes-server-linux-ARCHITECTURE.tar.gz"), "{help}");
    Ok(())
}

/// With a few services, and the programs that tests have.
#[test]
fn each_figure_is_measured_of_both() -> Result<()> {
    let out = tempfile::tempdir()?;
    let mut command = Command::new(binary::ours("compare")?);
    command.arg("--denizen").arg(binary::ours("denizen-agent")?).arg("--out").arg(out.path());
    let small = ["--shape", "--services", "5", "--changes", "2", "--connections", "20"];
    let output = command.args(small).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let table = String::from_utf8(output.stdout)?;
    let rows: Vec<Vec<&str>> = table
        .lines()
        .filter(|line| line.starts_with("| ") && !line.starts_with("| ---"))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    assert_eq!(rows[0], ["", "Denizen", "nft -f of kube-proxy's rules", "times"], "{table}");
    assert_eq!(rows.len(), 8, "{table}");
    for row in &rows[1..] {
        ensure!(row[1].starts_with(|c: char| c.is_ascii_digit()), "{row:?}");
        let has_other =
            ["start", "change", "one connection"].iter().any(|what| row[0].starts_with(what));
        assert_eq!(row[2] != "–", has_other, "{row:?}");
    }
    let written = std::fs::read_to_string(out.path().join("compare.md"))?;
    assert_eq!(written.trim(), table.trim());
    let picture = std::fs::read_to_string(out.path().join("compare.svg"))?;
    ensure!(picture.starts_with("<svg ") && picture.contains(rows[1][1]), "{picture}");
    Ok(())
}
