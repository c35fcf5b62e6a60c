use clap::Parser;

use super::detect::detector;
use super::*;
use denizen_plan::NodePortAddresses;

#[test]
fn modes_parse_as_they_print() {
    for text in [
        "pod-state",
        "pod-state=port-exact",
        "bridge-port",
        "bridge=cni0",
        "bridge=cni0,br1",
        "interface-prefix=veth,cali",
        "node-cidr",
        "node-cidr=10.1.0.0/24,fd00::/64",
    ] {
        assert_eq!(detector(text).map(|d| d.to_string()), Ok(text.to_owned()), "{text}");
    }
}

#[test]
fn errors_name_the_problem() {
    let cases = [
        ("cluster-cidr=10.0.0.0/8", "pod-state, detects"),
        ("cluster-cidr", "needs no cluster CIDR"),
        ("podstate", "is not a mode: use pod-state"),
        ("bridge", "bridge=cni0"),
        ("bridge=", "\"\" is not valid in"),
        ("bridge=a-name-that-is-too-long", "a-name-that-is-too-long"),
        ("node-cidr=10.0.0.0/33", "\"10.0.0.0/33\" is not a CIDR such as 10.0.0.0/24"),
        ("pod-state=1", "its only value is port-exact"),
        ("bridge-port=cni0", "bridge-port: it takes no value"),
    ];
    for (text, words) in cases {
        let error = checked(&format!("--detect-local {text}")).unwrap_err();
        let named = format!("invalid value '{text}' for '--detect-local ");
        assert!(error.contains(words) && error.contains(&named), "{text}: {error}");
    }
    // A bare address parses as a /32, as its writer meant.
    let read = detector("node-cidr=10.0.0.0").map(|detector| detector.to_string());
    assert_eq!(read, Ok("node-cidr=10.0.0.0/32".to_owned()));
}

#[derive(Debug, Parser)]
struct CommandLine {
    #[command(flatten)]
    run: RunArgs,
}

fn checked(flags: &str) -> Result<Config, String> {
    let words = ["agent", "--manifests", "/m"].into_iter().chain(flags.split_whitespace());
    let line = CommandLine::try_parse_from(words).map_err(|error| error.to_string())?;
    line.run.check(BackendName::Nftables).map_err(|error| error.to_string())
}

#[test]
fn flags_become_a_policy() {
    let cases = [
        ("", "pod-state"),
        ("--detect-local bridge=cni0", "bridge=cni0"),
        ("--node-cidr 10.1.0.0/24,fd00::/64", "node-cidr=10.1.0.0/24,fd00::/64"),
        ("--pod-interface-prefix veth,cali", "interface-prefix=veth,cali"),
    ];
    for (flags, detector) in cases {
        let config = checked(flags).unwrap();
        assert_eq!(config.policy.detector.to_string(), detector, "{flags}");
        assert_eq!(config.policy.node_ports, NodePortAddresses::Primary, "{flags}");
    }
    let named = checked("--node-name n1 --masquerade-all --nodeport-addresses 10.0.0.0/8,fd00::/8")
        .unwrap();
    assert_eq!(
        (&*named.policy.settings.node_name, named.policy.settings.masquerade_all),
        ("n1", true)
    );
    assert!(matches!(named.policy.node_ports, NodePortAddresses::In(ranges) if ranges.len() == 2));
    assert_eq!(named.policy.node_side.masquerade_bit.mask(), 0x4000);
    for (bit, mask) in [(0, 1), (31, 0x8000_0000)] {
        let config = checked(&format!("--masquerade-bit {bit}")).unwrap();
        assert_eq!(config.policy.node_side.masquerade_bit.mask(), mask);
    }
}

/// Each backend has kube-proxy's default for its mode.
#[test]
fn node_ports_are_served_where_kube_proxy_serves_them() {
    let all = |localhost| NodePortAddresses::All { localhost };
    let cases = [
        ("--backend nftables", NodePortAddresses::Primary),
        ("--backend nftables --nodeport-addresses all", all(false)),
        ("--backend nftables --nodeport-addresses all,localhost", all(true)),
        ("--backend nftables --nodeport-addresses 0.0.0.0/0,::/0", all(false)),
        ("--backend iptables --nodeport-addresses 0.0.0.0/0,10.0.0.0/8,::/0", all(true)),
        ("--backend iptables", all(true)),
        ("--backend iptables --iptables-localhost-nodeports false", all(false)),
        ("--backend iptables --nodeport-addresses primary", NodePortAddresses::Primary),
    ];
    for (flags, served) in cases {
        assert_eq!(checked(flags).unwrap().policy.node_ports, served, "{flags}");
    }
}

/// Whatever the backend's flags say.
#[test]
fn without_services_nothing_is_set_up_for_them() {
    for backend in ["", "--backend nftables", "--backend iptables --iptables-variant legacy"] {
        let flags =
            format!("--services=off --network-policy=on --nodeport-addresses all {backend}");
        let config = checked(&flags).unwrap();
        assert_eq!(config.backend.name, BackendName::None, "{flags}");
        assert_eq!(
            config.features,
            Features { services: false, network_policy: true, other_nodes: false }
        );
        assert_eq!(config.policy.node_ports, NodePortAddresses::In(Vec::new()), "{flags}");
        assert!(!config.policy.services, "{flags}");
        assert_eq!(config.conntrack.settings(64), [], "{flags}");
    }
}

