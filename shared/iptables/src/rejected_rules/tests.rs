use super::super::Table;
use super::super::error::IptablesError;
use super::super::fixture::SCHEMA;
use super::super::probe::{Extension, probe};
use super::*;

fn lines(lines: &[&str]) -> Lines {
    lines.iter().map(|line| (*line).to_owned()).collect()
}

fn id(chain: &str) -> ChainId {
    (Table::Nat, chain.to_owned())
}

fn chain(name: &str) -> RejectedRule {
    RejectedRule::chain(id(name), lines(&["-m bad"]), "no")
}

fn now() -> Instant {
    #[expect(clippy::disallowed_methods, reason = "a test needs some moment")]
    Instant::now()
}

fn learned(rejected: Vec<RejectedRule>, at: Instant) -> RejectedRules {
    let mut rules = RejectedRules::new(&SCHEMA);
    rules.learn(&BTreeSet::new(), rejected, at);
    rules
}

#[test]
fn a_chain_that_all_share_loses_one_line_until_nobody_wants_it() {
    let bad = "-m bad -j OWN-1-b";
    let shared = id("OWN-ALL");
    let mut rejected = learned(vec![RejectedRule::rule(shared.clone(), bad, "no")], now());
    let good = lines(&["-d 10.0.0.1 -j OWN-1-a"]);
    for _ in 0..2 {
        let wanted = [good.clone(), lines(&[bad])].concat();
        let filtered = rejected.filter(&shared, Some(wanted));
        assert_eq!(filtered, DesiredChain::Rules(good.clone()));
        assert_eq!(rejected.texts().len(), 1);
    }
    let filtered = rejected.filter(&shared, Some(good.clone()));
    assert_eq!(filtered, DesiredChain::Rules(good));
    assert_eq!(rejected.texts().len(), 0);
}

#[test]
fn a_chain_with_a_rejected_rule_is_kept_until_it_is_wanted_otherwise() {
    let mut rejected = learned(vec![chain("OWN-1-a")], now());
    let mut wanted = |wanted: Option<&[&str]>| rejected.filter(&id("OWN-1-a"), wanted.map(lines));
    assert_eq!(wanted(Some(&["-m bad"])), DesiredChain::AsItIs);
    let good: &[&str] = &["-m good"];
    assert_eq!(wanted(Some(good)), DesiredChain::Rules(lines(good)));
    assert_eq!(wanted(Some(&["-m bad"])), DesiredChain::Rules(lines(&["-m bad"])));
    assert_eq!(wanted(None), DesiredChain::Absent);
    assert_eq!(rejected.texts().len(), 0);
}

#[test]
fn a_chain_whose_removal_is_rejected_stays_without_rules() {
    let mut rejected = learned(vec![RejectedRule::removal(id("OWN-1-a"), "busy")], now());
    let chain = id("OWN-1-a");
    assert_eq!(rejected.filter(&chain, None), DesiredChain::Rules(Lines::new()));
    let wanted = lines(&["-j RETURN"]);
    assert_eq!(rejected.filter(&chain, Some(wanted.clone())), DesiredChain::Rules(wanted));
    assert_eq!(rejected.filter(&chain, None), DesiredChain::Absent);
}

fn missing(marker: &'static str) -> MissingExtensions {
    let extension = Extension { marker, rule: format!("{marker} -j RETURN") };
    let test = |input: &str| match input.contains(marker) {
        true => Err(IptablesError::Failed { program: "p".into(), message: "lacking".into() }),
        false => Ok(String::new()),
    };
    probe(&[extension], test).unwrap()
}

