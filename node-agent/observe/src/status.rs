//! The state of the running agent, for people and programs.

mod api;
pub mod health;
mod host_ports;
mod ipvs;
pub mod metrics;
pub mod tables;
pub mod view;

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use self::api::ApiTraffic;
pub use self::host_ports::HostPortsStatus;
pub use self::ipvs::{DrainingSince, DrainingStatus, IpvsStatus};
use denizen_backend::Affinity;
use denizen_backend::firewall::Dropped;
use denizen_routing::bird::BgpStatus;
use denizen_routing::{AnnouncementsStatus, RoutingStatus};
use denizen_text::Printable;

/// The answer to `denizen-agent status`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// The backend that programs the kernel.
    pub backend: String,
    /// Why this backend was chosen.
    #[serde(default)]
    pub backend_why: String,
    /// How local traffic is detected, as on the command line.
    pub detect_local: String,
    /// The first full set of rules is in the kernel.
    pub synced: bool,
    /// The first lists that are missing; services are programmed after them.
    pub waiting_for: Vec<String>,
    /// Programmed attachments of local pods.
    pub pods: usize,
    /// Attachments whose TCP the plugin has redirected to the pod's own proxy.
    #[serde(default)]
    pub redirected_pods: usize,
    /// Attachments that the plugin would redirect now, but that were made before its entry had
    /// `redirect`; a warning names them.
    #[serde(default)]
    pub unredirected_pods: usize,
    /// Interfaces that have looked like a pod's for a while but have no record; a warning names
    /// them.
    #[serde(default)]
    pub unrecorded_interfaces: usize,
    pub services: usize,
    /// Endpoints that connections are forwarded to, counted once for each service port.
    pub endpoints: usize,
    /// The programmed generation of the state file; `None` if there is no file.
    pub generation: Option<u64>,
    /// The last sync, including the flush of flows that it made stale.
    pub last_sync: Option<LastSync>,
    /// Number of repairs after foreign changes of the agent's tables.
    pub drift_repaired: u64,
    /// Duration of the last such repair, from the kernel's notification to the repaired table.
    pub last_repair_milliseconds: Option<f64>,
    /// Packets dropped because their lookups found no endpoint. Any other value than 0 is a bug.
    pub missed_lookups: u64,
    /// Why NetworkPolicies are enforced, or not.
    #[serde(default)]
    pub network_policy_why: String,
    /// Which engine enforces them: `Denizen`, or the other one that was found; `None` if none is
    /// known.
    #[serde(default)]
    pub network_policy_engine: Option<String>,
    /// The pod firewall; missing if it is off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_policy: Option<NetworkPolicyStatus>,
    /// The routes to other nodes' pods; missing if that is off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub routing: Option<RoutingStatus>,
    /// What is announced; missing unless `--routing-mode` says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub announcements: Option<AnnouncementsStatus>,
    /// BIRD's BGP sessions; missing unless `--routing-mode` is `bird`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bgp: Option<BgpStatus>,
    /// What IPVS carries; missing with the other backends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipvs: Option<IpvsStatus>,
    /// The host ports of this node's pods; missing if they are off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_ports: Option<HostPortsStatus>,
    /// What each followed kind has cost the API server; empty if objects come from files.
    #[serde(default)]
    pub api: Vec<ApiTraffic>,
    /// Clients remembered for session affinity.
    #[serde(default)]
    pub affinity: Affinity,
    /// Stale conntrack entries deleted.
    pub flushed: u64,
    /// Whether the search for stale entries after the last change is still to come, or running.
    pub flushing: bool,
    pub errors: Vec<String>,
    /// Possible problems that the agent cannot verify.
    #[serde(default)]
    pub warnings: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NetworkPolicyStatus {
    /// The first lists that are missing; nothing is decided before them.
    pub waiting_for: Vec<String>,
    /// Lists that the API refuses. Because of them, `--network-policy auto` leaves new pods open.
    #[serde(default)]
    pub refused: Vec<String>,
    /// Policies that select a pod of this node.
    pub policies: usize,
    /// ClusterNetworkPolicies that select a pod of this node.
    #[serde(default)]
    pub cluster_policies: usize,
    /// Policies of any kind of which a part is not understood.
    #[serde(default)]
    pub not_understood: usize,
    /// Local pods that a policy isolates.
    pub isolated: usize,
    /// Local pods whose policies are not known yet: everything is dropped.
    pub pending: usize,
    /// Identities in use: classes of addresses that the policies in force do not distinguish.
    pub identities: usize,
    /// Elements in all sets.
    pub elements: usize,
    /// Changes of elements that are planned but not programmed yet.
    #[serde(default)]
    pub waiting: usize,
    pub dropped: Dropped,
    /// Bridges whose frames pass no IP rules: their restricted pods are cut off from the other
    /// ports.
    #[serde(default)]
    pub unfiltered_bridges: Vec<String>,
    /// Which pods of other nodes are watched; `None` if all are, by `--watch-pods all`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub watched_pods: Option<WatchedPodsStatus>,
}

/// Which pods of other nodes are watched.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WatchedPodsStatus {
    /// What is wanted: `all` or `namespaces`; empty until that is known.
    pub scope: String,
    /// Since when this scope has been followed. RFC 3339 in UTC.
    pub since: String,
    pub why: String,
    /// Whether every pod of the cluster is known.
    pub all_known: bool,
    /// Namespaces whose pods are known, unless all are.
    pub namespaces: Vec<String>,
    /// Needed namespaces whose pods are not listed yet: what policies permit them is dropped.
    pub waiting_for: Vec<String>,
    /// Namespaces whose pods cannot be listed.
    pub failed: Vec<String>,
}

