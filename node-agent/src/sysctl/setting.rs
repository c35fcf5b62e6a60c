//! Settings of the kernel without which rules are not enough. Pure.

use crate::model::{Family, PodSet, family_of};
use crate::plan::{Detector, NodePortAddresses};

/// Whether 127.0.0.0/8 is routed as other addresses are.
pub const ROUTE_LOCALNET: &str = "net/ipv4/conf/all/route_localnet";

/// What a setting should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// This number and no other.
    Exactly(u64),
    /// This number or more: what the operator, or another agent, set higher stays.
    AtLeast(u64),
}

impl Wanted {
    /// Whether the setting may stay as it is.
    pub fn is_met_by(self, now: u64) -> bool {
        match self {
            Self::Exactly(wanted) => now == wanted,
            Self::AtLeast(wanted) => now >= wanted,
        }
    }

    /// What to write where it may not.
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
    /// What it should be.
    pub wanted: Wanted,
    /// What an operator should know of a node where it is not so.
    pub without: &'static str,
    /// Whether that is an error, and not only worth a warning.
    pub is_vital: bool,
}

impl Setting {
    /// A setting that must be so.
    pub fn new(path: impl Into<String>, wanted: Wanted, without: &'static str) -> Self {
        Self { path: path.into(), wanted, without, is_vital: true }
    }
}

/// What the facts of now ask for, beside what is set once at the start.
pub fn live(pods: Option<&PodSet>, detector: &Detector) -> Vec<Setting> {
    let families = Family::BOTH.into_iter();
    families.filter(|family| has_bridge(*family, pods, detector)).map(bridge_filter).collect()
}

/// What facts to come may ask for: where they come, this process may not be allowed to set it any
/// more.
pub fn foreseen() -> Vec<Setting> {
    Family::BOTH.into_iter().map(bridge_filter).collect()
}

/// What node ports on 127.0.0.1 ask for: what the node sends from there must be let out to an
/// endpoint (`Documentation/networking/ip-sysctl.rst`, `route_localnet`).
pub fn on_loopback(node_ports: &NodePortAddresses) -> Option<Setting> {
    let asked = matches!(node_ports, NodePortAddresses::All { localhost: true });
    asked.then(|| Setting {
        // kube-proxy's own default asks for it, and a container may not set it.
        is_vital: false,
        ..Setting::new(
            ROUTE_LOCALNET,
            Wanted::Exactly(1),
            "node ports do not answer on 127.0.0.1 (set it on the host, or say that they need not: \
             --iptables-localhost-nodeports=false)",
        )
    })
}

/// Whether pods of this family are behind a bridge of this node.
fn has_bridge(family: Family, pods: Option<&PodSet>, detector: &Detector) -> bool {
    let asked = matches!(detector, Detector::Bridge(_));
    let mut bridged = pods
        .into_iter()
        .flat_map(|set| &set.pods)
        .filter(|pod| pod.port.as_ref().is_some_and(|port| *port != pod.interface));
    asked || bridged.any(|pod| pod.ips.iter().any(|ip| family_of(*ip) == family))
}

/// Frames from one port of a bridge to another pass nf_tables' hooks only with this (br_netfilter;
/// the kernel's `Documentation/networking/ip-sysctl.rst`, `bridge-nf-call-iptables`).
fn bridge_filter(family: Family) -> Setting {
    let path = match family {
        Family::V4 => "net/bridge/bridge-nf-call-iptables",
        Family::V6 => "net/bridge/bridge-nf-call-ip6tables",
    };
    Setting::new(
        path,
        Wanted::Exactly(1),
        "a connection to a service hangs when the endpoint is on the client's own bridge, since the answer is \
         bridged past the rules",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::pods;

    fn paths(pods: &PodSet, detector: &Detector) -> Vec<String> {
        live(Some(pods), detector).into_iter().map(|setting| setting.path).collect()
    }

    #[test]
    fn bridges_are_asked_for_by_pods_or_by_the_detector() {
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
