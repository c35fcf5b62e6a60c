//! Whose doing it is what differs at a look.

use std::sync::mpsc::{Receiver, channel};

use std::collections::BTreeMap;

use super::super::Lines;
use super::super::fixture::SCHEMA;
use super::super::probe::MissingExtensions;
use super::*;

/// What a client wants: one chain in each of these tables, with jumps to them.
struct Client {
    optional: Option<&'static str>,
    is_changed: bool,
    jumps_changed: bool,
}

impl Client {
    /// Wants this rule in the table that a kernel may lack, or nothing.
    fn wants_optional(&mut self, rule: Option<&'static str>) {
        self.jumps_changed |= self.optional.is_some() != rule.is_some();
        self.optional = rule;
        self.is_changed = true;
    }
}

impl Desired for Client {
    fn family(&self) -> Family {
        Family::V4
    }

    fn for_each(&self, mut each: impl FnMut(ChainId, Lines)) {
        each((Table::Nat, "OWN-ALL".to_owned()), vec!["-j RETURN".to_owned()]);
        if let Some(rule) = self.optional {
            each((Table::Security, "OWN-1-x".to_owned()), vec![rule.to_owned()]);
        }
    }

    fn jumps(&self) -> Vec<(ChainId, String)> {
        let mut jumps = vec![((Table::Nat, "OUTPUT".to_owned()), "-j OWN-ALL".to_owned())];
        if self.optional.is_some() {
            jumps.push(((Table::Security, "FORWARD".to_owned()), "-j OWN-1-x".to_owned()));
        }
        jumps
    }

    fn is_changed(&self) -> bool {
        self.is_changed
    }

    fn take_changes(&mut self) -> BTreeMap<ChainId, Option<Lines>> {
        self.is_changed = false;
        BTreeMap::new()
    }

    fn forget_changes(&mut self) {
        (self.is_changed, self.jumps_changed) = (false, false);
    }

    fn has_changed_jumps(&self) -> bool {
        self.jumps_changed
    }

    fn uses(&self, table: Table) -> bool {
        table != Table::Security || self.optional.is_some() || self.jumps_changed
    }

    fn is_changed_in(&self, _: Table) -> bool {
        self.is_changed
    }
}

/// A writer whose jobs nobody does but the test.
struct Context {
    writer: Writer,
    rules: Client,
    jobs: Receiver<Job>,
    now: Instant,
}

impl Context {
    fn new() -> Self {
        let (sender, jobs) = channel();
        #[expect(clippy::disallowed_methods, reason = "a test needs some moment")]
        let now = Instant::now();
        let mut writer = Writer::new(&SCHEMA, sender);
        let mut rules =
            Client { optional: Some("-j MARK"), is_changed: true, jumps_changed: false };
        writer.start_next_job(&mut rules);
        let mut context = Self { writer, rules, jobs, now };
        assert!(matches!(context.jobs.try_recv(), Ok(Job::Probe)));
        context.done(JobOutcome::Probed(MissingExtensions::default()));
        context
    }

