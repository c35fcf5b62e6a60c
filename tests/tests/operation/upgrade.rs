//! Another agent, an older one or a newer one before this one: nothing is lost, and nobody works
//! against anybody.

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net;
use std::path::PathBuf;
use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};
use denizen_tests::agent::wrapped::WrappedAgent;
use denizen_tests::agent::{Agent, CNI_CACHE, Settings};
use denizen_tests::binary;
use denizen_tests::kernel::ruleset;
use denizen_tests::node::cluster::Cluster;
use denizen_tests::node::fixture::{Fixture, Host, PORT, is_local, service_ips};
use denizen_tests::node::manifest::Port;
use denizen_tests::node::netns::{Netns, checked};
use denizen_tests::node::pod::Wiring;
use denizen_tests::packets::probe::Protocol;
use denizen_tests::packets::server::Server;
use serde_json::{Value, json};

const HTTP: [Port; 1] = [Port::tcp("http", 80, PORT)];

fn cluster(label: &str, wait: &Value) -> Result<(Cluster, Server)> {
    let cluster = Cluster::new(label, wait)?;
    let server = cluster.remote_web(&service_ips(10), HTTP[0])?;
    Ok((cluster, server))
}

fn cleanup(node: &Netns) -> Result<Output> {
    let mut command = Command::new(binary::ours("denizen-agent")?);
    Ok(node.run(|| command.arg("cleanup").output())??)
}

#[test]
fn cleanup_refuses_while_an_agent_runs() -> Result<()> {
    let fixture = Fixture::new("upgrade-clean")?;
    let node = &fixture.cluster.world.node;
    let web = fixture.service("web", 10, &HTTP, &[Host::Remote])?;
    fixture.cluster.manifests.put("web", &web)?;
    let agent = fixture.cluster.start_agent()?;
    let before = node.output("nft", &["list", "tables"])?;
    let refused = cleanup(node)?;
    let printed = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success());
    for part in ["stop it first", &agent.pid().to_string()] {
        assert!(printed.contains(part), "{part}: {printed}");
    }
    assert_eq!(node.output("nft", &["list", "tables"])?, before);
    assert_eq!(agent.status()?["driftRepaired"], 0, "nothing was touched");
    agent.terminate()?;
    assert!(cleanup(node)?.status.success());
    assert_eq!(node.output("nft", &["list", "tables"])?, "");
    Ok(())
}

