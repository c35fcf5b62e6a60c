//! What is refused for now, how everything else is written all the same, and when it is tried
//! again. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::time::{Duration, Instant};

use super::name::{Kind, Table};
use super::refusal::{LeftOut, Refusal, is_shared};
use super::ruleset::Lines;
use super::save::Observed;

/// What is refused is tried again after this, then after twice this, up to [`LONGEST`]: somebody
/// may load what the kernel lacks.
const SHORTEST: Duration = Duration::from_secs(5);
const LONGEST: Duration = Duration::from_secs(300);

/// So many chains are tried again one by one; of more, so many every other time, and all together
/// in between.
const FEW: usize = 8;

/// So many are told in words.
const TOLD: usize = 32;

/// A chain, and the table that it is in.
type Id = (Table, String);

/// The refusals that hold.
#[derive(Debug, Default)]
pub struct Refusals {
    /// By chain and, of shared ones, by line.
    all: BTreeMap<(Id, Option<String>), Refusal>,
    next: Option<Instant>,
    pause: Duration,
    /// All were tried together the last time.
    together: bool,
    /// The last chain that was tried when not all were.
    last: Option<Id>,
}

/// What is otherwise than before, in words.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct News {
    /// Refused, and was not.
    pub refused: Vec<String>,
    /// Was refused, and is taken.
    pub taken: Vec<String>,
}

impl Refusals {
    /// Takes in what was refused at `at` of a change, in which these chains were `tried` again.
    pub fn learn(&mut self, tried: &BTreeSet<Id>, refusals: Vec<Refusal>, at: Instant) -> News {
        let mut before = BTreeMap::new();
        let chains: BTreeSet<Id> = refusals.iter().map(Refusal::id).collect();
        let is_past = |key: &(Id, Option<String>)| {
            tried.contains(&key.0) || (key.1.is_none() && chains.contains(&key.0))
        };
        before.extend(self.all.extract_if(.., |key, _| is_past(key)));
        let mut news = News::default();
        for mut refusal in refusals {
            let key = refusal.key();
            match before.remove(&key) {
                // It was never anything else since.
                Some(before) if tried.contains(&key.0) => refusal.follows = before.follows,
                Some(_) => {}
                None => news.refused.push(refusal.words()),
            }
            self.all.insert(key, refusal);
        }
        let taken = before.into_iter().filter(|(key, _)| tried.contains(&key.0));
        news.taken.extend(taken.map(|(_, refusal)| refusal.words()));
        if news != News::default() {
            self.pause = SHORTEST;
        } else if !tried.is_empty() {
            self.pause = (self.pause * 2).min(LONGEST);
        }
        if news != News::default() || !tried.is_empty() {
            self.next = Some(at + self.pause);
        }
        news
    }

    /// When something is to be tried again.
    pub fn next(&self) -> Option<Instant> {
        self.next.filter(|_| !self.all.is_empty())
    }

    /// The chains to be tried again now, at `at`.
    pub fn due(&mut self, at: Instant) -> BTreeSet<Id> {
        // Should nothing be learned from it.
        self.next = Some(at + self.pause);
        let chains: BTreeSet<Id> = self.all.keys().map(|(id, _)| id.clone()).collect();
        self.together = !self.together;
        if self.together || chains.len() <= FEW {
            return chains;
        }
        let after = self.last.take().map_or(Bound::Unbounded, Bound::Excluded);
        let after = chains.range((after, Bound::Unbounded));
        let some: Vec<Id> = after.chain(&chains).take(FEW).cloned().collect();
        self.last = some.last().cloned();
        some.into_iter().collect()
    }

