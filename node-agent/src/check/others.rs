//! Other programs that program the same things. Only reads, and listens for an instant where nobody
//! does.

use std::net::{SocketAddr, TcpListener};

use super::kernel::not_permitted;
use super::routing::announcing;
use super::{Check, Finding, Subject, Topic};
use crate::backend::iptables::processes_called;
use crate::config::NetworkPolicyMode;
use crate::describe::describe;
use crate::firewall::other_engine::other_engine;
use crate::forward::{Findings, inspect};
use crate::takeover::{ipvs, kube_proxys};

pub(super) fn checks(subject: &Subject) -> Vec<Check> {
    let only = |topic, finding| vec![Check::new(topic, finding)];
    let asked = |topic, findings: fn(&Subject) -> Vec<Finding>| match not_permitted() {
        Some(finding) => only(topic, finding),
        None => findings(subject).into_iter().map(|finding| Check::new(topic, finding)).collect(),
    };
    [
        asked(Topic::ServiceProxies, |subject| vec![service_proxies(subject)]),
        asked(Topic::PolicyEngines, |subject| vec![policy_engines(subject)]),
        asked(Topic::ForwardChains, forward_chains),
        asked(Topic::Announcing, announcing),
        ports(subject).into_iter().map(|finding| Check::new(Topic::Ports, finding)).collect(),
    ]
    .concat()
}

fn service_proxies(subject: &Subject) -> Finding {
    let found = match kube_proxys() {
        Ok(found) => found.join(", "),
        Err(error) => {
            let advice = "run it where iptables is installed, with CAP_NET_RAW";
            return Finding::warning(describe(&error), advice);
        }
    };
    let is_passed_by = subject.policy.firewall.is_some() && ipvs::virtual_servers() > 0;
    let is_running = !processes_called("kube-proxy").is_empty();
    match (subject.policy.services, found.is_empty()) {
        (false, _) if is_passed_by => {
            Finding::failure(ipvs::PASSES_BY, "use kube-proxy's mode nftables or iptables")
        }
        (false, true) => Finding::ok(
            "--services=off, and kube-proxy has no rules here: another program must serve services",
        ),
        (false, false) => Finding::ok(format!("kube-proxy serves services: {found}")),
        (true, true) => Finding::ok("kube-proxy has no rules here"),
        (true, false) if subject.is_before_installation => Finding::warning(
            format!("kube-proxy serves services here: {found}"),
            "conf/MIGRATION.md says how to take over from it",
        ),
        (true, false) if is_running => Finding::failure(
            format!("kube-proxy runs here as well: {found}"),
            "stop it, then run `denizen-agent cleanup --kube-proxy`; or use --services=off",
        ),
        (true, false) => Finding::warning(
            format!("kube-proxy runs here as well, or left its rules: {found}"),
            "if it is stopped, run `denizen-agent cleanup --kube-proxy`, also beside a running agent",
        ),
    }
}

fn policy_engines(subject: &Subject) -> Finding {
    let engine = match other_engine() {
        Ok(None) => return Finding::ok("no other engine enforces NetworkPolicies here"),
        Ok(Some(engine)) => format!("{} ({})", engine.name, engine.found),
        Err(error) => {
            let advice = "run it where iptables is installed, with CAP_NET_RAW";
            return Finding::warning(describe(&error), advice);
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
        ),
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

/// Whether the agent could listen.
fn ports(subject: &Subject) -> Vec<Finding> {
    if subject.is_agent_running() {
        return vec![Finding::skipped(
            "the running agent listens; its status says where it cannot",
        )];
    }
    let flags = [
        ("--healthz-bind-address", subject.listen.health),
        ("--metrics-bind-address", subject.listen.metrics),
    ];
    let taken = flags.iter().filter_map(|(flag, at)| taken(flag, (*at)?));
    let taken: Vec<Finding> = taken.collect();
    if taken.is_empty() {
        return vec![Finding::ok("nobody else listens where the agent will")];
    }
    taken
}

fn taken(flag: &str, at: SocketAddr) -> Option<Finding> {
    let error = TcpListener::bind(at).err()?;
    Some(Finding::warning(
        format!("the agent could not listen at {at}: {error}"),
        format!("stop who listens there (kube-proxy has the same ports), or use {flag}"),
    ))
}
