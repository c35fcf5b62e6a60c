//! Other programs that do the agent's work or use its ports. It only reads, and binds free ports
//! for an instant.

use std::net::{SocketAddr, TcpListener};

use super::kernel::not_permitted;
use super::routing::announcing;
use super::{Check, Finding, Subject, Topic};
use crate::config::{Listen, NetworkPolicyMode};
use crate::http::cannot_listen;
use denizen_backend::firewall::other_engine::other_engine;
use denizen_backend::forward::{Findings, inspect};
use denizen_backend::iptables::processes_called;
use denizen_backend::takeover::{ipvs, kube_proxys};
use denizen_observe::status::Status;
use denizen_text::describe;

pub(super) fn checks(subject: &Subject) -> Vec<Check> {
    let only = |topic, finding| vec![Check::new(topic, finding)];
    let permitted = |topic, findings: fn(&Subject) -> Vec<Finding>| match not_permitted() {
        Some(finding) => only(topic, finding),
        None => findings(subject).into_iter().map(|finding| Check::new(topic, finding)).collect(),
    };
    [
        permitted(Topic::ServiceProxies, |subject| vec![service_proxies(subject)]),
        permitted(Topic::PolicyEngines, |subject| vec![policy_engines(subject)]),
        permitted(Topic::ForwardChains, forward_chains),
        permitted(Topic::Announcing, announcing),
        ports(subject).into_iter().map(|finding| Check::new(Topic::Ports, finding)).collect(),
    ]
    .concat()
}

fn service_proxies(subject: &Subject) -> Finding {
    let found = match kube_proxys() {
        Ok(found) => found.join(", "),
        Err(error) => {
            let advice = "run it where iptables is installed, with CAP_NET_RAW";
            let finding = Finding::warning(describe(&error), advice);
            return finding.coded("iptables-unreadable", [("error", describe(&error))]);
        }
    };
    let ipvs_bypasses_policies = subject.policy.firewall.is_some() && ipvs::virtual_servers() > 0;
    let is_running = !processes_called("kube-proxy").is_empty();
    match (subject.policy.services, found.is_empty()) {
        (false, _) if ipvs_bypasses_policies => {
            Finding::failure(ipvs::BYPASSES_POLICIES, "use kube-proxy's mode nftables or iptables")
                .coded("ipvs-passes-by", [])
        }
        (false, true) => Finding::ok(
            "--services=off, and kube-proxy has no rules here: another program must serve services",
        ),
        (false, false) => Finding::ok(format!("kube-proxy serves services: {found}")),
        (true, true) => Finding::ok("kube-proxy has no rules here"),
        (true, false) if subject.is_before_installation => Finding::warning(
            format!("kube-proxy serves services here: {found}"),
            "conf/MIGRATION.md says how to take over from it",
        ).coded("kube-proxy-serves", [("found", found)]),
        (true, false) if is_running => Finding::failure(
            format!("kube-proxy runs here as well: {found}"),
            "stop it, then run `denizen-agent cleanup --kube-proxy`; or use --services=off",
        ).coded("kube-proxy-runs", [("found", found)]),
        (true, false) => Finding::warning(
            format!("kube-proxy runs here as well, or left its rules: {found}"),
            "if it is stopped, run `denizen-agent cleanup --kube-proxy`, also beside a running agent",
        ).coded("kube-proxy-rules", [("found", found)]),
    }
}

fn policy_engines(subject: &Subject) -> Finding {
    let engine = match other_engine() {
        Ok(None) => return Finding::ok("no other engine enforces NetworkPolicies here"),
        Ok(Some(engine)) => format!("{} ({})", engine.name, engine.found),
        Err(error) => {
            let advice = "run it where iptables is installed, with CAP_NET_RAW";
            let finding = Finding::warning(describe(&error), advice);
            return finding.coded("iptables-unreadable", [("error", describe(&error))]);
        }
    };
    match subject.network_policy {
        NetworkPolicyMode::Auto | NetworkPolicyMode::Off => {
            Finding::ok(format!("{engine} enforces NetworkPolicies, and denizen leaves them to it"))
        }
        NetworkPolicyMode::On => Finding::warning(
            format!(
                "{engine} enforces NetworkPolicies as well: each refuses what the other permits"
            ),
            "remove it, and what it left (conf/MIGRATION-POLICY.md), or use --network-policy=auto",
        )
        .coded("other-policy-engine", [("engine", engine)]),
    }
}

fn forward_chains(subject: &Subject) -> Vec<Finding> {
    if !subject.policy.services {
        return vec![Finding::skipped("--services=off: another program serves services")];
    }
    if subject.policy.node_side.open_forward {
        return vec![Finding::ok("--open-forward opens the FORWARD chains that drop")];
    }
    const ADVICE: &str = "use --open-forward, or accept services' connections in that chain";
    let by_ipvs = subject.backend.is_some_and(|name| name.capabilities().balances_by_ipvs);
    let Findings { errors, warnings } = inspect(by_ipvs);
    let errors = errors.into_iter().map(|error| Finding::failure(error, ADVICE));
    let warnings = warnings.into_iter().map(|warning| Finding::warning(warning, ADVICE));
    let findings: Vec<Finding> = errors.chain(warnings).collect();
    match findings.is_empty() {
        true => vec![Finding::ok("no other program's FORWARD chain drops by default")],
        false => findings,
    }
}

/// Whether the agent can listen.
fn ports(subject: &Subject) -> Vec<Finding> {
    let (found, otherwise) = match &subject.agent {
        Ok(status) => (
            kube_proxys_ports(subject, status),
            Finding::skipped("the running agent listens; its status says where it cannot"),
        ),
        Err(_) => {
            let flags = [
                ("--healthz-bind-address", subject.listen.health),
                ("--metrics-bind-address", subject.listen.metrics),
                ("--probe-bind-address", subject.listen.probe),
            ];
            (
                flags.iter().filter_map(|(flag, at)| taken(flag, (*at)?)).collect(),
                Finding::ok("nobody else listens where the agent will"),
            )
        }
    };
    if found.is_empty() { vec![otherwise] } else { found }
}

/// The addresses at which the running agent cannot listen while kube-proxy, which has the same
/// ports, runs here. Without kube-proxy, the agent's status reports them as failures.
fn kube_proxys_ports(subject: &Subject, status: &Status) -> Vec<Finding> {
    const ADVICE: &str = "kube-proxy has the same ports: the agent listens as soon as it is \
                          stopped. If it is, `ss -ltnp` shows who listens there";
    let Listen { health, metrics, probe: _ } = subject.listen;
    let begins: Vec<String> = [health, metrics].into_iter().flatten().map(cannot_listen).collect();
    let is_listener = |error: &&String| begins.iter().any(|begin| error.starts_with(begin));
    let errors: Vec<&String> = status.errors.iter().filter(is_listener).collect();
    let is_kube_proxy_here = || kube_proxys().is_ok_and(|found| !found.is_empty());
    if errors.is_empty() || not_permitted().is_some() || !is_kube_proxy_here() {
        return Vec::new();
    }
    errors
        .into_iter()
        .map(|error| {
            Finding::warning(error, ADVICE).coded("port-of-kube-proxy", [("error", error.clone())])
        })
        .collect()
}

fn taken(flag: &str, at: SocketAddr) -> Option<Finding> {
    let error = TcpListener::bind(at).err()?;
    Some(
        Finding::warning(
            format!("the agent could not listen at {at}: {error}"),
            format!("stop who listens there (kube-proxy has the same ports), or use {flag}"),
        )
        .coded("port-taken", [("flag", flag.to_owned()), ("error", error.to_string())]),
    )
}
