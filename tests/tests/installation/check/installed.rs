//! A node with denizen: the plugin, its records, the agent.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use denizen_tests::agent::check::CheckReport;
use denizen_tests::agent::{Agent, Objects, Settings};
use denizen_tests::binary;
use denizen_tests::eventually::eventually;
use denizen_tests::kernel::table_owner::TableOwner;
use denizen_tests::node::cluster::{Cluster, NODE};
use denizen_tests::node::fixture::Fixture;
use denizen_tests::node::pod::Wiring;
use serde_json::{Value, json};

/// What has not happened by then never will.
const TIMEOUT: Duration = Duration::from_secs(60);

struct Installed {
    fixture: Fixture,
    conflist: PathBuf,
    plugin: PathBuf,
}

impl Installed {
    fn new(label: &str) -> Result<Self> {
        let fixture = Fixture::new(label)?;
        let world = &fixture.cluster.world;
        let conflist = world.subfolder("net.d")?.join("10-pods.conflist");
        let plugin = world.subfolder("bin")?.join("denizen");
        let installed = Self { fixture, conflist, plugin };
        installed.put_right()?;
        Ok(installed)
    }

    /// The plugin and its configuration, as `install-cni` puts them there.
    fn put_right(&self) -> Result<()> {
        self.configure(&[json!({ "type": "bridge" }), self.entry()])?;
        let _ = fs::remove_file(&self.plugin);
        fs::copy(binary::ours("denizen")?, &self.plugin)?;
        Ok(())
    }

    fn entry(&self) -> Value {
        json!({ "type": "denizen", "runDir": self.fixture.cluster.run_dir() })
    }

    fn configure(&self, plugins: &[Value]) -> Result<()> {
        let list = json!({ "cniVersion": "1.0.0", "name": "pods", "plugins": plugins });
        Ok(fs::write(&self.conflist, list.to_string())?)
    }

    /// A program in the plugin's place.
    fn replace_plugin(&self, script: &str) -> Result<()> {
        fs::remove_file(&self.plugin)?;
        fs::write(&self.plugin, script)?;
        Ok(fs::set_permissions(&self.plugin, fs::Permissions::from_mode(0o755))?)
    }

    fn check(&self, flags: &[&str]) -> Result<CheckReport> {
        let cluster = &self.fixture.cluster;
        let folder = |path: &PathBuf| path.parent().map(|parent| parent.display().to_string());
        let ours = [
            ("manifests", cluster.manifests.folder().display().to_string()),
            ("run-dir", cluster.run_dir().display().to_string()),
            ("node-name", NODE.to_owned()),
            ("cni-conf-dir", folder(&self.conflist).context("a folder")?),
            ("cni-bin-dir", folder(&self.plugin).context("a folder")?),
        ];
        let ours = ours.map(|(flag, value)| format!("--{flag}={value}")).into_iter();
        let flags = flags.iter().map(|flag| (*flag).to_owned());
        CheckReport::on(&cluster.world.node, ours.chain(flags))
    }
}

/// Answers `VERSION`, and says by hand that it is of another release.
const OTHER_RELEASE: &str = r#"#!/bin/sh
case "$CNI_COMMAND" in
VERSION) echo '{"cniVersion":"1.0.0","supportedVersions":["1.0.0"]}' ;;
*) echo 'denizen 0.0.1: a chained CNI plugin' >&2 ;;
esac
"#;

#[test]
fn each_fault_of_the_plugin_and_its_configuration_is_found() -> Result<()> {
    let node = Installed::new("check-plugin")?;
    let _agent = node.fixture.cluster.start_agent()?;
    node.check(&[])?.ensure_well()?;
    type Fault = (&'static str, fn(&Installed) -> Result<()>, [&'static str; 3]);
    let faults: [Fault; 6] = [
        (
            "not in the configuration",
            |node| node.configure(&[json!({ "type": "bridge" })]),
            ["cni-configuration", "failure", "does not call denizen"],
        ),
        (
            "not the last",
            |node| {
                node.configure(&[
                    json!({ "type": "bridge" }),
                    node.entry(),
                    json!({ "type": "tuning" }),
                ])
            },
            ["cni-configuration", "warning", "bridge, denizen, tuning"],
        ),
        (
            "another run directory",
            |node| node.configure(&[json!({ "type": "bridge" }), json!({ "type": "denizen" })]),
            ["cni-configuration", "failure", "records in /run/denizen, not in"],
        ),
        (
            "no program",
            |node| Ok(fs::remove_file(&node.plugin)?),
            ["plugin", "failure", "cannot read"],
        ),
        (
            "another program",
            |node| node.replace_plugin("#!/bin/sh\nexit 1\n"),
            ["plugin", "failure", "does not answer VERSION"],
        ),
        (
            "another release",
            |node| node.replace_plugin(OTHER_RELEASE),
            ["plugin", "warning", "of release 0.0.1"],
        ),
    ];
    for (what, make, [name, verdict, words]) in faults {
        make(&node)?;
        node.check(&[])?.ensure_only(name, verdict, words).context(what)?;
        node.put_right()?;
    }
    node.check(&[])?.ensure_well()
}

