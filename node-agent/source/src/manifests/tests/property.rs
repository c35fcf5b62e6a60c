//! Any sequence of changes to the files yields what a fresh read yields.

use std::collections::{BTreeMap, BTreeSet};

use proptest::collection::vec;
use proptest::prelude::*;

use super::super::folder::{Folder, Reread};
use super::*;

#[derive(Debug, Clone)]
enum FolderStep {
    Write(usize, String),
    Remove(usize),
    Rename(usize, usize),
    Link(usize, usize),
    /// Read the files touched since the last read.
    Look,
    /// Read all files.
    LookEverywhere,
}

const FILES: [&str; 5] = ["a.yaml", "b.yml", "c.json", "d.yaml", ".e.yaml"];

/// Few objects, so that several files have the same one.
fn document() -> impl Strategy<Value = String> {
    let service = (0..3, 0..4).prop_map(|(name, variant)| match variant {
        0 => service(&format!("s{name}"), "None"),
        address => service(&format!("s{name}"), &format!("10.0.{name}.{address}")),
    });
    let slice = (0..2, 1..3).prop_map(|(name, variant)| {
        format!(
            "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\naddressType: IPv4\n\
             metadata: {{name: e{name}, namespace: d, labels: {{kubernetes.io/service-name: s{variant}}}}}\n\
             endpoints: [{{addresses: [10.1.{name}.{variant}]}}]\n"
        )
    });
    let node = (1..3, 1..3).prop_map(|(name, variant)| {
        format!(
            "apiVersion: v1\nkind: Node\nmetadata: {{name: n{name}}}\n\
             spec: {{podCIDR: 10.{variant}.0.0/16}}\n"
        )
    });
    let cidr = (1..3).prop_map(|variant| {
        format!(
            "apiVersion: networking.k8s.io/v1\nkind: ServiceCIDR\nmetadata: {{name: k}}\n\
             spec: {{cidrs: [10.{variant}.0.0/16]}}\n"
        )
    });
    let json = (0..3).prop_map(|name| {
        let service = serde_json::json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": { "name": format!("s{name}"), "namespace": "d" },
            "spec": { "clusterIP": format!("10.9.9.{name}") },
        });
        format!("{service}\n")
    });
    let broken =
        prop_oneof![Just("{".to_owned()), Just("kind: Pod\n".to_owned()), Just(String::new())];
    prop_oneof![4 => service, 2 => slice, 1 => node, 1 => cidr, 1 => json, 1 => broken]
}

fn step() -> impl Strategy<Value = FolderStep> {
    let file = || 0..FILES.len();
    let text = vec(document(), 0..4).prop_map(|documents| documents.join("---\n"));
    prop_oneof![
        6 => (file(), text).prop_map(|(file, text)| FolderStep::Write(file, text)),
        2 => file().prop_map(FolderStep::Remove),
        2 => (file(), file()).prop_map(|(from, to)| FolderStep::Rename(from, to)),
        1 => (file(), file()).prop_map(|(from, to)| FolderStep::Link(from, to)),
        6 => Just(FolderStep::Look),
        1 => Just(FolderStep::LookEverywhere),
    ]
}

/// The last event for each object.
#[derive(Debug, Default, PartialEq)]
struct Latest(BTreeMap<String, Event>);

impl Latest {
    fn apply(&mut self, events: Vec<Event>) {
        for event in events {
            let (key, gone) = match &event {
                Event::Service(name, service) => (format!("service {name}"), service.is_none()),
                Event::ForeignService(name, _) => (format!("service {name}"), false),
                Event::Slice(name, slice) => (format!("slice {name}"), slice.is_none()),
                Event::Node(node) => ("node".to_owned(), node.is_none()),
                Event::OtherNode(name, node) => (format!("node {name}"), node.is_none()),
                Event::ServiceCidr(name, ranges) => (format!("range {name}"), ranges.is_none()),
                Event::Namespace(name, it) => (format!("namespace {name}"), it.is_none()),
                Event::ClusterPod(name, pod) => (format!("pod {name}"), pod.is_none()),
                Event::NetworkPolicy(name, it) => (format!("policy {name}"), it.is_none()),
                Event::ClusterNetworkPolicy(name, state) => {
                    (format!("tiers {name}"), state.is_none())
                }
                Event::Listed(_) | Event::Refused(_) => continue,
                Event::Pods(_)
                | Event::Addresses(_)
                | Event::Links(_)
                | Event::Egress(_)
                | Event::PodCoverage(_)
                | Event::Triggered(..) => {
                    panic!("not of manifests: {event:?}")
                }
            };
            if gone {
                self.0.remove(&key);
            } else {
                assert_ne!(self.0.get(&key), Some(&event), "sent although nothing changed");
                self.0.insert(key, event);
            }
        }
    }
}

/// Makes one change. Errors are ignored: a file may be missing.
fn change(place: &TestFolder, step: &FolderStep, touched: &mut BTreeSet<std::ffi::OsString>) {
    let path = |file: &usize| place.folder.path().join(FILES[*file]);
    let files = match step {
        FolderStep::Write(file, text) => {
            // Not through a link: the name of the other file would not be recorded as touched.
            let _ = std::fs::remove_file(path(file));
            place.write(FILES[*file], text);
            vec![file]
        }
        FolderStep::Remove(file) => {
            let _ = std::fs::remove_file(path(file));
            vec![file]
        }
        FolderStep::Rename(from, to) => {
            let _ = std::fs::rename(path(from), path(to));
            vec![from, to]
        }
        FolderStep::Link(from, to) => {
            let _ = std::fs::remove_file(path(to));
            std::os::unix::fs::symlink(FILES[*from], path(to)).unwrap();
            vec![to]
        }
        FolderStep::Look | FolderStep::LookEverywhere => vec![],
    };
    touched.extend(files.into_iter().map(|file| FILES[*file].into()));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence_of_changes_yields_what_a_fresh_read_yields(steps in vec(step(), 1..30)) {
        let place = TestFolder::new();
        let config = place.config();
        let mut folder = Folder::new(&config);
        let (mut latest, mut touched) = (Latest::default(), BTreeSet::new());
        for step in steps.iter().chain([&FolderStep::Look]) {
            change(&place, step, &mut touched);
            let look = match step {
                FolderStep::Look => Reread::Touched(std::mem::take(&mut touched)),
                FolderStep::LookEverywhere => Reread::Everywhere,
                FolderStep::Write(..)
                | FolderStep::Remove(_)
                | FolderStep::Rename(..)
                | FolderStep::Link(..) => continue,
            };
            latest.apply(folder.scan(&look).unwrap());
        }
        let (events, mut problems) = place.fresh();
        let mut fresh = Latest::default();
        fresh.apply(events);
        prop_assert_eq!(latest, fresh);
        let mut known = folder.problems();
        known.sort();
        problems.sort();
        prop_assert_eq!(known, problems);
    }
}
