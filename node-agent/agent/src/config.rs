//! The command line, as written ([`RunArgs`]) and checked once ([`Config`]).

mod backend;
mod cidr;
mod conntrack;
mod detect;
mod error;
pub mod file;
mod firewall;
mod host_ports;
mod listen;
mod node_side;
mod objects;
mod routing;
mod services;
#[cfg(test)]
mod tests;

pub use backend::{BackendArgs, BackendChoice};
pub use conntrack::ConntrackArgs;
pub use detect::{DetectArgs, DetectorError};
pub use error::ConfigError;
pub use firewall::{FirewallArgs, NetworkPolicyMode, PolicyToNode, WatchPods};
pub use host_ports::{HostPortsArgs, HostPortsMode};
pub use node_side::NodeSideArgs;
pub use objects::{InCluster, Objects, ObjectsArgs, ObjectsError};
pub use routing::{AnnouncePods, AnnounceServices, RoutingArgs, RoutingMode};
pub use services::{ServicesArgs, ServicesMode};

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Args, ValueEnum};
use denizen_state::run_dir;
use tracing::warn;

pub use self::listen::{Listen, ListenArgs};
use denizen_backend::BackendName;
use denizen_backend::chosen::BackendConfig;
use denizen_backend::sysctl::{Conntrack, HairpinMode, SYSCTLS};
use denizen_plan::{Policy, Scheduler, Settings};
use denizen_routing::RoutingSettings;
use denizen_source::attachments::{self, NotPods};
use denizen_source::{Features, egress};

/// How logs are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For a person.
    Text,
    /// One JSON object a line.
    Json,
}

/// The flags that affect packets, as written, for `run`, `render` and `explain`.
#[derive(Debug, Clone, Args)]
pub struct PolicyArgs {
    /// A DenizenConfiguration or a KubeProxyConfiguration. A flag has precedence over its field
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// This node's name in the API; the host name by default
    #[arg(
        long,
        visible_alias = "hostname-override",
        value_name = "NAME",
        env = "DENIZEN_NODE_NAME"
    )]
    pub node_name: Option<String>,

    #[command(flatten)]
    pub detect: DetectArgs,

    /// Masquerade all connections to cluster IPs, also those from local pods
    #[arg(long)]
    pub masquerade_all: bool,

    /// kube-proxy's feature gates. PreferSameTrafficDistribution=false ignores the hints for nodes;
    /// other gates are ignored with a warning
    #[arg(long, value_name = "NAME=BOOL,…", default_value = "")]
    pub feature_gates: String,

    #[command(flatten)]
    pub node_side: NodeSideArgs,

    #[command(flatten)]
    pub services: ServicesArgs,

    #[command(flatten)]
    pub firewall: FirewallArgs,

    #[command(flatten)]
    pub host_ports: HostPortsArgs,

    #[command(flatten)]
    pub backend: BackendArgs,
}

/// The flag for the run directory.
#[derive(Debug, Clone, Args)]
pub struct RunDirArgs {
    /// Directory of the state file, its lock and the agent's socket
    #[arg(long, value_name = "DIR", default_value = run_dir::DEFAULT)]
    pub run_dir: PathBuf,
}

/// `denizen-agent run`, as written.
#[derive(Debug, Clone, Args)]
pub struct RunArgs {
    #[command(flatten)]
    pub policy: PolicyArgs,

    #[command(flatten)]
    pub run_dir: RunDirArgs,

    #[command(flatten)]
    pub listen: ListenArgs,

    #[command(flatten)]
    pub objects: ObjectsArgs,

    #[command(flatten)]
    pub routing: RoutingArgs,

