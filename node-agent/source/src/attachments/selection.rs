//! Which pods the plugin's `redirect` selects, by the runtime's cached results: the newest ADD of a
//! network shows what the plugin's entry is now, and each pod's own ADD shows its annotations. This
//! finds pods that have a proxy but were attached before the entry had `redirect`.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::Path;
use std::time::SystemTime;

use denizen_cni::Redirection;
use denizen_state::AttachmentId;

use super::cache::{self, CachedAdd};
use denizen_model::LocalPod;

/// Maximum number of pods that the warning names.
const NAMED: usize = 5;

/// Reads the cache, at first all of it, and then what changes.
#[derive(Debug, Default)]
pub(super) struct RedirectSelection {
    /// By network.
    newest: BTreeMap<String, Newest>,
    /// By the name of the cached result. The attachment may be gone.
    selected: BTreeMap<OsString, AttachmentId>,
}

/// The newest ADD of a network.
#[derive(Debug)]
struct Newest {
    written: SystemTime,
    redirection: Option<Redirection>,
}

impl RedirectSelection {
    /// Reads the results called `names`; `None`: all of them. If a result shows that the plugin's
    /// entry has changed, this reads all results. Blocks.
    pub(super) fn read(&mut self, folder: &Path, names: Option<&BTreeSet<OsString>>) {
        let is_wanted = |name: &_| names.is_none_or(|names| names.contains(name));
        let (entries, _) = cache::entries(folder, |name| is_wanted(&name.to_owned()));
        match self.note(&entries) && names.is_some() {
            true => self.select(&cache::entries(folder, |_| true).0, |_| true),
            false => self.select(&entries, is_wanted),
        }
    }

    /// Notes which redirection the newest of `entries` show. Returns whether it changed.
    fn note(&mut self, entries: &[CachedAdd]) -> bool {
        let mut is_news = false;
        for CachedAdd { network, written, list, .. } in entries {
            let known = self.newest.get(network);
            if known.is_some_and(|known| known.written > *written) {
                continue;
            }
            let redirection = Redirection::of(list);
            is_news |= known.and_then(|known| known.redirection.as_ref()) != redirection.as_ref();
            self.newest.insert(network.clone(), Newest { written: *written, redirection });
        }
        is_news
    }

    /// Selects among `entries`, which are all results whose name `is_read`.
    fn select(&mut self, entries: &[CachedAdd], is_read: impl Fn(&OsString) -> bool) {
        self.selected.retain(|name, _| !is_read(name));
        for entry in entries {
            let newest = self.newest.get(&entry.network);
            let redirection = newest.and_then(|newest| newest.redirection.as_ref());
            let CachedAdd { args, annotations, if_name, .. } = entry;
            if redirection.is_some_and(|selection| selection.selects(args, annotations, if_name)) {
                let id = AttachmentId::new(&entry.container_id, if_name);
                self.selected.insert(entry.path.file_name().unwrap_or_default().into(), id);
            }
        }
    }

    /// The selected attachments, some of which may be gone.
    pub(super) fn attachments(&self) -> Selected {
        Selected(self.selected.values().cloned().collect())
    }
}

/// The attachments that the plugin would redirect now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selected(BTreeSet<AttachmentId>);

impl Selected {
    /// The recorded `pods` that the plugin would redirect, and has not.
    pub fn lacking<'a>(&self, pods: &'a [LocalPod]) -> Vec<&'a LocalPod> {
        let lacks = |pod: &&LocalPod| pod.redirect.is_none() && self.0.contains(&pod.id);
        pods.iter().filter(lacks).collect()
    }
}

/// The warning of `status` about pods that lack redirection; `None` if there are none.
pub fn warning(lacking: &[&LocalPod]) -> Option<String> {
    let named = lacking.iter().take(NAMED).map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let more = match lacking.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let number = match lacking.len() {
        0 => return None,
        1 => "1 pod has a mesh's proxy and was".to_owned(),
        number => format!("{number} pods have a mesh's proxy and were"),
    };
    Some(format!(
        "{number} attached before the plugin redirected such pods, or could: {named}{more}. Unless \
         something else redirects such a pod, it passes its proxy by. A pod that takes its place \
         will be redirected"
    ))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::{Value, json};

    use super::*;

    /// A result that the runtime wrote at this second, with this entry of the plugin.
    fn entry(
        second: u64,
        network: &str,
        container: &str,
        redirect: Value,
        proxy: bool,
    ) -> CachedAdd {
        let list =
            json!({ "plugins": [{ "type": "ptp" }, { "type": "denizen", "redirect": redirect }] });
        let version = ("linkerd.io/proxy-version".to_owned(), "edge-26.8.1".to_owned());
        CachedAdd {
            path: format!("/results/{network}-{container}-eth0").into(),
            written: SystemTime::UNIX_EPOCH + Duration::from_secs(second),
            container_id: container.to_owned(),
            if_name: "eth0".to_owned(),
            network: network.to_owned(),
            netns: None,
            args: "K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web".to_owned(),
            host_ports: Ok(Vec::new()),
            annotations: proxy.then_some(version).into_iter().collect(),
            list: list.to_string(),
            result: serde_json::from_str("{}").unwrap(),
        }
    }

    fn selected(selection: &RedirectSelection) -> Vec<&str> {
        selection.selected.values().map(|id| &*id.0).collect()
    }

    #[test]
    fn the_newest_add_of_a_network_shows_its_entry() {
        let (none, linkerd) = (Value::Null, json!({ "profile": "linkerd" }));
        let mut all = vec![
            entry(1, "pods", "old", none.clone(), true),
            entry(2, "pods", "plain", none.clone(), false),
            entry(9, "storage", "other", none.clone(), true),
        ];
        let mut selection = RedirectSelection::default();
        assert!(!selection.note(&all));
        selection.select(&all, |_| true);
        assert!(selected(&selection).is_empty());

        // A pod of today, selected or not, shows that the entry has `redirect` now.
        all.insert(0, entry(3, "pods", "new", linkerd.clone(), false));
        assert!(selection.note(&all[..1]));
        assert!(!selection.note(&all), "the others are older");
        selection.select(&all, |_| true);
        assert_eq!(selected(&selection), ["old/eth0"]);

        let another = entry(4, "pods", "late", linkerd, true);
        assert!(!selection.note(std::slice::from_ref(&another)));
        selection.select(&[another], |name| name == "pods-late-eth0");
        assert_eq!(selected(&selection), ["late/eth0", "old/eth0"]);
        selection.select(&[], |name| name == "pods-old-eth0");
        assert_eq!(selected(&selection), ["late/eth0"]);

        let without = entry(5, "pods", "last", none, true);
        assert!(selection.note(&[without]));
        selection.select(&all, |_| true);
        assert!(selected(&selection).is_empty());
    }
}
