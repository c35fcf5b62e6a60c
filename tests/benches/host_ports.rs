//! What a host port costs a pod's start and end: ADD and DEL of the plugin, which waits for the
//! agent, with 0, 1 and 10 ports, on a node without other pods, on one with 250, and on one where
//! the 250 pods have a thousand host ports; next to `portmap`'s ADD and DEL with the same ports.
//!
//! `cargo build --release --bins` first; then `cargo bench --bench host_ports`. Compare the ratios
//! of one run: times depend on the machine. The candidates take turns, so that a disturbance
//! affects all of them alike.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use denizen_state::{Attachment, HostPort, HostPortProtocol, RunDir};
use denizen_tests::eventually::eventually;
use denizen_tests::node::cluster::Cluster;
use denizen_tests::node::cni::{Call, Chain};
use denizen_tests::node::pod::Wiring;
use serde_json::{Map, Value, json};

const ROUNDS: usize = 100;
const PORTS: [u16; 3] = [0, 1, 10];
/// How many other pods there are, and how many host ports each of them has.
const OTHER_PODS: [(u16, u16); 3] = [(0, 0), (250, 0), (250, 4)];

struct Candidate {
    name: String,
    plugin: Value,
    /// The candidate is measured in every `every`-th round.
    every: usize,
    adds: Vec<Duration>,
    dels: Vec<Duration>,
}

impl Candidate {
    fn new(name: String, plugin: Value, every: usize) -> Self {
        Self { name, plugin, every, adds: Vec::new(), dels: Vec::new() }
    }

    #[expect(clippy::disallowed_methods, reason = "this is what a bench is for")]
    fn turn(
        &mut self,
        cluster: &Cluster,
        chain: &Chain,
        call: &Call,
        result: &Value,
    ) -> Result<()> {
        for command in ["ADD", "DEL"] {
            let begun = Instant::now();
            let done = chain.call(&cluster.world.node, call, command, &self.plugin, Some(result));
            let took = begun.elapsed();
            done.map_err(|refusal| anyhow!("{} {command}: {refusal}", self.name))?;
            let times = if command == "ADD" { &mut self.adds } else { &mut self.dels };
            times.push(took);
        }
        Ok(())
    }
}

fn median(times: &[Duration]) -> f64 {
    let mut times = times.to_vec();
    times.sort_unstable();
    times.get(times.len() / 2).map_or(f64::NAN, |time| time.as_secs_f64() * 1e3)
}

fn mappings(count: u16) -> Value {
    let one = |number| json!({ "hostPort": 9000 + number, "containerPort": 80, "protocol": "tcp" });
    (0..count).map(one).collect()
}

/// Adds the records of the other pods, all on the link of a pod that stays.
fn record_other_pods(
    cluster: &Cluster,
    like: &Attachment,
    (count, each): (u16, u16),
) -> Result<()> {
    let record = |number: u16| {
        let port = |port: u16| HostPort {
            ip: None,
            family: None,
            protocol: HostPortProtocol::Tcp,
            port: (10_000 + number * each + port).try_into().expect("it is not 0"),
            pod_port: 80.try_into().expect("it is not 0"),
            unknown: Map::new(),
        };
        let [high, low] = number.to_be_bytes();
        Attachment {
            container_id: format!("other-{number}"),
            ips: vec![[10, 10, 200 + high, low].into()],
            host_ports: (0..each).map(port).collect(),
            ..like.clone()
        }
    };
    let records = (0..count).map(record).map(|record| (record.id(), record));
    RunDir::open(cluster.run_dir())?.update(Duration::from_secs(5), |state| {
        state.attachments.extend(records);
    })?;
    Ok(())
}

fn main() -> Result<()> {
    let cluster = Cluster::new("bench-hp", &Value::Null)?;
    let agent = cluster.start_agent_with(["--backend=nftables", "--host-ports=on"])?;
    let standing = cluster.add_pod("standing", Wiring::Bridged)?;
    let state = RunDir::open(cluster.run_dir())?.read()?.context("a state file")?;
    let like = state.attachments.into_values().next().context("a record")?;
    let netns = denizen_tests::node::netns::Netns::new("bench-hp-pod")?;
    let call = Call::of_pod(netns.name(), "pod", &netns.path());
    let chain = cluster.chain(Wiring::Bridged).clone().without_denizen();
    let result = chain.add(&cluster.world.node, &call).map_err(|refusal| anyhow!("{refusal}"))?;
    let full = cluster.chain(Wiring::Bridged);
    let ours = full.plugins.last().context("denizen is the last plugin")?;
    println!("medians of {ROUNDS} turns, in ms                 ADD       DEL");
    for (count, each) in OTHER_PODS {
        record_other_pods(&cluster, &like, (count, each))?;
        // The pod that stays has a record too, and no host ports.
        let expected = [u64::from(count * each), u64::from(count) + 1];
        eventually("served", Duration::from_secs(30), || {
            let status = agent.status()?;
            let seen = [&status["hostPorts"]["served"], &status["pods"]].map(Value::as_u64);
            Ok(seen == expected.map(Some))
        })?;
        let on = format!("{count} pods with {each} each");
        let mut all = Vec::new();
        for ports in PORTS {
            let mut plugin = ours.clone();
            plugin["waitForAgent"] = json!({ "timeout": "10s", "onTimeout": "fail" });
            plugin["hostPorts"] = json!({});
            plugin["runtimeConfig"] = json!({ "portMappings": mappings(ports) });
            let name = format!("denizen, {ports} ports, {on}");
            all.push(Candidate::new(name, plugin, 1));
        }
        for ports in PORTS.into_iter().filter(|_| each == 0) {
            let runtime = json!({ "portMappings": mappings(ports) });
            let plugin = json!({ "type": "portmap", "runtimeConfig": runtime });
            all.push(Candidate::new(format!("portmap, {ports} ports, {on}"), plugin, 5));
        }
        for round in 0..ROUNDS {
            for candidate in all.iter_mut().filter(|candidate| round % candidate.every == 0) {
                candidate.turn(&cluster, full, &call, &result)?;
            }
        }
        for one in &all {
            println!("  {:<44} {:>8.3}  {:>8.3}", one.name, median(&one.adds), median(&one.dels));
        }
    }
    drop(standing);
    Ok(())
}