#[test]
fn what_needs_a_missing_extension_is_never_written() {
    let mut rejected = RejectedRules::new(&SCHEMA);
    assert!(rejected.probed(missing("-m recent ")));
    assert!(!rejected.probed(missing("-m recent ")));
    let sticky = lines(&["-m recent --set -j DNAT", "-j DNAT"]);
    let plain = lines(&["-j DNAT"]);
    let at = now();
    for _ in 0..2 {
        let kept = rejected.filter(&id("OWN-1-a"), Some(sticky.clone()));
        assert_eq!(kept, DesiredChain::AsItIs);
        let less = rejected.filter(&id("OWN-ALL"), Some(sticky.clone()));
        assert_eq!(less, DesiredChain::Rules(plain.clone()));
        let whole = rejected.filter(&id("OWN-0"), Some(sticky.clone()));
        assert_eq!(whole, DesiredChain::Rules(sticky.clone()), "nothing works without it");
    }
    let news = rejected.take_news(at);
    assert_eq!((news.rejected.len(), news.accepted.len()), (2, 0));
    assert!(news.rejected.iter().all(|text| text.contains("lacking")));
    assert!(rejected.due(at + SHORTEST).is_empty(), "no write tells whether it is there");
    rejected.learn(&BTreeSet::new(), Vec::new(), at);
    assert_eq!(rejected.texts().len(), 2);
    assert!(rejected.probed(MissingExtensions::default()));
    for chain in ["OWN-1-a", "OWN-ALL"] {
        let all = rejected.filter(&id(chain), Some(sticky.clone()));
        assert_eq!(all, DesiredChain::Rules(sticky.clone()));
    }
    assert_eq!(rejected.take_news(at), News::default(), "they are not written yet");
    rejected.learn(&BTreeSet::new(), Vec::new(), at);
    let news = rejected.take_news(at);
    assert_eq!((news.rejected.len(), news.accepted.len()), (0, 2));
    assert_eq!(rejected.texts().len(), 0);
}

#[test]
fn what_is_rejected_is_found_by_its_chain_or_its_line() {
    let line = RejectedRule::rule(id("OWN-ALL"), "-j OWN-1-b", "no such match");
    let rejected = learned(vec![chain("OWN-1-a"), line], now());
    let line = |text: &str| (id("OWN-ALL"), Some(text.to_owned()));
    let cases = [
        ((id("OWN-1-a"), None), Some("OWN-1-a")),
        ((id("OWN-1-b"), None), None),
        (line("-j OWN-1-b"), Some("no such match")),
        (line("-j OWN-1-c"), None),
    ];
    for (own, expected) in cases {
        let found = rejected.about(&BTreeSet::from([own.clone()]));
        let is_found = |part| found.iter().any(|text| text.contains(part));
        assert_eq!(found.len(), usize::from(expected.is_some()), "{own:?}");
        assert!(expected.is_none_or(is_found), "{own:?}: {found:?}");
    }
}

#[test]
fn what_is_rejected_is_tried_again_less_and_less_often_and_told_once() {
    let start = now();
    let mut rejected = learned(vec![chain("OWN-1-a")], start);
    let news = rejected.take_news(start);
    assert_eq!((news.rejected.len(), news.accepted.len()), (1, 0));
    let (mut at, mut pauses) = (start, Vec::new());
    for _ in 0..8 {
        let begun = at;
        at = rejected.next().unwrap();
        let due = rejected.due(at);
        pauses.push((at - begun).as_secs());
        rejected.learn(&due, vec![chain("OWN-1-a")], at);
        assert_eq!(rejected.take_news(at), News::default(), "it is known");
    }
    assert_eq!(pauses, [5, 10, 20, 40, 80, 160, 300, 300]);
    at += LONGEST;
    let due = rejected.due(at);
    rejected.learn(&due, Vec::new(), at);
    let news = rejected.take_news(at);
    assert_eq!((news.rejected.len(), news.accepted.len()), (0, 1));
    assert_eq!((rejected.texts().len(), rejected.next()), (0, None));
}

#[test]
fn of_many_each_is_tried_with_few_others_once_in_a_while() {
    let mut at = now();
    let ids: BTreeSet<ChainId> = (0..50).map(|n| id(&format!("OWN-1-{n}"))).collect();
    let all = |chains: &BTreeSet<ChainId>| chains.iter().map(|(_, name)| chain(name)).collect();
    let mut rejected = learned(all(&ids), at);
    let (mut together, mut apart) = (0, BTreeSet::new());
    for _ in 0..14 {
        at += LONGEST;
        let due = rejected.due(at);
        if due == ids {
            together += 1;
        } else {
            assert_eq!(due.len(), FEW);
            apart.extend(due.clone());
        }
        rejected.learn(&due, all(&due), at);
    }
    assert_eq!((together, apart), (7, ids));
    assert_eq!(rejected.texts().len(), LISTED + 1);
}
