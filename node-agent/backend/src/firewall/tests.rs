//! Any path of changes ends where a fresh start does: in the plan, and in the kernel.

use std::net::IpAddr;
use std::sync::Arc;
use std::thread;

use denizen_nft::{Kernel, Schema, TableFamily};
use denizen_state::{AttachmentId, Epoch, Generation};
use nix::sched::{CloneFlags, unshare};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

mod ranges;
mod tiers;

use super::Firewall;
use denizen_model::{
    Block, ClusterPod, Event, Labels, Listing, LocalPod, Mac, NamedPort, Namespace, Namespaces,
    NetworkPolicy, NodeAddress, NodeLinks, Operator, OwnPodFacts, Peers, PodName, PodSet,
    PolicyName, PolicyPeer, PolicyPort, PolicyRule, PortMatch, Ports, Protocol, Requirement,
    Selector, Tunnel,
};
use denizen_plan::fixture::{CAPABLE, policy};
use denizen_plan::{FirewallPlan, FirewallSettings, PlanChanges, Planner, Policy, PolicyFlow};

const NAMES: [&str; 3] = ["a", "b", "c"];
const NAMESPACES: [&str; 2] = ["x", "y"];

fn with_firewall() -> Policy {
    Policy { firewall: Some(FirewallSettings::default()), ..policy() }
}

fn pod_name(namespace: u8, name: u8) -> PodName {
    PodName {
        namespace: NAMESPACES[usize::from(namespace)].into(),
        name: NAMES[usize::from(name)].into(),
    }
}

/// The address of a pod; pods of namespace x are this node's.
fn address(namespace: u8, name: u8) -> IpAddr {
    format!("10.{namespace}.0.{}", name + 1).parse().unwrap()
}

fn selector(label: u8) -> Selector {
    let values = || ["1".into()].into();
    let operator = match label {
        0 => return Selector::default(),
        1 => Operator::In(values()),
        2 => Operator::NotIn(values()),
        3 => Operator::Exists,
        _ => Operator::DoesNotExist,
    };
    Selector { requirements: [Requirement { key: "l".into(), operator }].into() }
}

fn labels(label: u8) -> Labels {
    match label {
        0 => Labels::default(),
        label => Labels::from_iter([("l", label.to_string())]),
    }
}

fn port(number: u16) -> std::num::NonZeroU16 {
    number.try_into().unwrap()
}

fn peer(kind: u8, label: u8) -> PolicyPeer {
    let pods = selector(label);
    match kind {
        0 => PolicyPeer::Pods { namespaces: Namespaces::Own, pods },
        1 => PolicyPeer::Pods { namespaces: Namespaces::Selected(selector(label % 3)), pods },
        2 => PolicyPeer::Block(Block {
            range: "10.0.0.0/8".parse().unwrap(),
            except: vec![format!("10.{}.0.0/30", label % 2).parse().unwrap()],
        }),
        _ => PolicyPeer::Block(Block {
            range: format!("10.{}.0.{}/32", label % 2, label).parse().unwrap(),
            except: Vec::new(),
        }),
    }
}

fn ports(kind: u8) -> Ports {
    let tcp = |port| PolicyPort { protocol: Protocol::Tcp, port };
    Ports::These(match kind {
        0 => return Ports::All,
        1 => vec![tcp(PortMatch::Any)],
        2 => vec![tcp(PortMatch::Range(port(80), port(80)))],
        3 => vec![tcp(PortMatch::Range(port(79), port(81)))],
        4 => vec![tcp(PortMatch::Range(port(70), port(80))), tcp(PortMatch::Named("web".into()))],
        _ => vec![tcp(PortMatch::Named("web".into()))],
    })
}

fn rules() -> impl Strategy<Value = Option<Vec<PolicyRule>>> {
    let peers = proptest::collection::vec((0..4_u8, 0..5_u8), 0..3);
    let rule = (peers, 0..6_u8).prop_map(|(peers, kind)| PolicyRule {
        index: 0,
        peers: match peers.is_empty() {
            true => Peers::All,
            false => Peers::These(peers.into_iter().map(|(k, label)| peer(k, label)).collect()),
        },
        ports: ports(kind),
    });
    proptest::option::weighted(0.7, proptest::collection::vec(rule, 0..3))
}

