#![expect(clippy::disallowed_methods, reason = "a test has instants")]

use super::*;
use denizen_model::PolicyName;
use denizen_plan::AllPodsReason;

const LINGER: Duration = Duration::from_secs(600);

fn names(names: impl IntoIterator<Item = usize>) -> BTreeSet<Arc<str>> {
    names.into_iter().map(|number| format!("n{number:03}").into()).collect()
}

fn needs(numbers: impl IntoIterator<Item = usize>) -> PodNeeds {
    PodNeeds::Namespaces(names(numbers))
}

fn scope(numbers: impl IntoIterator<Item = usize>) -> PodScope {
    PodScope::Namespaces(names(numbers))
}

fn facts(needs: &PodNeeds) -> ScopeFacts<'_> {
    ScopeFacts { needs, nodes: NodeCount::Unasked, needed_pods: 0, all_pods: None }
}

fn everything() -> PodNeeds {
    let name = PolicyName { namespace: "shop".into(), name: "web".into() };
    PodNeeds::All(AllPodsReason::EveryNamespace(name))
}

#[test]
fn a_cluster_is_large_or_all_is_followed() {
    let (few, all) = (needs([1]), everything());
    let cases = [
        ("not counted yet", NodeCount::Unasked, &few, None),
        ("not to be counted", NodeCount::Refused, &few, Some(PodScope::All)),
        ("small", NodeCount::Nodes(1_000), &few, Some(PodScope::All)),
        (
            "small, and nothing is known yet",
            NodeCount::Nodes(3),
            &PodNeeds::Unknown,
            Some(PodScope::All),
        ),
        ("large", NodeCount::Nodes(1_001), &few, Some(scope([1]))),
        ("large, and nothing is known yet", NodeCount::Nodes(1_001), &PodNeeds::Unknown, None),
        ("large, and all are needed", NodeCount::Nodes(5_000), &all, Some(PodScope::All)),
    ];
    for (what, nodes, needs, expected) in cases {
        let mut watch = PodWatch::new(WatchPods::Auto, LINGER);
        let facts = ScopeFacts { nodes, ..facts(needs) };
        assert_eq!(watch.choose(facts, Instant::now(), String::new), expected, "{what}");
    }
}

#[test]
fn namespaces_that_hold_most_pods_are_no_gain() {
    let few = needs([1]);
    let cases = [
        ("half of what so many nodes may have", 30_030, None, scope([1])),
        ("more", 30_031, None, PodScope::All),
        ("more than half of those that there were", 101, Some(200), PodScope::All),
        ("half of those that there were", 100, Some(200), scope([1])),
    ];
    for (what, needed_pods, counted, expected) in cases {
        let mut watch = PodWatch::new(WatchPods::Auto, LINGER);
        watch.counted = counted;
        let facts = ScopeFacts { nodes: NodeCount::Nodes(2_002), needed_pods, ..facts(&few) };
        assert_eq!(watch.choose(facts, Instant::now(), String::new), Some(expected), "{what}");
    }
    // Whoever asks for namespaces gets them.
    let mut watch = PodWatch::new(WatchPods::Namespaces, LINGER);
    let facts = ScopeFacts { nodes: NodeCount::Nodes(1), needed_pods: 9, ..facts(&few) };
    assert_eq!(watch.choose(facts, Instant::now(), String::new), Some(scope([1])));
}

/// A namespace whose label comes and goes each second is followed all the time, and for so long
/// after it was needed last.
#[test]
fn a_label_that_flaps_begins_one_watch_and_ends_none() {
    let start = Instant::now();
    let mut watch = PodWatch::new(WatchPods::Namespaces, LINGER);
    let (with, without) = (needs([1, 2]), needs([1]));
    let at = |second: u64| start + Duration::from_secs(second);
    let mut changes = Vec::new();
    for second in 0..1_200 {
        let now = if second % 2 == 0 { &without } else { &with };
        changes.extend(watch.choose(facts(now), at(second), String::new));
    }
    assert_eq!(changes, [scope([1]), scope([1, 2])]);
    // It was needed in second 1,199 for the last time.
    assert_eq!(watch.choose(facts(&without), at(1_200), String::new), None);
    assert_eq!(watch.due(), Some(at(1_800)));
    assert_eq!(watch.choose(facts(&without), at(1_799), String::new), None);
    assert_eq!(watch.choose(facts(&without), at(1_800), String::new), Some(scope([1])));
    assert_eq!(watch.due(), None);
}

#[test]
fn beyond_the_bound_all_are_followed_and_for_a_while_after() {
    let start = Instant::now();
    let at = |second: u64| start + Duration::from_secs(second);
    let mut watch = PodWatch::new(WatchPods::Namespaces, LINGER);
    let (most, more) = (needs(0..MOST_NAMESPACES), needs(0..=MOST_NAMESPACES));
    let mut choose = |needs: &PodNeeds, second| {
        let chosen = watch.choose(facts(needs), at(second), || format!("second {second}"));
        (chosen, watch.since().to_owned(), watch.due())
    };
    let second = |number: u64| format!("second {number}");
    assert_eq!(choose(&most, 0), (Some(scope(0..MOST_NAMESPACES)), second(0), None));
    assert_eq!(choose(&more, 1), (Some(PodScope::All), second(1), None));
    assert_eq!(choose(&most, 2), (None, second(1), Some(at(602))));
    assert_eq!(choose(&more, 3), (None, second(1), None), "needed again");
    assert_eq!(choose(&most, 4), (None, second(1), Some(at(604))));
    assert_eq!(choose(&most, 603), (None, second(1), Some(at(604))));
    assert_eq!(choose(&most, 604), (Some(scope(0..MOST_NAMESPACES)), second(604), None));
    // Those that were needed lately count.
    let others = needs(MOST_NAMESPACES..MOST_NAMESPACES + 1);
    assert_eq!(choose(&others, 605).0, Some(PodScope::All));
}
