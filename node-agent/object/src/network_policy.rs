//! NetworkPolicy (`networking.k8s.io/v1`).
//!
//! The API server rejects the mistakes that are named here. But a manifest passes through no
//! server, an older server knew fewer rules, and a newer one may have fields that this version does
//! not know. What is not understood permits nothing. Each part is decoded by itself, so that a
//! wrong part affects no more than it must. Unknown fields count as wrong, since ignoring one
//! widens what the rest says.

mod peer;
mod port;
mod protobuf;
pub(super) mod selector;
#[cfg(test)]
mod tests;

use serde::Deserialize;
use serde_json::Value;

use self::selector::DecodedSelector;
use super::{Decoder, Notes, ObjectError, ObjectKind, Warning, namespace_or_default};
use crate::protobuf::{Field, FromProtobuf, ProtobufError};
use denizen_model::{self, Namespaces, Peers, PolicyName, PolicyPeer, PolicyRule, Ports, Selector};

/// A NetworkPolicy, reduced to the fields that are used.
#[derive(Debug, Default, Deserialize)]
pub struct NetworkPolicyObject {
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
    namespace: Option<String>,
}

impl<'a> FromProtobuf<'a> for NetworkPolicyObject {
    fn take(&mut self, field: &Field<'a>) -> Result<(), ProtobufError> {
        match field.number {
            1 => self.metadata.merge(field.bytes()?)?,
            2 if self.spec.is_null() => self.spec = protobuf::spec(field),
            2 => self.spec = "there are two".into(),
            _ => {}
        }
        Ok(())
    }
}

impl<'a> FromProtobuf<'a> for PolicyMetadata {
    fn take(&mut self, field: &Field<'a>) -> Result<(), ProtobufError> {
        match field.number {
            1 => self.name = field.text()?.to_string(),
            3 => self.namespace = Some(field.text()?.to_string()),
            _ => {}
        }
        Ok(())
    }
}

const NOT_A_SPEC: &str =
    "not understood: the policy isolates the pods that it selects, and permits nothing";
const NOT_A_SELECTOR: &str =
    "not understood: the policy isolates also pods without it, and permits nothing";
const NOT_A_TYPE: &str = "not a policy type: the policy isolates for both directions";
const NOT_RULES: &str = "not a list of rules: it permits nothing";
const NOT_A_RULE: &str = "not understood: the rule is left out";

/// The policy in the model's terms.
pub fn network_policy(
    raw: &NetworkPolicyObject,
    decoder: &mut Decoder,
    warnings: &mut Vec<Warning>,
) -> Result<denizen_model::NetworkPolicy, ObjectError> {
    let before = warnings.len();
    let mut policy = decoded(raw, warnings)?;
    share(&mut policy, decoder);
    Ok(denizen_model::NetworkPolicy { is_understood: warnings.len() == before, ..policy })
}

/// Replaces what policies have in common by the decoder's shared copies, and frees the spare
/// capacity of vectors: a cluster has 10,000 policies, of which a node uses a few.
fn share(policy: &mut denizen_model::NetworkPolicy, decoder: &mut Decoder) {
    decoder.share_selector(&mut policy.pods);
    for rule in policy.ingress.iter_mut().chain(&mut policy.egress).flatten() {
        if let Peers::These(peers) = &mut rule.peers {
            peers.shrink_to_fit();
            for peer in peers {
                let PolicyPeer::Pods { namespaces, pods } = peer else { continue };
                decoder.share_selector(pods);
                if let Namespaces::Selected(namespaces) = namespaces {
                    decoder.share_selector(namespaces);
                }
            }
        }
        if let Ports::These(ports) = &mut rule.ports {
            ports.shrink_to_fit();
        }
    }
}

fn decoded(
    raw: &NetworkPolicyObject,
    warnings: &mut Vec<Warning>,
) -> Result<denizen_model::NetworkPolicy, ObjectError> {
    let PolicyMetadata { name, namespace } = &raw.metadata;
    let namespace = namespace_or_default(namespace.as_deref());
    let mut notes = Notes::named(ObjectKind::NetworkPolicy, namespace, name, warnings)?;
    let name = PolicyName { namespace: namespace.into(), name: name.as_str().into() };
    let empty = Value::Object(serde_json::Map::new());
    let spec = if raw.spec.is_null() { &empty } else { &raw.spec };
    let (pods, is_understood) = own_selector(spec, &mut notes);
    let known = ["podSelector", "policyTypes", "ingress", "egress"];
    let fields = fields(&mut notes, "spec", spec, known, NOT_A_SPEC);
    let Some([_, types, ingress, egress]) = fields.filter(|_| is_understood) else {
        let types = fields.map(|[_, types, _, egress]| (types, egress));
        let directions = types.map_or(PolicyEffects::BOTH, |(types, egress)| {
            PolicyEffects::new(types, egress, &mut notes)
        });
        let nothing = |direction| (direction != PolicyEffect::Open).then(Vec::new);
        let (ingress, egress) = (nothing(directions.ingress), nothing(directions.egress));
        let is_understood = false;
        return Ok(denizen_model::NetworkPolicy { name, pods, ingress, egress, is_understood });
    };
    let directions = PolicyEffects::new(types, egress, &mut notes);
    let mut rules = |direction, section, peers, written| match direction {
        PolicyEffect::Open => None,
        PolicyEffect::Isolated => Some(Vec::new()),
        PolicyEffect::Ruled => Some(rules(section, peers, written, &mut notes)),
    };
    Ok(denizen_model::NetworkPolicy {
        name,
        pods,
        ingress: rules(directions.ingress, "spec.ingress", "from", ingress),
        egress: rules(directions.egress, "spec.egress", "to", egress),
        is_understood: true,
    })
}