    /// What is to be written of a chain with these lines; `None` where it stays as it is. Lines of
    /// a service's chain that came out otherwise are tried anew.
    pub fn without(&mut self, table: Table, chain: &str, mut lines: Lines) -> Option<Lines> {
        let id = (table, chain.to_owned());
        if is_shared(table, chain) {
            let of_it = |key: &(Id, Option<String>)| key.0 == id;
            self.all.retain(|key, _| {
                !of_it(key) || key.1.as_ref().is_some_and(|line| lines.contains(line))
            });
            let held = self.all.keys().filter(|key| of_it(key));
            let held: BTreeSet<&String> = held.filter_map(|key| key.1.as_ref()).collect();
            lines.retain(|line| !held.contains(line));
            return Some(lines);
        }
        let key = (id, None);
        match self.all.get(&key).map(|refusal| &refusal.left_out) {
            Some(LeftOut::Lines(all)) if *all == lines => return None,
            Some(LeftOut::Lines(_) | LeftOut::Removal | LeftOut::Line(_)) => {
                drop(self.all.remove(&key))
            }
            None => {}
        }
        Some(lines)
    }

    /// Whether a chain that is to go stays, since its removal was refused.
    pub fn keep(&mut self, table: Table, chain: &str) -> bool {
        let key = ((table, chain.to_owned()), None);
        let refusal = self.all.get(&key);
        let kept = refusal.is_some_and(|refusal| refusal.left_out == LeftOut::Removal);
        if !kept {
            self.all.remove(&key);
        }
        kept
    }

    /// Forgets chains that stay since their removal was refused, and are gone all the same.
    pub fn forget_gone(&mut self, seen: &Observed) {
        self.all.retain(|((table, chain), _), refusal| {
            refusal.left_out != LeftOut::Removal || seen.has(*table, chain)
        });
    }

    /// How many chains of this kind are not as they should be.
    pub fn chains_of(&self, kind: Kind) -> usize {
        let refused = self.all.values();
        refused
            .filter(|it| it.chain.starts_with(kind.prefix()) && it.left_out != LeftOut::Removal)
            .count()
    }

    /// In words, those of these chains, and of these lines of shared chains.
    pub fn about(&self, own: &BTreeSet<(Table, String, Option<String>)>) -> Vec<String> {
        let is_own = |((table, chain), line): &(Id, Option<String>)| {
            own.contains(&(*table, chain.clone(), line.clone()))
        };
        let refused =
            self.all.iter().filter(|(key, it)| is_own(key) && it.left_out != LeftOut::Removal);
        refused.map(|(_, refusal)| refusal.words()).collect()
    }

    /// In words.
    pub fn words(&self) -> Vec<String> {
        shortened(self.all.values().map(Refusal::words).collect())
    }
}

/// The first of many.
pub fn shortened(mut words: Vec<String>) -> Vec<String> {
    let more = words.len().saturating_sub(TOLD);
    if more > 0 {
        words.truncate(TOLD);
        words.push(format!("{more} more rules are refused"));
    }
    words
}

impl Refusal {
    fn id(&self) -> Id {
        (self.table, self.chain.clone())
    }

