//! Writers that are killed, stopped, or many at once: the state file is whole, and nobody hangs.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeMap;
use std::fs::File;
use std::num::NonZero;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use denizen_state::{AttachmentId, RunDir};
use denizen_tests::node::cni::{
    Call, Chain, Namespace, PluginContext, denizen, finish, give, spawn, start,
};
use denizen_tests::test_length::times;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

/// How many writers are killed.
fn kills_wanted() -> usize {
    times(4_000, 1_000)
}

const WRITERS: usize = 8;

/// Instants for the kills. Not the same in every run, which is the point; no two writers' are the
/// same either.
struct Instants(u64);

impl Instants {
    fn of_writer(writer: usize) -> Instants {
        Instants(
            (u64::from(std::process::id()) << 8 | writer as u64)
                .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                | 1,
        )
    }

    /// The next one, up to `longest` after the start.
    fn next(&mut self, longest: Duration) -> Duration {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        longest.mul_f64((self.0 >> 11) as f64 / (1_u64 << 53) as f64)
    }
}

/// One writer: its own node and pod namespace, and what it knows to be recorded.
struct Writer<'a> {
    number: usize,
    run_dir: &'a Path,
    node: Namespace,
    pod: Namespace,
    configuration: Vec<u8>,
    /// Containers whose ADD has returned.
    added: Vec<String>,
    /// Containers whose DEL has returned, after whatever became of their ADD.
    deleted: Vec<String>,
    /// Kills that came when the record was already there.
    too_late: usize,
}

impl Writer<'_> {
    fn start(&self, command: &str, container: &str) -> Child {
        let call = Call::new(container, &self.pod);
        start(&self.node, &denizen(), call.environment(command), &self.configuration)
    }

    /// Adds `container` and kills that after `delay`. Whether the kill came before the end.
    fn add(&mut self, container: String, delay: Duration) -> bool {
        let mut child = self.start("ADD", &container);
        std::thread::sleep(delay);
        child.kill().unwrap();
        let status = child.wait().unwrap();
        let recorded = self.assert_whole().contains_key(&AttachmentId::new(&container, "eth0"));
        match (status.signal(), status.success()) {
            (Some(9), _) => {
                self.too_late += usize::from(recorded);
                // As a runtime does after an ADD that failed.
                finish(self.start("DEL", &container)).unwrap();
                self.deleted.push(container);
                true
            }
            (None, true) => {
                assert!(recorded, "{container}: its ADD had returned");
                self.added.push(container);
                false
            }
            other => panic!("{container}: {other:?}"),
        }
    }

    /// Deletes all but the last few, or the file would only grow; half of the deletions are killed
    /// as well.
    fn clean_up(&mut self, instants: &mut Instants) -> usize {
        let mut killed = 0;
        while self.added.len() > 6 {
            // From here on nobody can say whether it is there.
            let container = self.added.remove(0);
            let mut child = self.start("DEL", &container);
            if container.ends_with(['1', '3', '5', '7', '9']) {
                std::thread::sleep(instants.next(Duration::from_millis(2)));
                child.kill().unwrap();
            }
            let status = child.wait().unwrap();
            killed += usize::from(status.signal() == Some(9));
            if status.success() {
                self.deleted.push(container);
            }
        }
        killed
    }

    /// The file is readable, holds every record whose ADD had returned, and none whose DEL had.
    fn assert_whole(&self) -> BTreeMap<AttachmentId, denizen_state::Attachment> {
        let state = RunDir::open(self.run_dir).unwrap().read().unwrap();
        let attachments = state.map(|state| state.attachments).unwrap_or_default();
        for container in &self.added {
            assert!(
                attachments.contains_key(&AttachmentId::new(container, "eth0")),
                "{container} is lost"
            );
        }
        for container in &self.deleted {
            assert!(
                !attachments.contains_key(&AttachmentId::new(container, "eth0")),
                "{container} is back"
            );
        }
        attachments
    }

    fn work(mut self, kills: &AtomicUsize) -> Self {
        let mut instants = Instants::of_writer(self.number);
        // A whole ADD takes about as long as the longest delay, so that the kills fall anywhere in
        // it.
        let mut longest = Duration::from_millis(3);
        for turn in 0.. {
            if kills.load(Ordering::Relaxed) >= kills_wanted() {
                break;
            }
            assert!(turn < 100 * kills_wanted(), "the kills never come in time");
            let killed = self.add(format!("w{}-{turn}", self.number), instants.next(longest));
            longest = if killed { longest.mul_f64(1.05) } else { longest.mul_f64(0.9) };
            kills.fetch_add(usize::from(killed) + self.clean_up(&mut instants), Ordering::Relaxed);
        }
        self
    }
}