#[test]
fn settings_that_differ_beside_a_running_agent_are_found() -> Result<()> {
    let node = Installed::new("check-beside")?;
    let _agent = node.fixture.cluster.start_agent()?;
    let netns = &node.fixture.cluster.world.node;
    node.check(&[])?.ensure_well()?;
    let timeout = "net.netfilter.nf_conntrack_tcp_timeout_close_wait";
    netns.sysctl(timeout, "5")?;
    let found = node.check(&[])?;
    found.ensure_only(
        "conntrack-settings",
        "warning",
        "nf_conntrack_tcp_timeout_close_wait is 5, not 3600",
    )?;
    netns.sysctl(timeout, "3600")?;
    netns.sysctl("net.bridge.bridge-nf-call-ip6tables", "0")?;
    let found = node.check(&[])?;
    found.ensure_only("bridge-filter", "failure", "bridge-nf-call-ip6tables is 0, not 1")?;
    netns.sysctl("net.bridge.bridge-nf-call-ip6tables", "1")?;
    let sysctls = node.fixture.cluster.world.subfolder("sys")?;
    fs::create_dir(sysctls.join("net"))?;
    let found = node.check(&[&format!("--sysctl-dir={}", sysctls.display())])?;
    found.ensure("br-netfilter", "failure", "not loaded")?;
    assert_eq!(found.code, 1);
    netns.nft("table ip kube-proxy { }")?;
    node.check(&[])?.ensure_only("service-proxies", "warning", "or left its rules")
}

/// As in step 3 of conf/MIGRATION.md: kube-proxy has its rules and its ports still.
#[test]
fn the_ports_of_a_kube_proxy_that_still_runs_are_no_failure() -> Result<()> {
    const PORTS: [&str; 2] = ["0.0.0.0:10256", "127.0.0.1:10249"];
    let node = Installed::new("check-migrate")?;
    let netns = &node.fixture.cluster.world.node;
    let _taken = PORTS.map(|at| netns.run(|| TcpListener::bind(at)));
    netns.nft("table ip kube-proxy { }")?;
    let agent = node.fixture.cluster.start_agent()?;
    eventually("it says that it cannot listen", TIMEOUT, || {
        let errors = agent.status()?["errors"].to_string();
        Ok(PORTS.iter().all(|at| errors.contains(at)))
    })?;
    let found = node.check(&[])?;
    for at in PORTS {
        found.ensure("ports", "warning", at)?;
    }
    assert_eq!((found.code, found.unwell()), (0, vec!["service-proxies", "ports"]), "{found}");
    // Whoever else has them is in the way for good.
    netns.nft("delete table ip kube-proxy")?;
    let found = node.check(&[])?;
    for at in PORTS {
        found.ensure("status", "failure", at)?;
    }
    Ok(())
}

/// Pods from before the installation may be the only ones that are left.
#[test]
fn that_the_plugin_was_called_is_remembered() -> Result<()> {
    let node = Installed::new("check-called")?;
    let cluster = &node.fixture.cluster;
    let earlier = cluster.add_pod_without_denizen("earlier", Wiring::Routed)?;
    cluster.remember(&earlier)?;
    for pod in [&node.fixture.bridged, &node.fixture.routed] {
        pod.forget(&cluster.world.node)?;
    }
    let agent = cluster.start_agent()?;
    node.check(&[])?.ensure_only("records", "warning", "all 1 recorded pods were adopted")?;
    let later = cluster.add_pod("later", Wiring::Routed)?;
    eventually("the call is noted", TIMEOUT, || was_called(cluster))?;
    later.detach(&cluster.world.node)?;
    let well = "the plugin was called; of the pods that it recorded, none is left";
    node.check(&[])?.ensure("records", "ok", well)?;
    // A lost file is written again.
    fs::remove_file(cluster.run_dir().join("pods.json"))?;
    eventually("it is written again", TIMEOUT, || Ok(was_called(cluster).unwrap_or(false)))?;
    node.check(&[])?.ensure("records", "ok", well)?;
    agent.terminate()?;
    Ok(())
}

