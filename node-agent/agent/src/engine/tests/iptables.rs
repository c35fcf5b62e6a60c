//! The chains that a change names, written one change after the other, are those of a fresh start.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::sample::Index;

use super::{event, last_words};
use denizen_backend::BackendName;
use denizen_backend::iptables::DesiredRules;
use denizen_iptables::Desired;
use denizen_model::{Event, Listing};
use denizen_plan::fixture::policy;
use denizen_plan::{Detector, PlanChanges, Planner, Policy};

type Written = BTreeMap<String, Vec<String>>;

struct IptablesPlan {
    planner: Planner,
    wanted: DesiredRules,
}

impl IptablesPlan {
    fn new() -> Self {
        // The one whose rules depend on facts.
        let policy = Policy { detector: Detector::NodeCidr(None), ..policy() };
        let planner = Planner::new(policy, BackendName::Iptables.capabilities());
        let mut wanted = DesiredRules::offline();
        wanted.update(planner.plan(), &PlanChanges::from_nothing(planner.plan()));
        Self { planner, wanted }
    }

    fn take(&mut self, events: Vec<Event>) {
        self.planner.apply(events);
        let changes = self.planner.update();
        self.wanted.update(self.planner.plan(), &changes);
    }

    /// Writes what changed, as the kernel would hold it.
    fn write(&mut self, kernel: &mut Written) {
        for rules in &mut self.wanted.rules {
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

    fn all(&self) -> Written {
        let mut found = Written::new();
        for rules in &self.wanted.rules {
            let family = rules.family();
            rules.for_each(|(table, chain), lines| {
                found.insert(format!("{family} {table} {chain}"), lines);
            });
        }
        found
    }
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
        for (listing, at) in Listing::SERVICES.into_iter().zip(listed) {
            way.insert(at.index(way.len()), Event::Listed(listing));
        }
        let (mut rules, mut kernel) = (IptablesPlan::new(), Written::new());
        for some in way.chunks(batch) {
            rules.take(some.to_vec());
            rules.write(&mut kernel);
        }
        prop_assert_eq!(&kernel, &rules.all());
        let mut fresh = IptablesPlan::new();
        fresh.take(last_words(&way));
        prop_assert_eq!(&kernel, &fresh.all());
        for (chain, lines) in &kernel {
            for (_, to) in lines.iter().filter_map(|line| line.split_once(" -j KUBE-")) {
                let (family_and_table, _) = chain.rsplit_once(' ').expect("three words");
                let is_there = kernel.contains_key(&format!("{family_and_table} KUBE-{to}"));
                prop_assert!(is_there, "{} from {}", to, chain);
            }
        }
        rules.take(Vec::new());
        rules.write(&mut kernel);
        prop_assert!(rules.wanted.rules.iter().all(|rules| !rules.is_changed()), "nothing happened");
    }
}