/// What the plugin may still need stays, with the reason. Everything else goes.
#[test]
fn cleanup_leaves_what_the_plugin_needs_and_says_why() -> Result<()> {
    let (cluster, _server) = cluster("upgrade-left", &Value::Null)?;
    let _pod = cluster.add_pod("pod", Wiring::Routed)?;
    let run_dir = cluster.run_dir();
    // As after an agent that was killed, that had other flags, and that found a spoilt file.
    let egress = cluster.world.folder().join("egress.json");
    fs::write(&egress, r#"{ "nonMasqueradeCIDRs": ["10.0.0.0/8"] }"#)?;
    let flag = format!("--egress-masquerade-config={}", egress.display());
    cluster.start_agent_with([flag])?.kill()?;
    fs::create_dir(run_dir.join("bird"))?;
    for name in ["bird/bird.conf", "bird/bird.ctl", "pods.json.bad-20261125T120000Z"] {
        fs::write(run_dir.join(name), "")?;
    }
    let files = || -> Result<BTreeSet<String>> {
        let names = fs::read_dir(run_dir)?.flatten();
        Ok(names.filter_map(|entry| entry.file_name().into_string().ok()).collect())
    };
    // What the tests have put there.
    let tests = ["agent.log", CNI_CACHE].map(str::to_owned);
    let stays = ["network-policy.off", "pods.json", "pods.json.lock"].map(str::to_owned);
    ensure!(files()?.contains("agent.sock") && files()?.contains("egress.json"), "{:?}", files()?);
    let mut command = Command::new(binary::ours("denizen-agent")?);
    command.arg("cleanup").arg("--run-dir").arg(run_dir);
    let output = cluster.world.node.run(|| checked(&mut command))??;
    let printed = String::from_utf8(output.stdout)?;
    let left: BTreeSet<String> =
        files()?.into_iter().filter(|file| !tests.contains(file)).collect();
    assert_eq!(left, BTreeSet::from(stays.clone()), "{printed}");
    let kept = printed.lines().find(|line| line.starts_with("kept ")).context("it says nothing")?;
    for name in stays {
        ensure!(kept.contains(&name), "{name}: {kept}");
    }
    ensure!(kept.contains("plugin"), "{kept}");
    Ok(())
}

/// The state file, and what a newer program's minor version would have added to it.
struct StateFile(PathBuf);

impl StateFile {
    fn of(cluster: &Cluster) -> Self {
        Self(cluster.run_dir().join("pods.json"))
    }

    fn read(&self) -> Result<Value> {
        Ok(serde_json::from_slice(&fs::read(&self.0)?)?)
    }

    fn edit(&self, edit: impl FnOnce(&mut Value)) -> Result<()> {
        let mut state = self.read()?;
        edit(&mut state);
        let beside = self.0.with_extension("beside");
        fs::write(&beside, state.to_string())?;
        Ok(fs::rename(beside, &self.0)?)
    }

    /// Adds a field wherever there are fields.
    fn as_a_newer_one_writes(&self) -> Result<()> {
        self.edit(|state| {
            state["cluster"] = json!({ "of": "tomorrow" });
            let records = state["attachments"].as_object_mut();
            for (_, record) in records.into_iter().flatten() {
                record["vlan"] = json!([1, { "two": 2.5 }]);
                record["pod"]["priority"] = 7.into();
                record["hostInterface"]["speed"] = "100G".into();
            }
        })
    }
}

/// Who may program a network namespace is not for a name to say that any process can take.
#[test]
fn no_other_local_process_keeps_the_agent_from_starting() -> Result<()> {
    let cluster = Cluster::new("upgrade-name", &Value::Null)?;
    let node = &cluster.world.node;
    let name = net::SocketAddr::from_abstract_name("denizen-agent")?;
    let _taken = node.run(|| net::UnixListener::bind_addr(&name))??;
    let agent = cluster.start_agent()?;
    assert!(!cleanup(node)?.status.success(), "an agent runs");
    agent.terminate()?;
    assert!(cleanup(node)?.status.success(), "none runs any more");
    Ok(())
}

#[test]
fn a_second_agent_is_refused_whatever_its_run_directory() -> Result<()> {
    let cluster = Cluster::new("upgrade-second", &Value::Null)?;
    let node = &cluster.world.node;
    let first = cluster.start_agent()?;
    let elsewhere =
        Settings { run_dir: cluster.world.subfolder("elsewhere")?, ..cluster.settings() };
    let refused = Agent::start(node, elsewhere.clone()).err().context("two run")?.to_string();
    for part in ["another agent", &format!("process {}", first.pid())] {
        assert!(refused.contains(part), "{part}: {refused}");
    }
    // However the first ends, the lock ends with it.
    first.kill()?;
    Agent::start(node, elsewhere)?.terminate()?;
    Ok(())
}

#[test]
fn fields_of_a_newer_minor_version_are_kept() -> Result<()> {
    let (cluster, _server) = cluster("upgrade-minor", &Value::Null)?;
    let stays = cluster.add_pod("stays", Wiring::Routed)?;
    let crashes = cluster.add_pod("crashes", Wiring::Bridged)?;
    let leaves = cluster.add_pod("leaves", Wiring::Bridged)?;
    let file = StateFile::of(&cluster);
    file.as_a_newer_one_writes()?;
    let newer = file.read()?["attachments"][stays.attachment()].clone();
    let node = &cluster.world.node;
    node.ip(&format!("link del {}", crashes.host_interface()))?;
    let agent = WrappedAgent::start(&cluster, Command::new("env"))?;
    // It prunes what crashed; the plugin removes what leaves, and adds what comes.
    agent.until("two are left", |status| status["pods"] == 2)?;
    leaves.detach(node)?;
    let comes = cluster.add_pod("comes", Wiring::Routed)?;
    agent.until("it has come", |status| status["pods"] == 2 && status["synced"] == true)?;
    assert!(is_local(&stays) && is_local(&comes));
    let state = file.read()?;
    assert_eq!(state["cluster"], json!({ "of": "tomorrow" }));
    assert_eq!(state["attachments"][stays.attachment()], newer);
    assert_eq!(state["attachments"].as_object().map(serde_json::Map::len), Some(2));
    assert_eq!(agent.status()?["errors"], json!([]));
    Ok(())
}

#[test]
fn a_file_of_a_newer_version_is_left_alone_and_named() -> Result<()> {
    let (cluster, _server) = cluster("upgrade-major", &Value::Null)?;
    let pod = cluster.add_pod("pod", Wiring::Routed)?;
    let agent = WrappedAgent::start(&cluster, Command::new("env"))?;
    agent.until("it is known", |status| status["pods"] == 1 && status["synced"] == true)?;
    let file = StateFile::of(&cluster);
    file.edit(|state| state["version"] = 2.into())?;
    let text = fs::read(&file.0)?;
    let printed = |status: &Value| {
        let errors = status["errors"].to_string();
        errors.contains("version 2") && errors.contains("upgrade denizen-agent")
    };
    agent.until("it says so", printed)?;
    let error = cluster.add_pod("another", Wiring::Routed).expect_err("it would lose it");
    assert!(format!("{error:#}").contains("upgrade denizen"), "{error:#}");
    assert!(is_local(&pod), "what was known last is served");
    assert_eq!(fs::read(&file.0)?, text, "nobody touched it");
    file.edit(|state| state["version"] = 1.into())?;
    agent.until("it is read again", |status| status["errors"] == json!([]))?;
    Ok(())
}

/// As a downgrade finds them: rules of a version that makes more chains and maps, and fills the
/// known ones otherwise.
#[test]
fn rules_of_another_version_become_this_ones_without_a_gap() -> Result<()> {
    let fixture = Fixture::new("upgrade-rules")?;
    let node = &fixture.cluster.world.node;
    let web = fixture.service("web", 10, &HTTP, &[Host::Remote])?;
    fixture.cluster.manifests.put("web", &web)?;
    fixture.cluster.start_agent()?.terminate()?;
    let wanted = ruleset::dump(node)?;
    for family in ["ip", "ip6"] {
        node.nft(&format!(
            "table {family} denizen {{
                 map of-tomorrow {{ type inet_service : verdict; elements = {{ 7 : goto for-tomorrow }} }}
                 set later {{ type ifname; elements = {{ \"cni9\" }} }}
                 chain for-tomorrow {{
                     counter drop
                 }}
                 chain enters {{
                     type filter hook prerouting priority -300
                     tcp dport vmap @of-tomorrow
                 }}
             }}"
        ))?;
    }
    ensure!(ruleset::dump(node)? != wanted, "that changed the rules");
    let agent = fixture.cluster.start_agent()?;
    assert_eq!(ruleset::dump(node)?, wanted);
    for who in [Host::Bridged, Host::Outside] {
        let to = SocketAddr::new(service_ips(10)[0], 80);
        let outcome = fixture.probe(who, to, Protocol::Tcp)?;
        assert!(outcome.endpoint().is_some(), "{who:?}: {outcome:?}");
    }
    assert_eq!(agent.status()?["errors"], json!([]));
    Ok(())
}
