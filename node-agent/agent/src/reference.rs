//! conf/reference/ has every flag, every metric and every field of `status`.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::Value;

use crate::check::{Check, Finding, Topic, Verdict as CheckVerdict};
use crate::cli::command;
use denizen_backend::{Affinity, Clients, FullMapCounts};
use denizen_observe::connections::{NamedConnection, Totals};
use denizen_observe::drops::{DropCount, DropCounts, DropVerdict, DroppedPacket, PacketReport};
use denizen_observe::status::metrics::Metrics;
use denizen_observe::status::{
    ApiTraffic, DrainingSince, DrainingStatus, IpvsStatus, LastSync, Status,
};
use denizen_observe::trace::{
    HookReport, NamedAddress, PacketFate, PacketIdentity, RuleReport, TraceComparison, TraceReport,
    TracedPackets,
};
use denizen_plan::explain::{
    ExplainStep, Explanation, PacketVerdict, PolicyRow, RedirectRow, TierRow, VirtualServerRow,
};

/// A page of the reference.
macro_rules! page {
    ($name:literal) => {
        include_str!(concat!("../../../conf/reference/", $name))
    };
}

/// The names that the text does not have. A value or labels may follow the name.
fn missing(text: &str, names: impl IntoIterator<Item = String>) -> BTreeSet<String> {
    let is_named = |name: &str| {
        text.match_indices(&format!("`{name}"))
            .any(|(at, found)| text[at + found.len()..].starts_with(['`', '{', ' ', '=']))
    };
    names.into_iter().filter(|name| !is_named(name)).collect()
}

/// The flags of a command, `--help` apart.
fn flags(command: &clap::Command) -> impl Iterator<Item = String> + '_ {
    let names = command.get_arguments().flat_map(|arg| {
        let aliases = arg.get_visible_aliases().unwrap_or_default();
        arg.get_long().into_iter().chain(aliases)
    });
    names.filter(|name| *name != "help").map(|name| format!("--{name}"))
}

#[test]
fn every_command_and_flag_is_there() {
    let mut command = command();
    command.build();
    let commands = command.get_subcommands().filter(|sub| sub.get_name() != "help");
    let (plugin, others): (Vec<_>, Vec<_>) =
        commands.partition(|sub| sub.get_name() == "install-cni");
    let of_plugin: BTreeSet<String> = plugin.into_iter().flat_map(flags).collect();
    assert!(of_plugin.contains("--with-bridge"), "{of_plugin:?}");
    assert_eq!(missing(page!("plugin.md"), of_plugin), BTreeSet::new());
    let nested = others.iter().flat_map(|command| command.get_subcommands());
    let nested = nested.filter(|sub| sub.get_name() != "help").collect::<Vec<_>>();
    let of_others: BTreeSet<String> =
        others.iter().chain(&nested).copied().flat_map(flags).collect();
    assert!(
        ["--detect-local", "--kube-proxy", "--handshake"]
            .iter()
            .all(|flag| of_others.contains(*flag)),
        "{of_others:?}"
    );
    assert_eq!(missing(page!("flags.md"), of_others), BTreeSet::new());
    let (_, section) = page!("flags.md")
        .split_once("\n## Flags of the other commands\n")
        .expect("a section about the other commands");
    let section = section.split("\n## ").next().expect("text before the next section");
    let names = command.get_subcommands().map(clap::Command::get_name);
    let names = names.filter(|name| !["run", "help"].contains(name)).map(str::to_owned);
    assert_eq!(missing(section, names), BTreeSet::new());
}

#[test]
fn every_metric_is_there() {
    let metrics = Metrics::default();
    // A family without a member has no line.
    let set = [("ip_family", "IPv4".to_owned()), ("set", "services".to_owned())];
    metrics.own.elements.get_or_create(&set).set(1);
    metrics.network_policy.set_engine("Denizen");
    metrics.own.service_drops.get_or_create(&[("reason", "unused_port")]).inc();
    let traffic = ApiTraffic {
        lists: [("start".to_owned(), 1)].into(),
        answers: [("json".to_owned(), 1)].into(),
        ..ApiTraffic::default()
    };
    metrics.api.set(&[traffic]);
    let text = metrics.encode();
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let names = types.map(|line| match line.split_once(' ').expect("a name and a type") {
        (name, "counter") => format!("{name}_total"),
        (name, "info") => format!("{name}_info"),
        (name, _) => name.to_owned(),
    });
    assert_eq!(missing(page!("metrics.md"), names), BTreeSet::new());
}

