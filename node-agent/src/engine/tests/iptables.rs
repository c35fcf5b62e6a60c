//! The chains that a change names, written one change after the other, are those of a fresh start.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::sample::Index;

use super::{event, last_words};
use crate::backend::BackendName;
use crate::backend::iptables::Wanted;
use crate::engine::{Engine, Policy};
use crate::fixture::settings;
use crate::iptables::Desired;
use crate::model::Listing;
use crate::plan::{Detector, NodePortAddresses, NodeSide};

type Written = BTreeMap<String, Vec<String>>;

fn engine() -> Engine<Wanted> {
    let policy = Policy {
        settings: settings(),
        // The one whose rules depend on facts.
        detector: Detector::NodeCidr(None),
        node_ports: NodePortAddresses::Primary,
        node_side: NodeSide::default(),
        backend: BackendName::Iptables,
    };
    Engine::new(policy, Wanted::offline())
}

/// Writes what changed, as the kernel would hold it.
fn write(engine: &mut Engine<Wanted>, kernel: &mut Written) {
    for rules in &mut engine.decided_mut().rules {
        let family = rules.family();
        for ((table, chain), lines) in rules.take_changes() {
            let name = format!("{family} {table} {chain}");
            match lines {
                Some(lines) => kernel.insert(name, lines),
                None => kernel.remove(&name),
            };
        }
    }
}

fn all(engine: &mut Engine<Wanted>) -> Written {
    let mut found = Written::new();
    for rules in &engine.decided().rules {
        let family = rules.family();
        rules.for_each(|(table, chain), lines| {
            found.insert(format!("{family} {table} {chain}"), lines);
        });
    }
    found
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn what_is_written_change_by_change_is_what_is_wanted(
        events in proptest::collection::vec(event(), 1..40),
        listed: [Index; 4],
        batch in 1_usize..6,
    ) {
        let mut way = events.clone();
        for (listing, at) in Listing::ALL.into_iter().zip(listed) {
            way.insert(at.index(way.len()), crate::model::Event::Listed(listing));
        }
        let (mut engine, mut kernel) = (engine(), Written::new());
        for some in way.chunks(batch) {
            engine.apply(some.to_vec());
            write(&mut engine, &mut kernel);
        }
        prop_assert_eq!(&kernel, &all(&mut engine));
        let mut fresh = self::engine();
        fresh.apply(last_words(&way));
        prop_assert_eq!(&kernel, &all(&mut fresh));
        for (chain, lines) in &kernel {
            for (_, to) in lines.iter().filter_map(|line| line.split_once(" -j KUBE-")) {
                let (family_and_table, _) = chain.rsplit_once(' ').expect("three words");
                prop_assert!(kernel.contains_key(&format!("{family_and_table} KUBE-{to}")), "{} from {}", to, chain);
            }
        }
        write(&mut engine, &mut kernel);
        prop_assert!(engine.decided().rules.iter().all(|rules| !rules.is_changed()), "nothing happened");
    }
}