    /// Directory of the container runtime's cached CNI results. Pods that were attached without
    /// denizen are adopted from it. Empty: adopt none
    #[arg(
        long,
        value_name = "DIR",
        default_value = "/var/lib/cni",
        value_parser = OsStringValueParser::new().map(PathBuf::from)
    )]
    pub cni_cache_dir: PathBuf,

    /// Interfaces that are not pods', or bridges whose ports are not pods', although they lead into
    /// another network namespace. A * at the end stands for any rest. They are not reported as pods
    /// without a record
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', default_value = "eth*,docker0")]
    pub not_pods: Vec<String>,

    #[command(flatten)]
    pub conntrack: ConntrackArgs,

    /// Directory of the kernel's settings. In a container /proc/sys is read-only: mount the host's
    /// /proc/sys/net at DIR/net and give DIR
    #[arg(long, value_name = "DIR", default_value = SYSCTLS)]
    pub sysctl_dir: PathBuf,

    /// Hairpin mode of pods' bridge ports, by which a pod reaches itself through a service.
    /// hairpin-veth: turn it on. none: leave it as it is
    #[arg(long, value_enum, value_name = "MODE", default_value = "hairpin-veth")]
    pub hairpin_mode: HairpinMode,

    /// Set the kernel's settings, which needs more privileges than nf_tables does, and exit. For an
    /// init container
    #[arg(long)]
    pub init_only: bool,

    /// Format of the logs on standard error
    #[arg(long, visible_alias = "logging-format", value_enum, default_value = "text")]
    pub log_format: LogFormat,
}

/// The checked configuration of `denizen-agent run`.
#[derive(Debug, Clone)]
pub struct Config {
    pub policy: Policy,
    pub run_dir: PathBuf,
    /// The directory of the container runtime's cached CNI results; empty for none.
    pub cni_cache_dir: PathBuf,
    /// Interfaces that look like a pod's but are not.
    pub not_pods: NotPods,
    pub features: Features,
    /// Where the cluster's objects come from.
    pub objects: Objects,
    /// The backend to open.
    pub backend: BackendConfig,
    /// Whether NetworkPolicies are enforced.
    pub network_policy: NetworkPolicyMode,
    /// Which pods of other nodes are watched, and for how long after no policy needs them.
    pub watch_pods: (WatchPods, Duration),
    /// How this node reaches the pods of other nodes, and what it announces.
    pub routing: RoutingSettings,
    /// Settings of connection tracking.
    pub conntrack: Conntrack,
    /// The egress file; `None` if egress masquerade is off.
    pub egress: Option<egress::EgressConfig>,
    /// The directory of the kernel's settings, which contains `net`.
    pub sysctl_dir: PathBuf,
    /// What is done about the bridge ports of recorded pods.
    pub hairpin_mode: HairpinMode,
    /// Only set the kernel's settings and exit.
    pub init_only: bool,
    /// The addresses that serve HTTP.
    pub listen: Listen,
}

impl RunArgs {
    /// Checks all flags. `auto` is the backend that `--backend auto` selects on this node.
    ///
    /// # Errors
    /// [`ConfigError`], for the first error.
    pub fn check(&self, auto: BackendName) -> Result<Config, ConfigError> {
        let Self {
            policy,
            run_dir,
            listen,
            objects,
            routing,
            cni_cache_dir,
            not_pods,
            conntrack,
            sysctl_dir,
            hairpin_mode,
            init_only,
            log_format: _,
        } = self;
        if !policy.has_rules() && !routing.is_on() {
            return Err(ConfigError::NothingToDo);
        }
        if !policy.services.are_served() && routing.announces() {
            return Err(ConfigError::WithoutServices("announcing (--routing-mode table or bird)"));
        }
        Ok(Config {
            policy: policy.check(auto)?,
            run_dir: run_dir.run_dir.clone(),
            cni_cache_dir: cni_cache_dir.clone(),
            not_pods: NotPods(not_pods.clone()),
            features: Features { other_nodes: routing.is_on(), ..policy.features() },
            routing: routing.check()?,
            objects: objects.check(InCluster::from_environment(), policy.services.are_served())?,
            egress: policy.node_side.egress_masquerade_config.as_ref().map(|file| {
                egress::EgressConfig { file: file.clone(), run_dir: run_dir.run_dir.clone() }
            }),
            conntrack: match policy.services.are_served() {
                true => conntrack.requested(),
                false => Conntrack::UNCHANGED,
            },
            sysctl_dir: sysctl_dir.clone(),
            hairpin_mode: *hairpin_mode,
            init_only: *init_only,
            backend: policy.backend(auto),
            network_policy: policy.firewall.network_policy,
            watch_pods: (policy.firewall.watch_pods, policy.firewall.watch_pods_linger),
            listen: listen.check()?,
        })
    }
}