#[test]
fn every_field_of_the_status_is_there() {
    let status = Status {
        backend: String::new(),
        backend_why: String::new(),
        detect_local: String::new(),
        synced: true,
        waiting_for: Vec::new(),
        pods: 0,
        unrecorded_interfaces: 0,
        routing: Some(denizen_routing::RoutingStatus::default()),
        announcements: Some(denizen_routing::AnnouncementsStatus::default()),
        bgp: Some(denizen_routing::bird::BgpStatus {
            sessions: vec![denizen_routing::bird::Session::default()],
            ..denizen_routing::bird::BgpStatus::default()
        }),
        ipvs: Some(IpvsStatus {
            draining: vec![DrainingStatus::default()],
            ..IpvsStatus::default()
        }),
        host_ports: Some(denizen_observe::status::HostPortsStatus::default()),
        redirected_pods: 0,
        unredirected_pods: 0,
        api: vec![ApiTraffic::default()],
        services: 0,
        endpoints: 0,
        generation: None,
        last_sync: Some(LastSync::new(String::new(), Duration::ZERO)),
        drift_repaired: 0,
        last_repair_milliseconds: None,
        missed_lookups: 0,
        network_policy_why: String::new(),
        network_policy_engine: None,
        network_policy: Some(denizen_observe::status::NetworkPolicyStatus {
            watched_pods: Some(denizen_observe::status::WatchedPodsStatus::default()),
            ..denizen_observe::status::NetworkPolicyStatus::default()
        }),
        affinity: Affinity {
            clients: vec![Clients {
                family: String::new(),
                map: String::new(),
                clients: 0,
                room: 0,
            }],
            crowded: FullMapCounts::default(),
        },
        flushed: 0,
        flushing: false,
        errors: Vec::new(),
        warnings: Vec::new(),
    };
    let mut fields = BTreeSet::new();
    add_fields(&serde_json::to_value(status).expect("plain data"), &mut fields);
    assert_eq!(missing(page!("status.md"), fields), BTreeSet::new());
}

#[test]
fn every_field_of_an_explanation_is_there() {
    let text = || Some(String::new());
    let explanation = Explanation {
        verdict: PacketVerdict::Drop,
        service: None,
        endpoints: Vec::new(),
        masquerade: false,
        masqueraded: vec![String::new()],
        host_port: Some(String::new()),
        virtual_server: Some(VirtualServerRow {
            address: String::new(),
            scheduler: String::new(),
            draining: vec![String::new()],
            chosen: Some(String::new()),
        }),
        local: false,
        policies: vec![PolicyRow {
            direction: String::new(),
            pod: String::new(),
            endpoint: text(),
            isolated_by: Vec::new(),
            tiers: vec![TierRow {
                tier: String::new(),
                priority: 0,
                policy: String::new(),
                rule: 0,
                name: "name".to_owned(),
                action: String::new(),
                peer: text(),
                ports: text(),
                labels_unknown: true,
            }],
            result: String::new(),
            policy: text(),
            rule: Some(0),
            peer: text(),
            ports: text(),
        }],
        redirects: vec![RedirectRow {
            direction: String::new(),
            pod: String::new(),
            endpoint: text(),
            port: Some(0),
            rule: text(),
        }],
        steps: vec![ExplainStep { what: String::new(), why: String::new() }],
    };
    let mut fields = BTreeSet::new();
    add_fields(&serde_json::to_value(explanation).expect("plain data"), &mut fields);
    assert_eq!(missing(page!("explain.md"), fields), BTreeSet::new());
}

