//! Configuration files.

#![expect(clippy::disallowed_methods, reason = "tests write files")]

mod kube_proxy;
mod property;

use std::collections::BTreeSet;

use clap::{ArgMatches, FromArgMatches};

use super::denizen::{WITHOUT_FIELD, field_of};
use super::*;
use crate::cli::command;
use crate::config::{Config, RunArgs};
use denizen_backend::BackendName;
use denizen_routing::RoutingSettings;

const HEAD: &str = "apiVersion: denizen.io/v1alpha1\nkind: DenizenConfiguration\nmanifests: /m\n";

/// The arguments of `run` with this file and these flags.
fn matches(text: &str, flags: &[&str]) -> Result<(ArgMatches, Vec<String>), String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.yaml");
    std::fs::write(&path, text).unwrap();
    let words = ["denizen-agent", "run", "--config", path.to_str().unwrap()];
    let words = words.iter().chain(flags).map(OsString::from).collect();
    let Completed { words, ignored } =
        complete(&command(), words).map_err(|error| error.to_string())?;
    let matches = command().try_get_matches_from(words);
    let (_, run) = matches.map_err(|error| error.to_string())?.remove_subcommand().unwrap();
    Ok((run, ignored))
}

fn args(text: &str, flags: &[&str]) -> RunArgs {
    let (matches, ignored) = matches(text, flags).unwrap();
    assert_eq!(ignored, Vec::<String>::new());
    RunArgs::from_arg_matches(&matches).unwrap()
}

fn checked(text: &str, flags: &[&str]) -> Config {
    args(text, flags).check(BackendName::Nftables).unwrap()
}

fn refused(text: &str) -> String {
    matches(text, &[]).map(|(_, ignored)| ignored).unwrap_err()
}

/// The names of the flags of `run`.
fn flags() -> Vec<String> {
    let mut run = command().find_subcommand("run").unwrap().clone();
    run.build();
    let flags = run.get_arguments().filter_map(|arg| arg.get_long());
    flags.map(str::to_owned).collect()
}

#[test]
fn every_flag_has_a_field_of_its_own_and_every_exception_is_a_flag() {
    let flags = flags();
    let mut fields = BTreeSet::new();
    for flag in &flags {
        match field_of(flag) {
            Some(field) => assert!(fields.insert(field.clone()), "{field} is that of two flags"),
            None => assert!(WITHOUT_FIELD.contains(&flag.as_str()), "--{flag} has no field"),
        }
    }
    for flag in WITHOUT_FIELD {
        // `version` belongs to the whole program.
        assert!(flag == "version" || flags.iter().any(|known| known == flag), "{flag}");
    }
    for field in ["nodePortAddresses", "conntrack.tcpEstablishedTimeout", "detectLocal", "nodeName"]
    {
        assert!(fields.contains(field), "{field} of {fields:?}");
    }
}

/// The example file shows every field with its default.
#[test]
fn the_example_has_every_field_with_its_default() {
    let text = include_str!("../../../../../conf/agent/config.yaml");
    let contents = contents(&command(), text);
    assert_eq!((&contents.errors, &contents.warnings), (&vec![], &vec![]));
    let named: BTreeSet<&str> =
        contents.settings.iter().map(|setting| setting.flag.as_str()).collect();
    let all = flags();
    let all: BTreeSet<&str> =
        all.iter().map(String::as_str).filter(|flag| field_of(flag).is_some()).collect();
    // A field without default, or one that excludes another, is a comment.
    let comment = |field: String| match field.split_once('.') {
        Some((_section, field)) => format!("\n  # {field}:"),
        None => format!("\n# {field}:"),
    };
    let commented: BTreeSet<&str> = all
        .iter()
        .copied()
        .filter(|flag| text.contains(&comment(field_of(flag).unwrap())))
        .collect();
    let both: BTreeSet<&str> = named.union(&commented).copied().collect();
    assert_eq!(both, all);
    let run = command().find_subcommand("run").unwrap().clone();
    for setting in &contents.settings {
        let arg = run.get_arguments().find(|arg| arg.get_long() == Some(&setting.flag));
        let usual: Vec<_> =
            arg.unwrap().get_default_values().iter().map(|value| value.to_string_lossy()).collect();
        if !usual.is_empty() {
            assert_eq!(usual, [setting.value.as_str()], "{}", setting.flag);
        }
    }
}

