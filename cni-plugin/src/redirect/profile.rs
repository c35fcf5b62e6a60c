//! Profiles: what is redirected unless somebody says otherwise, and which annotations say so.

use denizen_state::redirect::Redirect;
use serde::Deserialize;

use super::key::{self, KEYS, Key};

/// The annotation that decides whether the pod is redirected, whatever the profile selects by.
pub(super) const REDIRECT: &str = "denizen.io/redirect";

/// What denizen's other annotations begin with. None of them may be unknown.
pub(super) const PREFIX: &str = "redirect.denizen.io/";

/// Whose proxy a pod has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Profile {
    /// Linkerd's: what linkerd-init does without options.
    Linkerd,
    /// Any other transparent proxy. The conflist says everything.
    Custom,
}

/// Linkerd's annotations. The injector copies a namespace's onto the pod.
static LINKERD: [(&str, &Key); 9] = [
    ("config.linkerd.io/inbound-port", &key::INBOUND_PORT),
    ("config.linkerd.io/outbound-port", &key::OUTBOUND_PORT),
    ("config.linkerd.io/proxy-uid", &key::PROXY_UID),
    ("config.linkerd.io/proxy-gid", &key::PROXY_GID),
    ("config.linkerd.io/skip-inbound-ports", &key::SKIP_INBOUND_PORTS),
    ("config.linkerd.io/skip-outbound-ports", &key::SKIP_OUTBOUND_PORTS),
    // Of what arrives alone, as linkerd-init takes them.
    ("config.linkerd.io/skip-subnets", &key::SKIP_INBOUND_CIDRS),
    ("config.linkerd.io/control-port", &key::LINKERD_CONTROL_PORT),
    ("config.linkerd.io/admin-port", &key::LINKERD_ADMIN_PORT),
];

impl Profile {
    /// The profile's name.
    pub(super) fn name(self) -> &'static str {
        match self {
            Profile::Linkerd => "linkerd",
            Profile::Custom => "custom",
        }
    }

    /// What the profile says itself.
    pub(super) fn defaults(self) -> Vec<(&'static Key, Vec<String>)> {
        let of = |key, said: &[&str]| (key, said.iter().map(|said| (*said).to_owned()).collect());
        match self {
            // Galera's ports are skipped as the server speaks first there (4567 and 4568), and
            // those of the proxy's control and metrics are its own.
            Profile::Linkerd => vec![
                of(&key::INBOUND_PORT, &["4143"]),
                of(&key::OUTBOUND_PORT, &["4140"]),
                of(&key::PROXY_UID, &["2102"]),
                of(&key::ALWAYS_SKIP_INBOUND_PORTS, &["4190", "4191"]),
                of(&key::SKIP_INBOUND_PORTS, &["4567-4568"]),
                of(&key::SKIP_OUTBOUND_PORTS, &["4567-4568"]),
            ],
            Profile::Custom => Vec::new(),
        }
    }

    /// The annotation that a pod with a proxy has. Linkerd's injector sets it only where it really
    /// adds the proxy.
    pub(super) fn selector(self) -> Option<&'static str> {
        match self {
            Profile::Linkerd => Some("linkerd.io/proxy-version"),
            Profile::Custom => None,
        }
    }

    /// The annotations that override values, in order: the last one that a pod has counts.
    pub(super) fn annotations(self) -> Vec<(String, &'static Key)> {
        let theirs: &[(&str, &Key)] = match self {
            Profile::Linkerd => &LINKERD,
            Profile::Custom => &[],
        };
        let theirs = theirs.iter().map(|(name, key)| ((*name).to_owned(), *key));
        let ours = KEYS.iter().map(|key| (format!("{PREFIX}{}", key.annotation), *key));
        theirs.chain(ours).collect()
    }

    /// Nothing but the profile's name and the pod's interface.
    pub(super) fn empty(self, if_name: &str) -> Redirect {
        let (profile, interfaces) = (self.name().to_owned(), vec![if_name.to_owned()]);
        Redirect { profile, interfaces, ..Redirect::default() }
    }
}