#[test]
fn every_field_of_a_trace_is_there() {
    let text = || Some(String::new());
    let place = || NamedAddress { address: ([0, 0, 0, 0], 0).into(), name: text() };
    let rule = RuleReport {
        table: String::new(),
        chain: String::new(),
        handle: Some(0),
        rule: text(),
        reason: text(),
        is_agents: false,
        verdict: String::new(),
    };
    let hook = HookReport {
        hook: String::new(),
        input: text(),
        output: text(),
        source: place(),
        destination: place(),
        rules: vec![rule],
    };
    let packet = TraceReport {
        number: 1,
        identity: PacketIdentity { identification: 0, sequence: 0 },
        source: place(),
        destination: place(),
        service: text(),
        host_port: text(),
        virtual_server: text(),
        hooks: vec![hook],
        fate: PacketFate::Dropped,
        by: text(),
        last_source: place(),
        last_destination: place(),
        output: text(),
        comparison: TraceComparison::Differs(Vec::new()),
    };
    let mut fields = BTreeSet::new();
    let packets = TracedPackets { packets: vec![packet] };
    add_fields(&serde_json::to_value(packets).expect("plain data"), &mut fields);
    assert_eq!(missing(page!("trace.md"), fields), BTreeSet::new());
}

#[test]
fn every_field_of_a_connection_is_there() {
    let place = || NamedAddress { address: ([0, 0, 0, 0], 0).into(), name: Some(String::new()) };
    let connection = NamedConnection {
        protocol: "",
        state: Some(""),
        client: place(),
        destination: place(),
        service: Some(String::new()),
        endpoint: Some(place()),
        draining_since: Some(DrainingSince::default()),
        masqueraded_as: Some(([0, 0, 0, 0], 0).into()),
        seconds: Some(0),
    };
    let mut totals = Totals::default();
    totals.add(&connection);
    let mut fields = BTreeSet::new();
    add_fields(&serde_json::to_value(&connection).expect("plain data"), &mut fields);
    add_fields(&serde_json::to_value(&totals).expect("plain data"), &mut fields);
    assert_eq!(missing(page!("connections.md"), fields), BTreeSet::new());
}

#[test]
fn every_field_of_drops_is_there() {
    let text = String::new;
    let place = || NamedAddress { address: ([0, 0, 0, 0], 0).into(), name: Some(text()) };
    let packet = PacketReport {
        protocol: text(),
        source: place(),
        destination: place(),
        service: Some(text()),
        input: Some(text()),
    };
    let packet = DroppedPacket {
        verdict: DropVerdict::Dropped,
        reason: text(),
        policy: Some(text()),
        table: text(),
        packet: Some(packet),
    };
    let count =
        DropCount { table: text(), verdict: DropVerdict::Dropped, reason: text(), packets: 0 };
    let counts = DropCounts { drops: vec![count], not_counted: Some(text()) };
    let mut fields = BTreeSet::new();
    add_fields(&serde_json::to_value(&packet).expect("plain data"), &mut fields);
    add_fields(&serde_json::to_value(&counts).expect("plain data"), &mut fields);
    assert_eq!(missing(page!("drops.md"), fields), BTreeSet::new());
}

#[test]
fn every_check_and_its_fields_are_there() {
    let checks = Topic::ALL.map(|topic| Check::new(topic, Finding::ok("")));
    let names: BTreeSet<String> = checks.iter().map(|check| check.name.to_owned()).collect();
    assert_eq!(missing(page!("check.md"), names), BTreeSet::new());
    let mut fields = BTreeSet::new();
    let report = serde_json::to_value(crate::check::Report { checks: checks.into() });
    add_fields(&report.expect("plain data"), &mut fields);
    assert_eq!(missing(page!("check.md"), fields), BTreeSet::new());
    let verdicts =
        [CheckVerdict::Ok, CheckVerdict::Warning, CheckVerdict::Failure, CheckVerdict::Skipped];
    let words = verdicts.map(|verdict| serde_json::to_value(verdict).expect("plain data"));
    let words = words.iter().filter_map(|word| word.as_str().map(str::to_owned));
    assert_eq!(missing(page!("check.md"), words), BTreeSet::new());
}

fn add_fields(value: &Value, fields: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => map.iter().for_each(|(name, value)| {
            fields.insert(name.clone());
            add_fields(value, fields);
        }),
        Value::Array(items) => items.iter().for_each(|item| add_fields(item, fields)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
