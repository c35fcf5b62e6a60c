//! Pods that were attached without denizen are local pods all the same, those from before from the
//! agent's start on, those that come while it runs within moments; and a state file that is lost or
//! spoilt is written anew.

mod late;

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use denizen_shared::state::{Attachment, AttachmentId, RunDir};
use denizen_tests::agent::{Agent, CNI_CACHE};
use denizen_tests::cast::{PORT, is_local, service_ips};
use denizen_tests::cluster::Cluster;
use denizen_tests::eventually::eventually;
use denizen_tests::manifest::Port;
use denizen_tests::pod::{Pod, Wiring};
use denizen_tests::server::Server;
use serde_json::{Value, json};

/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

struct Stage {
    cluster: Cluster,
    _server: Server,
}

impl Stage {
    fn new(label: &str) -> Result<Self> {
        let cluster = Cluster::new(label, &Value::Null)?;
        let server = cluster.remote_web(&service_ips(10), Port::tcp("http", 80, PORT))?;
        Ok(Self { cluster, _server: server })
    }

    /// Writes what the runtime would remember.
    fn remember(&self, name: &str, text: &str) -> Result<PathBuf> {
        let folder = self.cluster.run_dir().join(CNI_CACHE).join("results");
        fs::create_dir_all(&folder)?;
        fs::write(folder.join(name), text)?;
        Ok(folder.join(name))
    }

    /// A pod that a runtime without denizen attached, and remembers by `edit` of what libcni writes
    /// today.
    fn earlier(
        &self,
        name: &str,
        wiring: Wiring,
        edit: impl FnOnce(&mut Value),
    ) -> Result<(Pod, PathBuf)> {
        let pod = self.cluster.add_pod_without_denizen(name, wiring)?;
        let netns = pod.netns.path();
        let (file, mut cached) = pod.cached(netns.to_str());
        edit(&mut cached);
        let file = self.remember(&file, &cached.to_string())?;
        Ok((pod, file))
    }

    fn record(&self, pod: &Pod) -> Result<Option<Attachment>> {
        let state = RunDir::open(self.cluster.run_dir())?.read()?;
        Ok(state.and_then(|mut state| state.attachments.remove(&AttachmentId(pod.attachment()))))
    }

    fn wait(&self, what: &str, agent: &Agent, so: impl Fn() -> Result<bool>) -> Result<()> {
        // The file may be half way between two states, and then it is not so yet.
        eventually(what, PATIENCE, || Ok(so().unwrap_or(false))).with_context(|| agent.log())
    }
}

/// As containerd 1.6 does: it says no namespace, and the result does.
fn old_runtime(cached: &mut Value) {
    cached.as_object_mut().expect("an object").remove("netns");
}

/// As where the agent's container does not see the namespaces.
fn hidden_namespace(cached: &mut Value) {
    cached["netns"] = "/nonexistent/netns/pod".into();
}

#[test]
fn pods_of_a_live_node_are_taken_over() -> Result<()> {
    let stage = Stage::new("adopt")?;
    let node = &stage.cluster.world.node;
    let pods = [
        stage.earlier("b-new", Wiring::Bridged, |_| ())?.0,
        stage.earlier("r-new", Wiring::Routed, |_| ())?.0,
        stage.earlier("b-old", Wiring::Bridged, old_runtime)?.0,
        stage.earlier("r-old", Wiring::Routed, old_runtime)?.0,
        stage.earlier("b-hid", Wiring::Bridged, hidden_namespace)?.0,
        stage.earlier("r-hid", Wiring::Routed, hidden_namespace)?.0,
    ];
    let agent = stage.cluster.start_agent()?;
    for pod in &pods {
        assert!(is_local(pod), "{}: {}", pod.attachment(), agent.log());
        let record = stage.record(pod)?.context("no record")?;
        assert!(record.adopted, "{record:?}");
        let link = record.host_interface.as_ref().context("no link")?;
        assert_eq!(link.name, pod.host_interface());
        assert_eq!(record.input_interface(), Some(&*pod.input_interface));
        assert_eq!(record.ips, pod.addresses);
    }
    // DEL by a runtime that reads its list of plugins anew, and by one that kept the one without
    // denizen.
    let [first, second, third, fourth, ..] = pods;
    let [bridged, routed] =
        [Wiring::Bridged, Wiring::Routed].map(|wiring| stage.cluster.chain(wiring));
    for (pod, chain) in [(first, bridged), (second, routed)] {
        let id = AttachmentId(pod.attachment());
        pod.through(chain).detach(node)?;
        let state = RunDir::open(stage.cluster.run_dir())?.read()?.context("a file")?;
        assert!(!state.attachments.contains_key(&id));
    }
    for pod in [third, fourth] {
        let id = AttachmentId(pod.attachment());
        pod.detach(node)?;
        stage.wait("pruned", &agent, || {
            let state = RunDir::open(stage.cluster.run_dir())?.read()?.context("a file")?;
            Ok(!state.attachments.contains_key(&id))
        })?;
    }
    Ok(())
}