/// The pods that the policy selects, and whether its selector is understood. If not, only the
/// requirements that are understood count, so that it selects more pods rather than fewer.
fn own_selector(spec: &Value, notes: &mut Notes<'_>) -> (Selector, bool) {
    match spec.get("podSelector").filter(|selector| !selector.is_null()) {
        None => (Selector::default(), true),
        Some(selector) => {
            match selector::selector(notes, "spec.podSelector", selector, NOT_A_SELECTOR) {
                DecodedSelector::Understood(selector) => (selector, true),
                DecodedSelector::InPart(selector) => (selector, false),
            }
        }
    }
}

/// What a policy does about one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PolicyEffect {
    /// The direction stays open.
    Open,
    /// The policy isolates its pods, and permits nothing.
    Isolated,
    /// The policy isolates its pods, and its rules permit connections.
    Ruled,
}

/// `policyTypes`.
#[derive(Debug, Clone, Copy)]
struct PolicyEffects {
    ingress: PolicyEffect,
    egress: PolicyEffect,
}

impl PolicyEffects {
    const BOTH: Self = Self { ingress: PolicyEffect::Isolated, egress: PolicyEffect::Isolated };

    /// `egress`: the section of this name, on which the default depends.
    fn new(types: Option<&Value>, egress: Option<&Value>, notes: &mut Notes<'_>) -> Self {
        let Some(types) = list(types) else {
            notes.warn("spec.policyTypes", shown(types.unwrap_or(&Value::Null)), NOT_A_TYPE);
            return Self::BOTH;
        };
        if types.is_empty() {
            // The API server's default. An `egress` that is not a list counts too: it was meant to
            // be one.
            let has_egress = list(egress).is_none_or(|rules| !rules.is_empty());
            let egress = if has_egress { PolicyEffect::Ruled } else { PolicyEffect::Open };
            return Self { ingress: PolicyEffect::Ruled, egress };
        }
        let mut named = Self { ingress: PolicyEffect::Open, egress: PolicyEffect::Open };
        let mut rest = PolicyEffect::Open;
        for (index, kind) in types.iter().enumerate() {
            match kind.as_str() {
                Some("Ingress") => named.ingress = PolicyEffect::Ruled,
                Some("Egress") => named.egress = PolicyEffect::Ruled,
                Some(_) | None => {
                    rest = PolicyEffect::Isolated;
                    notes.warn(format_args!("spec.policyTypes[{index}]"), shown(kind), NOT_A_TYPE);
                }
            }
        }
        let or_rest = |direction| if direction == PolicyEffect::Open { rest } else { direction };
        Self { ingress: or_rest(named.ingress), egress: or_rest(named.egress) }
    }
}

/// The rules of one section. `peers`: the field of a rule that has its peers.
fn rules(
    section: &str,
    peers: &str,
    written: Option<&Value>,
    notes: &mut Notes<'_>,
) -> Vec<PolicyRule> {
    let Some(rules) = list(written) else {
        notes.warn(section, shown(written.unwrap_or(&Value::Null)), NOT_RULES);
        return Vec::new();
    };
    let mut read = Vec::with_capacity(rules.len());
    for (index, rule) in rules.iter().enumerate() {
        read.extend(self::rule(format!("{section}[{index}]"), index, peers, rule, notes));
    }
    read
}

fn rule(
    path: String,
    index: usize,
    peers: &str,
    written: &Value,
    notes: &mut Notes<'_>,
) -> Option<PolicyRule> {
    let [these, ports] = fields(notes, &path, written, [peers, "ports"], NOT_A_RULE)?;
    let (Some(these), Some(ports)) = (list(these), list(ports)) else {
        notes.warn(path, shown(written), NOT_A_RULE);
        return None;
    };
    let each = |list: &str, index: usize| format!("{path}.{list}[{index}]");
    Some(PolicyRule {
        index,
        peers: match these {
            [] => Peers::All,
            these => {
                let peer = |(at, peer)| peer::peer(&each(peers, at), peer, notes);
                Peers::These(these.iter().enumerate().filter_map(peer).collect())
            }
        },
        ports: match ports {
            [] => Ports::All,
            ports => {
                let port = |(at, port)| port::port(&each("ports", at), port, notes);
                Ports::These(ports.iter().enumerate().filter_map(port).collect())
            }
        },
    })
}

/// The values of the fields `known` of an object; `null` is as good as missing. `None` if `value`
/// is no object or has other fields: `problem` is the consequence, for the warning.
pub(super) fn fields<'v, const N: usize>(
    notes: &mut Notes<'_>,
    path: &str,
    value: &'v Value,
    known: [&str; N],
    problem: &'static str,
) -> Option<[Option<&'v Value>; N]> {
    let Some(object) = value.as_object() else {
        notes.warn(path, shown(value), problem);
        return None;
    };
    if let Some((key, value)) = object.iter().find(|(key, _)| !known.contains(&key.as_str())) {
        notes.warn(format_args!("{path}.{}", clipped(key)), shown(value), problem);
        return None;
    }
    Some(known.map(|key| object.get(key).filter(|value| !value.is_null())))
}

/// The elements of a list, none if it is missing; `None` if it is no list.
pub(super) fn list(value: Option<&Value>) -> Option<&[Value]> {
    match value {
        None => Some(&[]),
        Some(value) => value.as_array().map(Vec::as_slice),
    }
}

/// A value for a person: its beginning.
pub(super) fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => clipped(text),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            clipped(&value.to_string())
        }
    }
}

pub(super) fn clipped(text: &str) -> String {
    const LONGEST: usize = 100;
    let end = text.floor_char_boundary(LONGEST);
    let more = if end < text.len() { "…" } else { "" };
    format!("{}{more}", &text[..end])
}
