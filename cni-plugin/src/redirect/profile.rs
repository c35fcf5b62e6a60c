//! Profiles: the defaults of what is redirected, and the annotations that change it.

use std::collections::BTreeMap;

use denizen_state::redirect::Redirect;
use serde::Deserialize;

use super::key::{self, KEYS, RedirectKey};
use super::reads::Reads;
use super::{consul, istio};

/// The annotation that decides whether the pod is redirected, whatever the profile's own conditions
/// are.
pub(super) const REDIRECT: &str = "denizen.io/redirect";

/// The prefix of denizen's other annotations. An unknown annotation with it is an error.
pub(super) const PREFIX: &str = "redirect.denizen.io/";

/// Whose proxy a pod has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Profile {
    /// Linkerd's: what linkerd-init does without options.
    Linkerd,
    /// Istio's sidecars: what istio-cni does in its mode `REDIRECT`.
    Istio,
    /// Consul's sidecars with transparent proxy: what consul-cni does.
    Consul,
    /// Any other transparent proxy. The conflist says everything.
    Custom,
}

/// Linkerd's annotations. The injector copies a namespace's onto the pod.
static LINKERD: [(&str, Reads); 9] = [
    ("config.linkerd.io/inbound-port", Reads::One(&key::INBOUND_PORT)),
    ("config.linkerd.io/outbound-port", Reads::One(&key::OUTBOUND_PORT)),
    ("config.linkerd.io/proxy-uid", Reads::One(&key::PROXY_UID)),
    ("config.linkerd.io/proxy-gid", Reads::One(&key::PROXY_GID)),
    ("config.linkerd.io/skip-inbound-ports", Reads::One(&key::SKIP_INBOUND_PORTS)),
    ("config.linkerd.io/skip-outbound-ports", Reads::One(&key::SKIP_OUTBOUND_PORTS)),
    // For inbound connections only, as linkerd-init applies them.
    ("config.linkerd.io/skip-subnets", Reads::One(&key::SKIP_INBOUND_CIDRS)),
    ("config.linkerd.io/control-port", Reads::One(&key::LINKERD_CONTROL_PORT)),
    ("config.linkerd.io/admin-port", Reads::One(&key::LINKERD_ADMIN_PORT)),
];

impl Profile {
    /// The profile's name.
    pub(super) fn name(self) -> &'static str {
        match self {
            Profile::Linkerd => "linkerd",
            Profile::Istio => "istio",
            Profile::Consul => "consul",
            Profile::Custom => "custom",
        }
    }

    /// The profile's default values.
    pub(super) fn defaults(self) -> Vec<(&'static RedirectKey, Vec<String>)> {
        let defaults: &[(&'static RedirectKey, &[&str])] = match self {
            // Galera's ports (4567 and 4568) are skipped, since the server speaks first there; 4190
            // and 4191 are the proxy's own, for control and metrics.
            Profile::Linkerd => &[
                (&key::INBOUND_PORT, &["4143"]),
                (&key::OUTBOUND_PORT, &["4140"]),
                (&key::PROXY_UID, &["2102"]),
                (&key::ALWAYS_SKIP_INBOUND_PORTS, &["4190", "4191"]),
                (&key::SKIP_INBOUND_PORTS, &["4567-4568"]),
                (&key::SKIP_OUTBOUND_PORTS, &["4567-4568"]),
            ],
            // The proxy's own ports: tunnels (15008), telemetry and probes (15020), readiness
            // (15021), metrics (15090).
            Profile::Istio => &[
                (&key::INBOUND_PORT, &["15006"]),
                (&key::OUTBOUND_PORT, &["15001"]),
                (&key::PROXY_UID, &["1337"]),
                (&key::PROXY_GID, &["1337"]),
                (&key::ALWAYS_SKIP_INBOUND_PORTS, &["15008", "15020", "15021", "15090"]),
                (&key::SKIP_OUTBOUND_PORTS, &["15020"]),
                (&key::HAIRPIN, &["inbound"]),
            ],
            // IPv6 is redirected if the injector says that the cluster has both families.
            Profile::Consul => &[
                (&key::INBOUND_PORT, &["20000"]),
                (&key::OUTBOUND_PORT, &["15001"]),
                (&key::PROXY_UID, &["5995"]),
                (&key::HAIRPIN, &["outbound"]),
                (&key::IPV6, &["bypass"]),
            ],
            Profile::Custom => &[],
        };
        let owned =
            |entries: &[&str]| entries.iter().map(|entries| (*entries).to_owned()).collect();
        defaults.iter().map(|(key, entries)| (*key, owned(entries))).collect()
    }

    /// Whether a pod with these annotations has the profile's proxy, and its traffic should go
    /// through it.
    pub(super) fn selects(self, annotations: &BTreeMap<String, String>) -> Result<bool, String> {
        match self {
            // Linkerd's injector sets it only if it adds the proxy.
            Profile::Linkerd => Ok(annotations.contains_key("linkerd.io/proxy-version")),
            Profile::Istio => istio::selects(annotations),
            Profile::Consul => Ok(consul::selects(annotations)),
            Profile::Custom => Ok(false),
        }
    }

    /// The annotations that override values, in order: the last one on a pod wins.
    pub(super) fn annotations(self) -> Vec<(String, Reads)> {
        let theirs: &[(&str, Reads)] = match self {
            Profile::Linkerd => &LINKERD,
            Profile::Istio => &istio::ANNOTATIONS,
            Profile::Consul => &consul::ANNOTATIONS,
            Profile::Custom => &[],
        };
        let theirs = theirs.iter().map(|(name, reads)| ((*name).to_owned(), *reads));
        let ours = KEYS.iter().map(|key| (format!("{PREFIX}{}", key.annotation), Reads::One(key)));
        theirs.chain(ours).collect()
    }

    /// Applies what only several annotations together say. An error if one asks for something
    /// unsupported.
    pub(super) fn complete(
        self,
        redirect: &mut Redirect,
        annotations: &BTreeMap<String, String>,
    ) -> Result<(), String> {
        match self {
            Profile::Istio => istio::complete(redirect, annotations),
            Profile::Linkerd | Profile::Consul | Profile::Custom => Ok(()),
        }
    }

    /// Whether it is right that nothing of a pod is redirected: Istio's annotations can say so, for
    /// pods that only need the proxy's certificates.
    pub(super) fn leaves_alone(self, redirect: &Redirect) -> bool {
        match self {
            Profile::Istio => redirect.inbound_port.is_none() && redirect.outbound_port.is_none(),
            Profile::Linkerd | Profile::Consul | Profile::Custom => false,
        }
    }

    /// A redirection with nothing but the profile's name and the pod's interface.
    pub(super) fn empty(self, if_name: &str) -> Redirect {
        let (profile, interfaces) = (self.name().to_owned(), vec![if_name.to_owned()]);
        Redirect { profile, interfaces, ..Redirect::default() }
    }
}
