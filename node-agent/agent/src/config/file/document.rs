//! A configuration document: its kind, and its fields with their positions.

use std::fmt::{self, Display};

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{Spanned, options};

use super::Problem;

/// The position of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FieldPosition {
    /// Counts from 1; 0 if it is not known.
    line: u64,
    /// The path of names, joined with dots; empty for the whole document.
    pub(super) field: String,
}

impl FieldPosition {
    /// The position of a missing field.
    pub(super) fn of(field: &str) -> Self {
        let field = field.to_owned();
        Self { line: 0, field }
    }
}

impl Display for FieldPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.line, self.field.is_empty()) {
            (0, true) => write!(f, "the document"),
            (0, false) => write!(f, "{}", self.field),
            (line, true) => write!(f, "line {line}"),
            (line, false) => write!(f, "line {line}, {}", self.field),
        }
    }
}

/// A value, and the line that it is on.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct YamlNode {
    line: u64,
    pub(super) value: Value,
}

/// A YAML value.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    Null,
    Bool(bool),
    Integer(i128),
    /// Its original text is lost.
    Float(f64),
    Text(String),
    List(Vec<YamlNode>),
    Map(Vec<(String, YamlNode)>),
}

/// A configuration.
#[derive(Debug, PartialEq)]
pub(super) enum Document {
    /// A `DenizenConfiguration`.
    Denizen(YamlNode),
    /// A `KubeProxyConfiguration`.
    KubeProxy(YamlNode),
}

pub(super) const OWN: (&str, &str) = ("denizen.io/v1alpha1", "DenizenConfiguration");
const KUBE_PROXY: (&str, &str) = ("kubeproxy.config.k8s.io/v1alpha1", "KubeProxyConfiguration");
/// The fields that say which kind of document it is.
const TYPE_FIELDS: [&str; 2] = ["apiVersion", "kind"];

impl Document {
    /// Reads the one document of a file, YAML or JSON.
    pub(super) fn read(text: &str) -> Result<Self, Problem> {
        // `n` is text, as in YAML 1.2, not a boolean.
        let options = options! { strict_booleans: true, with_snippet: false };
        let tree: YamlNode =
            serde_saphyr::from_str_with_options(text, options).map_err(|error| {
                let line = error.location().map_or(0, |location| location.line());
                let text = error.without_snippet().to_string();
                let what = text.lines().next().unwrap_or_default().to_owned();
                let field = String::new();
                Problem { at: FieldPosition { line, field }, what }
            })?;
        let Value::Map(fields) = &tree.value else {
            return Err(tree
                .problem("", format!("it is {}, but must be a map of fields", tree.value.kind())));
        };
        let text = |name| {
            let found = fields.iter().find(|(field, _)| field == name);
            found.map(|(_, node)| node.value.text().unwrap_or_default())
        };
        let kinds = format!("{} of {} or {} of {}", OWN.1, OWN.0, KUBE_PROXY.1, KUBE_PROXY.0);
        match (text("apiVersion"), text("kind")) {
            (Some(version), Some(kind)) if (version, kind) == OWN => Ok(Self::Denizen(tree)),
            (Some(version), Some(kind)) if (version, kind) == KUBE_PROXY => {
                Ok(Self::KubeProxy(tree))
            }
            (_, Some("ConfigMap")) => Err(tree.problem(
                "",
                "it is a ConfigMap: use the content of one of its keys as the file (kubeadm's is \
                 config.conf)",
            )),
            (None, _) | (_, None) => {
                Err(tree
                    .problem("", format!("it has no apiVersion and kind: it must be a {kinds}")))
            }
            (Some(version), Some(kind)) => {
                Err(tree
                    .problem("", format!("it is a {kind:?} of {version:?}, but must be a {kinds}")))
            }
        }
    }
}

/// What a field name is.
pub(super) enum FieldNameKind {
    /// A field with a value.
    Field,
    /// A section with more fields.
    Section,
    /// An unknown name.
    Unknown,
}