fn was_called(cluster: &Cluster) -> Result<bool> {
    let state: Value = serde_json::from_slice(&fs::read(cluster.run_dir().join("pods.json"))?)?;
    Ok(state["pluginWasCalled"] == true)
}

/// `--hairpin-mode=none` beside the CNI plugin `bridge` as it is by default.
#[test]
fn pods_that_do_not_reach_themselves_are_named() -> Result<()> {
    let node = Installed::new("check-hairpin")?;
    let cluster = &node.fixture.cluster;
    let port = node.fixture.bridged.host_interface();
    cluster.world.node.ip(&format!("link set {port} type bridge_slave hairpin off"))?;
    let agent = cluster.start_agent_with(["--hairpin-mode=none"])?;
    let words = "pod default/bridged cannot reach itself through a service";
    node.check(&[])?.ensure_only("status", "warning", words)?;
    agent.terminate()?;
    let _agent = cluster.start_agent()?;
    node.check(&[])?.ensure_well()
}

/// What only the agent sees.
#[test]
fn a_warning_of_the_agent_is_repeated() -> Result<()> {
    let node = Installed::new("check-warned")?;
    let cluster = &node.fixture.cluster;
    let agent = cluster.start_agent()?;
    node.check(&[])?.ensure_well()?;
    let _pod = cluster.add_pod_without_denizen("unrecorded", Wiring::Routed)?;
    agent.until("it is missed", TIMEOUT, |status| status["unrecordedInterfaces"] == 1)?;
    node.check(&[])?.ensure_only("status", "warning", "looks like a pod's and has no record")
}

#[test]
fn an_agent_that_cannot_program_the_kernel_is_found() -> Result<()> {
    let node = Installed::new("check-stuck")?;
    let cluster = &node.fixture.cluster;
    let _owned = TableOwner::table(&cluster.world.node, "ip")?;
    let agent = Agent::spawn(&cluster.world.node, cluster.settings_with(["--backend=nftables"]))?;
    let is_stuck = |status: &Value| status["waitingFor"] == json!([]) && status["synced"] == false;
    eventually("it answers", TIMEOUT, || Ok(agent.status().is_ok()))?;
    agent.until("it tries", TIMEOUT, is_stuck)?;
    let found = node.check(&[])?;
    found.ensure("rules", "failure", "not in the kernel yet")?;
    found.ensure("nftables", "failure", "owned by another process")
}

#[test]
fn an_agent_that_does_not_work_is_found() -> Result<()> {
    let node = Installed::new("check-agent")?;
    let cluster = &node.fixture.cluster;
    node.check(&[])?.ensure_only("running", "failure", "no agent answers")?;
    let taken = cluster.world.node.run(|| TcpListener::bind("127.0.0.1:10249"))??;
    let agent = cluster.start_agent()?;
    eventually("it says that it cannot listen", TIMEOUT, || {
        Ok(agent.status()?["errors"].to_string().contains("10249"))
    })?;
    node.check(&[])?.ensure_only("status", "failure", "127.0.0.1:10249")?;
    drop(taken);
    assert!(agent.terminate()?.success());
    let hook = "type filter hook forward priority 0; policy drop;";
    let table = format!("table inet strict {{ chain forward {{ {hook} }}; }}");
    cluster.world.node.nft(&table)?;
    let nowhere = cluster.world.folder().join("nowhere");
    let settings = Settings { objects: Objects::Manifests(nowhere), ..cluster.settings() };
    let agent = Agent::spawn(&cluster.world.node, settings)?;
    eventually("it answers", TIMEOUT, || Ok(agent.status().is_ok()))?;
    let found = node.check(&[])?;
    found.ensure("rules", "failure", "the agent waits for")?;
    assert_eq!(found.code, 1);
    // What another check says is not said again.
    eventually("it sees the firewall", TIMEOUT, || {
        Ok(agent.status()?["errors"].to_string().contains("chain forward"))
    })?;
    let found = node.check(&[])?;
    found.ensure("forward-chains", "failure", "chain forward drops all")?;
    assert!(found.ensure("status", "failure", "chain forward").is_err(), "{found:#?}");
    Ok(())
}