#[test]
fn thousands_of_killed_writers_lose_no_record_and_leave_a_readable_file() {
    let context = PluginContext::new();
    context.add("first");
    let configuration = context.configuration("1.1.0").to_string().into_bytes();
    let (kills, run_dir) = (AtomicUsize::new(0), context.run_dir());
    let writers: Vec<_> = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|number| {
                let (node, pod) = (Namespace::new(), Namespace::new());
                let (configuration, run_dir, kills) =
                    (configuration.clone(), run_dir.as_path(), &kills);
                let writer = Writer {
                    number,
                    run_dir,
                    node,
                    pod,
                    configuration,
                    added: vec![],
                    deleted: vec![],
                    too_late: 0,
                };
                scope.spawn(move || writer.work(kills))
            })
            .collect();
        writers.into_iter().map(|writer| writer.join().unwrap()).collect()
    });
    for writer in &writers {
        writer.assert_whole();
    }
    let too_late: usize = writers.iter().map(|writer| writer.too_late).sum();
    let added: usize = writers.iter().map(|writer| writer.added.len()).sum();
    let (kills, records) = (kills.into_inner(), context.records().len());
    println!(
        "{kills} kills, {too_late} of them between record and return; {added} of {records} records known"
    );
    assert!(kills >= kills_wanted());
    // Nothing of the killed stands in anybody's way.
    RunDir::open(&run_dir).unwrap().update(Duration::ZERO, |_| ()).unwrap();
    context.add("last");
}

#[test]
fn a_hundred_pods_at_once_are_a_hundred_records() {
    let context = PluginContext::new();
    let chain = context.chain(
        "1.0.0",
        json!({ "type": "bridge", "bridge": "cni0", "isGateway": true }),
        &["10.85.0.0/16"],
    );
    // The first makes the bridge, which the bridge plugin itself cannot do twice at once.
    let first = Call::new("first", &context.pod);
    chain.add(&context.node, &first).unwrap();
    let pods: Vec<_> = (0..100).map(|_| Namespace::new()).collect();
    let calls: Vec<_> =
        pods.iter().enumerate().map(|(n, pod)| Call::new(&format!("pod-{n}"), pod)).collect();
    let before: Vec<_> = calls.iter().map(|call| add_first(&context, &chain, call)).collect();
    let adding: Vec<_> = calls
        .iter()
        .zip(&before)
        .map(|(call, result)| add_ours(&context, &chain, call, result))
        .collect();
    for (child, result) in adding.into_iter().zip(&before) {
        assert_eq!(&finish(child).unwrap(), result);
    }
    let state = context.state();
    assert_eq!((state.attachments.len(), state.generation.0), (101, 101));
    for (call, pod) in calls.iter().zip(&pods) {
        let record = &state.attachments[&AttachmentId::new(&call.container, "eth0")];
        let host = record.host_interface.as_ref().unwrap();
        assert_eq!(json!(host.index), pod.link("eth0")["link_index"]);
    }
    RunDir::open(&context.run_dir())
        .unwrap()
        .update(Duration::ZERO, |_| ())
        .expect("no lock is held");
}

/// Keeps every core busy until it is dropped, as the pods that are being started do.
struct BusyCores {
    stop: Arc<AtomicBool>,
}

