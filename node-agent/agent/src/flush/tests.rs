//! The schedule of searches, and a kernel that refuses.

use denizen_netlink::{Socket, Writer};
use denizen_plan::MarkBit;
use nix::libc;
use nix::sched::{CloneFlags, unshare};

use super::*;
use denizen_backend::BackendName;
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

/// A plan, and the searches that its changes lead to.
struct Flushed {
    planner: Planner,
    flush: Flush,
}

impl Flushed {
    /// Without facts.
    fn new(policy: Policy) -> Self {
        Self {
            planner: Planner::new(policy, BackendName::Nftables.capabilities()),
            flush: Flush::open(Metrics::default().like_kube_proxy).unwrap(),
        }
    }

    fn apply(&mut self, events: Vec<Event>) {
        self.planner.apply(events);
        let changes = self.planner.update();
        self.flush.update(self.planner.plan(), &changes);
    }

    /// What is decided is in the kernel.
    fn synced(&mut self, at: &str) {
        self.flush.synced(last_sync(at), self.planner.plan());
    }

    fn step(&mut self, step: Step) {
        self.flush.step(step, &self.planner, &HashSet::new());
    }

    /// Waits until no search is pending. Returns how often the kernel's table was dumped.
    async fn dumps_until_idle(&mut self) -> u64 {
        while self.flush.search.is_some() || self.flush.next_search().is_some() {
            let step = self.flush.due().await;
            self.step(step);
        }
        self.flush.conntrack.as_ref().map_or(0, Conntrack::dumps)
    }

    async fn until_done(&mut self) {
        loop {
            let step = self.flush.due().await;
            let done = matches!(step, Step::Done(_));
            self.step(step);
            if done {
                return;
            }
        }
    }

    fn last_sync(&self) -> Option<LastSync> {
        self.flush.report().last_sync
    }
}

/// A plan from which a pod was just removed.
fn with_a_removed_pod() -> Flushed {
    let mut flushed = Flushed::new(policy());
    for pods in [pods(1, &[("10.1.2.3", "cni0")]), pods(2, &[])] {
        flushed.apply(vec![Event::Pods(pods)]);
    }
    flushed
}

/// A pod of both families.
const POD: [(&str, &str); 2] = [("10.1.2.3", "cni0"), ("fd00:1::3", "cni0")];

/// A plan with a pod, and a service at port 53 over this protocol at `cluster_ip`, and no open
/// candidates.
fn with_service(protocol: Protocol, cluster_ip: &str) -> Flushed {
    let mut flushed = Flushed::new(policy());
    let served = Service {
        ports: vec![service_port("dns", protocol, 53, None)],
        ..service("dns", &[cluster_ip])
    };
    let mut events: Vec<Event> = Listing::SERVICES.map(Event::Listed).into();
    events.push(Event::Pods(pods(1, &POD)));
    events.push(Event::Service(served.name.clone(), Some(served)));
    events.push(served_by(protocol, 1));
    flushed.apply(events);
    flushed.flush.tracker.take(flushed.planner.plan());
    flushed
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
                let mut flushed = with_service(protocol, "10.96.0.10");
                flushed.apply(vec![Event::Pods(pods(2, &[]))]);
                flushed.synced("a pod is gone");
                let dumps = flushed.dumps_until_idle().await;
                assert_eq!(dumps, expected, "{what}");
            })
        });
    }
}

/// Time for what depends on how busy the machine is.
const LENIENT: Duration = Duration::from_millis(500);

#[test]
fn changes_without_pause_are_flushed_in_time_and_share_searches() {
    share_searches(Protocol::Udp, SHORTEST_REST);
}

#[test]
fn changes_of_tcp_share_more_searches() {
    share_searches(Protocol::Tcp, SYNS_REST);
}

/// Between two searches there is a pause of `rest`.
fn share_searches(protocol: Protocol, rest: Duration) {
    alone(move || {
        block_on(async {
            let mut flushed = with_service(protocol, "10.96.0.10");
            let begun = Instant::now();
            let (mut asked, mut looks) = (Vec::new(), Vec::new());
            let mut waited = Duration::ZERO;
            for number in 1..=100 {
                flushed.apply(vec![served_by(protocol, number % 2)]);
                flushed.synced("changed");
                asked.push(Instant::now());
                let next = Instant::now() + Duration::from_millis(10);
                while let Ok(step) = tokio::time::timeout_at(next, flushed.flush.due()).await {
                    let begins = matches!(step, Step::Due);
                    flushed.step(step);
                    if begins {
                        looks.push(Instant::now());
                        let waiting = flushed.flush.first_searches.len();
                        let finished_search = asked.drain(..asked.len() - waiting);
                        waited = finished_search.map(|at| at.elapsed()).fold(waited, Duration::max);
                    }
                }
            }
            let dumps = flushed.dumps_until_idle().await;
            // One search at a time, one dump each, and no more than the schedule allows; the second
            // searches come after.
            let most = begun.elapsed().as_millis() / rest.as_millis() + 2;
            assert!(u128::from(dumps) <= most, "{dumps} dumps, not {most}");
            let gaps = looks.windows(2).map(|pair| pair[1] - pair[0]);
            let shortest = gaps.min().expect("more than one search");
            assert!(shortest >= rest, "{shortest:?}, {dumps} dumps");
            assert!(waited < ANSWERED + rest + LENIENT, "{waited:?}");
        })
    });
}

