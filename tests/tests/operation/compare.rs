//! `tests/compare`: what it says without its files, and that it measures what it says. Never a time.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};
use denizen_tests::binary;
use denizen_tests::conf;

fn compare(words: &[&str]) -> Result<Output> {
    script("compare", words)
}

fn script(name: &str, words: &[&str]) -> Result<Output> {
    let mut command = Command::new(conf::folder().join("../tests").join(name));
    command.args(words).output().context("it cannot be run")
}

/// `tests/apiserver`, whose file no test has.
#[test]
fn without_an_apiserver_it_says_what_it_needs() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let alone = folder.path().join("kube-apiserver");
    fs::copy("/bin/true", &alone)?;
    let alone = alone.to_str().context("a path")?;
    for (words, printed) in [
        (&[][..], "the program kube-apiserver is missing"),
        (&["/bin/true"], "it must be called kube-apiserver"),
        (&["/nowhere/kube-apiserver"], "/nowhere/kube-apiserver: there is no such program"),
        (&[alone], "/etcd: there is no such program"),
        (&[alone, "1", "1", "1"], "what is 1?"),
    ] {
        let output = script("apiserver", words)?;
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{words:?}: {error}");
        ensure!(error.contains(printed) && error.lines().count() == 1, "{words:?}: {error}");
    }
    Ok(())
}

/// It begins nothing that takes minutes.
#[test]
fn without_its_files_it_says_where_they_are() -> Result<()> {
    let elsewhere = "/nowhere/kube-proxy";
    for (words, printed) in [
        (&[][..], "from the Kubernetes release page"),
        (&["--kube-proxy", elsewhere], "/nowhere/kube-proxy: there is no such program"),
        (&["--kube-proxy"], "its value is missing"),
        (&["--shape", "--apiserver", "/bin/sh"], "it must be called kube-apiserver"),
        (&["--fast"], "what is --fast?"),
    ] {
        let output = compare(words)?;
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{words:?}: {error}");
        ensure!(error.contains(printed) && error.lines().count() == 1, "{words:?}: {error}");
        ensure!(output.stdout.is_empty(), "{output:?}");
    }
    let help = String::from_utf8(compare(&["--help"])?.stdout)?;
    ensure!(help.contains("kubernetes-server-linux-ARCHITECTURE.tar.gz"), "{help}");
    Ok(())
}

/// Measures a few services with the programs that tests have. The rows of the table.
fn measured(other: &[&str]) -> Result<Vec<Vec<String>>> {
    let out = tempfile::tempdir()?;
    let mut command = Command::new(binary::ours("compare")?);
    command.arg("--denizen").arg(binary::ours("denizen-agent")?).arg("--out").arg(out.path());
    let small = ["--services", "5", "--changes", "2", "--connections", "20"];
    let output = command.args(small).args(other).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let table = String::from_utf8(output.stdout)?;
    let rows = table.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| ---"));
    let cells = |line: &str| {
        let cells = line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned());
        cells.collect::<Vec<String>>()
    };
    let rows: Vec<_> = rows.map(cells).collect();
    assert_eq!(rows.len(), 8, "{table}");
    let written = fs::read_to_string(out.path().join("compare.md"))?;
    assert_eq!(written.trim(), table.trim());
    let picture = fs::read_to_string(out.path().join("compare.svg"))?;
    ensure!(picture.starts_with("<svg ") && picture.contains(&rows[1][1]), "{picture}");
    Ok(rows)
}

fn is_figure(cell: &str) -> bool {
    cell.starts_with(|c: char| c.is_ascii_digit())
}

#[test]
fn of_a_shape_is_measured_what_the_kernel_does() -> Result<()> {
    let rows = measured(&["--shape"])?;
    assert_eq!(rows[0], ["", "Denizen", "nft -f of kube-proxy's rules", "times"]);
    for row in &rows[1..] {
        let kernels = ["start", "change", "one connection"];
        let is_kernels = kernels.iter().any(|what| row[0].starts_with(what));
        ensure!(is_figure(&row[1]) && is_figure(&row[2]) == is_kernels, "{row:?}");
    }
    Ok(())
}

/// As kube-proxy: a program that takes its configuration. Tests do not have the real one.
#[test]
fn of_a_program_everything_is_measured() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let program = folder.path().join("kube-proxy");
    let agent = binary::ours("denizen-agent")?;
    let flags = "--network-policy=off --cni-cache-dir= --run-dir \"$(dirname \"$2\")/proxy\"";
    let script = "#!/bin/sh\n[ \"$1\" != --version ] || { echo Kubernetes v1.99.0; exit; }\n";
    let run = format!("{script}exec {} run {flags} \"$@\"", agent.display());
    fs::write(&program, format!("{run}\n"))?;
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
    let rows = measured(&["--kube-proxy", &program.display().to_string(), "--mode", "nftables"])?;
    assert_eq!(rows[0], ["", "Denizen", "kube-proxy 1.99.0 (nftables)", "times"]);
    for row in &rows[1..] {
        ensure!(row[1..].iter().all(|cell| is_figure(cell)), "{row:?}");
    }
    let fails = |program_text: &str, words: &[&str]| -> Result<()> {
        fs::write(&program, program_text)?;
        let error = measured(&["--kube-proxy", &program.display().to_string()]).err();
        let error = format!("{:#}", error.context("it was measured")?);
        ensure!(words.iter().all(|word| error.contains(word)), "{error}");
        Ok(())
    };
    // It falls back to another mode, or ends as a Go program does.
    fails(&format!("{run} --backend=iptables\n"), &["it works in mode iptables"])?;
    let ends = "#!/bin/sh\nprintf 'F1128 no such flag\\ngoroutine 1 [running]:\\n' >&2\nexit 3\n";
    fails(ends, &["kube-proxy (nftables)", "no such flag"])
}