/// The fields that have a value, and the unknown ones. An empty section is ignored.
#[derive(Debug, Default)]
pub(super) struct Fields<'a> {
    pub(super) known: Vec<(FieldPosition, &'a Value)>,
    pub(super) unknown: Vec<FieldPosition>,
    /// Values where a section must be.
    pub(super) errors: Vec<Problem>,
}

impl YamlNode {
    pub(super) fn problem(&self, field: &str, what: impl Into<String>) -> Problem {
        Problem { at: self.place(field.to_owned()), what: what.into() }
    }

    fn place(&self, field: String) -> FieldPosition {
        FieldPosition { line: self.line, field }
    }

    /// All its fields except `apiVersion` and `kind`. A null field is not set.
    pub(super) fn fields(&self, known: &impl Fn(&str) -> FieldNameKind) -> Fields<'_> {
        let mut fields = Fields::default();
        if let Value::Map(top) = &self.value {
            let rest = top.iter().filter(|(name, _)| !TYPE_FIELDS.contains(&name.as_str()));
            rest.for_each(|(name, node)| node.collect(name.clone(), known, &mut fields));
        }
        fields
    }

    fn collect<'a>(
        &'a self,
        path: String,
        known: &impl Fn(&str) -> FieldNameKind,
        fields: &mut Fields<'a>,
    ) {
        match (known(&path), &self.value) {
            (FieldNameKind::Unknown, _) => fields.unknown.push(self.place(path)),
            (_, Value::Null) => {}
            (FieldNameKind::Field, value) => fields.known.push((self.place(path), value)),
            (FieldNameKind::Section, Value::Map(inner)) => {
                for (name, node) in inner {
                    node.collect(format!("{path}.{name}"), known, fields);
                }
            }
            (FieldNameKind::Section, other) => {
                let what = format!("it is {}, but must be a map of fields", other.kind());
                fields.errors.push(self.problem(&path, what));
            }
        }
    }
}

impl Value {
    /// The type in words.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Null => "nothing",
            Self::Bool(_) => "true or false",
            Self::Integer(_) => "a number",
            Self::Float(_) => "a fraction",
            Self::Text(_) => "text",
            Self::List(_) => "a list",
            Self::Map(_) => "a map",
        }
    }

    fn text(&self) -> Option<&str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }

    /// The value as JSON; `None` if it has a float, whose text is lost, or an integer that needs
    /// more than 64 bits.
    pub(super) fn json(&self) -> Option<serde_json::Value> {
        Some(match self {
            Self::Null => serde_json::Value::Null,
            Self::Bool(value) => (*value).into(),
            Self::Integer(value) => i64::try_from(*value).ok()?.into(),
            Self::Float(_) => return None,
            Self::Text(text) => text.as_str().into(),
            Self::List(items) => {
                items.iter().map(|item| item.value.json()).collect::<Option<Vec<_>>>()?.into()
            }
            Self::Map(fields) => fields
                .iter()
                .map(|(name, node)| Some((name.clone(), node.value.json()?)))
                .collect::<Option<serde_json::Map<_, _>>>()?
                .into(),
        })
    }

    /// A single value as text for a flag.
    pub(super) fn scalar(&self) -> Option<String> {
        match self {
            Self::Integer(value) => Some(value.to_string()),
            Self::Text(text) => Some(text.clone()),
            Self::Null | Self::Bool(_) | Self::Float(_) | Self::List(_) | Self::Map(_) => None,
        }
    }
}

impl<'de> Deserialize<'de> for YamlNode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<Value>::deserialize(deserializer)?;
        Ok(Self { line: spanned.defined.line(), value: spanned.value })
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Integer(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Integer(value.into()))
    }

    fn visit_i128<E>(self, value: i128) -> Result<Value, E> {
        Ok(Value::Integer(value))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::Float(value))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(Value::Text(text.to_owned()))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Value::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let mut map = Vec::new();
        while let Some(field) = fields.next_entry()? {
            map.push(field);
        }
        Ok(Value::Map(map))
    }
}
