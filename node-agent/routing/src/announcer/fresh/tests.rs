use std::time::Duration;

use super::*;
use denizen_fixture::ip;

const RECORDED: &str = "2026-11-20T12:00:00Z";

/// So many seconds after [`RECORDED`], by the wall clock.
fn clock(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_795_176_000 + seconds).expect("a time")
}

/// What is said of one address, recorded then, after so many seconds by both clocks: the one that
/// cannot be set, and the wall's.
fn said(freshness: &mut Freshness, begun: Instant, [steady, wall]: [u64; 2]) -> (u32, bool) {
    let times = [(ip("10.9.0.5"), RECORDED.into())].into_iter();
    let now = begun + Duration::from_secs(steady);
    let wall = i64::try_from(wall).expect("a second");
    let said = freshness.update(times, now, clock(wall))[&ip("10.9.0.5")];
    (said.at.get(), said.is_fresh)
}

#[test]
fn a_record_is_fresh_for_a_minute_whatever_becomes_of_the_clock() {
    assert_eq!(RECORDED.parse::<Timestamp>().expect("a time"), clock(0));
    let (at, begun) = (1_795_176_000, Instant::now());
    let mut freshness = Freshness::default();
    assert_eq!(freshness.ends(), None);
    assert_eq!(said(&mut freshness, begun, [10, 10]), (at, true));
    assert_eq!(freshness.ends(), Some(begun + Duration::from_secs(60)));
    // A restarted agent, which remembers nothing, continues the same minute.
    let mut restarted = Freshness::default();
    assert_eq!(said(&mut restarted, begun, [25, 25]), (at, true));
    assert_eq!(restarted.ends(), freshness.ends());
    // The wall clock is set, here and there.
    assert_eq!(said(&mut freshness, begun, [30, 30_000]), (at, true));
    assert_eq!(said(&mut freshness, begun, [59, 0]), (at, true));
    assert_eq!(said(&mut freshness, begun, [60, 1]), (at, false));
    assert_eq!(freshness.ends(), None, "it is not looked at again");
    assert_eq!(said(&mut freshness, begun, [61, 5]), (at, false));
    assert_eq!(said(&mut Freshness::default(), begun, [61, 61]), (at, false));
    // What is recorded no more is forgotten.
    freshness.update(std::iter::empty(), begun, clock(0));
    assert!(freshness.known.is_empty());
}

#[test]
fn a_record_from_the_future_is_neither_fresh_for_ever_nor_the_newest() {
    let begun = Instant::now();
    let future = |seconds: i64| {
        let times = [(ip("10.9.0.5"), RECORDED.into())].into_iter();
        Freshness::default().update(times, begun, clock(-seconds))[&ip("10.9.0.5")]
    };
    assert_eq!(future(60), Recorded::UNKNOWN);
    assert_eq!(future(86_400), Recorded::UNKNOWN);
    // A clock that was set back a little since.
    let little = future(20);
    assert!(little.is_fresh && little.at.get() == 1_795_176_000, "{little:?}");
    let mut freshness = Freshness::default();
    let times = || [(ip("10.9.0.5"), RECORDED.into())].into_iter();
    freshness.update(times(), begun, clock(-20));
    assert_eq!(freshness.ends(), Some(begun + Duration::from_secs(40)));
    for unknown in ["", "soon", "1960-01-01T00:00:00Z"] {
        assert_eq!(Recorded::of(unknown, clock(0)), (Recorded::UNKNOWN, Duration::ZERO));
    }
}
