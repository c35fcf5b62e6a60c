//! kube-proxy's files.

use super::*;
use crate::config::file::kube_proxy::{fields, flags as flags_of_fields};

const HEAD: &str = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";
const MANIFESTS: [&str; 2] = ["--manifests", "/m"];

/// As kubeadm 1.30 and later writes it into the ConfigMap `kube-proxy`.
const KUBEADM: &str = "apiVersion: kubeproxy.config.k8s.io/v1alpha1
bindAddress: 0.0.0.0
bindAddressHardFail: false
clientConnection:
  acceptContentTypes: \"\"
  burst: 0
  contentType: \"\"
  kubeconfig: /var/lib/kube-proxy/kubeconfig.conf
  qps: 0
clusterCIDR: 10.244.0.0/16
configSyncPeriod: 0s
conntrack:
  maxPerCore: null
  min: null
  tcpBeLiberal: false
  tcpCloseWaitTimeout: null
  tcpEstablishedTimeout: null
  udpStreamTimeout: 0s
  udpTimeout: 0s
detectLocal:
  bridgeInterface: \"\"
  interfaceNamePrefix: \"\"
detectLocalMode: \"\"
enableProfiling: false
healthzBindAddress: \"\"
hostnameOverride: \"\"
iptables:
  localhostNodePorts: null
  masqueradeAll: false
  masqueradeBit: null
  minSyncPeriod: 0s
  syncPeriod: 0s
ipvs:
  excludeCIDRs: null
  minSyncPeriod: 0s
  scheduler: \"\"
  strictARP: false
  syncPeriod: 0s
  tcpFinTimeout: 0s
  tcpTimeout: 0s
  udpTimeout: 0s
kind: KubeProxyConfiguration
logging:
  flushFrequency: 0
  options:
    json:
      infoBufferSize: \"0\"
    text:
      infoBufferSize: \"0\"
  verbosity: 0
metricsBindAddress: \"\"
mode: \"\"
nftables:
  masqueradeAll: false
  masqueradeBit: null
  minSyncPeriod: 0s
  syncPeriod: 0s
nodePortAddresses: null
oomScoreAdj: null
portRange: \"\"
showHiddenMetricsForVersion: \"\"
winkernel:
  enableDSR: false
  forwardHealthCheckVip: false
  networkName: \"\"
  rootHnsEndpointName: \"\"
  sourceVip: \"\"
";

fn load(text: &str, flags: &[&str]) -> Result<(Config, Vec<String>), String> {
    let flags: Vec<&str> = MANIFESTS.iter().chain(flags).copied().collect();
    let (matches, ignored) = matches(text, &flags)?;
    let args = RunArgs::from_arg_matches(&matches).unwrap();
    let config = args.check(BackendName::Nftables).map_err(|error| error.to_string())?;
    let strip = |text: String| text.split_once("config.yaml: ").unwrap().1.to_owned();
    Ok((config, ignored.into_iter().map(strip).collect()))
}

#[test]
fn kubeadms_file_is_accepted() {
    let (config, ignored) = load(KUBEADM, &["--hostname-override=node-1"]).unwrap();
    let places: Vec<&str> = ignored.iter().filter_map(|text| text.split(": ").next()).collect();
    let without_line: Vec<&str> =
        places.iter().filter_map(|place| place.split(", ").nth(1)).collect();
    assert_eq!(without_line, IGNORED, "{ignored:?}");
    let plain = {
        let words = ["denizen-agent", "run", "--manifests", "/m", "--node-name", "node-1"];
        let matches = command().get_matches_from(words);
        RunArgs::from_arg_matches(matches.subcommand_matches("run").unwrap()).unwrap()
    };
    let plain = plain.check(BackendName::Nftables).unwrap();
    assert_eq!(format!("{config:?}"), format!("{plain:?}"), "nothing else changes");
}

#[test]
fn it_names_the_kubeconfig() {
    let (matches, _) = matches(KUBEADM, &["--master=https://192.168.0.10:6443"]).unwrap();
    let args = RunArgs::from_arg_matches(&matches).unwrap();
    let kubeconfig = "/var/lib/kube-proxy/kubeconfig.conf".into();
    assert_eq!(args.objects.kubeconfig, Some(kubeconfig));
    assert!(args.check(BackendName::Nftables).is_ok());
}

/// Fields that kubeadm sets and that have no effect here.
const IGNORED: [&str; 1] = ["clusterCIDR"];