impl BusyCores {
    fn new() -> BusyCores {
        let stop = Arc::new(AtomicBool::new(false));
        for _ in 0..std::thread::available_parallelism().map_or(2, NonZero::get) {
            let stop = stop.clone();
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        BusyCores { stop }
    }
}

impl Drop for BusyCores {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

#[test]
fn seven_hundred_and_fifty_simultaneous_adds_on_busy_cores_are_as_many_records() {
    const ADDS: usize = 750;
    let context = PluginContext::new();
    let configuration = context.configuration("1.1.0").to_string().into_bytes();
    let _busy = BusyCores::new();
    // Each waits for its configuration, so that they begin together.
    let started: Vec<_> = (0..ADDS)
        .map(|n| {
            let call = Call::new(&format!("pod-{n}"), &context.pod);
            spawn(&context.node, &denizen(), call.environment("ADD"))
        })
        .collect();
    let adding: Vec<_> = started
        .into_iter()
        .map(|mut child| {
            give(&mut child, &configuration);
            child
        })
        .collect();
    let failed: Vec<_> = adding.into_iter().filter_map(|child| finish(child).err()).collect();
    assert!(failed.is_empty(), "{} of {ADDS} failed: {}", failed.len(), failed[0]);
    assert_eq!(context.records().len(), ADDS);
}

fn add_first(context: &PluginContext, chain: &Chain, call: &Call) -> Value {
    chain.call(&context.node, call, "ADD", &chain.plugins[0], None).unwrap()
}

/// Starts ours and does not wait for it.
fn add_ours(context: &PluginContext, chain: &Chain, call: &Call, result: &Value) -> Child {
    let mut configuration = chain.plugins[1].clone();
    configuration["cniVersion"] = json!(chain.version);
    configuration["name"] = json!(chain.name);
    configuration["prevResult"] = result.clone();
    start(&context.node, &denizen(), call.environment("ADD"), configuration.to_string().as_bytes())
}

#[expect(clippy::disallowed_methods, reason = "that a wait is bounded can only be seen on a clock")]
#[test]
fn a_writer_stopped_while_it_holds_the_lock_costs_the_others_an_error_11() {
    let context = PluginContext::new();
    context.add("first");
    let configuration = context.configuration("1.1.0").to_string().into_bytes();
    let mut instants = Instants::of_writer(0);
    let lock = context.run_dir().join("pods.json.lock");
    let holder = (0..1_000)
        .find_map(|turn| {
            let call = Call::new(&format!("stopped-{turn}"), &context.pod);
            let mut child =
                start(&context.node, &denizen(), call.environment("ADD"), &configuration);
            std::thread::sleep(instants.next(Duration::from_millis(3)));
            let pid = Pid::from_raw(i32::try_from(child.id()).unwrap());
            kill(pid, Signal::SIGSTOP).unwrap();
            let holds_it = File::open(&lock).unwrap().try_lock().is_err();
            if holds_it {
                return Some((child, pid, call.container));
            }
            kill(pid, Signal::SIGCONT).unwrap();
            child.wait().unwrap();
            None
        })
        .expect("one of them is stopped while it writes");

    let begun = Instant::now();
    let waiting: Vec<_> = (0..3)
        .map(|n| {
            let call = Call::new(&format!("waiting-{n}"), &context.pod);
            start(&context.node, &denizen(), call.environment("ADD"), &configuration)
        })
        .collect();
    for child in waiting {
        let refusal = finish(child).unwrap_err();
        assert_eq!(refusal["code"], 11, "{refusal}");
        assert!(refusal["msg"].as_str().unwrap().contains("pods.json.lock"), "{refusal}");
    }
    let took = begun.elapsed();
    assert!((Duration::from_secs(5)..Duration::from_secs(8)).contains(&took), "{took:?}");

    let (child, pid, container) = holder;
    kill(pid, Signal::SIGCONT).unwrap();
    finish(child).expect("it goes on where it was stopped");
    assert!(context.records().contains(&format!("{container}/eth0")));
    context.add("last");
}
