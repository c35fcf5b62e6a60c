//! `denizen-agent check`: whether this node has what the agent needs, and whether what is installed
//! works. It changes nothing, and connects to nothing on the network but the API.
//!
//! | file | checks |
//! | --- | --- |
//! | `kernel` | what the kernel and iptables' programs can do |
//! | `settings` | kernel settings, and the room of connection tracking |
//! | `others` | other service proxies, engines of NetworkPolicy, firewalls, listeners |
//! | `routing` | what is in the way of `--routing-mode` |
//! | `networkd` | whether systemd-networkd removes the agent's routes |
//! | `plugin` | the CNI configuration, the plugin's program, its records |
//! | `api` | the API server, or the manifests |
//! | `agent` | what the running agent says of itself |
//! | `report` | verdicts, and the page |

mod agent;
mod api;
mod kernel;
mod networkd;
mod others;
mod plugin;
mod report;
mod routing;
mod settings;

use std::path::PathBuf;

use denizen_state::StateError;

use crate::config::{Listen, NetworkPolicyMode, Objects, ObjectsError};
use crate::control::ControlError;
use denizen_backend::BackendName;
use denizen_backend::sysctl::Conntrack;
use denizen_iptables::Variant;
use denizen_model::{LocalPod, PodSet};
use denizen_observe::status::Status;
use denizen_plan::Policy;
use denizen_routing::RoutingSettings;
use denizen_source::Features;

pub use self::report::{Check, CheckGroup, Finding, Report, Topic, Verdict};

/// What is checked: a node, for an agent with these flags.
#[derive(Debug)]
pub struct Subject {
    /// Denizen is not installed yet, so what the installation brings is not checked.
    pub is_before_installation: bool,
    /// What affects packets.
    pub policy: Policy,
    /// The backend that was asked for; `None` for `auto`.
    pub backend: Option<BackendName>,
    /// With iptables: the variant that was asked for.
    pub iptables_variant: Option<Variant>,
    /// Whether NetworkPolicies are to be enforced.
    pub network_policy: NetworkPolicyMode,
    /// The features whose objects are read.
    pub features: Features,
    /// Where the cluster's objects come from.
    pub objects: Result<Objects, ObjectsError>,
    /// The wanted settings of connection tracking.
    pub conntrack: Conntrack,
    /// The addresses that serve HTTP.
    pub listen: Listen,
    /// How this node reaches the pods of other nodes, and what it announces.
    pub routing: RoutingSettings,
    /// The folder of the kernel's settings.
    pub sysctls: PathBuf,
    pub run_dir: PathBuf,
    pub cni_conf_dir: PathBuf,
    pub cni_bin_dir: PathBuf,
    /// The recorded pods; `None` if there is no state file.
    pub records: Result<Option<PodSet>, StateError>,
    /// Whether the agent has noted that the runtime calls the plugin.
    pub plugin_was_called: bool,
    /// The running agent's status.
    pub agent: Result<Status, ControlError>,
}

impl Subject {
    /// The recorded pods, as far as they can be read.
    fn pods(&self) -> &[LocalPod] {
        match &self.records {
            Ok(Some(records)) => &records.pods,
            Ok(None) | Err(_) => &[],
        }
    }

    fn is_agent_running(&self) -> bool {
        self.agent.is_ok()
    }

    /// Whether a pod's node end is the port of a bridge.
    fn has_bridged_pods(&self) -> bool {
        self.pods().iter().any(|pod| pod.port.is_some())
    }
}

/// Checks everything, in this thread's network namespace.
pub async fn check(subject: &Subject) -> Report {
    let mut report = Report::default();
    report.checks.extend(kernel::checks(subject));
    report.checks.extend(settings::checks(subject));
    report.checks.extend(others::checks(subject));
    report.checks.extend(plugin::checks(subject));
    report.checks.extend(api::checks(subject).await);
    let agent = agent::checks(subject, &report);
    report.checks.extend(agent);
    report
}
