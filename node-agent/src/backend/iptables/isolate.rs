//! Which part of a change `iptables-restore` refused, by what it says, and how the rest is written
//! without it. Pure.

use super::edit::Edit;
use super::name::{Table, is_a_services};
use super::refusal::{EMPTIED, LEFT_OUT, LeftOut, Refusal, STAYS, STAYS_EMPTY, is_shared};
use super::save::Observed;

/// What `said` is about, in what the program was given; it is left out of `edit`, and so is what
/// was written of it by then. `seen` was in the kernel before. `None` where no line is named, or
/// nothing can be left out.
pub fn isolate(edit: &mut Edit, seen: &Observed, input: &str, said: &str) -> Option<Refusal> {
    let number = line_number(said)?;
    let before = || input.lines().take(number);
    let line = before().nth(number - 1)?;
    let heading = before().filter_map(|line| line.strip_prefix('*')).last()?;
    let table = Table::OF_SERVICES.into_iter().find(|table| table.to_string() == heading)?;
    let (what, rest) = line.split_once(' ')?;
    let (chain, rule) = rest.split_once(' ').unwrap_or((rest, ""));
    let refusal =
        |left_out, follows| Refusal::new(table, chain.to_owned(), left_out, line, follows, said);
    Some(match what {
        "-A" if is_a_services(chain) && seen.has(table, chain) => {
            refusal(LeftOut::Lines(edit.skip(table, chain)?), STAYS)
        }
        "-A" if is_a_services(chain) => {
            refusal(LeftOut::Lines(edit.empty(table, chain)?), STAYS_EMPTY)
        }
        "-A" if is_shared(table, chain) => {
            edit.leave_out(table, chain, rule);
            refusal(LeftOut::Line(rule.to_owned()), LEFT_OUT)
        }
        "-X" => {
            edit.keep(table, chain);
            refusal(LeftOut::Removal, EMPTIED)
        }
        _ => return None,
    })
}

/// Whether `said` is about rules in `input`, or about the whole of them. It is not where the table
/// cannot be had, the lock is somebody else's, or the program may not.
pub fn is_the_rules(input: &str, said: &str) -> bool {
    let line = line_number(said).and_then(|number| input.lines().nth(number - 1));
    line.is_some_and(|line| line.starts_with('-') || line == "COMMIT")
}

/// Takes out of `edit` the tables of `input` that were written before what `said` is about: a table
/// is in the kernel when the next one begins, and what is inserted would be there twice.
pub fn forget_written(edit: &mut Edit, input: &str, said: &str) {
    let before = input.lines().take(line_number(said).unwrap_or(0));
    let mut begun: Vec<&str> = before.filter_map(|line| line.strip_prefix('*')).collect();
    begun.pop();
    let is_written = |table: &Table| begun.contains(&&*table.to_string());
    Table::OF_SERVICES.into_iter().filter(is_written).for_each(|table| edit.forget(table));
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
    use std::collections::BTreeMap;

    use super::super::name::{ChainName, Hash, Kind};
    use super::super::refusals::Refusals;
    use super::super::service::Shared;
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
            ("Another app is currently holding the xtables lock; on the line", None),
        ];
        for (said, expected) in cases {
            assert_eq!(line_number(said), expected, "{said}");
        }
    }

    #[test]
    fn what_is_not_for_the_rules_is_told_from_what_is() {
        let input = "*nat\n:KUBE-SVC-A - [0:0]\n-A KUBE-SVC-A -j RETURN\nCOMMIT\n";
        let cases = [
            ("iptables-restore: line 4 failed (exit status: 1)", true),
            (
                "Warning: Extension recent revision 0 not supported, missing kernel module?; iptables-restore: line 4 failed",
                true,
            ),
            ("line 3: RULE_APPEND failed (Invalid argument): rule in chain KUBE-SVC-A", true),
            (
                "iptables-restore: unable to initialize table 'nat'; Error occurred at line: 1",
                false,
            ),
            ("Another app is currently holding the xtables lock", false),
            ("Could not fetch rule set generation id: Permission denied (you must be root)", false),
        ];
        for (said, expected) in cases {
            assert_eq!(is_the_rules(input, said), expected, "{said}");
        }
    }

    #[test]
    fn what_no_service_has_to_itself_is_never_left_out() {
        let input = "*nat\n:KUBE-MARK-MASQ - [0:0]\n-A KUBE-MARK-MASQ -j MARK --or-mark 0x4000\n-I OUTPUT -j KUBE-SERVICES\nCOMMIT\n";
        for number in 1..=6 {
            let said = format!("line {number} failed");
            assert_eq!(
                isolate(&mut Edit::default(), &Observed::default(), input, &said),
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
        let said = "line 7: RULE_APPEND failed";
        forget_written(&mut edit, &input, "line 3 failed");
        assert_eq!(edit.input(), input, "nothing is written yet");
        forget_written(&mut edit, &input, said);
        let refusal = isolate(&mut edit, &seen, &input, said).unwrap();
        assert_eq!(
            edit.input(),
            format!("*nat\n:{chain} - [0:0]\nCOMMIT\n"),
            "{}",
            refusal.words()
        );
    }
}
