//! A pod behind the real `bridge` or `ptp`, redirected by the real plugin.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::process::{Command, Stdio};

use denizen_state::Attachment;
use denizen_state::redirect::RedirectBackend;
use denizen_tests::binary::ours;
use denizen_tests::node::cni::{Call, Chain, Namespace, PluginContext, Refusal};
use serde_json::{Value, json};

pub const RANGES: [&str; 2] = ["10.85.0.0/24", "fd00:85::/64"];

/// Rules that every profile has, each with its chain.
pub const TAKEN_OUT: &str = "outbound proxy-init/redirect-all-outgoing-to-proxy-port";
pub const TAKEN_IN: &str = "inbound proxy-init/redirect-all-incoming-to-proxy-port";
pub const BY_PROXY: &str = "outbound proxy-init/ignore-proxy-user-id";

/// Who connects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum From {
    /// A process of the pod, by its user.
    Pod(u32),
    Node,
}

/// What a runtime passes of the annotations of a pod that linkerd has injected.
pub fn injected(annotations: &[(&str, &str)]) -> Value {
    let mut all = json!({ "linkerd.io/proxy-version": "edge-26.8.1" });
    for (name, text) in annotations {
        all[*name] = (*text).into();
    }
    json!({ "io.kubernetes.cri.pod-annotations": all })
}

/// A node, a pod, and the chain that attaches it.
pub struct Mesh {
    pub base: PluginContext,
    pub call: Call,
    pub chain: Chain,
}

impl Mesh {
    /// Not attached yet. `first` is the plugin that makes the interface.
    pub fn new(first: Value, redirect: &Value, annotations: &[(&str, &str)]) -> Self {
        Self::on(PluginContext::new(), first, redirect, annotations)
    }

    /// The same with a node and a pod that are not like most.
    pub fn on(
        base: PluginContext,
        first: Value,
        redirect: &Value,
        annotations: &[(&str, &str)],
    ) -> Self {
        let call = Call::new("web-0", &base.pod);
        let mut chain = base.chain("1.1.0", first, &RANGES);
        chain.plugins[0]["ipam"]["routes"] = json!([{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }]);
        let ours = &mut chain.plugins[1];
        ours["capabilities"] = json!({ "io.kubernetes.cri.pod-annotations": true });
        ours["redirect"] = redirect.clone();
        ours["runtimeConfig"] = injected(annotations);
        Self { base, call, chain }
    }

    pub fn bridged(redirect: &Value, annotations: &[(&str, &str)]) -> Self {
        Self::new(bridge(), redirect, annotations)
    }

    /// The ADD of the whole chain.
    pub fn add(&self) -> Result<Value, Refusal> {
        self.chain.add(&self.base.node, &self.call)
    }

    /// One command of our plugin alone, after an ADD with this result.
    pub fn ours(&self, command: &str, result: &Value) -> Result<Value, Refusal> {
        let ours = &self.chain.plugins[1];
        self.chain.call(&self.base.node, &self.call, command, ours, Some(result))
    }

    pub fn record(&self) -> Attachment {
        self.base.record(&self.call)
    }

    /// The pod's addresses in an ADD's result.
    pub fn addresses(result: &Value) -> Vec<IpAddr> {
        let entries = result["ips"].as_array().into_iter().flatten();
        let texts = entries.map(|ip| ip["address"].as_str().unwrap().split('/').next().unwrap());
        texts.map(|text| text.parse().unwrap()).collect()
    }

    /// From now on the plugin's entry has this `redirect`, or none if it is null.
    pub fn redirect_as(&mut self, redirect: &Value) {
        let ours = self.chain.plugins[1].as_object_mut().unwrap();
        ours.insert("redirect".to_owned(), redirect.clone());
        ours.retain(|_, value| !value.is_null());
    }

    /// How many connections each rule of linkerd-init's chains counted in the pod.
    pub fn counted_by_iptables(&self) -> BTreeMap<String, u64> {
        let mut counts = BTreeMap::new();
        for program in ["iptables-save", "ip6tables-save"] {
            let text = run(&self.base.pod, program, &["-c", "-t", "nat"]);
            for line in text.lines().filter(|line| line.contains("] -A PROXY_INIT_")) {
                let chain = match line.contains("-A PROXY_INIT_OUTPUT") {
                    true => "outbound",
                    false => "inbound",
                };
                let packets = line[1..].split(':').next().unwrap().parse::<u64>().unwrap();
                let comment = line.split("--comment ").nth(1).unwrap().split(' ').next().unwrap();
                let rule = format!("{chain} {}", comment.trim_matches('"'));
                *counts.entry(rule).or_default() += packets;
            }
        }
        counts
    }

    /// How many connections each rule of the pod counted: those that did not are left out.
    pub fn counts(&self) -> BTreeMap<String, u64> {
        let redirect = self.record().redirect.unwrap();
        if redirect.backend == RedirectBackend::Iptables {
            let mut counts = self.counted_by_iptables();
            counts.retain(|_, packets| *packets > 0);
            return counts;
        }
        let table = nft(&self.base.pod, &["-j", "list", "table", "inet", "denizen-redirect"]);
        let table: Value = serde_json::from_str(&table.unwrap()).unwrap();
        let mut counts = BTreeMap::new();
        for rule in table["nftables"].as_array().unwrap().iter().map(|object| &object["rule"]) {
            let expressions = rule["expr"].as_array().into_iter().flatten();
            let packets: u64 = expressions
                .filter_map(|expression| expression["counter"]["packets"].as_u64())
                .sum();
            if packets > 0 {
                let (chain, name) = (rule["chain"].as_str(), rule["comment"].as_str());
                let rule = format!("{} {}", chain.unwrap(), name.unwrap());
                // Of both versions of IP, where each has a rule.
                *counts.entry(rule).or_default() += packets;
            }
        }
        counts
    }

    /// What `explain` says, from the record alone, of what the pod's rules do to a connection: the
    /// chain and the rule, and the port to which it is redirected.
    pub fn explained(&self, from: &str, to: SocketAddr) -> Vec<(String, Option<u64>)> {
        let mut explain = Command::new(ours("denizen-agent").unwrap());
        explain.args(["explain", "--output", "json", "--from", from, "--to", &to.to_string()]);
        // There are no manifests.
        explain.arg("--manifests").arg(tempfile::tempdir_in(self.base.folder()).unwrap().keep());
        let output = explain.arg("--run-dir").arg(self.base.run_dir()).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        let explained: Value = serde_json::from_slice(&output.stdout).expect(&error);
        let row = |row: &Value| {
            let rule = row["rule"].as_str().unwrap_or("no rule");
            (format!("{} {rule}", row["direction"].as_str().unwrap()), row["port"].as_u64())
        };
        explained["redirects"].as_array().into_iter().flatten().map(row).collect()
    }

    /// Whether the pod has the table.
    pub fn has_table(&self) -> bool {
        nft(&self.base.pod, &["list", "table", "inet", "denizen-redirect"]).is_ok()
    }
}

pub fn bridge() -> Value {
    json!({ "type": "bridge", "bridge": "cni0", "isGateway": true })
}

/// What `nft` prints in `namespace`, or why it failed.
pub fn nft(namespace: &Namespace, arguments: &[&str]) -> Result<String, String> {
    let mut nft = Command::new("nft");
    nft.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = namespace.spawn(nft).wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
}

/// What a program prints in `pod`.
pub fn run(pod: &Namespace, program: &str, arguments: &[&str]) -> String {
    let mut command = Command::new(program);
    command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = pod.spawn(command).wait_with_output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {error}");
    String::from_utf8(output.stdout).unwrap()
}
