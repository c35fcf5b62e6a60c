//! DEL with `waitForAgent`: it returns when the pod is programmed no longer, and never fails for
//! it.

use std::io::Write;
use std::sync::mpsc::channel;
use std::time::Duration;

use denizen_state::AttachmentId;
use denizen_state::socket::WaitFor;
use denizen_tests::node::cni::PluginContext;
use serde_json::json;

use super::wait::{SLACK, TIMEOUT, absences, agent, timed, waiting};

#[test]
fn a_removal_returns_when_the_agent_has_programmed_it() {
    let context = PluginContext::new();
    context.add("c1");
    context.add("c2");
    let (asked, ask) = channel();
    // Each connection asks: one that only looks for a listener would cost the agent as much.
    agent(&context, move |mut stream, line| {
        std::thread::sleep(TIMEOUT / 3);
        asked.send(line).unwrap();
        writeln!(stream, "{{\"programmed\":true}}").unwrap();
    });
    let del = |container| {
        let variables = context.variables("DEL", container);
        timed(|| context.call(variables, &waiting(&context, "isolate")).unwrap())
    };
    let (_, took) = del("c1");
    assert!(took >= TIMEOUT / 3, "{took:?}");
    let state = context.state();
    let expected = WaitFor {
        wait_for: AttachmentId::new("c1", "eth0"),
        epoch: state.epoch,
        generation: state.generation,
        removed: true,
        asked_at: None,
    };
    let asked: WaitFor = serde_json::from_str(&ask.recv().unwrap()).unwrap();
    assert_eq!(WaitFor { asked_at: None, ..asked }, expected);
    assert_eq!(context.records(), ["c2/eth0"]);
    del("c1");
    assert!(ask.try_recv().is_err(), "nothing was removed: there is nothing to wait for");
}

#[test]
fn a_removal_without_the_agent_s_word_succeeds_soon() {
    for (name, arrange, _, _) in absences() {
        let context = PluginContext::new();
        context.add("c2");
        arrange(&context);
        let mut configuration = waiting(&context, "fail");
        configuration["waitForAgent"]["timeout"] = json!("60s");
        let variables = context.variables("DEL", "c2");
        let (removed, took) = timed(|| context.call(variables, &configuration));
        removed.expect(name);
        assert!(context.records().is_empty(), "{name}");
        assert!(took < Duration::from_millis(500) + SLACK, "{name}: {took:?}");
        let is_waited_for = !["no socket", "a file", "a dead socket"].contains(&name);
        assert!(is_waited_for || took < Duration::from_millis(400), "{name}: {took:?}");
    }
}

/// A mistyped key must not keep a pod from being deleted.
#[test]
fn a_removal_ignores_a_bad_configuration_of_the_wait() {
    let context = PluginContext::new();
    for wait in [json!("soon"), json!({ "timeout": 1 }), json!({ "onTimeout": "isolated" })] {
        context.add("c2");
        let mut configuration = context.configuration("1.1.0");
        configuration["waitForAgent"] = wait;
        context.call(context.variables("DEL", "c2"), &configuration).unwrap();
        assert!(context.records().is_empty());
    }
}