#[test]
fn what_the_kernel_does_not_confirm_is_not_adopted() -> Result<()> {
    let stage = Stage::new("adopt-not")?;
    let node = &stage.cluster.world.node;
    let (gone, _) = stage
        .earlier("gone", Wiring::Bridged, |cached| cached["netns"] = "/run/netns/no-such".into())?;
    let (moved, _) = stage.earlier("moved", Wiring::Routed, |cached| {
        cached["result"]["ips"] = json!([{ "address": "10.250.0.9/32" }]);
    })?;
    let (hidden, _) = stage.earlier("hid", Wiring::Routed, |cached| {
        hidden_namespace(cached);
        cached["result"]["ips"] = json!([{ "address": "10.250.0.9/32" }]);
    })?;
    let (dead, _) = stage.earlier("dead", Wiring::Bridged, |_| ())?;
    node.ip(&format!("link del {}", dead.host_interface()))?;
    let (node_itself, _) = stage.earlier("node", Wiring::Bridged, |cached| {
        cached["netns"] = stage.cluster.world.node.path().to_str().into();
    })?;
    let (broken, file) = stage.earlier("broken", Wiring::Bridged, |_| ())?;
    let text = fs::read_to_string(&file)?;
    fs::write(&file, &text[..text.len() / 2])?;
    let (good, _) = stage.earlier("good", Wiring::Bridged, |_| ())?;
    let agent = stage.cluster.start_agent()?;
    for pod in [&gone, &moved, &hidden, &dead, &node_itself, &broken] {
        assert_eq!(stage.record(pod)?, None, "{}", pod.attachment());
    }
    assert!(is_local(&good));
    let log = agent.log();
    assert!(log.contains(file.to_str().context("UTF-8")?), "the broken file is named: {log}");
    Ok(())
}

#[test]
fn a_lost_or_spoilt_state_file_is_written_anew() -> Result<()> {
    let stage = Stage::new("adopt-lost")?;
    let (adopted, _) = stage.earlier("adopted", Wiring::Routed, |_| ())?;
    let agent = stage.cluster.start_agent()?;
    let recorded = stage.cluster.add_pod("recorded", Wiring::Bridged)?;
    stage.wait("told", &agent, || Ok(agent.status()?["pods"] == 2))?;
    let file = stage.cluster.run_dir().join("pods.json");
    fs::remove_file(&file)?;
    let both = || Ok(stage.record(&adopted)?.is_some() && stage.record(&recorded)?.is_some());
    stage.wait("lost", &agent, both)?;
    fs::write(&file, "{ this is no state file")?;
    stage.wait("spoilt", &agent, both)?;
    assert_eq!(stage.cluster.run_dir().read_dir()?.flatten().filter(is_aside).count(), 1);
    assert!(is_local(&adopted) && is_local(&recorded));
    stage.wait("no error", &agent, || Ok(agent.status()?["errors"] == json!([])))?;

    // At a start nobody remembers what denizen itself recorded but the runtime, which caches that
    // too.
    let (name, cached) = recorded.cached(recorded.netns.path().to_str());
    stage.remember(&name, &cached.to_string())?;
    agent.terminate()?;
    fs::write(&file, "")?;
    let agent = stage.cluster.start_agent()?;
    assert!(both()?, "{}", agent.log());
    assert!(is_local(&adopted) && is_local(&recorded));
    Ok(())
}

fn is_aside(entry: &fs::DirEntry) -> bool {
    entry.file_name().to_string_lossy().starts_with("pods.json.bad-")
}
