//! The metrics. They have kube-proxy's names (`pkg/proxy/metrics`) if the meaning is the same, else
//! the prefix `denizen_`. The loop writes them, and the HTTP server reads them.

mod api;
mod bgp;
mod gauges;
mod host_ports;
mod ipvs;
mod like_kube_proxy;
mod network_policy;
mod process;
mod routing;
mod services;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};

use self::api::ApiMetrics;
use self::bgp::Bgp;
pub use self::gauges::set_gauges;
use self::host_ports::HostPortMetrics;
use self::ipvs::IpvsMetrics;
pub use self::like_kube_proxy::{LikeKubeProxy, SyncExtent, ip_family};
use self::network_policy::NetworkPolicyMetrics;
use self::process::Process;
use self::routing::RoutingMetrics;
use self::services::ServiceMetrics;

/// The type of [`Metrics::encode`]'s text.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// One label: its name and its value.
type Label = [(&'static str, &'static str); 1];

/// All metrics. Clones share their values.
#[derive(Debug, Clone)]
pub struct Metrics {
    registry: Arc<Registry>,
    pub like_kube_proxy: LikeKubeProxy,
    pub own: AgentMetrics,
    pub network_policy: NetworkPolicyMetrics,
    /// Metrics of the routes to other nodes' pods.
    pub routing: RoutingMetrics,
    pub bgp: Bgp,
    pub ipvs: IpvsMetrics,
    /// Metrics of host ports.
    pub host_ports: HostPortMetrics,
    /// Connections to each service port.
    pub services: ServiceMetrics,
    /// Metrics of what the agent costs the API server.
    pub api: ApiMetrics,
    process: Process,
}

#[derive(Debug, Clone)]
pub struct AgentMetrics {
    pub local_pods: Gauge,
    /// Interfaces that look like a pod's and have no record.
    pub unrecorded_interfaces: Gauge,
    /// Attachments whose TCP is redirected to the pod's own proxy.
    pub redirected_pods: Gauge,
    /// Pods with a mesh's proxy that were attached without denizen.
    pub unredirected_pods: Gauge,
    /// Recorded pods with an address that no announcement covers; 0 while nothing is announced.
    pub uncovered_pods: Gauge,
    pub services: Gauge,
    /// Endpoints that connections are forwarded to, counted once for each service port.
    pub endpoints: Gauge,
    /// From the record that an ADD wrote to the kernel's acknowledgement, in seconds.
    pub pod_programming: Histogram,
    /// From the first change received to the routes of what is newly announced, in seconds.
    pub announce_latency: Histogram,
    /// How long ADDs waited for the agent, in seconds.
    pub plugin_wait: Histogram,
    /// From the request of an ADD or DEL to when the loop took it, in seconds.
    pub plugin_request_delay: Histogram,
    /// How long DELs waited for the agent, in seconds.
    pub plugin_removal_wait: Histogram,
    /// ADDs that waited for the agent, by outcome.
    pub plugin_waits: Family<Label, Counter>,
    /// How long the loop's turns take, in seconds.
    pub loop_turn: Histogram,
    /// Number of repairs after foreign changes.
    pub drift_repaired: Counter,
    /// Packets whose lookups found no endpoint.
    pub missed_lookups: Counter,
    /// Packets that services' rules dropped or refused, by reason; no series where they are not
    /// counted.
    pub service_drops: Family<Label, Counter>,
    /// New clients of services with session affinity while the map of clients was full, by how they
    /// are remembered.
    pub affinity_crowded: Family<Label, Counter>,
    /// Elements that each set should have; for maps that packets fill, those that it has.
    pub elements: Family<[(&'static str, String); 2], Gauge>,
    pub problems: Gauge,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::default();
        let like_kube_proxy =
            LikeKubeProxy::register(registry.sub_registry_with_prefix("kubeproxy"));
        let own = AgentMetrics::register(registry.sub_registry_with_prefix("denizen"));
        let prefix = "denizen_network_policy";
        let network_policy =
            NetworkPolicyMetrics::register(registry.sub_registry_with_prefix(prefix));
        let prefix = "denizen_routing";
        let routing = RoutingMetrics::register(registry.sub_registry_with_prefix(prefix));
        let bgp = Bgp::register(registry.sub_registry_with_prefix("denizen_bgp"));
        let ipvs = IpvsMetrics::register(registry.sub_registry_with_prefix("denizen_ipvs"));
        let prefix = "denizen_host_ports";
        let host_ports = HostPortMetrics::register(registry.sub_registry_with_prefix(prefix));
        let services =
            ServiceMetrics::register(registry.sub_registry_with_prefix("denizen_service"));
        let api = ApiMetrics::register(registry.sub_registry_with_prefix("denizen_api"));
        let process = Process::register(registry.sub_registry_with_prefix("process"));
        Self {
            registry: Arc::new(registry),
            like_kube_proxy,
            own,
            network_policy,
            routing,
            bgp,
            ipvs,
            host_ports,
            services,
            api,
            process,
        }
    }
}

impl Metrics {
    /// Everything as OpenMetrics text.
    pub fn encode(&self) -> String {
        self.process.measure();
        let mut text = String::new();
        encode(&mut text, &self.registry).expect("a string takes everything");
        text
    }
}

/// A histogram whose first bucket ends at `first` seconds; each further bucket ends at twice the
/// previous one.
fn doubling(first: f64, buckets: u16) -> Histogram {
    Histogram::new(exponential_buckets(first, 2.0, buckets))
}

/// Creates these series at the start: an event that never happened counts 0 and is not missing.
fn from_zero<M: Default + Clone>(
    family: &Family<Label, M>,
    name: &'static str,
    values: &[&'static str],
) {
    for value in values {
        let _ = family.get_or_create(&[(name, *value)]);
    }
}

impl AgentMetrics {
    fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            local_pods: Gauge::default(),
            unrecorded_interfaces: Gauge::default(),
            redirected_pods: Gauge::default(),
            unredirected_pods: Gauge::default(),
            uncovered_pods: Gauge::default(),
            services: Gauge::default(),
            endpoints: Gauge::default(),
            pod_programming: doubling(0.000_5, 15),
            announce_latency: doubling(0.001, 15),
            plugin_wait: doubling(0.000_5, 18),
            loop_turn: doubling(0.000_5, 14),
            plugin_request_delay: doubling(0.000_5, 14),
            plugin_removal_wait: doubling(0.000_5, 12),
            plugin_waits: Family::default(),
            drift_repaired: Counter::default(),
            missed_lookups: Counter::default(),
            service_drops: Family::default(),
            affinity_crowded: Family::default(),
            elements: Family::default(),
            problems: Gauge::default(),
        };
        let version = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        registry.register("build", "The agent's version", version);
        metrics.register_gauges(registry);
        metrics.register_rest(registry);
        metrics
    }

