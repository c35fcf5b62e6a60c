//! `kubectl denizen impact` says what packets do before and after a change: the oracle's in many
//! random worlds, and real ones in a few.

use std::cell::{Cell, RefCell};
use std::fs;
use std::net::IpAddr;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use denizen_tests::binary;
use denizen_tests::policy::{
    self, NetworkPolicy, ObjectMeta, PodObject, PolicyPacket, PolicyWorld, Transport,
};
use denizen_tests::random;
use denizen_tests::test_length;
use ipnetwork::IpNetwork;
use serde_json::{Value, json};

use crate::play::{Play, ServedBy, Via};
use crate::random::tiers::tiered;
use crate::random::{Cluster, clusters, packets, played};

/// A change of a world's policies.
struct Change {
    before: PolicyWorld,
    after: PolicyWorld,
    /// What is applied, or deleted.
    policy: Value,
    is_deletion: bool,
}

/// The last policy of each kind comes, goes, and takes the place of the first.
fn changes(world: &PolicyWorld) -> Vec<Change> {
    let mut changes = Vec::new();
    let mut add = |without: PolicyWorld, with: PolicyWorld, replaced: Option<PolicyWorld>| {
        let Some(policy) = difference(&without, &with) else { return };
        changes.push(Change {
            before: without.clone(),
            after: with.clone(),
            policy: policy.clone(),
            is_deletion: false,
        });
        changes.push(Change { before: with, after: without.clone(), policy, is_deletion: true });
        if let Some(after) = replaced
            && let Some(policy) = difference(&without, &after)
        {
            changes.push(Change { before: without, after, policy, is_deletion: false });
        }
    };
    let mut without = world.clone();
    if let Some(last) = without.policies.pop() {
        let replaced = without.policies.first().map(|first| {
            let mut replaced = without.clone();
            replaced.policies[0] = policy::NetworkPolicy {
                metadata: policy::ObjectMeta {
                    namespace: first.metadata.namespace.clone(),
                    name: first.metadata.name.clone(),
                    ..last.metadata
                },
                spec: last.spec,
            };
            replaced
        });
        add(without, world.clone(), replaced);
    }
    let mut without = world.clone();
    if without.tiers.pop().is_some() {
        add(without, world.clone(), None);
    }
    changes
}

/// The policy of `after` that `before` has not.
fn difference(before: &PolicyWorld, after: &PolicyWorld) -> Option<Value> {
    let known = before.manifests();
    let is_policy = |object: &Value| {
        object["kind"].as_str().is_some_and(|kind| kind.ends_with("NetworkPolicy"))
    };
    after.manifests().into_iter().find(|object| is_policy(object) && !known.contains(object))
}

/// The Node objects: they are in manifests while there are tiers, in both worlds or in one.
fn nodes(change: &Change) -> Vec<Value> {
    let [before, after] = [&change.before, &change.after].map(|world| {
        let objects = world.manifests().into_iter();
        objects.filter(|object| object["kind"] == "Node").collect::<Vec<_>>()
    });
    if before.is_empty() { after } else { before }
}

/// What the program says of a change; `None` if it says that the policy cannot be understood.
fn asked(change: &Change) -> Result<Option<Value>> {
    let folder = tempfile::tempdir()?;
    let manifests = folder.path().join("manifests");
    fs::create_dir(&manifests)?;
    let mut objects = change.before.manifests();
    objects.retain(|object| object["kind"] != "Node");
    objects.extend(nodes(change));
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": objects });
    fs::write(manifests.join("all.json"), list.to_string())?;
    let file = folder.path().join("policy.json");
    fs::write(&file, change.policy.to_string())?;
    let mut command = Command::new(binary::ours("kubectl-denizen")?);
    command.env_clear().args(["impact", "-o", "json", "-f"]).arg(&file);
    command.arg("--manifests").arg(&manifests);
    command.args(change.is_deletion.then_some("--delete"));
    let output = command.output()?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    match output.status.code() {
        Some(2) if stderr.contains("not understood") => Ok(None),
        Some(code @ (0 | 1)) => {
            let answer: Value = serde_json::from_slice(&output.stdout)?;
            let rows = answer["changes"].as_array().context("no list")?;
            let loses = rows.iter().any(|row| row["change"] == "lost");
            ensure!((code == 1) == loses, "exit code {code}: {answer}");
            Ok(Some(answer))
        }
        code => bail!("{code:?}: {stderr}"),
    }
}

