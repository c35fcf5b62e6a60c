//! ClusterNetworkPolicy (`policy.networking.k8s.io`, v1alpha2 and versions with the same fields).
//!
//! What is not understood fails closed, as the API demands: a rule that accepts matches nothing,
//! and a rule that denies or passes denies everything. Unknown fields count as not understood,
//! since ignoring one widens what the rest says. If the tier, priority or subject is not
//! understood, nobody knows whom the policy denies what: the policy is skipped, and named.

mod peer;
mod port;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

use super::network_policy::selector::selector;
use super::network_policy::{fields, list, shown};
use super::{Notes, ObjectError, ObjectKind, Warning};
use denizen_model::{
    self, Action, Selector, Tier, TierPeer, TierPeers, TierPort, TierPorts, TierRule,
};

/// A ClusterNetworkPolicy, reduced to the fields that are used.
#[derive(Debug, Deserialize)]
pub struct ClusterNetworkPolicy {
    #[serde(default)]
    metadata: PolicyMetadata,
    /// Not decoded yet.
    #[serde(default)]
    spec: Value,
}

#[derive(Debug, Default, Deserialize)]
struct PolicyMetadata {
    #[serde(default)]
    name: String,
}

const LARGEST_PRIORITY: u64 = 1000;

const NOT_A_SPEC: &str = "not understood: the rules of the policy that accept are left out";
const SKIPPED: &str = "not understood: the policy is not enforced at all";
const NOT_A_RULE: &str =
    "not understood: the rule matches nothing if it accepts, and denies everything otherwise";
const NOT_AN_ACTION: &str = "neither Accept, Deny nor Pass: the rule denies everything";
const NOT_RULES: &str = "not a list of rules: everything is denied";
const NO_PEERS: &str =
    "no list of peers: the rule matches nothing if it accepts, and denies everything otherwise";
const NO_PORTS: &str =
    "an empty list: the rule matches nothing if it accepts, and denies everything otherwise";
const NAME_WITHOUT_POD: &str = "neither networks nor nodes have named ports: the rule matches \
                                nothing if it accepts, and denies everything otherwise";

/// The policy's name, and the policy in the model's terms; `None` in its place if it is skipped.
pub fn cluster_network_policy(
    raw: &ClusterNetworkPolicy,
    warnings: &mut Vec<Warning>,
) -> Result<(Arc<str>, Option<denizen_model::ClusterNetworkPolicy>), ObjectError> {
    let before = warnings.len();
    let name = &raw.metadata.name;
    let mut notes = Notes::named(ObjectKind::ClusterNetworkPolicy, "", name, warnings)?;
    let name: Arc<str> = name.as_str().into();
    let decoded = decoded(name.clone(), &raw.spec, &mut notes);
    let is_understood = warnings.len() == before;
    let policy =
        decoded.map(|policy| denizen_model::ClusterNetworkPolicy { is_understood, ..policy });
    Ok((name, policy))
}

fn decoded(
    name: Arc<str>,
    spec: &Value,
    notes: &mut Notes<'_>,
) -> Option<denizen_model::ClusterNetworkPolicy> {
    let known = ["tier", "priority", "subject", "ingress", "egress"];
    let is_whole = fields(notes, "spec", spec, known, NOT_A_SPEC).is_some();
    let field = |name: &str| spec.get(name).filter(|value| !value.is_null());
    let shown_or_null = |value: Option<&Value>| shown(value.unwrap_or(&Value::Null));
    let tier = match field("tier").and_then(Value::as_str) {
        Some("Admin") => Some(Tier::Admin),
        Some("Baseline") => Some(Tier::Baseline),
        Some(_) | None => {
            notes.warn("spec.tier", shown_or_null(field("tier")), SKIPPED);
            None
        }
    };
    let priority = field("priority").and_then(Value::as_u64);
    let priority = priority.filter(|number| *number <= LARGEST_PRIORITY);
    let priority = priority.and_then(|number| number.try_into().ok());
    if priority.is_none() {
        notes.warn("spec.priority", shown_or_null(field("priority")), SKIPPED);
    }
    let subject = subject(field("subject").unwrap_or(&Value::Null), notes);
    let mut rules = |section: &str, peers: &str| {
        let rules = rules(section, peers, field(section), notes).into_iter();
        let counts = |rule: &TierRule| is_whole || rule.action != Action::Accept;
        rules.filter(counts).collect::<Vec<_>>()
    };
    let (ingress, egress) = (rules("ingress", "from"), rules("egress", "to"));
    let (namespaces, pods) = subject?;
    let (tier, priority) = (tier?, priority?);
    let is_understood = is_whole;
    Some(denizen_model::ClusterNetworkPolicy {
        name,
        tier,
        priority,
        namespaces,
        pods,
        ingress,
        egress,
        is_understood,
    })
}

/// The namespaces and the pods that the policy is about.
fn subject(written: &Value, notes: &mut Notes<'_>) -> Option<(Selector, Selector)> {
    let path = "spec.subject";
    match fields(notes, path, written, ["namespaces", "pods"], SKIPPED)? {
        [Some(namespaces), None] => {
            let path = "spec.subject.namespaces";
            let namespaces = selector(notes, path, namespaces, SKIPPED).understood()?;
            Some((namespaces, Selector::default()))
        }
        [None, Some(pods)] => namespaced_pods(notes, "spec.subject.pods", pods, SKIPPED),
        [None, None] | [Some(_), Some(_)] => {
            notes.warn(path, shown(written), SKIPPED);
            None
        }
    }
}