#[test]
fn fields_become_flags() {
    let text = format!(
        "{HEAD}detectLocal: bridge=cni0,br1\nmasqueradeAll: true\nmasqueradeBit: 7\n\
         nodePortAddresses: [10.0.0.0/8, 'fd00::/8']\n\
         featureGates: {{PreferSameTrafficDistribution: false}}\nhealthzBindAddress: ''\n\
         conntrack: {{min: 0, udpTimeout: 1m30s, tcpBeLiberal: true}}\nlogFormat: json\n"
    );
    let config = checked(&text, &[]);
    assert_eq!(config.policy.detector.to_string(), "bridge=cni0,br1");
    assert!(config.policy.settings.masquerade_all && !config.policy.settings.node_hints);
    assert_eq!(config.policy.node_side.masquerade_bit.mask(), 1 << 7);
    assert_eq!(format!("{:?}", config.policy.node_ports).matches('/').count(), 0, "two ranges");
    assert_eq!(config.listen.health, None);
    let conntrack = config.conntrack;
    assert_eq!((conntrack.min, conntrack.udp.as_secs(), conntrack.tcp_be_liberal), (0, 90, true));
    assert_eq!(conntrack.max_per_core, 32_768, "a missing field keeps its default");
    // JSON is valid YAML.
    let json = r#"{"apiVersion":"denizen.io/v1alpha1","kind":"DenizenConfiguration",
        "manifests":"/m","masqueradeAll":true}"#;
    assert!(checked(json, &[]).policy.settings.masquerade_all);
}

#[test]
fn a_section_within_routing_says_how_bird_speaks() {
    let peer = "{name: tor-a, address: 192.0.2.9, asn: 65001, import: [default, 10.0.0.0/8]}";
    let text =
        format!("{HEAD}routing:\n  mode: bird\n  bird: {{asn: 1, mesh: true, peers: [{peer}]}}\n");
    let RoutingSettings::Table(config) = checked(&text, &[]).routing else {
        panic!("announcements")
    };
    let bird = config.bird.expect("BIRD is configured");
    assert!(bird.mesh && bird.peers[0].import.default && bird.peers[0].import.prefixes.len() == 1);
    // Nobody announces a peer's address.
    assert_eq!(config.settings.peers, ["192.0.2.9".parse().unwrap()].into());
    for (bad, said) in [("{asn: 1.5}", "routing.bird: it is a map, but"), ("{asn: -1}", "asn: ")] {
        let errors = contents(&command(), &format!("{HEAD}routing: {{bird: {bad}}}\n")).errors;
        let [error] = errors.as_slice() else { panic!("{bad}: {errors:?}") };
        assert!(error.to_string().contains(said), "{bad}: {error}");
    }
}

#[test]
fn the_section_of_routing_says_what_is_announced() {
    let text = format!(
        "{HEAD}routing: {{mode: table, table: 200, pods: exact, services: [external-ips, \
         cluster-ips], ranges: ['203.0.113.0/24', '2001:db8::/64'], most: 7, drainWait: 2s}}\n"
    );
    let RoutingSettings::Table(config) = checked(&text, &[]).routing else {
        panic!("announcements")
    };
    assert_eq!((config.table, config.drain_wait.as_secs(), config.settings.most), (200, 2, 7));
    assert_eq!((config.settings.kinds.len(), config.settings.ranges.len()), (2, 2));
    assert_eq!(config.settings.pods, denizen_plan::AnnouncedPods::Exact);
    let alone = format!("{HEAD}services: 'off'\nnetworkPolicy: 'off'\nrouting: {{mode: direct}}\n");
    assert_eq!(checked(&alone, &[]).routing, RoutingSettings::Direct);
}

#[test]
fn flags_beat_the_file() {
    let text = format!(
        "{HEAD}detectLocal: bridge=cni0\nmasqueradeAll: true\nnodeName: file\nconntrack: {{min: 7}}\n"
    );
    let config = checked(&text, &["--masquerade-all=false", "--hostname-override", "flag"]);
    assert_eq!(&*config.policy.settings.node_name, "flag");
    assert!(!config.policy.settings.masquerade_all);
    assert_eq!(config.conntrack.min, 7, "the file applies where no flag is given");
    assert_eq!(checked(&text, &["--conntrack-min=8"]).conntrack.min, 8);
    // Also by a flag's alias, and by a flag that excludes it.
    let config = checked(&text, &["--node-cidr", "10.0.0.0/24"]);
    assert_eq!(config.policy.detector.to_string(), "node-cidr=10.0.0.0/24");
    assert!(checked(&text, &["--masquerade-all"]).policy.settings.masquerade_all);
}