/// `lost`, `gained` or nothing, of one packet.
fn change_row<'a>(
    answer: &'a Value,
    world: &PolicyWorld,
    packet: PolicyPacket,
) -> Result<Option<&'a str>> {
    let rows = answer["changes"].as_array().context("no list")?.iter();
    let mut found = None;
    for row in rows.filter(|row| covers(row, answer, world, packet)) {
        ensure!(found.is_none(), "{packet:?} is in several rows: {answer:#}");
        found = row["change"].as_str();
    }
    Ok(found)
}

fn covers(row: &Value, answer: &Value, world: &PolicyWorld, packet: PolicyPacket) -> bool {
    let (subject, peer) = match row["direction"].as_str() {
        Some("ingress") => (packet.to, packet.from),
        _ => (packet.from, packet.to),
    };
    let has = |list: &Value, address: IpAddr| {
        let mut members = list.as_array().into_iter().flatten();
        members.any(|member| is_member(member, answer, world, address))
    };
    let family = if packet.from.is_ipv4() { "IPv4" } else { "IPv6" };
    let has_family = row["families"].as_array().into_iter().flatten().any(|name| name == family);
    let ports = &row["ports"];
    let has_port = match packet.transport {
        Transport::Other => ports["others"] == true,
        Transport::Port(protocol, port) => {
            ports["ranges"].as_array().into_iter().flatten().any(|range| {
                let bound = |key: &str| range[key].as_u64().unwrap_or_default();
                range["protocol"] == protocol.to_string().to_lowercase()
                    && (bound("first")..=bound("last")).contains(&port.into())
            })
        }
    };
    has_family && has_port && has(&row["subjects"], subject) && has(&row["peers"], peer)
}

fn is_member(member: &Value, answer: &Value, world: &PolicyWorld, address: IpAddr) -> bool {
    let holds = |range: &Value| {
        let range = range.as_str().unwrap_or_default();
        match range.parse::<IpNetwork>() {
            Ok(range) => range.contains(address),
            Err(_) => range.split_once('-').is_some_and(|(first, last)| {
                let bound = |text: &str| text.parse::<IpAddr>().ok();
                bound(first).is_some_and(|first| first <= address)
                    && bound(last).is_some_and(|last| address <= last)
            }),
        }
    };
    let node = world.nodes.iter().find(|node| node.addresses.contains(&address));
    // Without tiers no Node object is there: its addresses are like any others.
    let node = node.filter(|_| answer["knowsNodes"] == true);
    match (owner(world, address), node) {
        (Some(pod), _) => {
            member["namespace"] == pod.metadata.namespace && member["name"] == pod.metadata.name
        }
        (None, Some(node)) => member["kind"] == "Node" && member["name"] == node.name,
        (None, None) if member["kind"] == "Range" => holds(&member["name"]),
        (None, None) => {
            let mut ranges = answer["ranges"].as_array().into_iter().flatten();
            member["kind"] == "Elsewhere" && !ranges.any(holds)
        }
    }
}

/// The pod that has an address, if any has: of two that claim it, the younger.
fn owner(world: &PolicyWorld, address: IpAddr) -> Option<&PodObject> {
    let has_it = |pod: &&PodObject| {
        !pod.spec.host_network
            && pod.status.phase == "Running"
            && pod.status.pod_ips.iter().any(|pod_ip| pod_ip.ip == address)
    };
    world.pods.iter().filter(has_it).max_by_key(|pod| &pod.metadata.creation_timestamp)
}

/// A pod's own node reaches it always, and a pod itself: nobody judges them.
fn is_judged(world: &PolicyWorld, packet: PolicyPacket) -> bool {
    let own = owner(world, packet.to)
        .and_then(|pod| world.nodes.iter().find(|node| node.name == pod.spec.node_name));
    packet.from != packet.to && own.is_none_or(|node| !node.addresses.contains(&packet.from))
}

/// Whether the program says of every packet what differs for the oracle. Returns how many differ;
/// `None` if the policy cannot be understood.
fn compared(change: &Change) -> Result<Option<usize>> {
    let Some(mut answer) = asked(change)? else { return Ok(None) };
    answer["knowsNodes"] = (!nodes(change).is_empty()).into();
    let Change { before, after, .. } = change;
    let mut differing = 0;
    for packet in packets(before).into_iter().filter(|packet| is_judged(before, *packet)) {
        let expected = match (policy::allowed(before, packet), policy::allowed(after, packet)) {
            (true, false) => Some("lost"),
            (false, true) => Some("gained"),
            (true, true) | (false, false) => None,
        };
        let printed = change_row(&answer, before, packet)?;
        ensure!(
            printed == expected,
            "{packet:?}: the oracle says {expected:?}, impact {printed:?}\n{:#}\n{answer:#}",
            change.policy
        );
        differing += usize::from(expected.is_some());
    }
    Ok(Some(differing))
}

