//! `waitForAgent`: what an agent answers, and what stands in an agent's place, within the time-out.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use denizen_shared::socket::{WaitAnswer, WaitFor};
use denizen_shared::state::AttachmentId;
use denizen_tests::cni::{Refusal, Rig, denizen, finish, start};
use serde_json::{Value, json};

/// The time-out of every wait here, and how much longer a busy machine may take to notice.
const TIMEOUT: Duration = Duration::from_millis(300);
const SLACK: Duration = Duration::from_millis(1500);

#[expect(clippy::disallowed_methods, reason = "that a wait is bounded can only be seen on a clock")]
fn timed<T>(job: impl FnOnce() -> T) -> (T, Duration) {
    let begun = Instant::now();
    let done = job();
    (done, begun.elapsed())
}

fn socket(rig: &Rig) -> PathBuf {
    rig.run_dir().join("agent.sock")
}

fn waiting(rig: &Rig, on_timeout: &str) -> Value {
    let mut configuration = rig.configuration("1.1.0");
    configuration["waitForAgent"] = json!({ "timeout": "300ms", "onTimeout": on_timeout });
    configuration
}

/// An ADD of container `c2` that waits, and how long it took.
fn add(rig: &Rig, on_timeout: &str) -> (Result<Value, Refusal>, Duration) {
    timed(|| rig.call(rig.variables("ADD", "c2"), &waiting(rig, on_timeout)))
}

/// Serves one connection after the other with `answer`, which is not called before the question is
/// there.
fn agent(rig: &Rig, answer: impl Fn(UnixStream, String) + Send + 'static) {
    let listener = UnixListener::bind(socket(rig)).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut line = String::new();
            BufReader::new(&stream).read_line(&mut line).unwrap();
            answer(stream, line);
        }
    });
}

/// Answers with `text` and hangs up.
fn says(text: &'static str) -> impl Fn(UnixStream, String) + Send {
    move |mut stream, _| drop(stream.write_all(text.as_bytes()))
}

#[test]
fn an_agent_that_has_programmed_the_pod_lets_it_start() {
    let rig = Rig::new();
    rig.add("c1");
    let (asked, ask) = channel();
    agent(&rig, move |mut stream, line| {
        asked.send(line).unwrap();
        let answer = serde_json::to_string(&WaitAnswer { programmed: true, reason: None }).unwrap();
        writeln!(stream, "{answer}").unwrap();
    });
    let (added, took) = add(&rig, "fail");
    assert_eq!(added.unwrap(), rig.configuration("1.1.0")["prevResult"]);
    assert!(took < TIMEOUT + SLACK, "{took:?}");
    let state = rig.state();
    let expected = WaitFor {
        wait_for: AttachmentId::new("c2", "eth0"),
        epoch: state.epoch,
        generation: state.generation,
    };
    let line = ask.recv().unwrap();
    assert_eq!(serde_json::from_str::<WaitFor>(&line).unwrap(), expected);
    let keys: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(keys["waitFor"], "c2/eth0", "{line}");
    assert_eq!(keys["generation"], 2, "{line}");
}

/// What stands in the place of an agent that has programmed the pod: its name, how it comes about,
/// whether the wait ends at once, and what the error says.
type Absence = (&'static str, fn(&Rig), bool, &'static str);

fn absences() -> Vec<Absence> {
    vec![
        ("no socket", |_| {}, true, "no agent runs here"),
        ("a file", |rig| drop(File::create(socket(rig)).unwrap()), true, "no agent runs here"),
        ("a dead socket", |rig| drop(UnixListener::bind(socket(rig)).unwrap()), false, "refused"),
        (
            "silence",
            |rig| agent(rig, |stream, _| std::mem::forget(stream)),
            false,
            "no answer from the agent within",
        ),
        ("nobody accepts", full, false, "no answer from the agent within 300ms"),
        ("hanging up", |rig| agent(rig, says("")), false, "no answer from the agent within 300ms"),
        ("rubbish", |rig| agent(rig, says("220 ready\n")), true, "cannot parse"),
        ("half an answer", |rig| agent(rig, says("{\"programmed\": tr")), true, "cannot parse"),
        (
            "a flood",
            |rig| agent(rig, |mut stream, _| while stream.write_all(&[b'x'; 4096]).is_ok() {}),
            true,
            "longer than 65536 bytes",
        ),
        (
            "a drip",
            |rig| agent(rig, |stream, _| drip(stream)),
            false,
            "no answer from the agent within 300ms",
        ),
        (
            "no",
            |rig| agent(rig, says("{\"programmed\": false, \"reason\": \"table full\"}\n")),
            true,
            "table full",
        ),
    ]
}

/// A socket whose queue is full: a connection more would block.
fn full(rig: &Rig) {
    let listener = UnixListener::bind(socket(rig)).unwrap();
    nix::sys::socket::listen(&listener, nix::sys::socket::Backlog::new(1).unwrap()).unwrap();
    let path = socket(rig);
    for _ in 0..2 {
        std::mem::forget(UnixStream::connect(&path).unwrap());
    }
    std::mem::forget(listener);
}

