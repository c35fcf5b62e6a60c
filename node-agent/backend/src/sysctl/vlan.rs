//! Pods in VLANs of a bridge, for which bridge netfilter should be off.
//!
//! A pod's frames enter the bridge without a tag. With bridge netfilter the rules see such a packet
//! there, with the bridge as its input interface, and not again at the VLAN's interface, which its
//! record names. So the pod is not detected as local.

use std::collections::BTreeSet;
use std::path::Path;

use super::bridge;
use super::file::value;
use super::setting::bridge_filter;
use denizen_model::{Family, LocalPod, family_of};

/// What keeps these pods from being detected: one text for each switch that is on. Of the network
/// namespace of the calling thread.
pub fn problems(sysctls: &Path, pods: &[LocalPod]) -> Vec<String> {
    let mut problems = Vec::new();
    for (at, family) in Family::BOTH.into_iter().enumerate() {
        let of_family = |pod: &&LocalPod| pod.ips.iter().any(|ip| family_of(*ip) == family);
        let pods = pods.iter().filter(|pod| pod.is_in_vlan()).filter(of_family);
        let bridges: BTreeSet<&str> = pods.filter_map(|pod| pod.bridge.as_deref()).collect();
        if bridges.is_empty() {
            continue;
        }
        let setting = bridge_filter(family).path;
        if value(sysctls, &setting).is_ok_and(|value| value != 0) {
            let bridges: Vec<&str> = bridges.into_iter().collect();
            problems.push(text(&bridges.join(", "), &setting.replace('/', ".")));
            continue;
        }
        let own = ["nf_call_iptables", "nf_call_ip6tables"][at];
        let is_on = |bridge: &&str| bridge::switches(bridge).is_ok_and(|switches| switches[at]);
        let on = bridges.into_iter().filter(is_on);
        problems.extend(on.map(|bridge| text(bridge, &format!("{own} of that bridge"))));
    }
    problems
}

fn text(bridges: &str, switch: &str) -> String {
    format!(
        "pods in VLANs of bridge {bridges} are not detected as local, and may reach no service: {switch} \
         is 1, so the rules see their packets at the bridge, not at the VLAN's interface"
    )
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use denizen_fixture::pods;

    #[expect(clippy::disallowed_methods, reason = "a test creates its files")]
    #[test]
    fn the_setting_of_a_family_counts_for_pods_of_that_family_in_a_vlan() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("net/bridge")).unwrap();
        let in_vlan = |ip, interface: &str| {
            let mut pods = pods(1, &[(ip, interface)]).pods;
            pods[0].bridge = Some("br0".into());
            pods
        };
        let vlan = in_vlan("10.1.2.3", "br0.7");
        let found = |iptables, ip6tables, pods: &[LocalPod]| {
            for (name, value) in [("iptables", iptables), ("ip6tables", ip6tables)] {
                let file = root.path().join(format!("net/bridge/bridge-nf-call-{name}"));
                fs::write(file, value).unwrap();
            }
            problems(root.path(), pods)
        };
        assert_eq!(found("0", "1", &vlan), [""; 0]);
        let problem = found("1", "0", &vlan).remove(0);
        for word in ["br0", "net.bridge.bridge-nf-call-iptables is 1"] {
            assert!(problem.contains(word), "{problem}");
        }
        assert_eq!(found("0", "1", &in_vlan("fd00::7", "br0.7")).len(), 1);
        assert_eq!(found("1", "1", &in_vlan("10.1.2.3", "br0")), [""; 0], "not in a VLAN");
        assert_eq!(problems(&root.path().join("without"), &vlan), [""; 0]);
    }
}
