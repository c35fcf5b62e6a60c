//! The schedule of searches, and a kernel that refuses.

use denizen_netlink::{Socket, Writer};
use denizen_plan::MarkBit;
use nix::libc;
use nix::sched::{CloneFlags, unshare};

use super::*;
use denizen_backend::BackendName;
use denizen_backend::chosen::BackendConfig;
use denizen_fixture::{endpoint, pods, port, put_tuple, service, service_port, slice};
use denizen_model::{
    Event, Family, Listing, NetworkPolicy, PolicyName, Protocol, Selector, Service, Slice,
    SlicePort,
};
use denizen_observe::status::metrics::Metrics;
use denizen_packet::FlowSelection;
use denizen_plan::fixture::policy;
use denizen_plan::{FirewallSettings, Policy};

/// Runs `test` in a network namespace of its own.
fn alone(test: impl FnOnce() + Send + 'static) {
    let thread = std::thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNET).expect("the kernel tests need root");
        test();
    });
    thread.join().unwrap();
}

/// Runs `test` on a runtime like the agent's.
fn block_on(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.unwrap().block_on(test);
}

/// Runs `test` as an unprivileged user, in this thread and those that it starts.
fn as_nobody(test: impl FnOnce()) {
    let become_user = |user: libc::uid_t| {
        // SAFETY: it changes the effective user of this thread alone, and touches no memory.
        let changed = unsafe { libc::syscall(libc::SYS_setresuid, -1, user, -1) };
        assert_eq!(changed, 0);
    };
    become_user(65534);
    test();
    become_user(0);
}

/// An engine without facts.
fn empty() -> Engine {
    let config = BackendConfig { name: BackendName::Nftables, iptables_variant: None };
    Engine::open(policy(), config).unwrap()
}

fn apply(engine: &mut Engine, events: Vec<Event>) {
    engine.apply(events);
    engine.decide();
}

/// An engine from which a pod was just removed.
fn with_a_removed_pod() -> Engine {
    let mut engine = empty();
    for pods in [pods(1, &[("10.1.2.3", "cni0")]), pods(2, &[])] {
        apply(&mut engine, vec![Event::Pods(pods)]);
    }
    engine
}

/// A pod of both families.
const POD: [(&str, &str); 2] = [("10.1.2.3", "cni0"), ("fd00:1::3", "cni0")];

/// An engine with a pod, and a service at port 53 over this protocol at `cluster_ip`, and no open
/// candidates.
fn with_service(protocol: Protocol, cluster_ip: &str) -> Engine {
    let mut engine = empty();
    let served = Service {
        ports: vec![service_port("dns", protocol, 53, None)],
        ..service("dns", &[cluster_ip])
    };
    let mut events: Vec<Event> = Listing::SERVICES.map(Event::Listed).into();
    events.push(Event::Pods(pods(1, &POD)));
    events.push(Event::Service(served.name.clone(), Some(served)));
    events.push(served_by(protocol, 1));
    apply(&mut engine, events);
    engine.take_stale_candidates();
    engine
}

/// The service's one endpoint.
fn served_by(protocol: Protocol, last: u32) -> Event {
    let port = SlicePort { name: "dns".into(), protocol, port: port(5353) };
    let slice = Slice {
        ports: [port].into(),
        ..slice("dns-1", "dns", vec![endpoint(&format!("10.9.0.{last}"), None)])
    };
    Event::Slice(slice.name.clone(), Some(slice))
}

/// Waits until no search is pending. Returns how often the kernel's table was dumped.
async fn dumps_until_idle(flush: &mut Flush, engine: &mut Engine) -> u64 {
    while flush.look.is_some() || flush.due().is_some() {
        let step = flush.next().await;
        flush.take(step, engine, &HashSet::new());
    }
    flush.conntrack.as_ref().map_or(0, Conntrack::dumps)
}

/// A dump walks the kernel's whole table, whatever its filter is.
#[test]
fn a_change_dumps_only_what_services_use() {
    let cases = [
        // One for the first search, one for the second.
        ("TCP of one family", Protocol::Tcp, 2),
        ("UDP of one family", Protocol::Udp, 2),
    ];
    for (what, protocol, expected) in cases {
        alone(move || {
            block_on(async {
                let (mut engine, mut flush) = (with_service(protocol, "10.96.0.10"), flush());
                apply(&mut engine, vec![Event::Pods(pods(2, &[]))]);
                flush.after(synced("a pod is gone"), &mut engine);
                let dumps = dumps_until_idle(&mut flush, &mut engine).await;
                assert_eq!(dumps, expected, "{what}");
            })
        });
    }
}

/// Time for what depends on how busy the machine is.
const LENIENT: Duration = Duration::from_millis(500);

