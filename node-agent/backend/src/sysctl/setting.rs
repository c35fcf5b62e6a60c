//! Kernel settings that the rules depend on. Pure.

use denizen_model::{Family, LocalPod, family_of};
use denizen_plan::{Detector, HostPortSettings, NodePortAddresses, Plan};

/// Whether the kernel routes 127.0.0.0/8 like other addresses.
pub const ROUTE_LOCALNET: &str = "net/ipv4/conf/all/route_localnet";

/// Whether connection tracking sees IPVS's packets.
pub const IPVS_CONNTRACK: &str = "net/ipv4/vs/conntrack";

/// The wanted value of a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WantedValue {
    /// Exactly this number.
    Exactly(u64),
    /// This number or more: a higher value of the operator or another agent stays.
    AtLeast(u64),
}

impl WantedValue {
    /// Whether this value is acceptable.
    pub fn is_met_by(self, now: u64) -> bool {
        match self {
            Self::Exactly(wanted) => now == wanted,
            Self::AtLeast(wanted) => now >= wanted,
        }
    }

    /// The value to write if the current one is not acceptable.
    pub fn number(self) -> u64 {
        match self {
            Self::Exactly(wanted) | Self::AtLeast(wanted) => wanted,
        }
    }
}

/// One setting of the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// Its file below `/proc/sys`. (Not the name with dots: an interface's name may have dots
    /// itself.)
    pub path: String,
    pub wanted: WantedValue,
    /// The consequence for the operator if it does not have this value.
    pub without: &'static str,
    /// Whether a wrong value is an error; otherwise it is a warning.
    pub is_vital: bool,
}

impl Setting {
    /// A vital setting.
    pub fn new(path: impl Into<String>, wanted: WantedValue, without: &'static str) -> Self {
        Self { path: path.into(), wanted, without, is_vital: true }
    }
}

/// The settings that the current facts require, beside those that are set once at start.
pub fn live(plan: &Plan) -> Vec<Setting> {
    let (pods, detector) = (plan.recorded(), &plan.policy().detector);
    let families = Family::BOTH.into_iter();
    let bridges = families.filter(|family| has_bridge(*family, pods, detector)).map(bridge_filter);
    let ipvs = plan.capabilities().balances_by_ipvs.then(for_ipvs);
    bridges.chain(ipvs.into_iter().flatten()).collect()
}

/// The settings that virtual servers of IPVS require (`Documentation/networking/ipvs-sysctl.rst`).
/// They exist once the module ip_vs is loaded.
pub fn for_ipvs() -> [Setting; 2] {
    [
        Setting::new(
            IPVS_CONNTRACK,
            WantedValue::Exactly(1),
            "IPVS is not used, since its connections could not be masqueraded; nftables balances \
             everything",
        ),
        Setting::new(
            "net/ipv4/vs/expire_nodest_conn",
            WantedValue::Exactly(1),
            "connections to an endpoint that is gone hang instead of being reset",
        ),
    ]
}

/// The settings that later facts may require, when this process may no longer be permitted to set
/// them.
pub fn possible() -> Vec<Setting> {
    Family::BOTH.into_iter().map(bridge_filter).collect()
}

/// The setting that node ports on 127.0.0.1 require: the kernel must route packets from there to an
/// endpoint (`Documentation/networking/ip-sysctl.rst`, `route_localnet`).
pub fn on_loopback(node_ports: &NodePortAddresses) -> Option<Setting> {
    node_ports.has_loopback().then(|| Setting {
        // kube-proxy's default requires it, and a container may not be permitted to set it.
        is_vital: false,
        ..Setting::new(
            ROUTE_LOCALNET,
            WantedValue::Exactly(1),
            "node ports do not answer on 127.0.0.1 (set it on the host, or turn that off with \
             --iptables-localhost-nodeports=false)",
        )
    })
}

/// The setting that host ports on 127.0.0.0/8 require, as [`on_loopback`].
pub fn host_ports_on_loopback(host_ports: Option<HostPortSettings>) -> Option<Setting> {
    host_ports.is_some_and(|settings| settings.localhost).then(|| Setting {
        is_vital: false,
        ..Setting::new(
            ROUTE_LOCALNET,
            WantedValue::Exactly(1),
            "host ports do not answer on 127.0.0.1 (set it on the host, or turn that off with \
             --host-ports=without-localhost)",
        )
    })
}

/// Whether pods of this family are behind a bridge of this node.
fn has_bridge(family: Family, pods: &[LocalPod], detector: &Detector) -> bool {
    let is_bridge_mode = matches!(detector, Detector::Bridge(_));
    let mut bridged =
        pods.iter().filter(|pod| pod.port.as_ref().is_some_and(|port| *port != pod.interface));
    is_bridge_mode || bridged.any(|pod| pod.ips.iter().any(|ip| family_of(*ip) == family))
}

/// With this setting, frames between two ports of a bridge pass the nf_tables hooks of the IP
/// families (br_netfilter; the kernel's `Documentation/networking/ip-sysctl.rst`,
/// `bridge-nf-call-iptables`).
pub fn bridge_filter(family: Family) -> Setting {
    let path = match family {
        Family::V4 => "net/bridge/bridge-nf-call-iptables",
        Family::V6 => "net/bridge/bridge-nf-call-ip6tables",
    };
    Setting::new(
        path,
        WantedValue::Exactly(1),
        "a connection to a service hangs if the endpoint is on the client's own bridge, since the answer \
         bypasses the rules",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use denizen_fixture::pods;
    use denizen_model::{Event, PodSet};
    use denizen_plan::fixture::{CAPABLE, policy};
    use denizen_plan::{Planner, Policy};

    fn paths(pods: &PodSet, detector: &Detector) -> Vec<String> {
        let policy = Policy { detector: detector.clone(), ..policy() };
        let mut planner = Planner::new(policy, CAPABLE);
        planner.apply(vec![Event::Pods(pods.clone())]);
        planner.update();
        live(planner.plan()).into_iter().map(|setting| setting.path).collect()
    }

    #[test]
    fn bridge_settings_follow_the_pods_or_the_detector() {
        const V4: &str = "net/bridge/bridge-nf-call-iptables";
        const V6: &str = "net/bridge/bridge-nf-call-ip6tables";
        let port = |mut set: PodSet, port: &str| {
            set.pods.iter_mut().for_each(|pod| pod.port = Some(port.into()));
            set
        };
        let one = |ip| pods(1, &[(ip, "cni0")]);
        let state = Detector::PodState;
        let cases: [(&str, PodSet, Detector, &[&str]); 5] = [
            ("no pods", PodSet::default(), state.clone(), &[]),
            ("routed", port(one("10.1.2.3"), "cni0"), state.clone(), &[]),
            ("bridged", port(one("10.1.2.3"), "veth1"), state.clone(), &[V4]),
            ("bridged, IPv6", port(one("fd00::3"), "veth1"), state, &[V6]),
            (
                "by the detector",
                PodSet::default(),
                Detector::Bridge(vec!["cni0".into()]),
                &[V4, V6],
            ),
        ];
        for (name, pods, detector, expected) in cases {
            assert_eq!(paths(&pods, &detector), expected, "{name}");
        }
    }
}
