//! `DenizenConfiguration`: one field for each flag of `run`, with its name.

use clap::{Arg, Command};

use super::document::{FieldNameKind, FieldPosition, Value, YamlNode};
use super::{Contents, Problem, Setting};
use crate::config::DetectorError;

/// Flags without a field: `config` names this file, others request an action in place of a run, and
/// aliases and the refused `cluster-cidr` need no field.
pub(super) const WITHOUT_FIELD: [&str; 7] =
    ["config", "help", "version", "init-only", "node-cidr", "pod-interface-prefix", "cluster-cidr"];

/// Fields that are not named like their flag: they have kube-proxy's name, or are in a section.
const NAMED_OTHERWISE: [(&str, &str); 19] = [
    ("nodePortAddresses", "nodeport-addresses"),
    ("conntrack.maxPerCore", "conntrack-max-per-core"),
    ("conntrack.min", "conntrack-min"),
    ("conntrack.tcpEstablishedTimeout", "conntrack-tcp-timeout-established"),
    ("conntrack.tcpCloseWaitTimeout", "conntrack-tcp-timeout-close-wait"),
    ("conntrack.tcpBeLiberal", "conntrack-tcp-be-liberal"),
    ("conntrack.udpTimeout", "conntrack-udp-timeout"),
    ("conntrack.udpStreamTimeout", "conntrack-udp-timeout-stream"),
    ("routing.mode", "routing-mode"),
    ("routing.bird", "bird"),
    ("routing.table", "announce-table"),
    ("routing.pods", "announce-pods"),
    ("routing.services", "announce-services"),
    ("routing.ranges", "announce-ranges"),
    ("routing.most", "announce-most"),
    ("routing.mostPods", "announce-most-pods"),
    ("routing.fromExcluded", "announce-from-excluded"),
    ("routing.drainTaints", "drain-taints"),
    ("routing.drainWait", "drain-wait"),
];

/// How a flag's value is written in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FieldType {
    Bool,
    Single,
    /// A list; the flag separates its items with commas.
    List,
    /// A map from names to booleans.
    Gates,
    /// Any value; the flag takes it as JSON.
    Json,
}

impl FieldType {
    /// From the flag's value name.
    pub(super) fn of(arg: &Arg) -> Self {
        let names = arg.get_value_names().unwrap_or_default();
        let name = names.first().map(|name| name.as_str()).unwrap_or_default();
        if name == "BOOL" {
            Self::Bool
        } else if name.ends_with("=BOOL,…") {
            Self::Gates
        } else if name == "JSON" {
            Self::Json
        } else if name.ends_with(",…") && !name.contains('=') {
            Self::List
        } else {
            Self::Single
        }
    }

    /// Converts a flag's text to the field's value: the reverse of [`written`].
    pub(super) fn value(self, text: &str) -> serde_json::Value {
        let items = || text.split(',').filter(|item| !item.is_empty());
        match self {
            Self::Bool => (text == "true").into(),
            Self::Single => text.into(),
            Self::List => items().collect(),
            Self::Gates => {
                let gate = |item: &str| {
                    let (name, value) = item.split_once('=')?;
                    Some((name.to_owned(), value.eq_ignore_ascii_case("true")))
                };
                items().filter_map(gate).collect()
            }
            Self::Json => serde_json::from_str(text).unwrap_or(text.into()),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Bool => "true or false",
            Self::Single => "a single value (in quotes if YAML takes it for another type)",
            Self::List => "a list",
            Self::Gates => "a map of names to true or false",
            Self::Json => "a map of fields",
        }
    }
}

/// The field for a flag; `None` if it has none.
pub(super) fn field_of(flag: &str) -> Option<String> {
    if WITHOUT_FIELD.contains(&flag) {
        return None;
    }
    let named = NAMED_OTHERWISE.iter().find(|(_, of)| *of == flag);
    Some(named.map_or_else(|| in_camel_case(flag), |(field, _)| (*field).to_owned()))
}

fn in_camel_case(flag: &str) -> String {
    let mut words = flag.split('-');
    let mut name = words.next().unwrap_or_default().to_owned();
    for word in words {
        let (first, rest) = word.split_at(word.chars().next().map_or(0, char::len_utf8));
        name.push_str(&first.to_uppercase());
        name.push_str(rest);
    }
    name
}

/// The settings in a `DenizenConfiguration`.
pub(super) fn contents(tree: &YamlNode, run: &Command) -> Contents {
    let flags: Vec<(String, &str)> = run
        .get_arguments()
        .filter_map(|arg| arg.get_long())
        .filter_map(|flag| Some((field_of(flag)?, flag)))
        .collect();
    let is_section = |path: &str| {
        let inside = |(field, _): &(String, &str)| {
            let rest = field.strip_prefix(path);
            rest.is_some_and(|rest| rest.starts_with('.'))
        };
        flags.iter().any(inside)
    };
    let fields = tree.fields(&|path| match path {
        _ if flags.iter().any(|(field, _)| field == path) => FieldNameKind::Field,
        _ if is_section(path) => FieldNameKind::Section,
        _ => FieldNameKind::Unknown,
    });
    let mut contents = Contents { errors: fields.errors, ..Contents::default() };
    contents.errors.extend(fields.unknown.into_iter().map(unknown));
    for (at, value) in fields.known {
        let named = flags.iter().find(|(field, _)| *field == at.field);
        let (_, flag) = named.expect("it is known");
        set(run, flag, at, value, &mut contents);
    }
    contents
}

fn unknown(at: FieldPosition) -> Problem {
    let what = match at.field.as_str() {
        "clusterCIDR" | "clusterCidr" => DetectorError::ClusterCidr.to_string(),
        _ => "there is no such field".to_owned(),
    };
    Problem { at, what }
}

/// Adds the setting for a field's value, or the error.
pub(super) fn set(
    run: &Command,
    flag: &str,
    at: FieldPosition,
    value: &Value,
    contents: &mut Contents,
) {
    let mut args = run.get_arguments();
    let arg = args.find(|arg| arg.get_long() == Some(flag));
    let field_type = FieldType::of(arg.expect("the flags that fields stand for exist"));
    match written(field_type, value) {
        Some(value) => contents.settings.push(Setting { flag: flag.to_owned(), value, at }),
        None => contents.errors.push(Problem {
            at,
            what: format!("it is {}, but must be {}", value.kind(), field_type.name()),
        }),
    }
}

fn written(field_type: FieldType, value: &Value) -> Option<String> {
    let joined = |words: Option<Vec<String>>| words.map(|words| words.join(","));
    match (field_type, value) {
        (FieldType::Bool, Value::Bool(value)) => Some(value.to_string()),
        (FieldType::Single, value) => value.scalar(),
        (FieldType::List, Value::List(items)) => {
            joined(items.iter().map(|item| item.value.scalar()).collect())
        }
        (FieldType::Gates, Value::Map(gates)) => {
            let gate = |(name, node): &(String, YamlNode)| {
                let value = written(FieldType::Bool, &node.value)?;
                Some(format!("{name}={value}"))
            };
            joined(gates.iter().map(gate).collect())
        }
        (FieldType::Json, value) => value.json().map(|json| json.to_string()),
        (FieldType::Bool | FieldType::List | FieldType::Gates, _) => None,
    }
}