#[test]
fn wrong_or_contradictory_flags_are_named() {
    let cases = [
        (
            "--cluster-cidr 10.0.0.0/8",
            "invalid value '10.0.0.0/8' for '--cluster-cidr <CIDR>': denizen needs no cluster CIDR",
        ),
        (
            "--node-cidr 10.0.0.0/33",
            "invalid value '10.0.0.0/33' for '--node-cidr <CIDR,…>': \"10.0.0.0/33\" is not a CIDR",
        ),
        ("--detect-local bridge-port --detect-local bridge-port", "--detect-local"),
        ("--detect-local pod-state --node-cidr 10.0.0.0/8", "--node-cidr"),
        ("--pod-interface-prefix veth --node-cidr 10.0.0.0/8", "--pod-interface-prefix"),
        ("--nodeport-addresses eth0", "--nodeport-addresses: \"eth0\" is not a CIDR"),
        ("--pod-interface-prefix veth*", "\"veth*\" is not valid in an interface's name"),
        ("--detect-local bridge=a/b", "\"a/b\" is not valid in"),
        ("--backend ebpf", "ebpf"),
        ("--conntrack-udp-timeout soon", "is not a duration such as 1h30m"),
        ("--masquerade-bit 32", "a bit of the mark is a number from 0 to 31"),
        ("--masquerade-bit 0x4000", "a bit of the mark is a number from 0 to 31"),
        ("--services=off --network-policy=off", "leave nothing to do"),
        ("--routing-mode=table --announce-services=external-ips", "--announce-ranges"),
        ("--routing-mode=table --announce-table=254", "254 is not in 1..=252"),
        ("--routing-mode=bird", "--routing-mode=bird needs --bird"),
        ("--bird={\"asn\":0}", "asn: it must not be 0"),
        (
            "--services=off --routing-mode=table",
            "announcing (--routing-mode table or bird) is part",
        ),
        ("--services=off --network-policy=on --open-forward", "--open-forward is part of serving"),
        (
            "--services=off --network-policy=on --service-metrics",
            "--service-metrics is part of serving",
        ),
        (
            "--services=off --network-policy=on --egress-masquerade-config /e",
            "--egress-masquerade-config is part of serving",
        ),
    ];
    for (flags, words) in cases {
        let error = checked(flags).unwrap_err();
        assert!(error.contains(words), "{flags}: {error}");
    }
}

/// With or without a service account, and with or without KUBERNETES_SERVICE_HOST.
#[test]
fn where_the_objects_come_from() {
    use denizen_source::kube::access::{Access, Credentials};

    let url = "https://192.168.0.10:6443";
    let api = |credentials, server: Option<&str>| {
        let server = server.map(str::to_owned);
        Ok(Objects::Api(Access { credentials, server }))
    };
    let file = || Credentials::Kubeconfig("/k".into());
    let cluster_ip = Some("10.96.0.1");
    let by_service = Some("https://10.96.0.1:443");
    let cases = [
        (vec!["--manifests", "/m"], cluster_ip, Ok(Objects::Manifests("/m".into()))),
        (vec!["--kubeconfig", "/k"], None, api(file(), None)),
        (vec!["--kubeconfig", "/k", "--master", url], cluster_ip, api(file(), Some(url))),
        (
            vec!["--kubeconfig", "/k", "--master", "http://[::1]:8001"],
            None,
            api(file(), Some("http://[::1]:8001")),
        ),
        (
            vec!["--kubeconfig", "/k", "--master", "10.0.0.1:6443"],
            None,
            Err(ObjectsError::Server("10.0.0.1:6443".into())),
        ),
        (vec!["--master", url], cluster_ip, api(Credentials::ServiceAccount, Some(url))),
        (
            vec!["--master", "http://10.0.0.1"],
            None,
            Err(ObjectsError::Server("http://10.0.0.1".into())),
        ),
        (vec!["--master", ""], cluster_ip, Err(ObjectsError::ServiceAddress("10.96.0.1".into()))),
        (vec![], cluster_ip, Err(ObjectsError::ServiceAddress("10.96.0.1".into()))),
        (vec![], None, Err(ObjectsError::NoObjects)),
    ];
    let check = |flags: &[&str], host: Option<&str>, services| {
        let words = std::iter::once("denizen-agent").chain(flags.iter().copied());
        let line = CommandLine::try_parse_from(words).unwrap();
        let api = |host: &str| InCluster { host: host.to_owned(), port: "443".to_owned() };
        line.run.objects.check(host.map(api), services)
    };
    for (flags, host, expected) in cases {
        assert_eq!(check(&flags, host, true), expected, "{flags:?}");
    }
    // Another program serves the cluster IP.
    let cases = [
        (vec![], cluster_ip, api(Credentials::ServiceAccount, by_service)),
        (vec!["--master", ""], cluster_ip, api(Credentials::ServiceAccount, by_service)),
        (vec![], Some("fd00::1"), api(Credentials::ServiceAccount, Some("https://[fd00::1]:443"))),
        (vec!["--master", url], cluster_ip, api(Credentials::ServiceAccount, Some(url))),
        (vec!["--kubeconfig", "/k"], cluster_ip, api(file(), None)),
        (vec![], None, Err(ObjectsError::NoObjects)),
    ];
    for (flags, host, expected) in cases {
        assert_eq!(check(&flags, host, false), expected, "{flags:?}, without services");
    }
    assert!(
        CommandLine::try_parse_from(["denizen-agent", "--manifests", "/m", "--kubeconfig", "/k"])
            .is_err()
    );
}

#[test]
fn an_empty_cache_folder_stays_empty() {
    for (flag, expected) in [("--cni-cache-dir=", ""), ("--cni-cache-dir=/elsewhere", "/elsewhere")]
    {
        let words = ["denizen-agent", "run", "--manifests", "somewhere", flag];
        let taken = crate::cli::command().try_get_matches_from(words).unwrap();
        let run = taken.subcommand().expect("run").1;
        assert_eq!(run.get_one::<PathBuf>("cni_cache_dir"), Some(&PathBuf::from(expected)));
    }
}