/// A byte now and then, each well within the time-out.
fn drip(mut stream: UnixStream) {
    for _ in 0..50 {
        std::thread::sleep(Duration::from_millis(50));
        if stream.write_all(b" ").is_err() {
            return;
        }
    }
}

#[test]
fn without_the_agent_s_word_the_pod_proceeds_within_the_time_out() {
    for (name, arrange, at_once, _) in absences() {
        let rig = Rig::new();
        rig.add("c1");
        arrange(&rig);
        let (added, took) = add(&rig, "proceed");
        assert_eq!(added.expect(name), rig.configuration("1.1.0")["prevResult"], "{name}");
        assert_eq!(rig.records(), ["c1/eth0", "c2/eth0"], "{name}");
        assert!(took < TIMEOUT + SLACK, "{name}: {took:?}");
        assert_eq!(took < TIMEOUT - Duration::from_millis(30), at_once, "{name}: {took:?}");
    }
}

#[test]
fn without_the_agent_s_word_the_pod_fails_within_the_time_out_and_is_not_recorded() {
    for (name, arrange, _, reason) in absences() {
        let rig = Rig::new();
        rig.add("c1");
        arrange(&rig);
        let (added, took) = add(&rig, "fail");
        let refusal = added.expect_err(name);
        assert_eq!(refusal["code"], 11, "{name}: {refusal}");
        let message = refusal["msg"].as_str().unwrap();
        assert!(message.contains("c2/eth0") && message.contains(reason), "{name}: {message}");
        assert!(took < TIMEOUT + SLACK, "{name}: {took:?}");
        assert_eq!(rig.records(), ["c1/eth0"], "{name}");
    }
}

#[test]
fn a_failed_add_gives_back_the_record_that_it_had_replaced() {
    let rig = Rig::new();
    rig.add("c2");
    let before = rig.state().attachments;
    let mut configuration = waiting(&rig, "fail");
    configuration["prevResult"]["ips"] = json!([]);
    rig.call(rig.variables("ADD", "c2"), &configuration).unwrap_err();
    assert_eq!(rig.state().attachments, before);
}

#[test]
fn status_says_50_when_an_add_would_fail_for_want_of_an_agent() {
    let status = |rig: &Rig, on_timeout: &str| {
        rig.call(rig.variables("STATUS", "c2"), &waiting(rig, on_timeout))
    };
    let rig = Rig::new();
    let refusal = status(&rig, "fail").unwrap_err();
    assert_eq!(refusal["code"], 50);
    assert!(refusal["msg"].as_str().unwrap().contains("agent.sock"), "{refusal}");
    status(&rig, "proceed").unwrap();
    drop(UnixListener::bind(socket(&rig)).unwrap());
    assert_eq!(status(&rig, "fail").unwrap_err()["code"], 50, "a dead socket is no agent");
    std::fs::remove_file(socket(&rig)).unwrap();
    agent(&rig, |stream, _| drop(stream));
    status(&rig, "fail").unwrap();
}

#[test]
fn an_agent_that_comes_back_within_the_time_out_is_heard() {
    let rig = Rig::new();
    rig.add("c1");
    drop(UnixListener::bind(socket(&rig)).unwrap());
    let mut configuration = waiting(&rig, "fail");
    configuration["waitForAgent"]["timeout"] = json!("20s");
    let child = start(
        &rig.node,
        &denizen(),
        rig.variables("ADD", "c2"),
        configuration.to_string().as_bytes(),
    );
    while !rig.records().contains(&"c2/eth0".to_owned()) {
        std::thread::sleep(Duration::from_millis(1));
    }
    // As an agent does when it starts: bound beside, then put in the old one's place.
    let beside = rig.run_dir().join("agent.sock.next");
    let listener = UnixListener::bind(&beside).unwrap();
    std::fs::rename(&beside, socket(&rig)).unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    writeln!(stream, "{{\"programmed\":true}}").unwrap();
    finish(child).unwrap();
}

#[test]
fn while_one_add_waits_others_are_not_held_up() {
    let rig = Rig::new();
    rig.add("c1");
    agent(&rig, |stream, _| std::mem::forget(stream));
    let mut configuration = waiting(&rig, "proceed");
    configuration["waitForAgent"]["timeout"] = json!("3s");
    let mut waiter = start(
        &rig.node,
        &denizen(),
        rig.variables("ADD", "c2"),
        configuration.to_string().as_bytes(),
    );
    while !rig.records().contains(&"c2/eth0".to_owned()) {
        std::thread::sleep(Duration::from_millis(1));
    }
    for (command, container) in [("ADD", "c3"), ("DEL", "c1"), ("DEL", "c3")] {
        rig.call(rig.variables(command, container), &rig.configuration("1.1.0")).unwrap();
    }
    assert_eq!(rig.records(), ["c2/eth0"]);
    assert!(waiter.try_wait().unwrap().is_none(), "the others were through while it still waited");
    waiter.kill().unwrap();
    waiter.wait().unwrap();
}
