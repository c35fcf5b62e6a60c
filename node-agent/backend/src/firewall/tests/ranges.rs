//! Thousands of `ipBlock`s in one policy, as clouds publish their ranges.

use std::time::Duration;

use ipnetwork::IpNetwork;
use nix::time::{ClockId, clock_gettime};

use super::*;

/// Blocks of each family.
const BLOCKS: u32 = 4_000;
/// Of these, what one change replaces.
const REPLACED: u32 = 100;
/// The most that one change may cost. It cost ten times as much; now it is a tenth.
const MOST: Duration = Duration::from_secs(1);

/// The `n`th block of a family, nested in others or with an exception.
fn block(n: u32, v6: bool) -> Block {
    let (group, member) = (n / 4, n % 4);
    let range = |at: u32, bits: u8| -> IpNetwork {
        let (at, bits) = (group * 4096 + at, bits);
        let text = match v6 {
            false => {
                format!("{}/{bits}", std::net::Ipv4Addr::from(0x2000_0000 + at))
            }
            true => format!("fd{:02x}:{:x}::/{}", at >> 16, at & 0xffff, bits),
        };
        text.parse().unwrap()
    };
    match member {
        0 => Block { range: range(0, 20), except: vec![range(512, 24)] },
        1 => Block { range: range(256, 24), except: Vec::new() },
        2 => Block { range: range(512, 26), except: vec![range(512, 30)] },
        _ => Block { range: range(4, 32), except: Vec::new() },
    }
}

/// A policy for all pods of namespace x: egress to these blocks, on a range of ports.
fn policy_of(first: u32, ports: Ports) -> Event {
    let blocks = (first..first + BLOCKS).flat_map(|n| [block(n, false), block(n, true)]);
    let peers = Peers::These(blocks.map(PolicyPeer::Block).collect());
    let name = PolicyName { namespace: NAMESPACES[0].into(), name: NAMES[0].into() };
    let policy = NetworkPolicy {
        name: name.clone(),
        pods: selector(0),
        ingress: None,
        egress: Some(vec![PolicyRule { index: 0, peers, ports }]),
        is_understood: true,
    };
    Event::NetworkPolicy(name, Some(policy))
}

/// Plans and programs these facts. Returns the processor time of programming, most of it the
/// kernel's.
fn change(planner: &mut Planner, firewall: &mut Firewall, events: Vec<Event>) -> Duration {
    planner.apply(events);
    let changes = planner.update();
    firewall.update(planner.plan(), &changes);
    let begun = spent();
    firewall.sync(planner.plan()).unwrap();
    spent() - begun
}

/// What this thread has used of the processor, however busy that is.
fn spent() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap().into()
}

/// The kernel took a hundred times as long to take a range away as to add one, and everybody who
/// uses nf_tables waited.
#[test]
fn thousands_of_ranges_come_change_and_go_within_a_second() {
    let test = thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNET).expect("the kernel tests need root");
        for kind in [0, 2, 3] {
            let mut planner = Planner::new(with_firewall(), CAPABLE);
            let mut firewall = Firewall::new(Kernel::open().unwrap());
            let all = |name| {
                vec![Event::ClusterPod(pod_name(0, name), Some(cluster_pod(0, name, 0, 0).into()))]
            };
            planner.apply([listed(), all(0), all(1)].concat());
            change(&mut planner, &mut firewall, vec![isolating(), Event::Pods(recorded(3))]);
            let mut identities = 0;
            for (what, event) in [
                ("added", policy_of(0, ports(kind))),
                ("replaced", policy_of(REPLACED, ports(kind))),
                ("deleted", isolating()),
            ] {
                let took = change(&mut planner, &mut firewall, vec![event]);
                println!("{what}, ports {kind}: {took:?}");
                assert!(took < MOST, "{what}, ports {kind}: {took:?}");
                identities = identities.max(planner.plan().firewall().unwrap().identity_count());
            }
            assert_eq!(identities, 1, "nothing tells the blocks of one rule apart");
            firewall.note_foreign_change();
            assert!(firewall.resync(planner.plan()).unwrap().is_none(), "all is as it should be");
        }
    });
    test.join().unwrap();
}
