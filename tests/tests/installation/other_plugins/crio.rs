//! CRI-O's calls. Its program is not in Debian: they are replayed as its source has them
//! (`server/sandbox_network.go`, ocicni and libcni), with real plugins.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::bail;
use data_encoding::BASE64;
use denizen_state::AttachmentId;
use denizen_tests::agent::CNI_CACHE;
use denizen_tests::node::cni::{Call, Chain, PluginContext, invoke};
use denizen_tests::node::pod::Wiring;

use super::*;

/// A node with CRI-O, by the list of plugins in its configuration.
struct Crio {
    context: PluginContext,
    chain: Chain,
}

/// A pod of CRI-O's. It keeps the result, which DEL gets, beside the list of its ADD.
struct Sandbox {
    netns: Netns,
    call: Call,
    result: Value,
}

/// Where CRI-O mounts a namespace.
fn mounted(netns: &Netns) -> PathBuf {
    Path::new("/var/run/netns").join(netns.name())
}

impl Crio {
    fn new(version: &'static str) -> Self {
        let context = PluginContext::new();
        let bridge = json!({ "type": "bridge", "bridge": "cni0", "isGateway": true });
        let mut chain = context.chain(version, bridge, &["10.85.0.0/16", "1100:200::/24"]);
        chain.plugins[1]["hostPorts"] = json!({});
        Self { context, chain }
    }

    fn ours(&self, command: &str, call: &Call, fields: Value) -> Result<Value, Value> {
        let mut plugin = self.chain.plugins[1].clone();
        for (key, value) in fields.as_object().into_iter().flatten() {
            plugin[key] = value.clone();
        }
        self.chain.call(&self.context.node, call, command, &plugin, None)
    }

    /// When it loads the list it asks each plugin for its versions.
    fn load(&self) {
        let dummy = |name| (name, "dummy".to_owned());
        let command = ("CNI_COMMAND", "VERSION".to_owned());
        let variables = vec![command, dummy("CNI_NETNS"), dummy("CNI_IFNAME"), dummy("CNI_PATH")];
        let input = json!({ "cniVersion": "1.1.0" }).to_string();
        let answer = invoke(&self.context.node, variables, input.as_bytes()).expect("it answers");
        let versions = answer["supportedVersions"].as_array().expect("a list");
        assert!(versions.contains(&json!(self.chain.version)), "{answer}");
    }

    /// It brings the loopback up itself, adds the pod to its network and checks it at once. The
    /// list has host ports, and CRI-O passes none: it serves them itself.
    fn run(&self, number: u8) -> Result<Sandbox> {
        let (name, container) = (format!("web-{number}"), format!("{number:064x}"));
        let netns = Netns::new(&format!("crio-{name}"))?;
        let call = Call::of_pod(&container, &name, &mounted(&netns));
        let result = self.chain.add(&self.context.node, &call).expect("ADD");
        self.chain.check(&self.context.node, &call, &result).expect("CHECK");
        let record = self.context.record(&call);
        assert_eq!(record.netns.as_deref(), mounted(&netns).to_str());
        assert_eq!(record.pod.and_then(|pod| pod.uid), Some(format!("uid-{container}")));
        assert_eq!((record.ips.len(), record.bridge.as_deref()), (2, Some("cni0")));
        assert_eq!(record.host_ports, []);
        Ok(Sandbox { netns, call, result })
    }

    fn stop(&self, call: &Call, result: Option<&Value>) {
        self.chain.del(&self.context.node, call, result).expect("DEL");
    }

    /// What it does at its start for each list of its folder: DEL of cached attachments that no
    /// sandbox has, then GC, with null in place of an empty list.
    fn collect(&self, stale: Option<(&Call, &Value)>, valid: &[&Call]) -> Result<(), Value> {
        if let Some((call, result)) = stale {
            self.stop(call, Some(result));
        }
        if self.chain.version < "1.1.0" {
            return Ok(());
        }
        let valid: Vec<_> = valid
            .iter()
            .map(|call| json!({ "containerID": call.container, "ifname": call.interface }))
            .collect();
        let valid = if valid.is_empty() { Value::Null } else { valid.into() };
        let fields = json!({ "cni.dev/valid-attachments": valid, "cni.dev/attachments": valid });
        self.ours("GC", &Call::default(), fields).map(drop)
    }
}