/// How many changes were compared, and how many of them change something.
#[derive(Default)]
struct ChangeCounts {
    compared: Cell<usize>,
    effective: Cell<usize>,
}

impl ChangeCounts {
    fn add(&self, differing: Option<usize>) {
        self.compared.set(self.compared.get() + usize::from(differing.is_some()));
        self.effective.set(self.effective.get() + usize::from(differing > Some(0)));
    }

    fn are_at_least(&self, compared: usize, effective: usize) -> Result<()> {
        let (all, real) = (self.compared.get(), self.effective.get());
        eprintln!("{all} changes compared, {real} change something");
        ensure!(all >= compared && real >= effective, "{all} compared, {real} change something");
        Ok(())
    }
}

#[test]
fn impact_is_the_difference_of_what_the_oracle_says() -> Result<()> {
    let worlds = u32::try_from(test_length::times(1_000, 60))?;
    let counts = ChangeCounts::default();
    let test = |Cluster(world): &Cluster| {
        changes(world).iter().try_for_each(|change| {
            counts.add(compared(change)?);
            Ok(())
        })
    };
    let shrinking = Duration::from_secs(60);
    random::run(worlds, random::seed()?, shrinking, clusters(), test)?;
    random::run(worlds, random::seed()?, shrinking, tiered(), test)?;
    counts.are_at_least(100, 40)
}

/// A hundred policies, each applied to what the one before has left: beside it, or in its place.
/// Some are deleted again. All packets between pods are sent before and after each change, and do
/// what the oracle says: its difference is theirs.
#[test]
fn impact_is_the_difference_of_real_probes() -> Result<()> {
    const PODS: [(&str, &str); 4] = [("x", "a"), ("x", "b"), ("y", "a"), ("z", "a")];
    const POLICIES: usize = 12;
    let (play, world) = Play::few("impact", ServedBy::Agents, &PODS)?;
    let play = RefCell::new(play);
    let counts = ChangeCounts::default();
    let count = u32::try_from(test_length::times(20, 6))?;
    for seed in [1, random::seed()?] {
        let worlds = played::worlds(world.clone(), POLICIES..=POLICIES);
        random::run(count, seed, Duration::ZERO, worlds, |Cluster(world)| {
            let (mut play, mut now) = (play.borrow_mut(), without_policies(world));
            play.verify_packets(&now, &[Via::PodIp])?;
            for (number, policy) in world.policies.iter().enumerate() {
                for change in successive(&now, policy, number) {
                    // The kernel has what is understood, and is asked about that alone.
                    let Some(differing) = compared(&change)? else { break };
                    play.verify_packets(&change.after, &[Via::PodIp])?;
                    counts.add(Some(differing));
                    now = change.after;
                }
            }
            Ok(())
        })?;
    }
    counts.are_at_least(100, 30)
}

fn without_policies(world: &PolicyWorld) -> PolicyWorld {
    PolicyWorld { policies: Vec::new(), ..world.clone() }
}

/// How a policy comes to those that there are. There are two at most: of three more, two take the
/// place of the oldest, and before the third one comes the oldest is deleted.
fn successive(now: &PolicyWorld, policy: &NetworkPolicy, number: usize) -> Vec<Change> {
    const MOST: usize = 2;
    let manifest = |policy: &NetworkPolicy| {
        let policies = vec![policy.clone()];
        PolicyWorld { policies, ..PolicyWorld::default() }.manifests().pop().unwrap_or_default()
    };
    let mut before = now.clone();
    let mut changes = Vec::new();
    let mut policy = policy.clone();
    if before.policies.len() == MOST {
        let oldest = before.policies.remove(0);
        if number.is_multiple_of(3) {
            let (after, deleted) = (before.clone(), manifest(&oldest));
            let before = now.clone();
            changes.push(Change { before, after, policy: deleted, is_deletion: true });
        } else {
            let ObjectMeta { namespace, name, .. } = oldest.metadata.clone();
            policy.metadata = ObjectMeta { namespace, name, ..policy.metadata };
            before = now.clone();
        }
    }
    let mut after = before.clone();
    after.put_policy(policy.clone());
    changes.push(Change { before, after, policy: manifest(&policy), is_deletion: false });
    changes
}
