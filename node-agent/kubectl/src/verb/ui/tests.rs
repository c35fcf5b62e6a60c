//! The whole page, of a state that others have written into.

use std::collections::BTreeSet;

use denizen_page::{STYLE, unstyled};
use serde_json::{Value, json};

use super::directory::Directory;
use super::drawing::PictureFilter;
use super::round_result::RoundResult;
use super::server::shell;
use super::state::State;
use crate::no_answer::NoAnswer;
use crate::objects::{PodObject, ServiceObject};
use crate::survey::Unanswered;
use crate::verb::connections::joined;
use crate::verb::drops::merged;

/// A name that contains a script, and a line that a terminal would obey.
const HOSTILE: &str = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>\u{1b}[2J";

fn read<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// Every text is hostile, and every kind of box and edge is there.
fn hostile() -> State {
    let pods: Vec<PodObject> = read(json!([{
        "metadata": { "namespace": HOSTILE, "name": HOSTILE },
        "status": { "podIPs": [{ "ip": "10.0.0.1" }] },
    }]));
    let services: Vec<ServiceObject> = read(json!([{
        "metadata": { "namespace": HOSTILE, "name": HOSTILE },
        "spec": { "clusterIP": "10.96.0.1" },
    }]));
    let mut state = State::default();
    state.directory = Directory::of(&[], &pods, &services, &[]);
    let connection = |state: &str, client: &str| {
        json!({
            "protocol": HOSTILE, "state": state, "client": { "address": client },
            "destination": { "address": "10.96.0.1:80" }, "service": format!("{HOSTILE}:{HOSTILE}"),
            "endpoint": { "address": "10.0.0.1:80", "name": format!("node {HOSTILE}") },
        })
    };
    let connections =
        [connection("established", "10.0.0.1:1"), connection("syn_sent", "203.0.113.1:2")];
    let connections = read(json!({ "connections": connections, "total": 9 }));
    let drops = json!([{ "table": HOSTILE, "verdict": HOSTILE, "reason": HOSTILE, "packets": 1 }]);
    let drops = read(json!({ "drops": drops, "notCounted": HOSTILE }));
    let why = NoAnswer::new(NoAnswer::FAILED, HOSTILE);
    let unanswered = vec![Unanswered { node: HOSTILE.to_owned(), why }];
    let last_round = RoundResult {
        nodes: 2,
        unanswered: unanswered.clone(),
        notes: vec![HOSTILE.to_owned()],
        drops: merged(vec![(HOSTILE.to_owned(), drops)]),
        forgotten: 0,
    };
    state.connections(1, &joined(vec![(HOSTILE.to_owned(), connections)]), last_round);
    let packet = |verdict: &str| {
        json!({ "verdict": verdict, "reason": HOSTILE, "policy": HOSTILE, "protocol": HOSTILE,
                "source": { "address": "10.0.0.1:1" }, "destination": { "address": "192.0.2.1:2" } })
    };
    let dropped =
        read(json!({ "dropped": [packet("dropped"), packet("refused")], "hasMore": true }));
    state.dropped(1, &[(HOSTILE.to_owned(), dropped)], &unanswered);
    state
}

#[test]
fn whatever_a_name_contains_is_text() {
    let page = hostile().parts(&PictureFilter::default()).into_string();
    assert!(page.matches("&lt;script&gt;alert(1)").count() > 20, "{page}");
    for part in ["<script", "<img", "\u{1b}", "\"'>"] {
        assert!(!page.contains(part), "{part:?} in {page}");
    }
    // What is not said by everybody is said by the page.
    for part in [
        "1 of 2 nodes answered",
        "dropped packets have no edges",
        "more packets were dropped than are shown",
        "2 of 9 connections are looked at",
    ] {
        assert!(page.contains(part), "{part} in {page}");
    }
}

/// A class without a style is a style that was renamed.
#[test]
fn every_class_of_the_page_has_a_style() {
    let page = hostile().parts(&PictureFilter::default()).into_string() + &shell().into_string();
    let style = [STYLE, include_str!("style.css")].concat();
    assert!(page.contains("class=\"edge unanswered"), "{page}");
    assert_eq!(unstyled(&page, &style), BTreeSet::new());
}

#[test]
fn two_pages_of_one_state_are_equal_and_the_version_tells_states_apart() {
    let (mut one, mut other) = (hostile(), hostile());
    let filter = PictureFilter::default();
    assert_eq!(one.parts(&filter).into_string(), other.parts(&filter).into_string());
    assert_eq!(one.parts(&filter).into_string(), one.parts(&filter).into_string());
    let before = one.version();
    one.dropped(1, &[], &[]);
    assert!(one.version() > before, "nobody is silent any more");
    let before = one.version();
    one.dropped(1, &[], &[]);
    assert_eq!(one.version(), before);
    one.failed("the API server is gone".to_owned());
    let page = one.parts(&filter).into_string();
    assert!(one.version() > before && page.contains("the API server is gone"), "{page}");
}