/// `NamespacedPod`: selectors of namespaces, and of pods in them.
fn namespaced_pods(
    notes: &mut Notes<'_>,
    path: &str,
    written: &Value,
    problem: &'static str,
) -> Option<(Selector, Selector)> {
    let known = ["namespaceSelector", "podSelector"];
    let [namespaces, pods] = fields(notes, path, written, known, problem)?;
    let namespaces = match namespaces {
        None => Selector::default(),
        Some(written) => {
            let path = format!("{path}.namespaceSelector");
            selector(notes, &path, written, problem).understood()?
        }
    };
    let Some(pods) = pods else {
        notes.warn(format_args!("{path}.podSelector"), shown(&Value::Null), problem);
        return None;
    };
    let pods = selector(notes, &format!("{path}.podSelector"), pods, problem).understood()?;
    Some((namespaces, pods))
}

/// The rules of one section, whose peers are in the field `peers`.
fn rules(
    section: &str,
    peers: &str,
    written: Option<&Value>,
    notes: &mut Notes<'_>,
) -> Vec<TierRule> {
    let section = format!("spec.{section}");
    let Some(rules) = list(written) else {
        notes.warn(section, shown(written.unwrap_or(&Value::Null)), NOT_RULES);
        return vec![deny_all(0, "".into())];
    };
    let all = rules.iter().enumerate();
    all.filter_map(|(index, value)| rule(format!("{section}[{index}]"), index, peers, value, notes))
        .collect()
}

fn deny_all(index: usize, name: Arc<str>) -> TierRule {
    let (action, peers, ports) = (Action::Deny, TierPeers::All, TierPorts::All);
    TierRule { index, name, action, peers, ports }
}

/// One rule; `None` if it matches nothing.
fn rule(
    path: String,
    index: usize,
    peers: &str,
    written: &Value,
    notes: &mut Notes<'_>,
) -> Option<TierRule> {
    let name: Arc<str> = written.get("name").and_then(Value::as_str).unwrap_or_default().into();
    let action = written.get("action").unwrap_or(&Value::Null);
    let action = match action.as_str() {
        Some("Accept") => Action::Accept,
        Some("Deny") => Action::Deny,
        Some("Pass") => Action::Pass,
        Some(_) | None => {
            notes.warn(format_args!("{path}.action"), shown(action), NOT_AN_ACTION);
            return Some(deny_all(index, name));
        }
    };
    match understood(&path, peers, written, notes) {
        Some((peers, ports)) => Some(TierRule { index, name, action, peers, ports }),
        None => match action {
            Action::Accept => None,
            Action::Deny | Action::Pass => Some(deny_all(index, name)),
        },
    }
}

/// The peers and the ports of a rule, if all of it is understood; warns of every part that is not.
fn understood(
    path: &str,
    peers: &str,
    written: &Value,
    notes: &mut Notes<'_>,
) -> Option<(TierPeers, TierPorts)> {
    let known = ["name", "action", peers, "protocols"];
    let [_, _, these, ports] = fields(notes, path, written, known, NOT_A_RULE)?;
    let Some(these) = list(these).filter(|these| !these.is_empty()) else {
        let shown = shown(these.unwrap_or(&Value::Null));
        notes.warn(format_args!("{path}.{peers}"), shown, NO_PEERS);
        return None;
    };
    let (mut read, mut is_whole) = (Vec::with_capacity(these.len()), true);
    for (at, peer) in these.iter().enumerate() {
        match peer::peers(&format!("{path}.{peers}[{at}]"), peers == "to", peer, notes) {
            Some(peers) => read.extend(peers),
            None => is_whole = false,
        }
    }
    let ports = match ports {
        None => Some(TierPorts::All),
        Some(ports) => self::ports(path, ports, notes),
    };
    let ports = ports?;
    let by_name = |port: &TierPort| matches!(port, TierPort::Named(_));
    let has_names = matches!(&ports, TierPorts::These(ports) if ports.iter().any(by_name));
    let is_pod = |peer: &TierPeer| matches!(peer, TierPeer::Pods { .. });
    if has_names && !read.iter().all(is_pod) {
        notes.warn(path, shown(written), NAME_WITHOUT_POD);
        return None;
    }
    is_whole.then_some((TierPeers::These(read), ports))
}

fn ports(path: &str, written: &Value, notes: &mut Notes<'_>) -> Option<TierPorts> {
    let Some(ports) = list(Some(written)).filter(|ports| !ports.is_empty()) else {
        notes.warn(format_args!("{path}.protocols"), shown(written), NO_PORTS);
        return None;
    };
    let (mut read, mut is_whole) = (Vec::with_capacity(ports.len()), true);
    for (at, port) in ports.iter().enumerate() {
        match port::port(&format!("{path}.protocols[{at}]"), port, notes) {
            Some(port) => read.push(port),
            None => is_whole = false,
        }
    }
    is_whole.then_some(TierPorts::These(read))
}