    fn key(&self) -> (Id, Option<String>) {
        match &self.left_out {
            LeftOut::Line(line) => (self.id(), Some(line.clone())),
            LeftOut::Lines(_) | LeftOut::Removal => (self.id(), None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::edit::Edit;
    use super::super::isolate::isolate;
    use super::super::service::Shared;
    use super::*;

    fn lines(lines: &[&str]) -> Lines {
        lines.iter().map(|line| (*line).to_owned()).collect()
    }

    fn refusal(chain: &str) -> Refusal {
        Refusal::of_chain(Table::Nat, chain.into(), lines(&["-m bad"]), false, "no")
    }

    fn now() -> Instant {
        #[expect(clippy::disallowed_methods, reason = "a test needs some moment")]
        Instant::now()
    }

    #[test]
    fn a_chain_that_all_share_loses_one_line_until_nobody_wants_it() {
        let wanted = lines(&["-d 10.0.0.1 -j KUBE-SVC-A", "-m bad -j KUBE-SVC-B"]);
        let mut refused = Refusals::default();
        let changes = || BTreeMap::from([(Shared::Services.chain(), Some(wanted.clone()))]);
        let mut edit = Edit::of(changes(), &mut refused);
        let (input, said) = (edit.input(), "Couldn't load match `bad'; Error occurred at line: 4");
        let refusal = isolate(&mut edit, &Observed::default(), &input, said).unwrap();
        refused.learn(&BTreeSet::new(), vec![refusal], now());
        let left =
            "*nat\n:KUBE-SERVICES - [0:0]\n-A KUBE-SERVICES -d 10.0.0.1 -j KUBE-SVC-A\nCOMMIT\n";
        assert_eq!(edit.input(), left);
        assert_eq!(Edit::of(changes(), &mut refused).input(), left, "it is not tried again");
        assert_eq!(refused.words().len(), 1);
        let others = lines(&["-d 10.0.0.1 -j KUBE-SVC-A"]);
        assert_eq!(refused.without(Table::Nat, "KUBE-SERVICES", others.clone()), Some(others));
        assert_eq!(refused.words().len(), 0);
    }

    #[test]
    fn what_is_refused_is_found_by_its_chain_or_its_line() {
        let mut refused = Refusals::default();
        let (table, shared) = Shared::Services.chain();
        let shared = shared.to_string();
        let line = Refusal::of_line(table, &shared, "-d 10.0.0.1 -j KUBE-SVC-B", "no such match");
        refused.learn(&BTreeSet::new(), vec![refusal("KUBE-SVC-A"), line], now());
        let chain = |name: &str| (Table::Nat, name.to_owned(), None);
        let line = |text: &str| (table, shared.clone(), Some(text.to_owned()));
        let cases = [
            (chain("KUBE-SVC-A"), Some("KUBE-SVC-A")),
            (chain("KUBE-SVC-B"), None),
            (line("-d 10.0.0.1 -j KUBE-SVC-B"), Some("no such match")),
            (line("-d 10.0.0.2 -j KUBE-SVC-B"), None),
        ];
        for (own, expected) in cases {
            let found = refused.about(&BTreeSet::from([own.clone()]));
            let is_found = |part| found.iter().any(|words| words.contains(part));
            assert_eq!(found.len(), usize::from(expected.is_some()), "{own:?}");
            assert!(expected.is_none_or(is_found), "{own:?}: {found:?}");
        }
    }

    #[test]
    fn what_is_refused_is_tried_again_less_and_less_often_and_told_once() {
        let (mut refused, start) = (Refusals::default(), now());
        let news = refused.learn(&BTreeSet::new(), vec![refusal("KUBE-SVC-A")], start);
        assert_eq!((news.refused.len(), news.taken.len()), (1, 0));
        let (mut at, mut pauses) = (start, Vec::new());
        for _ in 0..8 {
            let begun = at;
            at = refused.next().unwrap();
            let due = refused.due(at);
            pauses.push((at - begun).as_secs());
            // Whoever tries again need not know that it is empty.
            let lines = lines(&["-m bad"]);
            let again = Refusal::of_chain(Table::Nat, "KUBE-SVC-A".into(), lines, true, "no");
            let news = refused.learn(&due, vec![again], at);
            assert_eq!(news, News::default(), "it is known");
            assert!(refused.words()[0].contains("stays empty"));
        }
        assert_eq!(pauses, [5, 10, 20, 40, 80, 160, 300, 300]);
        at += LONGEST;
        let due = refused.due(at);
        let news = refused.learn(&due, Vec::new(), at);
        assert_eq!((news.refused.len(), news.taken.len()), (0, 1));
        assert_eq!((refused.words().len(), refused.next()), (0, None));
    }

    #[test]
    fn of_many_each_is_tried_with_few_others_once_in_a_while() {
        let (mut refused, mut at) = (Refusals::default(), now());
        let all: Vec<String> = (0..50).map(|n| format!("KUBE-SVC-{n}")).collect();
        let refusals =
            |chains: &BTreeSet<Id>| chains.iter().map(|(_, chain)| refusal(chain)).collect();
        let ids: BTreeSet<Id> = all.iter().map(|chain| (Table::Nat, chain.clone())).collect();
        refused.learn(&BTreeSet::new(), refusals(&ids), at);
        let (mut together, mut apart) = (0, BTreeSet::new());
        for _ in 0..14 {
            at += LONGEST;
            let due = refused.due(at);
            if due == ids {
                together += 1;
            } else {
                assert_eq!(due.len(), FEW);
                apart.extend(due.clone());
            }
            refused.learn(&due, refusals(&due), at);
        }
        assert_eq!((together, apart), (7, ids));
        assert_eq!(refused.words().len(), TOLD + 1);
    }
}
