//! Which interfaces look like a pod's and have no record. Pure: who calls brings the time.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use denizen_shared::state::State;
use tokio::time::Instant;

use crate::source::node::{Link, LinkKind};

/// An interface is reported when it had no record for so long: ADDs that are under way take their
/// time.
pub(super) const REPORT_AFTER: Duration = Duration::from_secs(10);

/// The most interfaces that a warning names.
const NAMED: usize = 5;

/// Interfaces that an operator says are no pods': by name, or by the name of the bridge that they
/// are ports of. A `*` at the end stands for any rest.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NotPods(pub Vec<String>);

impl NotPods {
    fn has(&self, name: &str) -> bool {
        self.0.iter().any(|pattern| match pattern.strip_suffix('*') {
            Some(prefix) => name.starts_with(prefix),
            None => name == pattern,
        })
    }
}

/// Interfaces that look like a pod's and have no record.
#[derive(Debug, Default)]
pub(super) struct Missing {
    not_pods: NotPods,
    /// Since when they are so, by index.
    since: BTreeMap<u32, Since>,
    /// Links that have had a record in this agent's life, and whether they were listed since. One
    /// that has none any more is that of a pod that is being deleted: DEL removes the record first,
    /// then the link, and what the runtime remembers last.
    held: HashMap<u32, bool>,
}

#[derive(Debug)]
struct Since {
    at: Instant,
    /// As a person finds it.
    name: String,
}

impl Missing {
    pub(super) fn new(not_pods: NotPods) -> Self {
        Self { not_pods, ..Self::default() }
    }

    /// There are these records. A record that came and went must not be missed.
    pub(super) fn recorded(&mut self, state: Option<&State>) {
        let attachments = state.into_iter().flat_map(|state| state.attachments.values());
        for link in attachments.filter_map(|it| it.host_interface.as_ref()) {
            self.held.entry(link.index).or_default();
        }
    }

    /// These are the links now; whether an interface is missing that was not before.
    pub(super) fn listed(&mut self, links: &[Link], now: Instant) -> bool {
        let by_index: HashMap<u32, &Link> = links.iter().map(|link| (link.index, link)).collect();
        // A record may be known before its link is.
        self.held.retain(|index, was_listed| {
            let is_listed = by_index.contains_key(index);
            let is_gone = *was_listed && !is_listed;
            *was_listed |= is_listed;
            !is_gone
        });
        let mut since = BTreeMap::new();
        let mut has_new = false;
        for link in links.iter().filter(|link| link.kind == LinkKind::VethToElsewhere) {
            let master = link.master.and_then(|index| by_index.get(&index));
            let is_no_pods = self.not_pods.has(&link.name)
                || master.is_some_and(|master| self.not_pods.has(&master.name));
            if is_no_pods || self.held.contains_key(&link.index) {
                continue;
            }
            let before = self.since.remove(&link.index);
            has_new |= before.is_none();
            let at = before.map_or(now, |before| before.at);
            let on = master.map(|master| format!(" on {}", master.name)).unwrap_or_default();
            let name = format!("{}{on}", link.name);
            since.insert(link.index, Since { at, name });
        }
        self.since = since;
        has_new
    }

    /// The indices of all of them.
    pub(super) fn links(&self) -> HashSet<u32> {
        self.since.keys().copied().collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.since.is_empty()
    }

    /// The names of those that have been without a record for long.
    pub(super) fn for_long(&self, now: Instant) -> Vec<String> {
        let long = self.since.values().filter(|since| since.at + REPORT_AFTER <= now);
        long.map(|since| since.name.clone()).collect()
    }

    /// When the next one will have been.
    pub(super) fn next_for_long(&self, now: Instant) -> Option<Instant> {
        let due = self.since.values().map(|since| since.at + REPORT_AFTER);
        due.filter(|due| *due > now).min()
    }
}

/// What was found and cannot be recorded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Unrecorded {
    /// Interfaces that look like a pod's and have had no record for long.
    pub interfaces: Vec<String>,
    /// Cached CNI results that cannot be used, and why.
    pub results: Vec<String>,
}

impl Unrecorded {
    /// What `status` says of them.
    pub fn warnings(&self) -> Vec<String> {
        let results = self.results.iter().take(NAMED).cloned();
        let more = self.results.len().saturating_sub(NAMED);
        let more = (more > 0).then(|| format!("{more} more cached CNI results are left out"));
        warning(&self.interfaces).into_iter().chain(results).chain(more).collect()
    }
}