impl fmt::Display for WatchedPodsStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { scope, why, namespaces, waiting_for, failed, .. } = self;
        match &**scope {
            "" => return f.write_str(why),
            "namespaces" => write!(f, "of {} namespaces, since {}", namespaces.len(), self.since)?,
            _ => write!(f, "of all namespaces, since {}", self.since)?,
        }
        write!(f, ": {why}")?;
        for (what, names) in [("waiting for", waiting_for), ("cannot be listed:", failed)] {
            if !names.is_empty() {
                write!(f, "; {what} {}", names.join(", "))?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for NetworkPolicyStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.refused.is_empty() {
            let refused = self.refused.join(", ");
            return write!(f, "not enforced: the API refuses {refused} to the agent");
        }
        if !self.waiting_for.is_empty() {
            return write!(f, "waiting for {}", self.waiting_for.join(", "));
        }
        let Self { policies, cluster_policies, isolated, pending, dropped, waiting, .. } = self;
        write!(f, "{policies} in force, ")?;
        if *cluster_policies > 0 {
            write!(f, "{cluster_policies} ClusterNetworkPolicies, ")?;
        }
        write!(f, "{isolated} pods isolated, {pending} pending, ")?;
        if *waiting > 0 {
            write!(f, "{waiting} changes not programmed yet, ")?;
        }
        let Dropped { ingress, egress, pending, forbidden, spoofed, frame, router, tunnel } =
            dropped;
        write!(f, "dropped: {ingress} ingress, {egress} egress, {pending} pending, ")?;
        write!(f, "{forbidden} forbidden, {spoofed} spoofed, {frame} frames of other kinds, ")?;
        write!(f, "{router} of pods as routers, {tunnel} for tunnels")?;
        match &self.watched_pods {
            Some(watched) => write!(f, "; pods {watched}"),
            None => Ok(()),
        }
    }
}

/// One programming of the kernel.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LastSync {
    /// When, RFC 3339 in UTC.
    pub at: String,
    /// Duration from the first change that was not programmed yet to the kernel's acknowledgement.
    pub milliseconds: f64,
}

impl LastSync {
    /// A sync at this time (RFC 3339 in UTC) with this duration.
    pub fn new(at: String, took: Duration) -> Self {
        Self { at, milliseconds: took.as_secs_f64() * 1e3 }
    }
}

impl Status {
    /// The lines that are always shown: a label and a value.
    fn fixed_lines(&self) -> [(&'static str, String); 14] {
        let synced = match (self.synced, self.waiting_for.is_empty()) {
            (true, _) => "all programmed".to_owned(),
            (false, true) => "not programmed yet".to_owned(),
            (false, false) => format!("waiting for {}", self.waiting_for.join(", ")),
        };
        let generation = self.generation.map(|g| format!(" (state file generation {g})"));
        let last = self
            .last_sync
            .as_ref()
            .map(|last| format!("{} in {:.1} ms", last.at, last.milliseconds));
        let repair = self.last_repair_milliseconds.map(|ms| format!(", the last in {ms:.1} ms"));
        let without = match self.unredirected_pods {
            0 => String::new(),
            number => format!(", and {number} have a proxy and are not"),
        };
        let redirected = format!("{} pods{without}", self.redirected_pods);
        let times = if self.drift_repaired == 1 { "time" } else { "times" };
        let repaired = format!("{} {times}{}", self.drift_repaired, repair.unwrap_or_default());
        let network_policy = match &self.network_policy {
            Some(status) => status.to_string(),
            None => format!("off: {}", self.network_policy_why),
        };
        let more = if self.flushing { ", and searching for more" } else { "" };
        [
            ("state", synced),
            ("backend", format!("{}: {}", self.backend, self.backend_why)),
            ("detect-local", self.detect_local.clone()),
            ("local pods", format!("{}{}", self.pods, generation.unwrap_or_default())),
            ("redirected", redirected),
            ("services", self.services.to_string()),
            ("endpoints", self.endpoints.to_string()),
            ("last sync", last.unwrap_or("never".to_owned())),
            ("drift repaired", repaired),
            ("missed lookups", self.missed_lookups.to_string()),
            ("network policy", network_policy),
            ("routes", self.routing.as_ref().map_or("off".to_owned(), ToString::to_string)),
            ("kept clients", self.affinity.to_string()),
            ("flushed flows", format!("{}{more}", self.flushed)),
        ]
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host_ports = self.host_ports.iter().map(|ports| ("host ports", ports.to_string()));
        let announcements =
            self.announcements.iter().map(|withheld| ("announcements", withheld.to_string()));
        let bgp = self.bgp.iter().flat_map(BgpStatus::lines);
        let ipvs = self.ipvs.iter().flat_map(IpvsStatus::lines);
        let api = self.api.iter().map(|traffic| ("API", traffic.to_string()));
        let errors = self.errors.iter().map(|error| ("error", error.clone()));
        let warnings = self.warnings.iter().map(|warning| ("warning", warning.clone()));
        let none = self.errors.is_empty().then(|| ("errors", "none".to_owned()));
        self.fixed_lines()
            .into_iter()
            .chain(host_ports)
            .chain(announcements)
            .chain(bgp)
            .chain(ipvs)
            .chain(api)
            .chain(errors)
            .chain(none)
            .chain(warnings)
            .try_for_each(|(what, value)| writeln!(f, "{what:<16}{}", Printable(&value)))
    }
}
