//! `waitForAgent`: what an agent answers, and what stands in an agent's place, within the time-out.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use denizen_state::AttachmentId;
use denizen_state::socket::{WaitAnswer, WaitFor};
use denizen_tests::node::cni::{PluginContext, Refusal, denizen, finish, start};
use serde_json::{Value, json};

/// The time-out of every wait here, and how much longer a busy machine may take to notice.
pub const TIMEOUT: Duration = Duration::from_millis(300);
pub const SLACK: Duration = Duration::from_millis(1500);

#[expect(clippy::disallowed_methods, reason = "that a wait is bounded can only be seen on a clock")]
pub fn timed<T>(job: impl FnOnce() -> T) -> (T, Duration) {
    let begun = Instant::now();
    let done = job();
    (done, begun.elapsed())
}

pub fn socket(context: &PluginContext) -> PathBuf {
    context.run_dir().join("agent.sock")
}

pub fn waiting(context: &PluginContext, on_timeout: &str) -> Value {
    let mut configuration = context.configuration("1.1.0");
    configuration["waitForAgent"] = json!({ "timeout": "300ms", "onTimeout": on_timeout });
    configuration
}

/// An ADD of container `c2` that waits, and how long it took.
fn add(context: &PluginContext, on_timeout: &str) -> (Result<Value, Refusal>, Duration) {
    timed(|| context.call(context.variables("ADD", "c2"), &waiting(context, on_timeout)))
}

/// Serves one connection after the other with `answer`, which is not called before the question is
/// there.
pub fn agent(context: &PluginContext, answer: impl Fn(UnixStream, String) + Send + 'static) {
    let listener = UnixListener::bind(socket(context)).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut line = String::new();
            BufReader::new(&stream).read_line(&mut line).unwrap();
            answer(stream, line);
        }
    });
}

/// Answers with `text` and hangs up.
pub fn says(text: &'static str) -> impl Fn(UnixStream, String) + Send {
    move |mut stream, _| drop(stream.write_all(text.as_bytes()))
}

#[test]
fn an_agent_that_has_programmed_the_pod_lets_it_start() {
    let context = PluginContext::new();
    context.add("c1");
    let (asked, ask) = channel();
    agent(&context, move |mut stream, line| {
        asked.send(line).unwrap();
        let answer = serde_json::to_string(&WaitAnswer { programmed: true, reason: None }).unwrap();
        writeln!(stream, "{answer}").unwrap();
    });
    let (added, took) = add(&context, "fail");
    assert_eq!(added.unwrap(), context.configuration("1.1.0")["prevResult"]);
    assert!(took < TIMEOUT + SLACK, "{took:?}");
    let state = context.state();
    let expected = WaitFor {
        wait_for: AttachmentId::new("c2", "eth0"),
        epoch: state.epoch,
        generation: state.generation,
        removed: false,
        asked_at: None,
    };
    let line = ask.recv().unwrap();
    let asked: WaitFor = serde_json::from_str(&line).unwrap();
    assert!(asked.asked_at.is_some(), "{line}");
    assert_eq!(WaitFor { asked_at: None, ..asked }, expected);
    let keys: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(keys["waitFor"], "c2/eth0", "{line}");
    assert_eq!(keys["generation"], 2, "{line}");
}

/// What stands in the place of an agent that has programmed the pod: its name, how it comes about,
/// whether the wait ends at once, and what the error says.
pub type Absence = (&'static str, fn(&PluginContext), bool, &'static str);

pub fn absences() -> Vec<Absence> {
    vec![
        ("no socket", |_| {}, true, "no agent runs here"),
        (
            "a file",
            |context| drop(File::create(socket(context)).unwrap()),
            true,
            "no agent runs here",
        ),
        (
            "a dead socket",
            |context| drop(UnixListener::bind(socket(context)).unwrap()),
            false,
            "refused",
        ),
        (
            "silence",
            |context| agent(context, |stream, _| std::mem::forget(stream)),
            false,
            "no answer from the agent within",
        ),
        ("nobody accepts", full, false, "no answer from the agent within 300ms"),
        (
            "hanging up",
            |context| agent(context, says("")),
            false,
            "no answer from the agent within 300ms",
        ),
        ("rubbish", |context| agent(context, says("220 ready\n")), true, "cannot parse"),
        (
            "half an answer",
            |context| agent(context, says("{\"programmed\": tr")),
            true,
            "cannot parse",
        ),
        (
            "a flood",
            |context| {
                agent(context, |mut stream, _| while stream.write_all(&[b'x'; 4096]).is_ok() {})
            },
            true,
            "longer than 65536 bytes",
        ),
        (
            "a drip",
            |context| agent(context, |stream, _| drip(stream)),
            false,
            "no answer from the agent within 300ms",
        ),
        (
            "no",
            |context| agent(context, says("{\"programmed\": false, \"reason\": \"table full\"}\n")),
            true,
            "table full",
        ),
    ]
}

