#![allow(clippy::disallowed_methods, reason = "tests read clocks and files; denizen does not")]

use serde_json::{Value, json};

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn clock(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

#[test]
fn an_agent_is_live_until_it_is_late_and_ready_once_it_has_programmed_all() {
    let start = Instant::now();
    let synced = LoopState { synced: true, updated: Some(clock(0)), ..LoopState::starting(start) };
    let waiting = LoopState { waiting: Some(start), ..synced };
    let (soon, late) = (start + LATE - SECOND, start + LATE);
    let alive = |loop_state: LoopState, at| LoopState { alive: at, ..loop_state };
    let cases = [
        ("starting", LoopState::starting(start), start, true, false),
        ("starting for long", alive(LoopState::starting(start), late), late, true, false),
        ("nothing to do", alive(synced, late), late, true, true),
        ("the loop hangs, not for long", synced, soon, true, true),
        ("the loop hangs", synced, late, false, false),
        ("a change waits", alive(waiting, soon), soon, true, true),
        ("a change waits for long", alive(waiting, late), late, false, false),
        ("a clock of another processor", synced, start - SECOND, true, true),
    ];
    for (name, loop_state, now, live, ready) in cases {
        assert_eq!((loop_state.is_live(now), loop_state.is_ready(now)), (live, ready), "{name}");
    }
}

fn answer((well, report): (bool, HealthReport)) -> (bool, Value) {
    (well, serde_json::to_value(report).unwrap())
}

/// Only a restart helps. The rules still serve, so the node stays ready.
#[test]
fn without_its_run_directory_an_agent_is_not_live_but_ready() {
    let now = Instant::now();
    let lost = LoopState { synced: true, run_dir_lost: true, ..LoopState::starting(now) };
    let (live, body) = answer(HealthReport::livez(&lost, now, clock(0)));
    assert!(!live && body["reason"].to_string().contains("run directory"), "{body}");
    let (ready, body) = answer(HealthReport::healthz(&lost, now, clock(0)));
    assert!(ready && body["reason"].to_string().contains("run directory"), "{body}");
}

#[test]
fn the_bodies_are_kube_proxys() {
    let now = Instant::now();
    let loop_state =
        LoopState { synced: true, updated: Some(clock(3600)), ..LoopState::starting(now) };
    let status = |healthy: bool| {
        let family = json!({ "lastUpdated": "1970-01-01T01:00:00Z", "healthy": healthy });
        json!({ "IPv4": family, "IPv6": family })
    };
    let well = json!({
        "lastUpdated": "1970-01-01T02:00:00Z", "currentTime": "1970-01-01T02:00:00Z",
        "nodeEligible": true, "healthy": true, "status": status(true),
    });
    assert_eq!(answer(HealthReport::healthz(&loop_state, now, clock(7200))), (true, well));
    let leaving = LoopState { node_eligible: false, ..loop_state };
    let healthz = json!({
        "lastUpdated": "1970-01-01T01:00:00Z", "currentTime": "1970-01-01T02:00:00Z",
        "nodeEligible": false, "healthy": true, "status": status(true),
    });
    assert_eq!(answer(HealthReport::healthz(&leaving, now, clock(7200))), (false, healthz));
    let livez = json!({
        "lastUpdated": "1970-01-01T02:00:00Z", "currentTime": "1970-01-01T02:00:00Z",
        "healthy": true, "status": status(true),
    });
    assert_eq!(answer(HealthReport::livez(&leaving, now, clock(7200))), (true, livez));
    let refused = LoopState { rules_rejected: true, ..loop_state };
    let (is_well, body) = answer(HealthReport::healthz(&refused, now, clock(7200)));
    assert!(is_well && body["reason"].as_str().is_some_and(|reason| reason.contains("rejects")));
    let unserved = LoopState { unserved: true, ..refused };
    let (is_well, body) = answer(HealthReport::healthz(&unserved, now, clock(7200)));
    assert!(!is_well && body["reason"].as_str().is_some_and(|reason| reason.contains("most")));
    assert!(answer(HealthReport::livez(&unserved, now, clock(7200))).0, "a restart would not help");
    let (well, starting) =
        answer(HealthReport::healthz(&LoopState::starting(now), now, clock(7200)));
    assert!(!well);
    assert_eq!(starting["lastUpdated"], "0001-01-01T00:00:00Z");
}
