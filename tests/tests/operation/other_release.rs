//! An agent of another release takes over the rules of this one, and this one takes over its rules,
//! while clients connect; and each removes the other's. Rules are known by their ids. Its plugin's
//! pods are this one's pods, and the other way around.
//!
//! The other release is the one whose programs `DENIZEN_PREVIOUS_RELEASE` names. Without it, it is
//! this one with other texts.

use std::collections::HashSet;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use denizen_tests::agent::Agent;
use denizen_tests::binary;
use denizen_tests::eventually::eventually;
use denizen_tests::kernel::iptables::Variant;
use denizen_tests::kernel::ruleset::{self, Monitor};
use denizen_tests::node::cni;
use denizen_tests::node::fixture::{Fixture, Host, is_local, service_ips};
use denizen_tests::node::netns::{Netns, checked, folder};
use denizen_tests::node::pod::{Pod, Wiring};
use denizen_tests::oracle::flows::table::Backend;
use denizen_tests::packets::long_connection::{self, LongConnection};
use denizen_tests::test_length;
use serde_json::json;
use tempfile::TempDir;

/// Every text of `Why`, as it stands in its source.
fn texts() -> Vec<&'static str> {
    let source = include_str!("../../../node-agent/backend/src/why.rs");
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

/// Lines without comments, and the whole text.
type Rules = (Vec<String>, String);

/// What is in the kernel without comments, but with the ids of rules. The order of jumps in others'
/// chains means nothing.
fn rules(node: &Netns, backend: Backend) -> Result<Rules> {
    let text = match backend {
        Backend::Nftables | Backend::Ipvs => ruleset::dump(node)?,
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

/// The two releases on one node.
struct Releases {
    fixture: Fixture,
    backend: Backend,
    ours: PathBuf,
    other: PathBuf,
    /// Whether the other is a release, and not this one in other words.
    is_previous: bool,
    _folder: Option<TempDir>,
}

impl Releases {
    fn new(label: &str, backend: Backend) -> Result<Self> {
        let fixture = long_connection::fixture(label)?;
        for program in ["iptables-legacy", "iptables-nft"] {
            fixture.cluster.world.node.output(program, &["-P", "FORWARD", "DROP"])?;
        }
        let (folder, other) = match binary::previous("denizen-agent") {
            Some(previous) => (None, previous),
            None => in_other_words().map(|(folder, path)| (Some(folder), path))?,
        };
        let ours = binary::ours("denizen-agent")?;
        let is_previous = folder.is_none();
        Ok(Self { fixture, backend, ours, other, is_previous, _folder: folder })
    }

    fn node(&self) -> &Netns {
        &self.fixture.cluster.world.node
    }

    /// Starts `program`, and returns it with the rules that it leaves when all is done.
    fn start(&self, program: &Path) -> Result<(Agent, Rules)> {
        let mut settings = self.fixture.cluster.settings_with(self.backend.flags());
        settings.flags.push("--open-forward".to_owned());
        settings.program = Some(program.to_owned());
        let agent = Agent::start(self.node(), settings)?;
        eventually("FORWARD is open", Duration::from_secs(20), || {
            Ok(Variant::Legacy.dump(self.node())?.matches("denizen: ").count() >= 2)
        })?;
        let status = agent.status()?;
        ensure!(status["errors"] == json!([]) && status["driftRepaired"] == 0, "{status}");
        let rules = rules(self.node(), self.backend)?;
        Ok((agent, rules))
    }

    /// Ends `agent`, and starts `program` over its rules.
    fn replace(&self, agent: Agent, program: &Path) -> Result<(Agent, Rules)> {
        let (before, _) = rules(self.node(), self.backend)?;
        let monitor = Monitor::start(self.node())?;
        agent.terminate()?;
        let (agent, after) = self.start(program)?;
        let changes = monitor.changes(self.node())?;
        let new = after.0.iter().filter(|line| !before.contains(line)).count();
        eprintln!(
            "{new} of {} lines are new, {} changes in nf_tables",
            after.0.len(),
            changes.len()
        );
        if !self.is_previous {
            ensure!(after.0 == before, "{before:#?}\n{:#?}", after.0);
            // In iptables a comment is a part of its rule.
            ensure!(changes.is_empty() || self.backend != Backend::Nftables, "{changes:#?}");
        }
        Ok((agent, after))
    }

    /// A pod is added by one plugin, which waits for the agent, and deleted by the other.
    fn pod_comes_and_goes(&self, adds: &Path, deletes: &Path) -> Result<()> {
        let cluster = &self.fixture.cluster;
        let mut chain = cluster.chain(Wiring::Routed).clone();
        chain.wait_as(&json!({ "timeout": "10s", "onTimeout": "fail" }));
        let mut by = |plugin: &Path| {
            chain.plugins[1]["type"] = json!(plugin);
            chain.clone()
        };
        let (before, _) = rules(self.node(), self.backend)?;
        let pod = Pod::attach(self.node(), Netns::new("release-pod")?, "late", &by(adds))?;
        ensure!(is_local(&pod), "programmed before ADD returned");
        pod.through(&by(deletes)).detach(self.node())?;
        // DEL waits for the agent, but not for long.
        eventually("the pod is forgotten", Duration::from_secs(20), || {
            Ok(rules(self.node(), self.backend)?.0 == before)
        })
    }
}

fn take_over(label: &str, backend: Backend) -> Result<()> {
    let releases = Releases::new(label, backend)?;
    let Releases { fixture, ours, other, .. } = &releases;
    let (mut agent, theirs) = releases.start(other)?;
    let our_plugin = cni::denizen();
    let other_plugin = binary::previous("denizen").unwrap_or_else(cni::denizen);
    let from = fixture.place(Host::Bridged).0;
    let echo = service_ips(11).map(|ip| SocketAddr::new(ip, 7));
    let mut streams =
        echo.map(|to| LongConnection::open(from, to)).into_iter().collect::<Result<Vec<_>>>()?;
    let load = long_connection::load(fixture)?;
    let mut own = Vec::new();
    for _ in 0..test_length::times(10, 2) {
        let (newer, rules) = releases.replace(agent, ours)?;
        own = rules.0;
        releases.pod_comes_and_goes(&other_plugin, &our_plugin)?;
        let (older, rules) = releases.replace(newer, other)?;
        releases.pod_comes_and_goes(&our_plugin, &other_plugin)?;
        ensure!(rules.0 == theirs.0, "{:#?}\n{:#?}", theirs.0, rules.0);
        agent = older;
    }
    let tally = load.stop()?;
    eprintln!("{tally:?}");
    ensure!(tally.failed == 0, "{tally:?}");
    streams.iter_mut().try_for_each(LongConnection::still_alive)?;
    agent.terminate()?;
    cleaned_up(releases.node(), ours).context("this release removes the other's")?;
    let (agent, alone) = releases.start(ours)?;
    ensure!(own == alone.0, "{:#?}\n{own:#?}", alone.0);
    ensure!(releases.is_previous || alone.1 != theirs.1, "it does say it in other words");
    agent.terminate()?;
    cleaned_up(releases.node(), other).context("the other release removes this one's")
}

#[test]
fn another_release_takes_over_and_is_taken_over_nftables() -> Result<()> {
    take_over("release-nft", Backend::Nftables)
}

#[test]
fn another_release_takes_over_and_is_taken_over_iptables_legacy() -> Result<()> {
    take_over("release-l", Backend::IptablesLegacy)
}

#[test]
fn another_release_takes_over_and_is_taken_over_iptables_nft() -> Result<()> {
    take_over("release-n", Backend::IptablesNft)
}