/// A socket whose queue is full: a connection more would block.
fn full(context: &PluginContext) {
    let listener = UnixListener::bind(socket(context)).unwrap();
    nix::sys::socket::listen(&listener, nix::sys::socket::Backlog::new(1).unwrap()).unwrap();
    let path = socket(context);
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
        let context = PluginContext::new();
        context.add("c1");
        arrange(&context);
        let (added, took) = add(&context, "proceed");
        assert_eq!(added.expect(name), context.configuration("1.1.0")["prevResult"], "{name}");
        assert_eq!(context.records(), ["c1/eth0", "c2/eth0"], "{name}");
        assert!(took < TIMEOUT + SLACK, "{name}: {took:?}");
        assert_eq!(took < TIMEOUT - Duration::from_millis(30), at_once, "{name}: {took:?}");
    }
}

#[test]
fn without_the_agent_s_word_the_pod_fails_within_the_time_out_and_is_not_recorded() {
    for (name, arrange, _, reason) in absences() {
        let context = PluginContext::new();
        context.add("c1");
        arrange(&context);
        let (added, took) = add(&context, "fail");
        let refusal = added.expect_err(name);
        assert_eq!(refusal["code"], 11, "{name}: {refusal}");
        let message = refusal["msg"].as_str().unwrap();
        assert!(message.contains("c2/eth0") && message.contains(reason), "{name}: {message}");
        assert!(took < TIMEOUT + SLACK, "{name}: {took:?}");
        assert_eq!(context.records(), ["c1/eth0"], "{name}");
    }
}

#[test]
fn a_failed_add_gives_back_the_record_that_it_had_replaced() {
    let context = PluginContext::new();
    context.add("c2");
    let before = context.state().attachments;
    let mut configuration = waiting(&context, "fail");
    configuration["prevResult"]["ips"] = json!([]);
    context.call(context.variables("ADD", "c2"), &configuration).unwrap_err();
    assert_eq!(context.state().attachments, before);
}

#[test]
fn status_says_50_when_an_add_would_fail_for_want_of_an_agent() {
    let status = |context: &PluginContext, on_timeout: &str| {
        context.call(context.variables("STATUS", "c2"), &waiting(context, on_timeout))
    };
    let context = PluginContext::new();
    let refusal = status(&context, "fail").unwrap_err();
    assert_eq!(refusal["code"], 50);
    assert!(refusal["msg"].as_str().unwrap().contains("agent.sock"), "{refusal}");
    status(&context, "proceed").unwrap();
    drop(UnixListener::bind(socket(&context)).unwrap());
    assert_eq!(status(&context, "fail").unwrap_err()["code"], 50, "a dead socket is no agent");
    std::fs::remove_file(socket(&context)).unwrap();
    agent(&context, |stream, _| drop(stream));
    status(&context, "fail").unwrap();
}

#[test]
fn an_agent_that_comes_back_within_the_time_out_is_heard() {
    let context = PluginContext::new();
    context.add("c1");
    drop(UnixListener::bind(socket(&context)).unwrap());
    let mut configuration = waiting(&context, "fail");
    configuration["waitForAgent"]["timeout"] = json!("20s");
    let child = start(
        &context.node,
        &denizen(),
        context.variables("ADD", "c2"),
        configuration.to_string().as_bytes(),
    );
    while !context.records().contains(&"c2/eth0".to_owned()) {
        std::thread::sleep(Duration::from_millis(1));
    }
    // As an agent does when it starts: bound beside, then put in the old one's place.
    let beside = context.run_dir().join("agent.sock.next");
    let listener = UnixListener::bind(&beside).unwrap();
    std::fs::rename(&beside, socket(&context)).unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    writeln!(stream, "{{\"programmed\":true}}").unwrap();
    finish(child).unwrap();
}

#[test]
fn while_one_add_waits_others_are_not_held_up() {
    let context = PluginContext::new();
    context.add("c1");
    agent(&context, |stream, _| std::mem::forget(stream));
    let mut configuration = waiting(&context, "proceed");
    configuration["waitForAgent"]["timeout"] = json!("3s");
    let mut waiter = start(
        &context.node,
        &denizen(),
        context.variables("ADD", "c2"),
        configuration.to_string().as_bytes(),
    );
    while !context.records().contains(&"c2/eth0".to_owned()) {
        std::thread::sleep(Duration::from_millis(1));
    }
    for (command, container) in [("ADD", "c3"), ("DEL", "c1"), ("DEL", "c3")] {
        context
            .call(context.variables(command, container), &context.configuration("1.1.0"))
            .unwrap();
    }
    assert_eq!(context.records(), ["c2/eth0"]);
    assert!(waiter.try_wait().unwrap().is_none(), "the others were through while it still waited");
    waiter.kill().unwrap();
    waiter.wait().unwrap();
}
