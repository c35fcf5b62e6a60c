//! Which interfaces look like a pod's and have no record. Pure: the caller passes the time.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use denizen_state::State;
use tokio::time::Instant;

use crate::node::{Link, LinkKind};

/// An interface is reported after it had no record for this long: an ADD in progress takes time.
pub(super) const REPORT_AFTER: Duration = Duration::from_secs(10);

/// Maximum number of interfaces that one warning names.
const NAMED: usize = 5;

/// Interfaces that the operator excludes: by name, or by the name of their bridge. A trailing `*`
/// matches any rest.
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
    /// The interfaces by index, and since when they are missing a record.
    since: BTreeMap<u32, UnrecordedSince>,
    /// Links that have had a record since the agent started, and whether they were listed since. If
    /// such a link has no record, its pod is being deleted: DEL removes the record first, then the
    /// link, and the runtime's cached result last.
    held: HashMap<u32, bool>,
}

#[derive(Debug)]
struct UnrecordedSince {
    at: Instant,
    /// The name to show, with the bridge.
    name: String,
}

impl Missing {
    pub(super) fn new(not_pods: NotPods) -> Self {
        Self { not_pods, ..Self::default() }
    }

    /// Notes these records. Every record must be noted, even one that came and went.
    pub(super) fn recorded(&mut self, state: Option<&State>) {
        let attachments = state.into_iter().flat_map(|state| state.attachments.values());
        for link in attachments.flat_map(|attachment| attachment.host_interfaces()) {
            self.held.entry(link.index).or_default();
        }
    }

    /// Applies a list of links. Returns whether a further interface is without a record.
    pub(super) fn listed(&mut self, links: &[Link], now: Instant) -> bool {
        let by_index: HashMap<u32, &Link> = links.iter().map(|link| (link.index, link)).collect();
        // A record may be known before its link.
        self.held.retain(|index, was_listed| {
            let is_listed = by_index.contains_key(index);
            let is_gone = *was_listed && !is_listed;
            *was_listed |= is_listed;
            !is_gone
        });
        let mut since = BTreeMap::new();
        let mut has_new = false;
        for link in links.iter().filter(|link| link.kind == LinkKind::VethToOtherNetns) {
            let master = link.master.and_then(|index| by_index.get(&index));
            let is_excluded = self.not_pods.has(&link.name)
                || master.is_some_and(|master| self.not_pods.has(&master.name));
            if is_excluded || self.held.contains_key(&link.index) {
                continue;
            }
            let before = self.since.remove(&link.index);
            has_new |= before.is_none();
            let at = before.map_or(now, |before| before.at);
            let on = master.map(|master| format!(" on {}", master.name)).unwrap_or_default();
            let name = format!("{}{on}", link.name);
            since.insert(link.index, UnrecordedSince { at, name });
        }
        self.since = since;
        has_new
    }

    /// The indices of all interfaces without a record.
    pub(super) fn links(&self) -> HashSet<u32> {
        self.since.keys().copied().collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.since.is_empty()
    }

    /// The names of the interfaces that have had no record for long.
    pub(super) fn for_long(&self, now: Instant) -> Vec<String> {
        let long = self.since.values().filter(|since| since.at + REPORT_AFTER <= now);
        long.map(|since| since.name.clone()).collect()
    }

    /// When the next interface will count as without a record for long.
    pub(super) fn next_for_long(&self, now: Instant) -> Option<Instant> {
        let due = self.since.values().map(|since| since.at + REPORT_AFTER);
        due.filter(|due| *due > now).min()
    }
}

/// What was found but cannot be recorded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Unrecorded {
    /// Interfaces that look like a pod's and have had no record for long.
    pub interfaces: Vec<String>,
    /// Cached CNI results that cannot be used, and why.
    pub results: Vec<String>,
}

impl Unrecorded {
    /// The warnings that `status` shows.
    pub fn warnings(&self) -> Vec<String> {
        let results = self.results.iter().take(NAMED).cloned();
        let more = self.results.len().saturating_sub(NAMED);
        let more = (more > 0).then(|| format!("{more} more cached CNI results are left out"));
        warning(&self.interfaces).into_iter().chain(results).chain(more).collect()
    }
}

/// The warning of `status` about interfaces without a record; `None` if there are none.
fn warning(interfaces: &[String]) -> Option<String> {
    let named = interfaces.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
    let more = match interfaces.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let (number, look) = match interfaces.len() {
        0 => return None,
        1 => ("1 interface".to_owned(), "looks like a pod's and has"),
        number => (format!("{number} interfaces"), "look like a pod's and have"),
    };
    Some(format!(
        "{number} {look} no record: {named}{more}. Such a pod is masqueraded towards services: its \
         ADD bypassed the plugin, and no cached CNI result describes it. Exclude the interfaces or \
         bridges of other containers with --not-pods"
    ))
}

#[cfg(test)]
mod tests {
    use denizen_state::{Epoch, HostInterface};

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
    fn which_interfaces_look_like_a_pods() {
        let pod = LinkKind::VethToOtherNetns;
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
    fn a_link_that_had_a_record_is_never_missing() {
        let links = [link(3, "veth3", LinkKind::VethToOtherNetns, None)];
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
        found.listed(&[link(3, "veth3", LinkKind::VethToOtherNetns, None)], now);
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
