//! An agent of a release that says everything in other words: it takes over the rules of this one,
//! and this one takes over its rules, and each removes the other's. Rules are known by their ids.

use std::collections::HashSet;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use denizen_tests::binary;
use denizen_tests::contained::Contained;
use denizen_tests::eventually::eventually;
use denizen_tests::fixture::{Fixture, Who, service_ips};
use denizen_tests::flows::table::Backend;
use denizen_tests::iptables::Variant;
use denizen_tests::lasting::{self, Lasting};
use denizen_tests::load::Load;
use denizen_tests::netns::{Netns, checked, folder};
use denizen_tests::probe::Protocol;
use denizen_tests::ruleset;
use serde_json::json;
use tempfile::TempDir;

/// Every text of `Why`, as it stands in its source.
fn texts() -> Vec<&'static str> {
    let source = include_str!("../../../node-agent/src/backend/why.rs");
    let (_, body) = source.split_once("pub fn text(self)").expect("what a rule says");
    body.split('"').skip(1).step_by(2).collect()
}

/// As long, and another one.
fn other(text: &str) -> Vec<u8> {
    let turned = |byte: u8| match byte {
        b'a'..=b'z' => (byte - b'a' + 13) % 26 + b'a',
        b'A'..=b'Z' => (byte - b'A' + 13) % 26 + b'A',
        byte => byte,
    };
    text.bytes().map(turned).collect()
}

/// A copy of the agent with other texts.
fn in_other_words() -> Result<(TempDir, PathBuf)> {
    let mut program = fs::read(binary::ours("denizen-agent")?)?;
    let texts = texts();
    let two = |bytes: &[u8]| usize::from(bytes[0]) << 8 | usize::from(bytes[1]);
    let mut begin_so = vec![Vec::new(); 1 << 16];
    texts.iter().for_each(|text| begin_so[two(text.as_bytes())].push(*text));
    let mut found = HashSet::new();
    for at in 0..program.len() - 1 {
        let candidates = begin_so[two(&program[at..])].iter();
        let here = candidates.filter(|text| program[at..].starts_with(text.as_bytes()));
        if let Some(text) = here.max_by_key(|text| text.len()) {
            program[at..at + text.len()].copy_from_slice(&other(text));
            found.insert(*text);
        }
    }
    for text in texts {
        ensure!(found.contains(text), "not in the program: {text}");
    }
    let folder = folder()?;
    let path = folder.path().join("denizen-agent");
    fs::write(&path, program)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    Ok((folder, path))
}

/// Runs that program in place of the agent.
fn instead(program: &Path) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", "other=$1; shift 2; exec \"$other\" \"$@\"", "sh"]).arg(program);
    command
}

/// What is in the kernel without comments, but with the ids of rules. The order of jumps in others'
/// chains means nothing.
fn rules(node: &Netns, backend: Backend) -> Result<(Vec<String>, String)> {
    let text = match backend {
        Backend::Nftables => ruleset::dump(node)?,
        Backend::IptablesLegacy => Variant::Legacy.dump(node)?,
        Backend::IptablesNft => Variant::Nft.dump(node)?,
    };
    let mut lines: Vec<String> = text.lines().map(without_words).collect();
    let is_own = |line: &String| line.contains(" KUBE-") || line.contains(" DENIZEN-");
    if backend != Backend::Nftables {
        lines.sort_by_key(|line| {
            let chain: Vec<&str> = line.split(' ').take(4).collect();
            let is_ours = chain.get(3).is_some_and(|chain| is_own(&format!(" {chain}")));
            (chain.join(" "), if is_ours { String::new() } else { line.clone() })
        });
    }
    Ok((lines, text))
}