#[test]
fn changes_without_pause_are_flushed_in_time_and_share_searches() {
    alone(|| {
        block_on(async {
            let (mut engine, mut flush) = (with_service(Protocol::Udp, "10.96.0.10"), flush());
            let begun = Instant::now();
            let (mut asked, mut looks) = (Vec::new(), Vec::new());
            let mut waited = Duration::ZERO;
            for number in 1..=100 {
                apply(&mut engine, vec![served_by(Protocol::Udp, number % 2)]);
                flush.after(synced("changed"), &mut engine);
                asked.push(Instant::now());
                let next = Instant::now() + Duration::from_millis(10);
                while let Ok(step) = tokio::time::timeout_at(next, flush.next()).await {
                    let begins = matches!(step, Step::Due);
                    flush.take(step, &mut engine, &HashSet::new());
                    if begins {
                        looks.push(Instant::now());
                        let waiting = flush.fresh.len();
                        let looked = asked.drain(..asked.len() - waiting);
                        waited = looked.map(|at| at.elapsed()).fold(waited, Duration::max);
                    }
                }
            }
            let dumps = dumps_until_idle(&mut flush, &mut engine).await;
            // One search at a time, one dump each, and no more than the schedule allows; the second
            // searches come after.
            let most = begun.elapsed().as_millis() / SHORTEST_REST.as_millis() + 2;
            assert!(u128::from(dumps) <= most, "{dumps} dumps, not {most}");
            let gaps = looks.windows(2).map(|pair| pair[1] - pair[0]);
            let shortest = gaps.min().expect("more than one search");
            assert!(shortest >= SHORTEST_REST, "{shortest:?}, {dumps} dumps");
            assert!(waited < ANSWERED + SHORTEST_REST + LENIENT, "{waited:?}");
        })
    });
}

fn flush() -> Flush {
    Flush::open(Metrics::default().like_kube_proxy).unwrap()
}

fn synced(at: &str) -> LastSync {
    LastSync::new(at.to_owned(), Duration::from_millis(1))
}

async fn until_done(flush: &mut Flush, engine: &mut Engine) {
    loop {
        let step = flush.next().await;
        let done = matches!(step, Step::Done(_));
        flush.take(step, engine, &HashSet::new());
        if done {
            return;
        }
    }
}

#[test]
fn a_sync_is_reported_when_its_stale_entries_are_gone() {
    alone(|| {
        block_on(async {
            let (mut engine, mut flush) = (with_a_removed_pod(), flush());
            flush.after(synced("first"), &mut engine);
            let status = engine.status(Vec::new());
            assert_eq!((status.last_sync, status.flushing), (None, true));
            until_done(&mut flush, &mut engine).await;
            let status = engine.status(Vec::new());
            assert_eq!((status.last_sync, status.flushing), (Some(synced("first")), false));
            // Nothing to search for: reported at once, with the second search still pending.
            flush.after(synced("second"), &mut engine);
            assert_eq!(engine.status(Vec::new()).last_sync, Some(synced("second")));
            assert_eq!(flush.again.len(), 1);
            until_done(&mut flush, &mut engine).await;
            assert!(flush.again.is_empty() && flush.problem().is_none());
        })
    });
}

/// The rules are programmed anyway, and a later search finds what this one could not.
#[test]
fn a_kernel_that_refuses_is_reported_and_delays_nothing() {
    alone(|| {
        let (mut engine, mut flush) = (with_a_removed_pod(), flush());
        as_nobody(|| {
            block_on(async {
                flush.after(synced("first"), &mut engine);
                until_done(&mut flush, &mut engine).await;
            });
        });
        let problem = flush.problem().expect("a problem");
        assert!(problem.contains("conntrack") && problem.contains("permitted"), "{problem}");
        assert_eq!(engine.status(Vec::new()).last_sync, Some(synced("first")));
        assert!(!flush.fresh.is_empty(), "it is tried again");
        assert!(flush.due() > Some(Instant::now() + RETRY / 2), "and not at once");
        flush.after(synced("second"), &mut engine);
        assert_eq!(engine.status(Vec::new()).last_sync, Some(synced("second")));
        flush.rested = Instant::now();
        block_on(until_done(&mut flush, &mut engine));
        assert_eq!(flush.problem(), None);
    });
}

/// An engine with a pod of both families, which enforces policies. Nobody is isolated.
fn with_firewall() -> Engine {
    let config = BackendConfig { name: BackendName::Nftables, iptables_variant: None };
    let policy = Policy { firewall: Some(FirewallSettings::default()), ..policy() };
    let mut engine = Engine::open(policy, config).unwrap();
    let listed = Listing::FIREWALL.map(Event::Listed);
    apply(&mut engine, [vec![Event::Pods(pods(1, &POD))], listed.into()].concat());
    engine
}