/// What `status` says of interfaces without a record; nothing where there are none.
fn warning(interfaces: &[String]) -> Option<String> {
    let named = interfaces.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
    let more = match interfaces.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let (number, look) = match interfaces.len() {
        0 => return None,
        1 => ("1 interface".to_owned(), "looks like a pod's and has"),
        number => (format!("{number} interfaces"), "look like pods' and have"),
    };
    Some(format!(
        "{number} {look} no record: {named}{more}. A pod there is masqueraded towards services: its ADD went past the plugin, and \
         no cached CNI result tells of it. Interfaces or bridges of other containers can be named with --not-pods"
    ))
}

#[cfg(test)]
mod tests {
    use denizen_shared::state::{Epoch, HostInterface};

    use super::super::links::record;
    use super::*;

    fn link(index: u32, name: &str, kind: LinkKind, master: Option<u32>) -> Link {
        Link { index, name: name.into(), mac: String::new(), kind, master }
    }

    fn recorded(links: &[u32]) -> State {
        let mut state = State::empty(Epoch("e".to_owned()));
        for index in links {
            let mut record = record(None);
            record.container_id = format!("c{index}");
            record.host_interface = Some(HostInterface {
                name: format!("veth{index}"),
                index: *index,
                mac: String::new(),
                unknown: Default::default(),
            });
            state.attachments.insert(record.id(), record);
        }
        state
    }

    fn missing(missing: &Missing) -> Vec<u32> {
        missing.since.keys().copied().collect()
    }

    #[test]
    fn what_looks_like_a_pods_interface() {
        let pod = LinkKind::VethToElsewhere;
        let links = [
            link(1, "cni0", LinkKind::Bridge, None),
            link(2, "docker0", LinkKind::Bridge, None),
            link(3, "veth3", pod, Some(1)),
            link(4, "veth4", pod, None),
            link(5, "veth5", pod, Some(2)),
            link(6, "lab-a", pod, None),
            link(7, "vlan-end", LinkKind::Veth, None),
            link(8, "vlan-port", LinkKind::Veth, Some(1)),
            link(9, "eth0", LinkKind::Other, None),
            link(10, "veth10", pod, Some(1)),
            link(11, "eth0", pod, None),
        ];
        let not_pods = NotPods(["docker0", "eth*", "lab-*"].map(str::to_owned).into());
        let mut found = Missing::new(not_pods);
        let now = Instant::now();
        found.recorded(Some(&recorded(&[10])));
        assert!(found.listed(&links, now));
        assert_eq!(missing(&found), [3, 4]);
        assert!(!found.listed(&links, now), "nothing new");
        let long = now + REPORT_AFTER;
        assert_eq!((found.for_long(now), found.next_for_long(now)), (vec![], Some(long)));
        assert_eq!(found.for_long(long), ["veth3 on cni0", "veth4"]);
        assert_eq!(found.next_for_long(long), None);
    }

    #[test]
    fn a_link_that_had_a_record_is_not_looked_for_while_it_is_there() {
        let links = [link(3, "veth3", LinkKind::VethToElsewhere, None)];
        let mut found = Missing::default();
        let now = Instant::now();
        let steps = [
            ("before its record", true, false, true),
            ("recorded", true, true, false),
            ("being deleted", true, false, false),
            ("gone", false, false, false),
            ("another with its index", true, false, true),
        ];
        for (name, is_listed, has_record, is_missing) in steps {
            found.recorded(Some(&recorded(if has_record { &[3] } else { &[] })));
            found.listed(if is_listed { &links } else { &[] }, now);
            assert_eq!(!found.is_empty(), is_missing, "{name}");
        }
    }

    #[test]
    fn a_record_may_come_and_go_before_its_link_is_listed() {
        let mut found = Missing::default();
        let now = Instant::now();
        found.recorded(Some(&recorded(&[3])));
        found.listed(&[], now);
        found.recorded(Some(&recorded(&[])));
        found.listed(&[link(3, "veth3", LinkKind::VethToElsewhere, None)], now);
        assert!(found.is_empty());
    }

    #[test]
    fn a_warning_names_a_few() {
        let names = |number: usize| (0..number).map(|n| format!("veth{n}")).collect::<Vec<_>>();
        assert_eq!(warning(&[]), None);
        let one = warning(&names(1)).unwrap();
        assert!(
            one.starts_with("1 interface looks like a pod's and has no record: veth0."),
            "{one}"
        );
        let many = warning(&names(2000)).unwrap();
        assert!(many.contains("veth3, veth4 and 1995 more."), "{many}");
    }
}
