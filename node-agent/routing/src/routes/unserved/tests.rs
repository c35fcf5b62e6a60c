//! The tables in a kernel. What they do to packets, `tests/tests/routing/` shows.

#![expect(clippy::disallowed_methods, reason = "the judge is a program")]

use std::process::Command;

use super::*;
use crate::routes::tests::in_namespace;
use denizen_fixture::ip;

fn nft(arguments: &str) -> String {
    let output = Command::new("nft").args(arguments.split(' ')).output().expect("nft");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "nft {arguments}: {error}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn opened() -> Unserved {
    Unserved::new(Kernel::open().expect("netlink"))
}

/// The sets' elements, as nft shows them, and how many rules refuse.
fn listed() -> (Vec<String>, usize) {
    let shown = nft("list ruleset");
    let elements = shown.lines().filter(|line| line.contains("elements = "));
    let elements = elements.map(|line| line.trim().to_owned()).collect();
    (elements, shown.matches("reject").count())
}

#[test]
fn the_sets_are_the_announced_addresses_whatever_was_there() {
    in_namespace(|| {
        let mut unserved = opened();
        let set = |all: &[&str]| all.iter().map(|text| ip(text)).collect::<BTreeSet<_>>();
        unserved.sync(set(&["203.0.113.7", "2001:db8:5::7"])).expect("taken");
        let both = ["elements = { 203.0.113.7 }", "elements = { 2001:db8:5::7 }"];
        assert_eq!(listed(), (both.map(str::to_owned).into(), 8));
        unserved.sync(set(&["203.0.113.8", "2001:db8:5::7"])).expect("taken");
        let moved = ["elements = { 203.0.113.8 }", "elements = { 2001:db8:5::7 }"];
        assert_eq!(listed(), (moved.map(str::to_owned).into(), 8));
        // Others add an element, remove a chain, and remove a table.
        nft("add element ip denizen-announced announced { 203.0.113.9 }");
        nft("flush chain ip denizen-announced output");
        nft("delete table ip6 denizen-announced");
        unserved.note_foreign_change();
        unserved.sync(set(&["203.0.113.8", "2001:db8:5::7"])).expect("taken");
        assert_eq!(listed(), (moved.map(str::to_owned).into(), 8));
        // A restarted agent finds the tables, and keeps what they have counted.
        let handles = nft("-a list ruleset");
        opened().sync(set(&["203.0.113.8", "2001:db8:5::7"])).expect("taken");
        assert_eq!(nft("-a list ruleset"), handles);
        let mut kernel = Kernel::open().expect("netlink");
        assert_eq!(Unserved::remove(&mut kernel).expect("taken"), 2);
        assert_eq!(nft("list ruleset"), "");
    });
}