#[test]
fn fields_with_the_same_meaning_become_flags() {
    let text = format!(
        "{HEAD}mode: nftables\nhostnameOverride: n\n\
         nftables: {{masqueradeBit: 3, masqueradeAll: true}}\nnodePortAddresses: [primary]\n\
         metricsBindAddress: 0.0.0.0:10249\n\
         conntrack: {{maxPerCore: 0, tcpEstablishedTimeout: 2h0m0s}}\n\
         detectLocalMode: InterfaceNamePrefix\ndetectLocal: {{interfaceNamePrefix: veth}}\n\
         featureGates: {{A: true}}\nlogging: {{format: json}}\n"
    );
    let (config, ignored) = load(&text, &[]).unwrap();
    assert_eq!(ignored, Vec::<String>::new());
    assert_eq!(config.policy.detector.to_string(), "interface-prefix=veth");
    assert_eq!(&*config.policy.settings.node_name, "n");
    assert!(config.policy.settings.masquerade_all);
    assert_eq!(config.policy.node_side.masquerade_bit.mask(), 8);
    assert_eq!(config.listen.metrics, "0.0.0.0:10249".parse().ok());
    assert_eq!(
        (config.conntrack.max_per_core, config.conntrack.tcp_established.as_secs()),
        (0, 7200)
    );
    assert_eq!(config.backend.name, BackendName::Nftables);
    let (config, _) =
        load(&text, &["--detect-local", "pod-state", "--proxy-mode=iptables"]).unwrap();
    assert_eq!(config.policy.detector.to_string(), "pod-state");
    assert_eq!(config.backend.name, BackendName::Iptables);
}

#[test]
fn a_mode_uses_its_section_and_a_detector_its_name() {
    let both = "iptables: {masqueradeBit: 1}\nnftables: {masqueradeBit: 2}\n";
    for (mode, bit, section) in [
        ("", 1, "nftables"),
        ("iptables", 1, "nftables"),
        ("ipvs", 1, "nftables"),
        ("nftables", 2, "iptables"),
    ] {
        let (config, ignored) = load(&format!("{HEAD}mode: '{mode}'\n{both}"), &[]).unwrap();
        assert_eq!(config.policy.node_side.masquerade_bit.mask(), 1 << bit, "{mode}");
        let named =
            ignored.iter().any(|text| text.contains(&format!("{section}.masqueradeBit: ignored")));
        assert!(named, "{mode}: {ignored:?}");
        let is_ipvs = config.backend.name == BackendName::Ipvs;
        assert_eq!(is_ipvs, mode == "ipvs", "{ignored:?}");
    }
    let cases = [
        ("mode: userspace", "use iptables, ipvs or nftables"),
        (
            "detectLocalMode: BridgeInterface",
            "detectLocal.bridgeInterface: detectLocalMode BridgeInterface needs it",
        ),
        ("detectLocalMode: Nonsense", "use ClusterCIDR, NodeCIDR"),
        ("detectLocalMode: [1]", "use ClusterCIDR, NodeCIDR"),
        ("iptables: {masqueradeAll: 1}", "line 3, iptables.masqueradeAll: it is a number"),
        ("iptables: []", "line 3, iptables: it is a list, but must be a map"),
        (
            "nodePortAddresses: 10.0.0.0/8",
            "line 3, nodePortAddresses: it is text, but must be a list",
        ),
    ];
    for (line, words) in cases {
        let error = load(&format!("{HEAD}{line}\n"), &[]).map(|(_, ignored)| ignored).unwrap_err();
        assert!(error.contains(words), "{line}: {error}");
    }
    let warned = [
        ("detectLocalMode: ClusterCIDR\nclusterCIDR: 10.0.0.0/8", "clusterCIDR: ignored"),
        ("detectLocalMode: ClusterCIDR", "detectLocalMode: the cluster CIDR is ignored"),
        (
            "detectLocal: {bridgeInterface: cni0}",
            "detectLocal.bridgeInterface: ignored: detectLocalMode does not use it",
        ),
        ("someday: {new: true}", "line 3, someday: unknown field of v1alpha1"),
        ("conntrack: {someday: 1}", "conntrack.someday: unknown field"),
        ("oomScoreAdj: -999", "oomScoreAdj: ignored"),
    ];
    for (line, words) in warned {
        let (config, ignored) = load(&format!("{HEAD}{line}\n"), &[]).unwrap();
        assert!(ignored.iter().any(|text| text.contains(words)), "{line}: {ignored:?}");
        assert_eq!(config.policy.detector.to_string(), "pod-state");
    }
}

/// Every field that is set is used or named in a warning.
#[test]
fn no_field_is_silently_ignored() {
    let known = super::flags();
    for flag in flags_of_fields() {
        assert!(known.iter().any(|known_flag| known_flag == flag), "there is no --{flag}");
    }
    let mut seen = BTreeSet::new();
    for field in fields() {
        assert!(seen.insert(field), "{field} is there twice");
        let names: Vec<&str> = field.split('.').collect();
        for value in ["true", "7", "10s", "'10.0.0.0/8'", "['10.0.0.0/8']", "{A: true}"] {
            let mut text = format!("{{{}: {value}}}", names.last().unwrap());
            for name in names.iter().rev().skip(1) {
                text = format!("{{{name}: {text}}}");
            }
            let text = format!(
                "{{apiVersion: kubeproxy.config.k8s.io/v1alpha1, kind: KubeProxyConfiguration, {}",
                &text[1..]
            );
            let contents = contents(&command(), &text);
            let counts = (contents.settings.len(), contents.warnings.len(), contents.errors.len());
            assert_ne!(counts, (0, 0, 0), "{text}");
        }
    }
}