#[test]
fn every_call_from_start_to_restart() -> Result<()> {
    for version in ["0.4.0", "1.0.0", "1.1.0"] {
        let crio = Crio::new(version);
        crio.load();
        let status = || match version {
            "1.1.0" => crio.ours("STATUS", &Call::default(), Value::Null).map(drop),
            _ => Ok(()),
        };
        status().expect("NetworkReady");
        let (first, second) = (crio.run(1)?, crio.run(2)?);
        let third = crio.run(3)?;
        status().expect("NetworkReady");
        let keys = |sandboxes: &[&Sandbox]| -> Vec<String> {
            sandboxes.iter().map(|pod| AttachmentId::new(&pod.call.container, "eth0").0).collect()
        };
        assert_eq!(crio.context.records(), keys(&[&first, &second, &third]), "{version}");

        // A pod that is stopped.
        crio.stop(&first.call, Some(&first.result));
        assert_eq!(crio.context.records(), keys(&[&second, &third]), "{version}");
        // CRI-O ended before it had noted that. The result is gone by then, and the namespace.
        drop(first.netns);
        let generation = crio.context.state().generation;
        crio.stop(&first.call, None);
        assert_eq!(crio.context.state().generation, generation, "{version}");

        // A sandbox that was lost while CRI-O was down: its namespace is gone, its result is not.
        drop(second.netns);
        let stale = Some((&second.call, &second.result));
        crio.collect(stale, &[&third.call]).expect("GC");
        assert_eq!(crio.context.records(), keys(&[&third]), "{version}");
        // The list of another network, of which CRI-O itself has no pods: with Multus, the file
        // that Multus delegates to.
        let collected = crio.collect(None, &[]);
        assert_eq!(collected.is_err(), version == "1.1.0", "{collected:?}");
        assert_eq!(crio.context.records(), keys(&[&third]), "{version}");
        crio.stop(&third.call, Some(&third.result));
        assert_eq!(crio.context.records(), keys(&[]), "{version}");
    }
    Ok(())
}

/// CRI-O deletes a pod by the list of its ADD, which it keeps: that of a pod from before has no
/// denizen.
#[test]
fn a_pod_from_before_is_adopted_from_its_cache_and_forgotten_without_a_call() -> Result<()> {
    let cluster = Cluster::new("crio-before", &Value::Null)?;
    let pod = cluster.add_pod_without_denizen("pod", Wiring::Bridged)?;
    let chain = cluster.chain(Wiring::Bridged).clone().without_denizen();
    let (file, mut cached) = pod.cached(mounted(&pod.netns).to_str());
    cached["config"] = BASE64.encode(chain.conflist().as_bytes()).into();
    cached["capabilityArgs"] = json!({
        "cgroupPath": "kubepods-besteffort-pod1.slice",
        "io.kubernetes.cri.pod-annotations": { "kubernetes.io/config.source": "api" },
    });
    let results = cluster.run_dir().join(CNI_CACHE).join("results");
    fs::create_dir_all(&results)?;
    fs::write(results.join(&file), cached.to_string())?;

    let _agent = cluster.start_agent()?;
    let records = || -> Result<Vec<_>> {
        let state = RunDir::open(cluster.run_dir())?.read()?.context("a state file")?;
        Ok(state.attachments.into_values().collect())
    };
    let found = records()?;
    let [record] = &found[..] else { bail!("{found:?}") };
    let link = record.host_interface.as_ref().map(|link| &*link.name);
    assert_eq!((record.adopted, link), (true, Some(pod.host_interface())));
    assert_eq!((&record.ips, record.bridge.as_deref()), (&pod.addresses, Some("cni0")));
    assert_eq!(record.netns.as_deref(), mounted(&pod.netns).to_str());
    pod.detach(&cluster.world.node)?;
    fs::remove_file(results.join(&file))?;
    observed("the record is removed", TIMEOUT, records, Vec::is_empty)?;
    Ok(())
}
