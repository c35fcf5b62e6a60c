//! What the kernel and iptables' programs can do.
//!
//! nf_tables is asked by a batch that the kernel checks and never commits. If a running agent's
//! table exists, the kernel has accepted it, and is not asked.

use super::{Check, Finding, Subject, Topic};
use crate::config::NetworkPolicyMode;
use denizen_backend::BackendName;
use denizen_backend::firewall;
use denizen_backend::iptables::SCHEMA;
use denizen_backend::nftables;
use denizen_backend::sysctl::bridge;
use denizen_conntrack::Conntrack;
use denizen_iptables::{IptablesError, Programs, Table, Variant, has_family, legacy_tables};
use denizen_ipvs::Ipvs;
use denizen_model::{Family, Protocol};
use denizen_netlink::Capability;
use denizen_packet::FlowSelection;
use denizen_plan::MarkBit;
use denizen_text::describe;

/// What to do if nf_tables refuses a table.
const NF_TABLES: &str = "load the kernel module nf_tables, or use a kernel that has what is missing \
                         (Debian 12's 6.1 has all of it)";

pub(super) fn checks(subject: &Subject) -> Vec<Check> {
    let nftables = nftables(subject);
    let needs_iptables = match subject.backend {
        Some(BackendName::Iptables) => true,
        Some(BackendName::Nftables | BackendName::Ipvs | BackendName::None) => false,
        None => nftables.verdict == super::Verdict::Warning,
    };
    vec![
        Check::new(Topic::Permissions, permissions()),
        Check::new(Topic::Nftables, nftables),
        Check::new(Topic::Iptables, iptables(subject, needs_iptables)),
        Check::new(Topic::Ipvs, ipvs(subject)),
        Check::new(Topic::BridgePorts, bridge_ports(subject)),
        Check::new(Topic::NetworkPolicy, network_policy(subject)),
        Check::new(Topic::ConntrackNetlink, conntrack()),
        Check::new(Topic::BridgeModule, bridge_module(subject)),
    ]
}

/// A finding for checks that need CAP_NET_ADMIN, if this process lacks it.
pub(super) fn not_permitted() -> Option<Finding> {
    let is_held = Capability::NetAdmin.is_held();
    (!is_held).then(|| Finding::skipped("it cannot be asked without CAP_NET_ADMIN"))
}

fn permissions() -> Finding {
    match Capability::NetAdmin.is_held() {
        true => Finding::ok("this process has CAP_NET_ADMIN"),
        false => Finding::failure(
            "this process has no CAP_NET_ADMIN, without which no rule can be read or programmed",
            "run it as root on the node, or in the agent's container",
        )
        .coded("no-net-admin", []),
    }
}

fn nftables(subject: &Subject) -> Finding {
    match subject.backend {
        Some(BackendName::None) => {
            return Finding::skipped("--services=off: another program serves services");
        }
        Some(BackendName::Iptables) => return Finding::skipped("the backend is iptables"),
        Some(BackendName::Nftables | BackendName::Ipvs) | None => {}
    }
    if let Some(finding) = not_permitted() {
        return finding;
    }
    let arp = || if balances_by_ipvs(subject) { nftables::probe_arp() } else { Ok(()) };
    match nftables::probe().and_then(|()| arp()) {
        Ok(()) => Finding::ok("nf_tables accepts the tables for services"),
        Err(error) => {
            let error = describe(&error);
            let finding = match subject.backend {
                Some(_) => Finding::failure(&error, NF_TABLES),
                None => Finding::warning(
                    format!("nf_tables cannot be used, so the backend would be iptables: {error}"),
                    NF_TABLES,
                ),
            };
            finding.coded("nftables-refused", [("error", error)])
        }
    }
}

fn iptables(subject: &Subject, is_needed: bool) -> Finding {
    if !is_needed {
        return Finding::skipped("no backend needs it");
    }
    match programs(subject.iptables_variant) {
        Err(error) => Finding::failure(
            describe(&error),
            "install iptables (iptables-nft or iptables-legacy), and add CAP_NET_RAW to the agent's \
             container: the component `iptables` in conf/kubernetes does",
        ).coded("iptables-missing", [("error", describe(&error))]),
        Ok((variant, missing)) if missing.is_empty() => {
            Finding::ok(format!("{variant} and the kernel have all extensions"))
        }
        Ok((variant, missing)) => Finding::warning(
            format!(
                "{variant} or the kernel lacks extensions that some services need: {}",
                missing.join("; ")
            ),
            "load the kernel modules of these matches and targets (xt_…), or install the full iptables",
        ).coded("iptables-extensions-missing", [("missing", missing.join("; "))]),
    }
}

fn balances_by_ipvs(subject: &Subject) -> bool {
    subject.backend.is_some_and(|name| name.capabilities().balances_by_ipvs)
}