/// A policy that denies everything to the pod, or its end.
fn denied(is_denied: bool) -> Vec<Event> {
    let namespace = pods(1, &POD).pods[0].pod.clone().expect("it has a name").namespace;
    let name = PolicyName { namespace, name: "deny".into() };
    let policy = is_denied.then(|| NetworkPolicy {
        name: name.clone(),
        pods: Selector::default(),
        ingress: Some(Vec::new()),
        egress: None,
        is_understood: true,
    });
    vec![Event::NetworkPolicy(name, policy)]
}

/// Puts an entry of UDP from this port to the pod into the kernel's table, with a mark of others.
fn put(port: u16) {
    let (client, pod) = ([10, 9, 0, 9], [10, 1, 2, 3]);
    let mut socket = Socket::open().unwrap();
    let sequence = socket.sequences(1);
    let mut request = Writer::default();
    let flags = (libc::NLM_F_ACK | libc::NLM_F_CREATE | libc::NLM_F_EXCL) as u16;
    let message = request.begin_message(0x100, flags, sequence, libc::AF_INET as u8, 0);
    let (client, pod) = ((client, port), (pod, 53));
    put_tuple(&mut request, 1, Protocol::Udp, client, pod);
    put_tuple(&mut request, 2, Protocol::Udp, pod, client);
    request.put_u32(7, 600);
    request.put_u32(8, 0x1000);
    request.end_message(message);
    socket.send(request.bytes()).unwrap();
    socket.outcome(sequence).unwrap();
}

/// How many entries are forbidden, of all.
fn forbidden() -> [usize; 2] {
    let mut all = Vec::new();
    let mut conntrack = Conntrack::open(MarkBit::FORBIDDEN.mask()).unwrap();
    let part = FlowSelection { family: Family::V4, protocol: None, unanswered_syns: false };
    conntrack.read(part, |entry| all.push(entry)).unwrap();
    [all.iter().filter(|entry| entry.is_marked).count(), all.len()]
}

/// A dump would be paid for by every change of a pod, as long as anything is forbidden.
#[test]
fn what_is_permitted_again_is_found_without_a_dump() {
    alone(|| {
        block_on(async {
            let (mut engine, mut flush) = (with_firewall(), flush());
            (0..2000).for_each(|port| put(1024 + port));
            flush.after(synced("nothing is denied"), &mut engine);
            dumps_until_idle(&mut flush, &mut engine).await;
            apply(&mut engine, denied(true));
            flush.after(synced("all is denied"), &mut engine);
            let dumps = dumps_until_idle(&mut flush, &mut engine).await;
            assert_eq!(forbidden(), [2000, 2000]);
            apply(&mut engine, denied(false));
            flush.after(synced("nothing is denied"), &mut engine);
            assert_eq!(dumps_until_idle(&mut flush, &mut engine).await, dumps);
            assert_eq!(forbidden(), [0, 2000]);
        })
    });
}

/// While an answer may be on its way, an entry that a later change concerns too stays for that
/// change's search. Not so if the next pod with the address waits for the search.
#[test]
fn what_departed_is_deleted_at_once_although_a_later_change_concerns_it() {
    alone(|| {
        block_on(async {
            let (mut engine, mut flush) = (with_firewall(), flush());
            apply(&mut engine, denied(true));
            flush.after(synced("all is denied"), &mut engine);
            dumps_until_idle(&mut flush, &mut engine).await;
            put(4000);
            apply(&mut engine, vec![Event::Pods(pods(2, &[]))]);
            flush.after(synced("the pod is gone"), &mut engine);
            let step = flush.next().await;
            flush.take(step, &mut engine, &HashSet::new());
            for generation in [pods(3, &POD), pods(4, &[])] {
                apply(&mut engine, vec![Event::Pods(generation)]);
            }
            flush.after(synced("and its successor"), &mut engine);
            assert_eq!(flush.fresh.len(), 1, "the search for the first one runs");
            until_done(&mut flush, &mut engine).await;
            assert_eq!(forbidden(), [0, 0]);
        })
    });
}

#[test]
fn a_new_agent_permits_what_an_earlier_one_forbade() {
    alone(|| {
        block_on(async {
            let (mut engine, mut former) = (with_firewall(), flush());
            put(4000);
            apply(&mut engine, denied(true));
            former.after(synced("all is denied"), &mut engine);
            dumps_until_idle(&mut former, &mut engine).await;
            assert_eq!(forbidden(), [1, 1]);
            let (mut engine, mut flush) = (with_firewall(), flush());
            flush.after(synced("nothing is denied"), &mut engine);
            dumps_until_idle(&mut flush, &mut engine).await;
            assert_eq!(forbidden(), [0, 1]);
        })
    });
}
