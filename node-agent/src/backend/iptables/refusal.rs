//! What `iptables-restore` refused, and how everything else is written all the same. Pure.
//!
//! A program refuses a table whole, and says at which line. In a chain of one service every rule counts, so the chain
//! stays as it was, or empty where it is new: nothing gets past what it should drop. In a chain that all services
//! share, that line alone is left out.

use std::collections::BTreeMap;

use super::edit::Edit;
use super::name::{Table, is_a_services};
use super::ruleset::Lines;
use super::save::Observed;
use super::service::Shared;

/// A rule, or a removal, that was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    table: Table,
    chain: String,
    /// Lines that are not written to it; `None` where the chain was to go, and stays without lines.
    left_out: Option<Lines>,
    /// What was refused, and what the program said.
    pub words: String,
}

/// The refusals that hold, by chain.
#[derive(Debug, Default)]
pub struct Refusals(BTreeMap<(Table, String), Refusal>);

impl Refusal {
    /// What `said` is about, in what the program was given; it is left out of `edit`, and so is what was written of
    /// it by then. `seen` was in the kernel before. `None` where no line is named, or nothing can be left out.
    pub fn isolate(edit: &mut Edit, seen: &Observed, input: &str, said: &str) -> Option<Self> {
        let number = line_number(said)?;
        let before = || input.lines().take(number);
        let line = before().nth(number - 1)?;
        let heading = before().filter_map(|line| line.strip_prefix('*')).last()?;
        let table = Table::OF_SERVICES
            .into_iter()
            .find(|table| table.to_string() == heading)?;
        let (what, rest) = line.split_once(' ')?;
        let (chain, rule) = rest.split_once(' ').unwrap_or((rest, ""));
        let (left_out, what_follows) = match what {
            "-A" if is_a_services(chain) && seen.has(table, chain) => {
                (Some(edit.skip(table, chain)?), "the chain stays as it was")
            }
            "-A" if is_a_services(chain) => (Some(edit.empty(table, chain)?), "the chain stays empty"),
            "-A" if is_shared(table, chain) => {
                edit.leave_out(table, chain, rule);
                (Some(vec![rule.to_owned()]), "the rule is left out")
            }
            "-X" => {
                edit.keep(table, chain);
                (None, "the chain stays, empty")
            }
            _ => return None,
        };
        // A table is in the kernel when the next one begins, and what is inserted would be there twice.
        if table == Table::Nat && before().any(|line| line == "*filter") {
            edit.forget(Table::Filter);
        }
        Some(Self {
            table,
            chain: chain.to_owned(),
            left_out,
            words: format!("{table}: {line}: refused, so {what_follows}: {said}"),
        })
    }

    fn id(&self) -> (Table, String) {
        (self.table, self.chain.clone())
    }
}

impl Refusals {
    /// Remembers them; what was refused of these chains before is past.
    pub fn add(&mut self, refusals: Vec<Refusal>) {
        for refusal in refusals {
            match self.0.get_mut(&refusal.id()) {
                Some(Refusal {
                    left_out: Some(all),
                    words,
                    ..
                }) if is_shared(refusal.table, &refusal.chain) => {
                    all.extend(refusal.left_out.into_iter().flatten());
                    *words = refusal.words;
                }
                Some(_) | None => drop(self.0.insert(refusal.id(), refusal)),
            }
        }
    }

    /// What is to be written of a chain with these lines; `None` where it stays as it is. Lines of a service's chain
    /// that came out otherwise are tried anew.
    pub fn without(&mut self, table: Table, chain: &str, mut lines: Lines) -> Option<Lines> {
        let id = (table, chain.to_owned());
        let Some(Refusal { left_out, .. }) = self.0.get_mut(&id) else {
            return Some(lines);
        };
        let holds = match left_out {
            Some(all) if is_shared(table, chain) => {
                all.retain(|line| lines.contains(line));
                lines.retain(|line| !all.contains(line));
                !all.is_empty()
            }
            Some(all) => *all == lines,
            None => false,
        };
        if !holds {
            self.0.remove(&id);
        }
        (!holds || is_shared(table, chain)).then_some(lines)
    }

    /// Whether a chain that is to go stays, since its removal was refused.
    pub fn keep(&mut self, table: Table, chain: &str) -> bool {
        let id = (table, chain.to_owned());
        let kept = self.0.get(&id).is_some_and(|refusal| refusal.left_out.is_none());
        if !kept {
            self.0.remove(&id);
        }
        kept
    }

    /// Forgets chains that stay since their removal was refused, and are gone all the same.
    pub fn forget_gone(&mut self, seen: &Observed) {
        self.0
            .retain(|(table, chain), refusal| refusal.left_out.is_some() || seen.has(*table, chain));
    }

