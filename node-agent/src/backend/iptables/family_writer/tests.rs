//! Whose doing it is what differs at a look.

use std::sync::mpsc::{Receiver, channel};

use super::*;
use crate::model::Egress;
use crate::plan::{Detector, NodePortAddresses};

/// A writer whose jobs nobody does but the test.
struct Rig {
    writer: FamilyWriter,
    rules: Ruleset,
    jobs: Receiver<Job>,
    now: Instant,
}

impl Rig {
    fn new() -> Self {
        let (sender, jobs) = channel();
        let mut rules = Ruleset::new(super::super::fixed::Shape::new(Family::V4, true));
        rules.reshape(|shape| {
            shape.detect(&Detector::PodState, &[]);
            shape.serve_node_ports(&NodePortAddresses::All { localhost: true }, &[]);
            shape.send_out(Some(&Egress { kept: vec!["10.0.0.0/8".parse().unwrap()], v6: false }));
        });
        #[expect(clippy::disallowed_methods, reason = "a test needs some moment")]
        let now = Instant::now();
        let writer = FamilyWriter::new(sender);
        Self { writer, rules, jobs, now }
    }

    /// What `iptables-save` says of all that is wanted, but for `missing`.
    fn seen(&self, missing: Option<Table>) -> Observed {
        let mut seen = Observed::default();
        let mut read = |table, text: String| {
            if Some(table) != missing {
                seen.read(table, &text);
            }
        };
        self.rules.for_each(|(table, chain), lines| {
            let lines: String = lines.iter().map(|line| format!("-A {chain} {line}\n")).collect();
            read(table, format!(":{chain} - [0:0]\n{lines}"));
        });
        for ((table, chain), line) in self.rules.jumps() {
            read(table, format!("-A {chain} {line}\n"));
        }
        seen
    }

    fn done(&mut self, outcome: Outcome) -> Repair {
        let done =
            Done { family: Family::V4, result: Ok(outcome), at: self.now, took: Duration::ZERO };
        self.writer.take(done, &mut self.rules).unwrap()
    }

    fn looks(&mut self, missing: Option<Table>) -> Repair {
        let seen = self.seen(missing);
        self.done(Outcome::Seen(Box::new(seen)))
    }

    fn writes(&self) -> bool {
        matches!(self.jobs.try_recv(), Ok(Job::Write(_)))
    }
}

fn without_the_table() -> IptablesError {
    IptablesError::Failed {
        program: "iptables-legacy-restore".to_owned(),
        said: "iptables-restore: unable to initialize table 'security'".to_owned(),
    }
}

#[test]
fn what_cannot_be_written_of_egress_is_nobodys_doing() {
    let mut rig = Rig::new();
    rig.looks(Some(Table::Security));
    assert!(rig.writes());
    rig.done(Outcome::Written(vec![], Some(Err(without_the_table()))));
    let why = rig.writer.egress.clone().unwrap();
    assert!(why.contains("iptable_security (CONFIG_IP_NF_SECURITY)"), "{why}");
    assert!(rig.writer.is_settled(&rig.rules), "services are as they should be");
    assert_eq!(rig.looks(Some(Table::Security)), Repair::default());
    assert!(rig.writes(), "a look tries it again");
    // A change of services alone says nothing about it.
    rig.done(Outcome::Written(vec![], None));
    assert_eq!(rig.writer.egress, Some(why));
    rig.done(Outcome::Written(vec![], Some(Ok(()))));
    assert_eq!(rig.writer.egress, None);
}

#[test]
fn a_family_that_the_kernel_is_without_waits_for_nothing() {
    let mut rig = Rig::new();
    assert!(!rig.writer.is_settled(&rig.rules));
    rig.done(Outcome::Unspoken);
    assert!(rig.writer.is_settled(&rig.rules));
    rig.rules.reshape(|shape| shape.send_out(Some(&Egress::default())));
    rig.writer.go_on(&mut rig.rules);
    assert_eq!(rig.done(Outcome::Unspoken), Repair::default());
    assert!(rig.writer.is_settled(&rig.rules) && !rig.writer.is_contended());
}

#[test]
fn another_egress_without_its_table_is_compared_first() {
    let mut rig = Rig::new();
    rig.looks(Some(Table::Security));
    assert!(rig.writes());
    rig.done(Outcome::Written(vec![], Some(Err(without_the_table()))));
    rig.rules.reshape(|shape| shape.send_out(Some(&Egress::default())));
    rig.writer.go_on(&mut rig.rules);
    assert!(matches!(rig.jobs.try_recv(), Ok(Job::Look(_))));
    assert_eq!(rig.looks(Some(Table::Security)), Repair::default());
    assert!(rig.writes());
}

/// And who has not asked for it does not pay for looking at its table.
#[test]
fn a_jump_comes_and_goes_with_its_chain() {
    let mut rig = Rig::new();
    let looks_at = |rig: &mut Rig| {
        rig.writer.go_on(&mut rig.rules);
        match rig.jobs.try_recv() {
            Ok(Job::Look(tables)) => tables,
            _ => &[],
        }
    };
    assert_eq!(looks_at(&mut rig), Table::ALL, "an earlier run's may be there");
    rig.looks(None);
    assert!(rig.writer.is_settled(&rig.rules) && !rig.writes());
    let seen = rig.seen(None);
    rig.rules.reshape(|shape| shape.send_out(None));
    assert_eq!(looks_at(&mut rig), Table::ALL, "both are compared");
    assert_eq!(rig.done(Outcome::Seen(Box::new(seen))), Repair::default());
    assert!(rig.writes());
    rig.done(Outcome::Written(vec![], Some(Ok(()))));
    rig.writer.unknown = true;
    assert_eq!(looks_at(&mut rig), Table::OF_SERVICES);
}

/// Whoever rewrites that table is no other service proxy.
#[test]
fn only_services_chains_are_contended() {
    let mut rig = Rig::new();
    rig.looks(None);
    for _ in 0..2 * CONTENDED {
        assert_ne!(rig.looks(Some(Table::Security)), Repair::default());
        assert!(rig.writes());
        rig.done(Outcome::Written(vec![], Some(Ok(()))));
    }
    for _ in 1..CONTENDED {
        assert_ne!(rig.looks(Some(Table::Nat)), Repair::default());
        rig.done(Outcome::Written(vec![], None));
    }
    assert_eq!(rig.looks(Some(Table::Nat)), Repair::default());
    assert!(rig.writer.is_contended());
}

/// Three times in a minute; or at three of four looks, where they are seldom.
#[test]
fn who_goes_on_is_told_from_who_comes_by() {
    for (seconds, clean, contended) in
        [(10, 0, true), (300, 0, true), (300, 1, true), (300, 3, false), (10, 9, false)]
    {
        let mut rig = Rig::new();
        rig.looks(None);
        for number in 0..CONTENDED {
            let between = if number == 1 { clean } else { 0 };
            for _ in 0..between {
                rig.now += Duration::from_secs(seconds);
                assert_eq!(rig.looks(None), Repair::default());
            }
            rig.now += Duration::from_secs(seconds);
            rig.looks(Some(Table::Nat));
            rig.done(Outcome::Written(vec![], None));
        }
        assert_eq!(
            rig.writer.is_contended(),
            contended,
            "every {seconds} s, {clean} looks in between"
        );
    }
}
