use std::thread;

use nix::sched::{CloneFlags, unshare};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::bytes::Key;
use crate::chain::Chain;
use crate::difference::Structure;
use crate::family::TableFamily;
use crate::field::Field;
use crate::kernel::Kernel;
use crate::rule::Rule;
use crate::set::Schema;
use crate::statement::Statement;

const SCHEMA: Schema =
    Schema { family: TableFamily::Ip, name: "some", comment: "for a test", sets: Vec::new() };

/// A chain of rules, each of which asks for a protocol and counts.
fn chain(protocols: &[u8]) -> Chain {
    let rule = |protocol: &u8| {
        let asks = Statement::Equals(Field::Protocol, Key::EMPTY.byte(*protocol));
        Rule { statements: vec![asks, Statement::Counter], why: "for a test" }
    };
    let rules = protocols.iter().map(rule).collect();
    Chain { name: "chain".into(), base: None, why: "for a test", rules }
}

/// The handles of the rules, in order.
fn handles(kernel: &mut Kernel) -> Vec<u64> {
    let seen = kernel.observe(&SCHEMA).unwrap();
    seen.chains["chain"].handles.clone()
}

fn edit(before: &[u8], after: &[u8]) -> Result<(), TestCaseError> {
    let kernel = &mut Kernel::open().unwrap();
    let is_there = kernel.observe(&SCHEMA).unwrap().is_there();
    let first = [chain(before)];
    kernel.write(TableFamily::Ip, |batch| batch.replace_table(is_there, &SCHEMA, &first)).unwrap();
    let had = handles(kernel);
    let wanted = [chain(after)];
    let seen = kernel.observe(&SCHEMA).unwrap();
    let structure = seen.structure(&SCHEMA, &wanted).unwrap();
    kernel.write(TableFamily::Ip, |batch| structure.write(batch, SCHEMA.name)).unwrap();
    let seen = kernel.observe(&SCHEMA).unwrap();
    prop_assert_eq!(seen.structure(&SCHEMA, &wanted), Some(Structure::default()));
    let kept = handles(kernel).iter().filter(|handle| had.contains(handle)).count();
    prop_assert_eq!(kept, common(before, after), "rules that are right stay");
    Ok(())
}

/// How many rules both have in common, in order: by trying all.
fn common(before: &[u8], after: &[u8]) -> usize {
    let [first, rest @ ..] = before else { return 0 };
    let without = common(rest, after);
    match after.iter().position(|rule| rule == first) {
        Some(at) => without.max(1 + common(rest, &after[at + 1..])),
        None => without,
    }
}

#[test]
fn a_chain_becomes_another_and_keeps_the_rules_of_both() {
    let alone = thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNET).expect("the kernel tests need root");
        let lists = || prop::collection::vec(1..5_u8, 0..7);
        let mut runner = TestRunner::new(Config::with_cases(100));
        runner.run(&(lists(), lists()), |(before, after)| edit(&before, &after)).unwrap();
    });
    alone.join().unwrap();
}