/// A line without the words of its comment: an id is one word of hexadecimal digits.
fn without_words(line: &str) -> String {
    let Some((before, rest)) = line.split_once("comment \"") else { return line.to_owned() };
    let Some((comment, after)) = rest.split_once('"') else { return line.to_owned() };
    let first = comment.split(' ').next().unwrap_or_default();
    let is_id = first.len() == 8 && first.bytes().all(|byte| byte.is_ascii_hexdigit());
    format!("{before}comment {}{after}", if is_id { first } else { "" })
}

fn cleaned_up(node: &Netns, program: &Path) -> Result<()> {
    node.run(|| checked(Command::new(program).arg("cleanup")))??;
    for variant in Variant::BOTH {
        let left = variant.dump(node)?;
        let is_left = ["KUBE-", "DENIZEN-", "denizen"].iter().any(|word| left.contains(word));
        ensure!(!is_left, "{variant:?}: {left}");
    }
    let tables = node.output("nft", &["list", "ruleset"])?;
    ensure!(!tables.contains("denizen"), "{tables}");
    Ok(())
}

/// Clients that connect to the web service without pause.
fn load(fixture: &Fixture) -> Result<Load> {
    fixture.cluster.world.forget_quickly()?;
    let mut load = Load::default();
    for who in [Who::Bridged, Who::Routed, Who::Outside] {
        let web = (SocketAddr::new(service_ips(10)[0], 80), Protocol::Tcp);
        load.client(fixture.place(who).0, vec![web], |outcome| outcome.endpoint().is_some())?;
    }
    Ok(load)
}

/// This one's rules are taken over by the other, and back, while clients connect; then each removes
/// the other's.
fn words_mean_nothing(label: &str, backend: Backend) -> Result<()> {
    let fixture = lasting::fixture(label)?;
    let node = &fixture.cluster.world.node;
    let (_folder, other) = in_other_words()?;
    let ours = binary::ours("denizen-agent")?;
    for program in ["iptables-legacy", "iptables-nft"] {
        node.output(program, &["-P", "FORWARD", "DROP"])?;
    }
    let mut flags = backend.flags();
    flags.push("--open-forward".to_owned());
    let start = |program: &Path| {
        let agent = Contained::start_with(&fixture.cluster, instead(program), &flags)?;
        agent.until("in the kernel", |status| {
            status["synced"] == true && status["errors"] == json!([])
        })?;
        anyhow::Ok(agent)
    };
    let agent = start(&ours)?;
    eventually("FORWARD is open", Duration::from_secs(20), || {
        Ok(Variant::Legacy.dump(node)?.matches("denizen: ").count() >= 2)
    })?;
    let (before, text) = rules(node, backend)?;
    let mut stream =
        Lasting::open(fixture.place(Who::Bridged).0, SocketAddr::new(service_ips(11)[0], 7))?;
    let load = load(&fixture)?;
    drop(agent);
    let agent = start(&other)?;
    let (theirs, _) = rules(node, backend)?;
    ensure!(theirs == before, "{before:#?}\n{theirs:#?}");
    ensure!(agent.status()?["driftRepaired"] == 0, "{}", agent.status()?);
    drop(agent);
    let agent = start(&ours)?;
    let (again, _) = rules(node, backend)?;
    ensure!(again == before, "{before:#?}\n{again:#?}");
    let tally = load.stop()?;
    ensure!(tally.failed == 0, "{tally:?}");
    stream.still_alive()?;
    drop(agent);
    cleaned_up(node, &other).context("the other removes ours")?;
    drop(start(&other)?);
    ensure!(text != rules(node, backend)?.1, "it does say it in other words");
    cleaned_up(node, &ours).context("ours removes the other's")
}

#[test]
fn words_mean_nothing_nftables() -> Result<()> {
    words_mean_nothing("words-nft", Backend::Nftables)
}

#[test]
fn words_mean_nothing_iptables_legacy() -> Result<()> {
    words_mean_nothing("words-l", Backend::IptablesLegacy)
}

#[test]
fn words_mean_nothing_iptables_nft() -> Result<()> {
    words_mean_nothing("words-n", Backend::IptablesNft)
}