#[test]
fn errors_have_a_position() {
    let cases = [
        ("masquradeAll: true", "line 4, masquradeAll: there is no such field"),
        ("conntrack:\n  maxPerCoer: 3", "line 5, conntrack.maxPerCoer: there is no such field"),
        ("conntrack: 5", "line 4, conntrack: it is a number, but must be a map"),
        ("masqueradeAll: 'yes'", "line 4, masqueradeAll: it is text, but must be true or false"),
        ("nodeName: [a]", "line 4, nodeName: it is a list, but must be a single value"),
        ("nodeName: 1.5", "line 4, nodeName: it is a fraction"),
        (
            "detectLocal: podstate",
            "line 4, detectLocal: invalid value 'podstate' for '--detect-local <MODE[=VALUE,…]>': it \
             is not a mode: use pod-state",
        ),
        (
            "nodePortAddresses: [x]",
            "line 4, nodePortAddresses: --nodeport-addresses: \"x\" is not a CIDR",
        ),
        ("healthzBindAddress: localhost", "line 4, healthzBindAddress: --healthz-bind-address"),
        ("nodeName: true", "line 4, nodeName: it is true or false"),
        ("nodePortAddresses: primary", "nodePortAddresses: it is text, but must be a list"),
        (
            "featureGates: {A: 1}",
            "featureGates: it is a map, but must be a map of names to true or false",
        ),
        ("masqueradeBit: 32", "line 4, masqueradeBit: invalid value '32'"),
        ("backend: ebpf", "line 4, backend: invalid value 'ebpf'"),
        ("conntrack: {udpTimeout: soon}", "line 4, conntrack.udpTimeout: invalid value 'soon'"),
        ("clusterCIDR: 10.0.0.0/8", "line 4, clusterCIDR: denizen needs no cluster CIDR"),
        ("initOnly: true", "initOnly: there is no such field"),
        ("config: x", "config: there is no such field"),
        ("masqueradeAll: true\nmasqueradeAll: false", "line 5"),
        ("masqueradeAll: [", "line "),
    ];
    for (line, words) in cases {
        let error = refused(&format!("{HEAD}{line}\n"));
        assert!(error.contains(words), "{line}: {error}");
        assert!(error.contains("config.yaml cannot be used"), "{error}");
    }
    let error = refused(&format!("{HEAD}a: 1\nb: 2\n"));
    assert!(error.contains("line 4, a:") && error.contains("line 5, b:"), "all at once: {error}");
}

#[test]
fn other_documents_are_errors() {
    let cases = [
        ("", "it is nothing"),
        ("- 1\n", "it is a list"),
        ("kind: DenizenConfiguration\n", "it has no apiVersion and kind"),
        ("apiVersion: denizen.io/v2\nkind: DenizenConfiguration\n", "\"denizen.io/v2\""),
        ("apiVersion: v1\nkind: ConfigMap\ndata: {config.conf: ''}\n", "config.conf"),
        ("apiVersion: [1]\nkind: 5\n", "must be a DenizenConfiguration of denizen.io/v1alpha1"),
    ];
    for (text, words) in cases {
        let error = refused(text);
        assert!(error.contains(words), "{text:?}: {error}");
    }
    let words = ["denizen-agent", "run", "--config", "/nowhere/config.yaml"].map(OsString::from);
    let error = complete(&command(), words.into()).unwrap_err().to_string();
    assert!(error.contains("/nowhere/config.yaml"), "{error}");
}

#[test]
fn other_commands_use_the_flags_that_they_have() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.yaml");
    std::fs::write(&path, format!("{HEAD}masqueradeAll: true\nmetricsBindAddress: ''\n")).unwrap();
    let words = ["denizen-agent", "render", "--config", path.to_str().unwrap()];
    let words = words.map(OsString::from).into();
    let completed = complete(&command(), words).unwrap();
    let added: Vec<_> = completed.words[2..4].iter().map(|word| word.to_str().unwrap()).collect();
    assert_eq!(added, ["--manifests=/m", "--masquerade-all=true"]);
    assert_eq!(completed.words.len(), 6);
}

/// The command itself reports an invalid command line.
#[test]
fn an_invalid_command_line_is_unchanged() {
    for line in [
        "",
        "denizen-agent",
        "denizen-agent run --nonsense",
        "denizen-agent --help",
        "denizen-agent run",
    ] {
        let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        assert_eq!(complete(&command(), words.clone()).unwrap().words, words, "{line}");
    }
}