/// One of a few objects changes, or this node's pods do.
fn event() -> impl Strategy<Value = Vec<Event>> {
    let policy = (0..2_u8, 0..2_u8, proptest::option::weighted(0.8, (0..5_u8, rules(), rules())))
        .prop_map(|(namespace, name, content)| {
            let name = PolicyName {
                namespace: NAMESPACES[usize::from(namespace)].into(),
                name: NAMES[usize::from(name)].into(),
            };
            let policy = content.map(|(label, ingress, egress)| NetworkPolicy {
                name: name.clone(),
                pods: selector(label),
                ingress,
                egress,
                is_understood: true,
            });
            vec![Event::NetworkPolicy(name, policy)]
        });
    let pod = (0..2_u8, 0..3_u8, proptest::option::weighted(0.8, (0..3_u8, 0..2_u8))).prop_map(
        |(namespace, name, content)| {
            // What is known of a recorded pod is kept when its object goes, so that one path of
            // changes ends elsewhere than another.
            let content = content.or((namespace == 0).then_some((0, 0)));
            let pod = content.map(|(label, web)| cluster_pod(namespace, name, label, web));
            vec![Event::ClusterPod(pod_name(namespace, name), pod.map(Arc::new))]
        },
    );
    let namespace = (0..2_u8, 0..3_u8).prop_map(|(namespace, label)| {
        let name: Arc<str> = NAMESPACES[usize::from(namespace)].into();
        let namespace = Namespace { name: name.clone(), labels: labels(label), is_ending: false };
        vec![Event::Namespace(name, Some(namespace))]
    });
    let recorded = (0..8_u8).prop_map(|which| vec![Event::Pods(recorded(which))]);
    let links = (0..3_u8).prop_map(|which| {
        let tunnels = [Tunnel::Udp(4789), Tunnel::Protocol(4)];
        vec![Event::Links(NodeLinks {
            bridges: [Mac([2, 0, 0, 0, 1, which])].into(),
            veths: [format!("veth-br{which}").as_str().into()].into(),
            tunnels: tunnels.into_iter().take(which.into()).collect(),
            also_local: [].into(),
        })]
    });
    let addresses = (0..3_u8).prop_map(|which| {
        // The last one is a pod's too.
        let address = if which == 2 { address(1, 0) } else { [192, 0, 2, which + 1].into() };
        vec![Event::Addresses(vec![NodeAddress {
            address,
            interface: "eth0".into(),
            dummy: false,
        }])]
    });
    let tier = tiers::event();
    prop_oneof![
        4 => policy, 3 => tier, 4 => pod, 1 => namespace, 2 => recorded, 1 => links, 1 => addresses
    ]
}

fn cluster_pod(namespace: u8, name: u8, label: u8, web: u8) -> ClusterPod {
    // One that is nobody's, and one that a pod of the other namespace has.
    let additional = match web {
        0 => [].into(),
        _ => [IpAddr::from([10, 9, 0, 1]), address(1, label)].into(),
    };
    let web =
        NamedPort { name: "web".into(), protocol: Protocol::Tcp, port: port(80 + u16::from(web)) };
    ClusterPod {
        labels: labels(label),
        ips: [address(namespace, name)].into(),
        ports: [web].into(),
        host_ips: [format!("192.0.2.{}", label + 1).parse().unwrap()].into(),
        here: (namespace == 0)
            .then(|| OwnPodFacts { additional, ..OwnPodFacts::new("u".into()) }.into()),
        ..ClusterPod::named(pod_name(namespace, name))
    }
}

fn recorded(which: u8) -> PodSet {
    let pod = |name: u8| LocalPod {
        id: AttachmentId(format!("{name}/eth0")),
        pod: Some(pod_name(0, name)),
        uid: Some("u".into()),
        interface: if name == 2 { "cni0".into() } else { format!("veth{name}").into() },
        port: (name == 2).then(|| "veth2".into()),
        bridge: (name == 2).then(|| "cni0".into()),
        ips: vec![address(0, name)],
        vlan_port: None,
        mac: Some(Mac([2, 0, 0, 0, 0, name])),
        added_at: "2026-11-20T12:00:00Z".into(),
        adopted: false,
        host_ports: Vec::new(),
        redirect: None,
    };
    PodSet {
        version: Some((Epoch("e".into()), Generation(u64::from(which)))),
        pods: (0..3).filter(|name| which & (1 << name) != 0).map(pod).collect(),
    }
}

fn listed() -> Vec<Event> {
    Listing::FIREWALL.map(Event::Listed).into()
}

/// A policy for all pods of namespace x.
fn isolating() -> Event {
    let name = PolicyName { namespace: NAMESPACES[0].into(), name: NAMES[0].into() };
    let policy = NetworkPolicy {
        name: name.clone(),
        pods: selector(0),
        ingress: Some(Vec::new()),
        egress: None,
        is_understood: true,
    };
    Event::NetworkPolicy(name, Some(policy))
}

/// What becomes of every flow between all addresses.
fn judgements(plan: &FirewallPlan) -> Vec<(PolicyFlow, bool)> {
    let mut addresses: Vec<IpAddr> =
        (0..2).flat_map(|namespace| (0..3).map(move |name| address(namespace, name))).collect();
    addresses.extend(["10.0.0.4", "10.1.0.4", "192.0.2.1"].map(|ip| ip.parse::<IpAddr>().unwrap()));
    let mut all = Vec::new();
    for source in &addresses {
        for destination in &addresses {
            for (protocol, number) in
                [(Protocol::Tcp, 80), (Protocol::Tcp, 81), (Protocol::Tcp, 75), (Protocol::Udp, 80)]
            {
                let (protocol, port) = (Some(protocol), Some(port(number)));
                let flow =
                    PolicyFlow { source: *source, destination: *destination, protocol, port };
                all.push((flow, plan.rejection(&flow).is_some()));
            }
        }
    }
    all
}