    /// What `iptables-save` says of all that is wanted, but for `missing`.
    fn seen(&self, missing: Option<Table>) -> Observed {
        let mut seen = Observed::new(&SCHEMA);
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

    fn done(&mut self, outcome: JobOutcome) -> Repaired {
        let done = FinishedJob {
            family: Family::V4,
            result: Ok(outcome),
            at: self.now,
            took: Duration::ZERO,
        };
        self.writer.take(done, &mut self.rules).unwrap()
    }

    fn sees(&mut self, missing: Option<Table>) -> Repaired {
        let seen = self.seen(missing);
        self.done(JobOutcome::Seen(Box::new(seen)))
    }

    fn writes(&self) -> bool {
        matches!(self.jobs.try_recv(), Ok(Job::Write(_)))
    }
}

fn written(optional: Option<Result<(), IptablesError>>) -> JobOutcome {
    JobOutcome::Written { rejected: Vec::new(), optional }
}

fn without_the_table() -> IptablesError {
    IptablesError::Failed {
        program: "iptables-legacy-restore".to_owned(),
        message: "iptables-restore: unable to initialize table 'security'".to_owned(),
    }
}

#[test]
fn what_cannot_be_written_of_the_optional_table_is_nobodys_doing() {
    let mut context = Context::new();
    context.sees(Some(Table::Security));
    assert!(context.writes());
    context.done(written(Some(Err(without_the_table()))));
    assert!(context.writer.optional_failure().is_some());
    assert!(context.writer.is_programmed(&context.rules), "the others are as they should be");
    assert_eq!(context.sees(Some(Table::Security)), Repaired::default());
    assert!(context.writes(), "a look tries it again");
    // A change of services alone says nothing about it.
    context.done(written(None));
    assert!(context.writer.optional_failure().is_some());
    context.done(written(Some(Ok(()))));
    assert!(context.writer.optional_failure().is_none());
}

#[test]
fn a_family_that_the_kernel_is_without_waits_for_nothing() {
    let mut context = Context::new();
    assert!(!context.writer.is_programmed(&context.rules));
    context.done(JobOutcome::FamilyMissing);
    assert!(context.writer.is_programmed(&context.rules));
    context.rules.wants_optional(Some("-j DROP"));
    context.writer.start_next_job(&mut context.rules);
    assert_eq!(context.done(JobOutcome::FamilyMissing), Repaired::default());
    assert!(context.writer.is_programmed(&context.rules) && !context.writer.is_contended());
}

#[test]
fn a_change_in_a_missing_table_is_compared_first() {
    let mut context = Context::new();
    context.sees(Some(Table::Security));
    assert!(context.writes());
    context.done(written(Some(Err(without_the_table()))));
    context.rules.wants_optional(Some("-j DROP"));
    context.writer.start_next_job(&mut context.rules);
    assert!(matches!(context.jobs.try_recv(), Ok(Job::Read(_))));
    assert_eq!(context.sees(Some(Table::Security)), Repaired::default());
    assert!(context.writes());
}

/// And who has not asked for it does not pay for looking at its table.
#[test]
fn a_jump_comes_and_goes_with_its_chain() {
    let mut context = Context::new();
    let tables_read = |context: &mut Context| {
        context.writer.start_next_job(&mut context.rules);
        match context.jobs.try_recv() {
            Ok(Job::Read(tables)) => tables,
            _ => &[],
        }
    };
    assert_eq!(tables_read(&mut context), Table::ALL, "an earlier run's may be there");
    context.sees(None);
    assert!(context.writer.is_programmed(&context.rules) && !context.writes());
    let seen = context.seen(None);
    context.rules.wants_optional(None);
    assert_eq!(tables_read(&mut context), Table::ALL, "both are compared");
    assert_eq!(context.done(JobOutcome::Seen(Box::new(seen))), Repaired::default());
    assert!(context.writes());
    context.done(written(Some(Ok(()))));
    context.writer.unknown = true;
    assert_eq!(tables_read(&mut context), Table::REQUIRED);
}

/// Whoever rewrites that table is no other service proxy.
#[test]
fn only_the_required_tables_are_contended() {
    let mut context = Context::new();
    context.sees(None);
    for _ in 0..2 * CONTENDED {
        assert_ne!(context.sees(Some(Table::Security)), Repaired::default());
        assert!(context.writes());
        context.done(written(Some(Ok(()))));
    }
    for _ in 1..CONTENDED {
        assert_ne!(context.sees(Some(Table::Nat)), Repaired::default());
        context.done(written(None));
    }
    assert_eq!(context.sees(Some(Table::Nat)), Repaired::default());
    assert!(context.writer.is_contended());
}

/// Three times in a minute; or at three of four looks, where they are seldom.
#[test]
fn who_goes_on_is_told_from_who_comes_by() {
    for (seconds, clean, contended) in
        [(10, 0, true), (300, 0, true), (300, 1, true), (300, 3, false), (10, 9, false)]
    {
        let mut context = Context::new();
        context.sees(None);
        for number in 0..CONTENDED {
            let between = if number == 1 { clean } else { 0 };
            for _ in 0..between {
                context.now += Duration::from_secs(seconds);
                assert_eq!(context.sees(None), Repaired::default());
            }
            context.now += Duration::from_secs(seconds);
            context.sees(Some(Table::Nat));
            context.done(written(None));
        }
        assert_eq!(
            context.writer.is_contended(),
            contended,
            "every {seconds} s, {clean} looks in between"
        );
    }
}

/// As kube-proxy's metrics tell them apart.
#[test]
fn failed_writes_count_by_what_was_written() {
    let mut context = Context::new();
    let failures = |full, partial| RestoreFailures { full, partial };
    let fails = |context: &mut Context| {
        let (family, at) = (Family::V4, context.now);
        let done =
            FinishedJob { family, result: Err(without_the_table()), at, took: Duration::ZERO };
        context.writer.take(done, &mut context.rules).unwrap_err();
    };
    // A look writes nothing.
    fails(&mut context);
    assert_eq!(context.writer.restore_failures(), failures(0, 0));
    context.sees(Some(Table::Nat));
    assert!(context.writes());
    fails(&mut context);
    assert_eq!(context.writer.restore_failures(), failures(1, 0));
    context.sees(None);
    context.rules.wants_optional(Some("-j DROP"));
    context.rules.jumps_changed = false;
    context.writer.start_next_job(&mut context.rules);
    assert!(context.writes());
    fails(&mut context);
    assert_eq!(context.writer.restore_failures(), failures(1, 1));
}