impl Config {
    /// The configuration for pod records and adoption.
    pub fn records(&self) -> attachments::AttachmentsConfig {
        let cache = &self.cni_cache_dir;
        attachments::AttachmentsConfig {
            run_dir: self.run_dir.clone(),
            cni_cache: (!cache.as_os_str().is_empty()).then(|| cache.clone()),
            host_ports: self.policy.host_ports.is_some(),
            not_pods: self.not_pods.clone(),
        }
    }
}

impl PolicyArgs {
    /// Checks all flags. `auto` is the backend that `--backend auto` selects.
    ///
    /// # Errors
    /// [`ConfigError`], for the first error.
    pub fn check(&self, auto: BackendName) -> Result<Policy, ConfigError> {
        self.services.check(&self.node_side, self.host_ports)?;
        let backend = self.backend(auto).name;
        let node_name = match &self.node_name {
            Some(name) => name.clone(),
            None => host_name()?,
        };
        Ok(Policy {
            settings: Settings {
                node_hints: node_hints(&self.feature_gates)?,
                node_name: node_name.into(),
                masquerade_all: self.masquerade_all,
                permitted: self.services.permitted(),
            },
            detector: self.detect.detector().clone(),
            node_side: self.node_side.check()?,
            node_ports: self.backend.node_ports(backend)?,
            services: self.services.are_served(),
            firewall: self.firewall.settings(backend.capabilities().balances_by_ipvs),
            pod_ranges: self.firewall.ranges_of_every_pod(),
            host_ports: self.host_ports.settings(),
            scheduler: Scheduler::new(self.backend.ipvs_scheduler),
        })
    }

    /// Whether there is anything to program but routes.
    fn has_rules(&self) -> bool {
        self.services.are_served()
            || self.firewall.network_policy != NetworkPolicyMode::Off
            || self.host_ports.settings().is_some()
    }

    /// The backend to open: [`BackendName::None`] if another program serves services. `auto` is the
    /// backend that `--backend auto` selects.
    pub fn backend(&self, auto: BackendName) -> BackendConfig {
        let selected = self.backend.config(auto);
        match self.services.are_served() {
            true => selected,
            false => BackendConfig { name: BackendName::None, ..selected },
        }
    }

    /// The features whose objects are read.
    pub fn features(&self) -> Features {
        Features {
            services: self.services.are_served(),
            network_policy: self.firewall.network_policy != NetworkPolicyMode::Off,
            other_nodes: false,
        }
    }
}

/// The default node name: the host name in lower case, as in kube-proxy.
fn host_name() -> Result<String, ConfigError> {
    let name =
        nix::unistd::gethostname().map_err(|errno| ConfigError::NodeName(errno.to_string()))?;
    Ok(name.to_string_lossy().trim().to_lowercase())
}

/// Whether EndpointSlices' hints for nodes are used. kube-proxy's other gates have no effect.
fn node_hints(gates: &str) -> Result<bool, ConfigError> {
    let mut wanted = true;
    for gate in gates.split(',').map(str::trim).filter(|gate| !gate.is_empty()) {
        let bad = || ConfigError::Gate(gate.to_owned());
        let (name, value) = gate.split_once('=').ok_or_else(bad)?;
        let value = value.to_lowercase().parse().map_err(|_| bad())?;
        match name {
            "PreferSameTrafficDistribution" => wanted = value,
            other => warn!(gate = other, "unknown feature gate ignored"),
        }
    }
    Ok(wanted)
}
