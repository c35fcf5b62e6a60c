//! What a listener to nf_tables' notifications costs. The running agent is such a listener.

use denizen_backend::nftables::TABLE;
use denizen_model::Event;
use denizen_nft::Watch;
use denizen_tests::node::cni::Namespace;

use crate::clock::text;
use crate::manifests;
use crate::programmed::{endpoint_changes, started};

const SERVICES: usize = 10_000;

/// Measures and prints it.
pub fn report() {
    println!("\n## Listening to the kernel's notifications, {SERVICES} services\n");
    let folder = manifests::folder(SERVICES);
    let facts = manifests::facts(folder.path());
    for listening in [false, true] {
        let facts = facts.clone();
        Namespace::new().run(move || measured(facts, listening));
    }
}

fn measured(facts: Vec<Event>, listening: bool) {
    println!("{}", if listening { "with a listener" } else { "without" });
    let watch = || Watch::open(&[TABLE], vec![0]).expect("netlink, as root");
    let during = listening.then(watch);
    let (mut engine, cold) = started(facts.clone());
    println!("  cold: {} (kernel {})", text(cold.whole), text(cold.commit));
    // The first load has overflowed the listener's buffer; the kernel would write nothing more to
    // it.
    drop(during);
    let mut after = listening.then(watch);
    endpoint_changes(&mut engine, &facts, &mut || {
        if let Some(watch) = &mut after {
            watch.changes().expect("notifications can be read");
        }
    });
}
