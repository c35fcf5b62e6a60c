//! Pods that two nodes announce.

use super::*;

/// Of two records of one address, the newest counts: the other pod has ended.
#[test]
fn a_pod_that_was_recorded_last_is_preferred_for_a_minute() {
    let mut world = world();
    world.pods = pods(1, &[("10.9.0.5", "v1"), ("10.9.0.5", "v2")]);
    let now: jiff::Timestamp = "2026-11-24T12:00:30Z".parse().unwrap();
    let mut decided = |times: [&str; 2]| {
        for (pod, time) in world.pods.pods.iter_mut().zip(times) {
            pod.added_at = time.into();
        }
        let of = |(address, pod): (_, &denizen_model::LocalPod)| {
            (address, Recorded::of(&pod.added_at, now).0)
        };
        let planner = world.planner();
        let single = single_pods(
            &world.settings,
            &planner.model().nodes().unwrap(),
            planner.plan().recorded(),
        );
        world.recorded = newest(&single).into_iter().map(of).collect();
        let decided = world.decide();
        let it = decided.about(ip("10.9.0.5")).unwrap().1.unwrap().clone();
        (it.metric(), it.recorded.unwrap().get(), it.why())
    };
    let of = |pod: &str| format!("it is the address of pod {pod} of this node");
    let new =
        "; it is new here, so routers prefer this node to another one that still announces it";
    let [first, last] = ["default/pod-0", "default/pod-1"];
    let cases = [
        (["2026-11-20T12:00:00Z", "2026-11-24T12:00:00Z"], (98, 1_795_521_600, of(last) + new)),
        (["2026-11-24T12:00:00Z", "2026-11-20T12:00:00Z"], (98, 1_795_521_600, of(first) + new)),
        (["2026-11-24T11:59:29Z", "2026-11-20T12:00:00Z"], (102, 1_795_521_569, of(first))),
        (["2027-01-01T00:00:00Z", ""], (102, 1, of(first))),
    ];
    for (times, wanted) in cases {
        assert_eq!(decided(times), wanted, "{times:?}");
    }
}
