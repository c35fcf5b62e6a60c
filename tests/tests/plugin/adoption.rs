//! Pods that were attached without denizen are local pods all the same, those from before from the
//! agent's start on, those that come while it runs within moments; and a state file that is lost or
//! spoilt is written anew.

mod late;
mod sidecar;

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use denizen_state::{Attachment, AttachmentId, RunDir};
use denizen_tests::agent::{Agent, CNI_CACHE};
use denizen_tests::eventually::eventually;
use denizen_tests::node::cluster::Cluster;
use denizen_tests::node::fixture::{PORT, is_local, service_ips};
use denizen_tests::node::manifest::Port;
use denizen_tests::node::pod::{Pod, Wiring};
use denizen_tests::packets::server::Server;
use serde_json::{Value, json};

/// Longer than anything here takes on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

struct AdoptionContext {
    cluster: Cluster,
    _server: Server,
}

impl AdoptionContext {
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
        eventually(what, TIMEOUT, || Ok(so().unwrap_or(false))).with_context(|| agent.log())
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
    let context = AdoptionContext::new("adopt")?;
    let node = &context.cluster.world.node;
    let pods = [
        context.earlier("b-new", Wiring::Bridged, |_| ())?.0,
        context.earlier("r-new", Wiring::Routed, |_| ())?.0,
        context.earlier("b-old", Wiring::Bridged, old_runtime)?.0,
        context.earlier("r-old", Wiring::Routed, old_runtime)?.0,
        context.earlier("b-hid", Wiring::Bridged, hidden_namespace)?.0,
        context.earlier("r-hid", Wiring::Routed, hidden_namespace)?.0,
    ];
    let agent = context.cluster.start_agent()?;
    for pod in &pods {
        assert!(is_local(pod), "{}: {}", pod.attachment(), agent.log());
        let record = context.record(pod)?.context("no record")?;
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
        [Wiring::Bridged, Wiring::Routed].map(|wiring| context.cluster.chain(wiring));
    for (pod, chain) in [(first, bridged), (second, routed)] {
        let id = AttachmentId(pod.attachment());
        pod.through(chain).detach(node)?;
        let state = RunDir::open(context.cluster.run_dir())?.read()?.context("a file")?;
        assert!(!state.attachments.contains_key(&id));
    }
    for pod in [third, fourth] {
        let id = AttachmentId(pod.attachment());
        pod.detach(node)?;
        context.wait("pruned", &agent, || {
            let state = RunDir::open(context.cluster.run_dir())?.read()?.context("a file")?;
            Ok(!state.attachments.contains_key(&id))
        })?;
    }
    Ok(())
}

#[test]
fn what_the_kernel_does_not_confirm_is_not_adopted() -> Result<()> {
    let context = AdoptionContext::new("adopt-not")?;
    let node = &context.cluster.world.node;
    let (gone, _) = context
        .earlier("gone", Wiring::Bridged, |cached| cached["netns"] = "/run/netns/no-such".into())?;
    let (moved, _) = context.earlier("moved", Wiring::Routed, |cached| {
        cached["result"]["ips"] = json!([{ "address": "10.250.0.9/32" }]);
    })?;
    let (hidden, _) = context.earlier("hid", Wiring::Routed, |cached| {
        hidden_namespace(cached);
        cached["result"]["ips"] = json!([{ "address": "10.250.0.9/32" }]);
    })?;
    let (dead, _) = context.earlier("dead", Wiring::Bridged, |_| ())?;
    node.ip(&format!("link del {}", dead.host_interface()))?;
    let (node_itself, _) = context.earlier("node", Wiring::Bridged, |cached| {
        cached["netns"] = context.cluster.world.node.path().to_str().into();
    })?;
    let (broken, file) = context.earlier("broken", Wiring::Bridged, |_| ())?;
    let text = fs::read_to_string(&file)?;
    fs::write(&file, &text[..text.len() / 2])?;
    let (good, _) = context.earlier("good", Wiring::Bridged, |_| ())?;
    let agent = context.cluster.start_agent()?;
    for pod in [&gone, &moved, &hidden, &dead, &node_itself, &broken] {
        assert_eq!(context.record(pod)?, None, "{}", pod.attachment());
    }
    assert!(is_local(&good));
    // Not before it is certain that the runtime is not just writing it.
    let file = file.to_str().context("UTF-8")?;
    context.wait("the broken file is named", &agent, || Ok(agent.log().contains(file)))
}

#[test]
fn a_lost_or_spoilt_state_file_is_written_anew() -> Result<()> {
    let context = AdoptionContext::new("adopt-lost")?;
    let (adopted, _) = context.earlier("adopted", Wiring::Routed, |_| ())?;
    let agent = context.cluster.start_agent()?;
    let recorded = context.cluster.add_pod("recorded", Wiring::Bridged)?;
    context.wait("notified", &agent, || Ok(agent.status()?["pods"] == 2))?;
    let file = context.cluster.run_dir().join("pods.json");
    fs::remove_file(&file)?;
    let both = || Ok(context.record(&adopted)?.is_some() && context.record(&recorded)?.is_some());
    context.wait("lost", &agent, both)?;
    fs::write(&file, "{ this is no state file")?;
    context.wait("spoilt", &agent, both)?;
    assert_eq!(context.cluster.run_dir().read_dir()?.flatten().filter(is_aside).count(), 1);
    assert!(is_local(&adopted) && is_local(&recorded));
    context.wait("no error", &agent, || Ok(agent.status()?["errors"] == json!([])))?;

    // At a start nobody remembers what denizen itself recorded but the runtime, which caches that
    // too.
    let (name, cached) = recorded.cached(recorded.netns.path().to_str());
    context.remember(&name, &cached.to_string())?;
    agent.terminate()?;
    fs::write(&file, "")?;
    let agent = context.cluster.start_agent()?;
    assert!(both()?, "{}", agent.log());
    assert!(is_local(&adopted) && is_local(&recorded));
    Ok(())
}

fn is_aside(entry: &fs::DirEntry) -> bool {
    entry.file_name().to_string_lossy().starts_with("pods.json.bad-")
}