fn ipvs(subject: &Subject) -> Finding {
    if !balances_by_ipvs(subject) {
        return Finding::skipped("the backend is not ipvs");
    }
    if let Some(finding) = not_permitted() {
        return finding;
    }
    match Ipvs::open().and_then(|mut ipvs| ipvs.info()) {
        Ok(_) => Finding::ok("the kernel has IPVS"),
        Err(error) => Finding::warning(
            format!("nftables would choose all endpoints: {}", describe(&error)),
            "install the kernel modules ip_vs and xt_ipvs, by which the agent makes the kernel load \
             them, and those of the schedulers; or load ip_vs before the agent starts",
        ).coded("ipvs-missing", [("error", describe(&error))]),
    }
}

/// The programs' variant, and the extensions that they or the kernel lack. Reading a missing legacy
/// table creates it, so legacy programs are only asked if the table exists.
fn programs(variant: Option<Variant>) -> Result<(&'static str, Vec<String>), IptablesError> {
    let programs = match variant {
        Some(variant) => Programs::installed(variant)?,
        None => Programs::find()?,
    };
    let variant = match programs.variant {
        Variant::Legacy => "iptables-legacy",
        Variant::Nft => "iptables-nft",
    };
    let mut missing = Vec::new();
    for family in Family::BOTH.into_iter().filter(|family| has_family(*family)) {
        let is_there = || legacy_tables(family).iter().any(|table| table == Table::Filter.as_str());
        if programs.variant == Variant::Nft || is_there() {
            let lacking = programs.missing(family, &(SCHEMA.extensions)(family))?;
            // The tested rule names a set that only exists with the backend's rules.
            let lacking = lacking.all().filter(|(_, message)| !message.contains("doesn't exist"));
            missing.extend(lacking.map(|(words, message)| format!("{}: {message}", words.trim())));
        }
    }
    missing.sort_unstable();
    missing.dedup();
    Ok((variant, missing))
}

fn bridge_ports(subject: &Subject) -> Finding {
    if !subject.policy.detector.knows_ports() {
        return Finding::skipped("this --detect-local does not ask for a bridge's ports");
    }
    not_permitted().unwrap_or_else(|| match nftables::probe_ports() {
        Ok(()) => Finding::ok("nf_tables accepts the bridge's table"),
        Err(error) => Finding::failure(
            format!("this --detect-local cannot be had: {}", describe(&error)),
            "use --detect-local pod-state, or a kernel with CONFIG_NF_TABLES_BRIDGE",
        )
        .coded("bridge-table-refused", [("error", describe(&error))]),
    })
}

fn network_policy(subject: &Subject) -> Finding {
    let Some(settings) = subject.policy.firewall else {
        return Finding::skipped("--network-policy=off");
    };
    if let Some(finding) = not_permitted() {
        return finding;
    }
    match (firewall::probe(settings), subject.network_policy) {
        (Ok(()), _) => Finding::ok("nf_tables accepts the tables of the pod firewall"),
        (Err(error), NetworkPolicyMode::On) => Finding::failure(describe(&error), NF_TABLES)
            .coded("firewall-refused", [("error", describe(&error))]),
        (Err(error), NetworkPolicyMode::Auto | NetworkPolicyMode::Off) => Finding::warning(
            format!("NetworkPolicies cannot be enforced: {}", describe(&error)),
            NF_TABLES,
        )
        .coded("firewall-refused", [("error", describe(&error))]),
    }
}

/// Reads the entries of SCTP as a test, because there are few.
fn conntrack() -> Finding {
    if let Some(finding) = not_permitted() {
        return finding;
    }
    let read = Conntrack::open(MarkBit::FORBIDDEN.mask())
        .map_err(|error| describe(&error))
        .and_then(|mut conntrack| {
            let part = FlowSelection {
                family: Family::V4,
                protocol: Some(Protocol::Sctp),
                unanswered_syns: false,
            };
            let read = conntrack.read(part, |_| {});
            read.map_err(|error| describe(&error))
        });
    match read {
        Ok(()) => Finding::ok("connection tracking can be read through netlink"),
        Err(error) => Finding::failure(
            format!("flows to endpoints that are gone cannot be deleted: {error}"),
            "load the kernel module nf_conntrack_netlink",
        )
        .coded("conntrack-unreadable", [("error", error)]),
    }
}

fn bridge_module(subject: &Subject) -> Finding {
    const ADVICE: &str = "modprobe br_netfilter, and name it in /etc/modules-load.d";
    const WITHOUT: &str = "the kernel module br_netfilter is not loaded: connections between pods of \
                           one bridge bypass services and NetworkPolicies";
    if bridge::is_module_loaded(&subject.sysctls) {
        return Finding::ok("the kernel module br_netfilter is loaded");
    }
    match subject.has_bridged_pods() {
        true => Finding::failure(WITHOUT, ADVICE).coded("br-netfilter-missing", []),
        false => Finding::warning(
            format!("{WITHOUT}. No recorded pod is behind a bridge"),
            format!("if your CNI plugin uses a bridge: {ADVICE}"),
        )
        .coded("br-netfilter-missing", []),
    }
}