    fn register_gauges(&self, registry: &mut Registry) {
        let gauges = [
            ("local_pods", "Attachments of local pods", &self.local_pods),
            (
                "unrecorded_interfaces",
                "Interfaces that look like a pod's but have no record: status names them",
                &self.unrecorded_interfaces,
            ),
            (
                "redirected_pods",
                "Attachments whose TCP the plugin has redirected to the pod's own proxy",
                &self.redirected_pods,
            ),
            (
                "unredirected_pods",
                "Pods with a mesh's proxy that were attached without denizen: status names them",
                &self.unredirected_pods,
            ),
            (
                "uncovered_pods",
                "Recorded pods with an address that no announcement covers: no router knows the way",
                &self.uncovered_pods,
            ),
            ("services", "Known services", &self.services),
            ("endpoints", "Endpoints of all service ports", &self.endpoints),
            ("problems", "Number of current problems: status names each", &self.problems),
        ];
        for (name, help, gauge) in gauges {
            registry.register(name, help, gauge.clone());
        }
        let help = "Elements that each set or map should have, or has if packets fill it";
        registry.register("rule_elements", help, self.elements.clone());
    }

    fn register_rest(&self, registry: &mut Registry) {
        let durations = [
            (
                "pod_programming_duration",
                "From a pod's record, written by CNI ADD, to the rules in the kernel",
                &self.pod_programming,
            ),
            (
                "announce_latency",
                "From a change to the routes of what is newly announced, after its rules",
                &self.announce_latency,
            ),
            ("plugin_wait_duration", "How long CNI ADDs waited for the rules", &self.plugin_wait),
            (
                "plugin_request_delay",
                "From the request of a CNI ADD or DEL to when the agent took it: long if the agent gets \
                 no processor",
                &self.plugin_request_delay,
            ),
            (
                "loop_turn_duration",
                "How long one turn of the agent's loop took, during which all else waits",
                &self.loop_turn,
            ),
            (
                "plugin_removal_wait_duration",
                "How long CNI DELs waited until nothing of the pod was left in the kernel",
                &self.plugin_removal_wait,
            ),
        ];
        for (name, help, histogram) in durations {
            registry.register_with_unit(name, help, Unit::Seconds, histogram.clone());
        }
        let help = "CNI ADDs that waited for the rules, by outcome";
        registry.register("plugin_waits", help, self.plugin_waits.clone());
        from_zero(&self.plugin_waits, "outcome", &["programmed", "gave_up"]);
        let counters = [
            ("drift_repaired", "Repairs of the rules after foreign changes", &self.drift_repaired),
            (
                "missed_lookups",
                "Packets dropped because a lookup found no endpoint: any other value than 0 is a bug",
                &self.missed_lookups,
            ),
        ];
        for (name, help, counter) in counters {
            registry.register(name, help, counter.clone());
        }
        let help =
            "Packets that services' rules dropped or refused since they were made, by reason";
        registry.register("service_dropped_packets", help, self.service_drops.clone());
        let help =
            "New clients of session affinity while the map was full, by how they are remembered";
        registry.register("affinity_crowded", help, self.affinity_crowded.clone());
        from_zero(&self.affinity_crowded, "remembered", &["reserved", "briefly", "no"]);
    }
}
