use serde_json::json;

use super::*;

const ENDPOINT: &str = "10.1.0.2:80/tcp";

fn report(node: &str, sequence: u32, source: &str, destination: &str, fate: &str) -> NodeTrace {
    let report = json!({
        "identity": { "identification": 0, "sequence": sequence },
        "source": { "address": source }, "lastSource": { "address": source },
        "destination": { "address": destination },
        "lastDestination": { "address": destination },
        "fate": fate, "by": "table ip strict", "hooks": [{ "hook": "forward", "new": 1 }],
    });
    NodeTrace { node: node.to_owned(), report }
}

fn traced(reports: Vec<NodeTrace>) -> ClusterTrace {
    let nodes = [(ENDPOINT.to_owned(), "far".to_owned())].into();
    pair_reports(["a", "b", "near"].map(str::to_owned), reports, &nodes)
}

fn outcomes(trace: &ClusterTrace) -> Vec<(FollowedOutcome, usize)> {
    trace.packets.iter().map(|packet| (packet.outcome, packet.nodes.len())).collect()
}

#[test]
fn the_same_packet_is_told_by_what_nobody_translates() {
    use FollowedOutcome::{Arrived, Ended};
    let sent = |sequence| report("near", sequence, "10.0.0.1:1", "10.1.0.2:80", "sent");
    let masqueraded = |sequence, fate| report("far", sequence, "192.0.2.1:9", "10.1.0.2:80", fate);
    let trace = traced(vec![sent(7), sent(8), masqueraded(8, "dropped"), masqueraded(7, "sent")]);
    assert_eq!(outcomes(&trace), [(Arrived, 2), (Ended, 2)]);
    assert_eq!(trace.packets[1].why.as_deref(), Some("dropped on far by table ip strict"));
    assert_eq!((trace.unpaired, trace.level()), (0, Level::Failure));
    // Of datagrams without numbers, the source tells them.
    let without = |node, source| report(node, 0, source, "10.1.0.2:80", "sent");
    let trace = traced(vec![without("near", "10.0.0.1:1"), without("far", "10.0.0.1:2")]);
    assert_eq!((outcomes(&trace)[0].1, trace.unpaired), (1, 1));
}

/// No agent says when it saw a packet. If one did, it would not matter whose clock is ahead.
#[test]
fn clocks_are_not_compared() {
    let times = ["2026-11-28T12:00:00Z", "2026-11-28T12:10:00Z"];
    for [near, far] in [times, [times[1], times[0]]] {
        let at = |mut trace: NodeTrace, time: &str| {
            trace.report["at"] = json!(time);
            trace
        };
        let sent =
            |sequence| at(report("near", sequence, "10.0.0.1:1", "10.1.0.2:80", "sent"), near);
        let seen =
            |sequence| at(report("far", sequence, "192.0.2.1:9", "10.1.0.2:80", "sent"), far);
        let trace = traced(vec![sent(1), sent(2), seen(2), seen(1), seen(3)]);
        assert_eq!(outcomes(&trace), [(FollowedOutcome::Arrived, 2); 2], "{near}, {far}");
        let paired = trace.packets.iter().all(|packet| {
            let [sent, seen] = [0, 1].map(|at| &packet.nodes[at].report["identity"]);
            sent == seen && packet.nodes[1].report["at"] == far
        });
        assert!(paired && trace.unpaired == 1, "{trace}");
    }
}

#[test]
fn what_was_not_seen_is_lost_only_where_everything_was_followed() {
    use FollowedOutcome::{Ended, Left, NotSeen};
    let sent = |to: &str| report("near", 1, "10.0.0.1:1", to, "sent");
    let others = |count: u32| {
        (0..count).map(|n| report("far", 100 + n, "10.0.0.1:9", "10.1.0.2:80", "sent"))
    };
    let trace = |count| traced([sent("10.1.0.2:80")].into_iter().chain(others(count)).collect());
    assert_eq!(outcomes(&trace(9)), [(NotSeen, 1)]);
    assert_eq!(outcomes(&trace(10)), [(Left, 1)]);
    assert_eq!(outcomes(&traced(vec![sent("203.0.113.1:80")])), [(Left, 1)]);
    let refused = report("near", 1, "10.0.0.1:1", "10.96.0.1:80", "refused");
    assert_eq!(outcomes(&traced(vec![refused])), [(Ended, 1)]);
}

#[test]
fn a_person_reads_it_and_no_control_character() {
    let mut hostile = report("near", 1, "10.0.0.1:1", "10.1.0.2:80", "dropped");
    hostile.report["by"] = json!("\u{1b}[31mred");
    let text = traced(vec![hostile]).to_string();
    assert!(text.contains("=> ended: dropped on near by") && !text.contains('\u{1b}'), "{text}");
    let none = traced(Vec::new());
    assert!(none.to_string().contains("no packet"), "{none}");
    assert_eq!(none.level(), Level::Warning);
}
