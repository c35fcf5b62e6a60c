//! What waits to be published until it is programmed.

use super::*;
use crate::agent::now;
use denizen_backend::BackendName;
use denizen_backend::chosen::Chosen;
use denizen_plan::fixture::policy;

fn publisher() -> Publisher {
    let loop_state = watch::channel(LoopState::starting(now())).0;
    let ports = watch::channel(HealthPorts::default()).0;
    Publisher::of(loop_state, ports, Metrics::default(), PathBuf::new())
}

/// How many changes of IPv4 were measured.
fn measured(publisher: &Publisher) -> u64 {
    let text = publisher.metrics.encode();
    let name = "kubeproxy_network_programming_duration_seconds_count";
    let line = text.lines().find(|line| line.starts_with(name) && line.contains("IPv4")).unwrap();
    line.rsplit_once(' ').unwrap().1.parse().unwrap()
}

/// The time that a change took counts until the kernel has it, however often it is tried.
#[test]
fn a_change_is_measured_when_it_is_programmed() {
    let engine = Engine::new(policy(), BackendName::None.capabilities(), Chosen::None);
    let mut publisher = publisher();
    for second in [1, 2] {
        let triggers = vec![(Family::V4, Timestamp::from_second(second).unwrap())];
        publisher.update(&PlanChanges { triggers, ..PlanChanges::default() });
    }
    publisher.failed(now(), now(), "refused", &[Family::V4]);
    assert_eq!(measured(&publisher), 0);
    publisher.programmed(&engine, now(), now());
    assert_eq!(measured(&publisher), 2);
    publisher.programmed(&engine, now(), now());
    assert_eq!(measured(&publisher), 2, "each once");
}
