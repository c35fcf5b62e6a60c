//! The pace, against a kernel that refuses.

use nix::libc;
use nix::sched::{CloneFlags, unshare};

use super::*;
use crate::backend::BackendName;
use crate::engine::Policy;
use crate::fixture::{pods, settings};
use crate::model::Event;
use crate::plan::{Detector, NodePortAddresses, NodeSide};
use crate::status::metrics::Metrics;

/// Runs `test` in a network namespace of its own.
fn alone(test: impl FnOnce() + Send + 'static) {
    let thread = std::thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNET).expect("the kernel tests need root");
        test();
    });
    thread.join().unwrap();
}

/// On a runtime as the agent's.
fn block_on(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.unwrap().block_on(test);
}

/// With the rights of a user who has none, for this thread and those that it starts.
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

/// An engine for which a pod has just gone.
fn suspicious() -> Engine {
    let policy = Policy {
        settings: settings(),
        detector: Detector::PodState,
        node_ports: NodePortAddresses::Primary,
        node_side: NodeSide::default(),
        backend: BackendName::Nftables,
    };
    let mut engine = Engine::open(policy, None).unwrap();
    for told in [pods(1, &[("10.1.2.3", "cni0")]), pods(2, &[])] {
        engine.apply(vec![Event::Pods(told)]);
        engine.decided();
    }
    engine
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
        flush.take(step, engine);
        if done {
            return;
        }
    }
}

#[test]
fn a_change_is_told_when_what_it_made_stale_was_looked_for() {
    alone(|| {
        block_on(async {
            let (mut engine, mut flush) = (suspicious(), flush());
            flush.after(synced("first"), &mut engine);
            let status = engine.status(Vec::new());
            assert_eq!((status.last_sync, status.flushing), (None, true));
            until_done(&mut flush, &mut engine).await;
            let status = engine.status(Vec::new());
            assert_eq!(
                (status.last_sync, status.flushing),
                (Some(synced("first")), false)
            );
            // Nothing to look for: told at once, with the second look still to come.
            flush.after(synced("second"), &mut engine);
            assert_eq!(engine.status(Vec::new()).last_sync, Some(synced("second")));
            assert_eq!(flush.again.len(), 1);
            until_done(&mut flush, &mut engine).await;
            assert!(flush.again.is_empty() && flush.problem().is_none());
        })
    });
}

/// The rules are there all the same, and a later look finds what this one could not.
#[test]
fn a_kernel_that_refuses_is_told_of_and_holds_nothing_up() {
    alone(|| {
        let (mut engine, mut flush) = (suspicious(), flush());
        as_nobody(|| {
            block_on(async {
                flush.after(synced("first"), &mut engine);
                until_done(&mut flush, &mut engine).await;
            });
        });
        let problem = flush.problem().expect("a problem");
        assert!(
            problem.contains("conntrack") && problem.contains("permitted"),
            "{problem}"
        );
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