/// The object of a pod goes with its record. (While it is still there, a running agent knows that
/// its address may be another pod's by now, and a restarted one does not.)
fn with_ends(mut events: Vec<Vec<Event>>) -> Vec<Vec<Event>> {
    let mut known: Vec<PodName> = Vec::new();
    for batch in &mut events {
        let now = batch.iter().find_map(|event| match event {
            Event::Pods(pods) => Some(pods.pods.iter().filter_map(|pod| pod.pod.clone())),
            Event::Service(..)
            | Event::Slice(..)
            | Event::Triggered(..)
            | Event::Node(_)
            | Event::OtherNode(..)
            | Event::ServiceCidr(..)
            | Event::Namespace(..)
            | Event::ClusterPod(..)
            | Event::PodCoverage(_)
            | Event::NetworkPolicy(..)
            | Event::ClusterNetworkPolicy(..)
            | Event::Addresses(_)
            | Event::Links(_)
            | Event::Egress(_)
            | Event::Listed(_)
            | Event::ForeignService(..)
            | Event::Refused(_) => None,
        });
        let Some(now) = now.map(Iterator::collect) else { continue };
        let before = std::mem::replace(&mut known, now);
        let gone = before.into_iter().filter(|pod| !known.contains(pod));
        batch.extend(gone.map(|pod| Event::ClusterPod(pod, None)));
    }
    events
}

#[test]
fn only_what_others_commit_makes_a_look_read_everything() {
    let test = thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNET).expect("the kernel tests need root");
        let kernel = Kernel::open().unwrap();
        let mut services = kernel.sibling_connection().unwrap();
        let mut firewall = Firewall::new(kernel);
        let mut planner = Planner::new(with_firewall(), CAPABLE);
        planner.apply(listed());
        planner.apply(vec![isolating(), Event::Pods(recorded(3))]);
        let changes = planner.update();
        firewall.update(planner.plan(), &changes);
        firewall.sync(planner.plan()).unwrap();
        let table = Schema { family: TableFamily::Ip, name: "some", comment: "", sets: Vec::new() };
        services.write(table.family, |batch| batch.add_table(&table)).unwrap();
        let looked = |firewall: &Firewall| format!("{:?}", firewall.keepers);
        let before = looked(&firewall);
        assert!(firewall.resync(planner.plan()).unwrap().is_none());
        assert_eq!(looked(&firewall), before, "only a service changed");
        let family = TableFamily::Ip;
        let mut others = Kernel::open().unwrap();
        others.write(family, |batch| batch.flush_chain(super::TABLE, &"forward".into())).unwrap();
        assert!(!firewall.resync(planner.plan()).unwrap().is_none(), "repaired");
        assert_ne!(looked(&firewall), before, "somebody else changed something");
    });
    test.join().unwrap();
}

#[test]
fn any_path_of_changes_ends_where_a_fresh_start_does() {
    let strategy = proptest::collection::vec(event(), 1..25);
    // A namespace for each case would take longer than the case.
    let test = thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET).expect("the kernel tests need root");
        let mut runner = TestRunner::new(Config { cases: 150, ..Config::default() });
        runner.run(&strategy, |events| {
            let events = with_ends(events);
            let mut planner = Planner::new(with_firewall(), CAPABLE);
            let mut firewall = Firewall::new(Kernel::open().unwrap());
            planner.apply(listed());
            for batch in &events {
                planner.apply(batch.clone());
                let changes = planner.update();
                firewall.update(planner.plan(), &changes);
                firewall.sync(planner.plan()).unwrap();
                prop_assert!(firewall.has_pods());
            }
            firewall.note_foreign_change();
            let repair = firewall.resync(planner.plan()).unwrap();
            prop_assert!(repair.is_none(), "{repair:?}");
            let mut fresh = Planner::new(with_firewall(), CAPABLE);
            fresh.apply(listed());
            fresh.apply(events.concat());
            let changes: PlanChanges = fresh.update();
            let (plan, other) =
                (planner.plan().firewall().unwrap(), fresh.plan().firewall().unwrap());
            let (was, is) = (judgements(plan), judgements(other));
            for (was, is) in was.iter().zip(&is) {
                prop_assert_eq!(was, is);
            }
            // An agent that starts over these rules leaves them alone, numbers and all.
            let mut restarted = Firewall::new(Kernel::open().unwrap());
            restarted.update(fresh.plan(), &changes);
            restarted.sync(fresh.plan()).unwrap();
            restarted.note_foreign_change();
            prop_assert!(restarted.resync(fresh.plan()).unwrap().is_none());
            Ok(())
        })
    });
    test.join().unwrap().unwrap();
}
