//! Label selectors (`metav1.LabelSelector`).

use std::sync::Arc;

use serde_json::Value;

use super::{fields, list, shown};
use crate::Notes;
use crate::name::{has_plain_ends, is_dns_name};
use denizen_model::{Operator, Requirement, Selector, SortedSet};

/// How much of a selector is understood.
pub(crate) enum DecodedSelector {
    Understood(Selector),
    /// Only these requirements.
    InPart(Selector),
}

impl DecodedSelector {
    /// The selector, if all of it is understood.
    pub(crate) fn understood(self) -> Option<Selector> {
        match self {
            Self::Understood(selector) => Some(selector),
            Self::InPart(_) => None,
        }
    }
}

/// Decodes a selector. `problem` says the consequence of a wrong one.
pub(crate) fn selector(
    notes: &mut Notes<'_>,
    path: &str,
    written: &Value,
    problem: &'static str,
) -> DecodedSelector {
    let known = fields(notes, path, written, ["matchLabels", "matchExpressions"], problem);
    // If the selector has further fields, these two count nevertheless.
    let field = |name| written.get(name).filter(|value: &&Value| !value.is_null());
    let mut whole = known.is_some();
    let mut requirements = Vec::new();
    let labels = field("matchLabels");
    match labels.map(|labels| (labels, labels.as_object())) {
        None => {}
        Some((labels, None)) => {
            notes.warn(format_args!("{path}.matchLabels"), shown(labels), problem);
            whole = false;
        }
        Some((_, Some(labels))) => {
            for (key, value) in labels {
                let requirement = match_label(key, value);
                if requirement.is_none() {
                    let label = format!("{key}={}", shown(value));
                    notes.warn(format_args!("{path}.matchLabels"), super::clipped(&label), problem);
                }
                whole &= requirement.is_some();
                requirements.extend(requirement);
            }
        }
    }
    let expressions = field("matchExpressions");
    match list(expressions) {
        None => {
            let written = expressions.unwrap_or(&Value::Null);
            notes.warn(format_args!("{path}.matchExpressions"), shown(written), problem);
            whole = false;
        }
        Some(expressions) => {
            for (index, written) in expressions.iter().enumerate() {
                let path = format!("{path}.matchExpressions[{index}]");
                let requirement = match_expression(written);
                if requirement.is_none() {
                    notes.warn(path, shown(written), problem);
                }
                whole &= requirement.is_some();
                requirements.extend(requirement);
            }
        }
    }
    let selector = Selector { requirements: requirements.into_iter().collect() };
    if whole { DecodedSelector::Understood(selector) } else { DecodedSelector::InPart(selector) }
}

fn match_label(key: &str, value: &Value) -> Option<Requirement> {
    let value = value.as_str().filter(|value| is_label_value(value))?;
    let operator = Operator::In([value.into()].into());
    is_label_key(key).then(|| Requirement { key: key.into(), operator })
}

fn match_expression(written: &Value) -> Option<Requirement> {
    let known = ["key", "operator", "values"];
    let object = written.as_object()?;
    if object.keys().any(|field| !known.contains(&field.as_str())) {
        return None;
    }
    let key = object.get("key")?.as_str().filter(|key| is_label_key(key))?;
    let values = list(object.get("values").filter(|values| !values.is_null()))?;
    let values: Option<SortedSet<Arc<str>>> = values
        .iter()
        .map(|value| Some(value.as_str().filter(|value| is_label_value(value))?.into()))
        .collect();
    let values = values?;
    // As the API server: these two need values, the others must not have any.
    let operator = match (object.get("operator")?.as_str()?, values.is_empty()) {
        ("In", false) => Operator::In(values),
        ("NotIn", false) => Operator::NotIn(values),
        ("Exists", true) => Operator::Exists,
        ("DoesNotExist", true) => Operator::DoesNotExist,
        (_, _) => return None,
    };
    Some(Requirement { key: key.into(), operator })
}

/// The most characters of a label's value, and of its key without the prefix.
const LONGEST_NAME: usize = 63;

fn is_label_key(key: &str) -> bool {
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    !name.is_empty() && is_label_value(name) && prefix.is_none_or(is_dns_name)
}

fn is_label_value(value: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    value.len() <= LONGEST_NAME && value.bytes().all(inner) && has_plain_ends(value)
}