    /// In words.
    pub fn words(&self) -> impl Iterator<Item = String> {
        self.0.values().map(|refusal| refusal.words.clone())
    }
}

fn is_shared(table: Table, chain: &str) -> bool {
    let mut shared = Shared::ALL.into_iter().map(Shared::chain);
    shared.any(|(its, name)| its == table && name.to_string() == chain)
}

/// `Error occurred at line: 5`, `line 5: RULE_APPEND failed …`, `line 5 failed`.
fn line_number(said: &str) -> Option<usize> {
    let mut places = said.split("line").skip(1);
    places.find_map(|rest| {
        let rest = rest.trim_start_matches([':', ' ']);
        let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        rest[..end].parse().ok().filter(|number| *number > 0)
    })
}

#[cfg(test)]
mod tests {
    use super::super::name::{ChainName, Hash, Kind};
    use super::*;
    use crate::model::{Protocol, ServiceName, ServicePortName};

    #[test]
    fn the_line_is_found_in_what_each_program_says() {
        let cases = [
            (
                "iptables-restore v1.8.9 (legacy): Couldn't load match `recent':No such file or directory; Error occurred at line: 5; Try `iptables-restore -h'",
                Some(5),
            ),
            ("iptables-restore: line 6 failed (exit status: 1)", Some(6)),
            (
                "iptables-nft-restore v1.8.9 (nf_tables): ; line 16: CHAIN_DEL failed (Device or resource busy): chain B",
                Some(16),
            ),
            (
                "Another app is currently holding the xtables lock; on the line",
                None,
            ),
        ];
        for (said, expected) in cases {
            assert_eq!(line_number(said), expected, "{said}");
        }
    }

    #[test]
    fn a_chain_that_all_share_loses_one_line_until_nobody_wants_it() {
        let lines = |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect::<Lines>();
        let wanted = lines(&["-d 10.0.0.1 -j KUBE-SVC-A", "-m bad -j KUBE-SVC-B"]);
        let mut refused = Refusals::default();
        let changes = || BTreeMap::from([(Shared::Services.chain(), Some(wanted.clone()))]);
        let mut edit = Edit::of(changes(), &mut refused);
        let (input, said) = (
            edit.input(),
            "Couldn't load match `bad'; Error occurred at line: 4",
        );
        let refusal = Refusal::isolate(&mut edit, &Observed::default(), &input, said).unwrap();
        refused.add(vec![refusal]);
        let left = "*nat\n:KUBE-SERVICES - [0:0]\n-A KUBE-SERVICES -d 10.0.0.1 -j KUBE-SVC-A\nCOMMIT\n";
        assert_eq!(edit.input(), left);
        assert_eq!(
            Edit::of(changes(), &mut refused).input(),
            left,
            "it is not tried again"
        );
        assert_eq!(refused.words().count(), 1);
        let others = lines(&["-d 10.0.0.1 -j KUBE-SVC-A"]);
        assert_eq!(
            refused.without(Table::Nat, "KUBE-SERVICES", others.clone()),
            Some(others)
        );
        assert_eq!(refused.words().count(), 0);
    }

    #[test]
    fn what_no_service_has_to_itself_is_never_left_out() {
        let input = "*nat\n:KUBE-MARK-MASQ - [0:0]\n-A KUBE-MARK-MASQ -j MARK --or-mark 0x4000\n-I OUTPUT -j KUBE-SERVICES\nCOMMIT\n";
        for number in 1..=6 {
            let said = format!("line {number} failed");
            assert_eq!(
                Refusal::isolate(&mut Edit::default(), &Observed::default(), input, &said),
                None,
                "{said}"
            );
        }
    }

    #[test]
    fn a_table_that_was_written_is_not_written_again() {
        let filter = (Shared::Firewall.chain(), Some(vec!["-j DROP".to_owned()]));
        let port = ServicePortName {
            service: ServiceName::new("default", "web"),
            port: "http".into(),
            protocol: Protocol::Tcp,
        };
        let chain = ChainName::Of(Kind::Service, Hash::of(&port, None));
        let nat = ((Table::Nat, chain), Some(vec!["-m bad".to_owned()]));
        let mut edit = Edit::of(BTreeMap::from([filter, nat]), &mut Refusals::default());
        let input = edit.input();
        let seen = Observed::default();
        let refusal = Refusal::isolate(&mut edit, &seen, &input, "line 7: RULE_APPEND failed").unwrap();
        assert_eq!(
            edit.input(),
            format!("*nat\n:{chain} - [0:0]\nCOMMIT\n"),
            "{}",
            refusal.words
        );
    }
}