fn last_sync(at: &str) -> LastSync {
    LastSync::new(at.to_owned(), Duration::from_millis(1))
}

#[test]
fn a_sync_is_reported_when_its_stale_entries_are_gone() {
    alone(|| {
        block_on(async {
            let mut flushed = with_a_removed_pod();
            flushed.synced("first");
            let report = flushed.flush.report();
            assert_eq!((report.last_sync, report.is_flushing), (None, true));
            flushed.until_done().await;
            let report = flushed.flush.report();
            let first = Some(last_sync("first"));
            assert_eq!((report.last_sync, report.is_flushing), (first, false));
            // Nothing to search for: reported at once, with the second search still pending.
            flushed.synced("second");
            assert_eq!(flushed.last_sync(), Some(last_sync("second")));
            assert_eq!(flushed.flush.second_searches.len(), 1);
            flushed.until_done().await;
            assert!(flushed.flush.second_searches.is_empty() && flushed.flush.problem.is_none());
        })
    });
}

/// The rules are programmed anyway, and a later search finds what this one could not.
#[test]
fn a_kernel_that_refuses_is_reported_and_delays_nothing() {
    alone(|| {
        let mut flushed = with_a_removed_pod();
        as_nobody(|| {
            block_on(async {
                flushed.synced("first");
                flushed.until_done().await;
            });
        });
        let problem = flushed.flush.report().problem.expect("a problem");
        assert!(problem.contains("conntrack") && problem.contains("permitted"), "{problem}");
        assert_eq!(flushed.last_sync(), Some(last_sync("first")));
        assert!(!flushed.flush.first_searches.is_empty(), "it is tried again");
        assert!(flushed.flush.next_search() > Some(Instant::now() + RETRY / 2), "and not at once");
        flushed.synced("second");
        assert_eq!(flushed.last_sync(), Some(last_sync("second")));
        flushed.flush.next_search_after = Instant::now();
        block_on(flushed.until_done());
        assert_eq!(flushed.flush.problem, None);
    });
}

/// A plan with a pod of both families, which enforces policies. Nobody is isolated.
fn with_firewall() -> Flushed {
    let policy = Policy { firewall: Some(FirewallSettings::default()), ..policy() };
    let mut flushed = Flushed::new(policy);
    let listed = Listing::FIREWALL.map(Event::Listed);
    flushed.apply([vec![Event::Pods(pods(1, &POD))], listed.into()].concat());
    flushed
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
            let mut flushed = with_firewall();
            (0..2000).for_each(|port| put(1024 + port));
            flushed.synced("nothing is denied");
            flushed.dumps_until_idle().await;
            flushed.apply(denied(true));
            flushed.synced("all is denied");
            let dumps = flushed.dumps_until_idle().await;
            assert_eq!(forbidden(), [2000, 2000]);
            flushed.apply(denied(false));
            flushed.synced("nothing is denied");
            assert_eq!(flushed.dumps_until_idle().await, dumps);
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
            let mut flushed = with_firewall();
            flushed.apply(denied(true));
            flushed.synced("all is denied");
            flushed.dumps_until_idle().await;
            put(4000);
            flushed.apply(vec![Event::Pods(pods(2, &[]))]);
            flushed.synced("the pod is gone");
            let step = flushed.flush.due().await;
            flushed.step(step);
            for generation in [pods(3, &POD), pods(4, &[])] {
                flushed.apply(vec![Event::Pods(generation)]);
            }
            flushed.synced("and its successor");
            assert_eq!(flushed.flush.first_searches.len(), 1, "the search for the first one runs");
            flushed.until_done().await;
            assert_eq!(forbidden(), [0, 0]);
        })
    });
}

#[test]
fn a_new_agent_permits_what_an_earlier_one_forbade() {
    alone(|| {
        block_on(async {
            let mut former = with_firewall();
            put(4000);
            former.apply(denied(true));
            former.synced("all is denied");
            former.dumps_until_idle().await;
            assert_eq!(forbidden(), [1, 1]);
            let mut flushed = with_firewall();
            flushed.synced("nothing is denied");
            flushed.dumps_until_idle().await;
            assert_eq!(forbidden(), [0, 1]);
        })
    });
}
