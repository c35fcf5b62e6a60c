//! Tables as nft's text: what `nft list` shows of them, as far as nft reads that back. Pure.
//!
//! Two things differ from nft's listing. A match of the protocol (`meta l4proto tcp`), which nft
//! requires before the translation of a port, stands in the text, where nft folds it into the
//! port's key. And `th dport` stays `th dport`.

use std::fmt;

use serde::Serialize;

use crate::chain::Chain;
use crate::family::TableFamily;
use crate::field::{Field, bit_names, write_value};
use crate::lookup::{FieldPrefix, Lookup};
use crate::rule::Rule;
use crate::set::{DataType, Element, FieldsText, Schema, Set, Value};
use crate::statement::{Assigned, Limit, Operation, Reject, Statement, Update, Verdict};

/// The rules of several tables.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Rendering {
    tables: Vec<TableText>,
}

/// A table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct TableText {
    family: String,
    name: &'static str,
    comment: &'static str,
    sets: Vec<SetText>,
    chains: Vec<ChainText>,
}

/// A set or a map.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct SetText {
    kind: &'static str,
    name: &'static str,
    comment: &'static str,
    /// The types of keys and values.
    declaration: String,
    /// Flags and size.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    settings: Vec<String>,
    elements: Vec<ElementText>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct ElementText {
    key: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    comment: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct ChainText {
    name: String,
    comment: &'static str,
    /// What calls a base chain.
    #[serde(skip_serializing_if = "Option::is_none")]
    hook: Option<String>,
    rules: Vec<RuleText>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct RuleText {
    rule: String,
    comment: String,
}

impl Rendering {
    /// A rendering without tables.
    pub fn empty() -> Self {
        Self { tables: Vec::new() }
    }

    /// With a table: its chains, and its elements in the order given.
    pub fn with(mut self, schema: &Schema, chains: &[Chain], elements: &[Element]) -> Self {
        let sets = schema.sets.iter().map(|set| set_text(set, elements));
        self.tables.push(TableText {
            family: schema.family.to_string(),
            name: schema.name,
            comment: schema.comment,
            sets: sets.collect(),
            chains: chains.iter().map(|chain| chain_text(schema.family, chain)).collect(),
        });
        self
    }
}

fn set_text(set: &Set, elements: &[Element]) -> SetText {
    let of_set = elements.iter().filter(|element| element.set == set.id);
    SetText {
        kind: if set.data == DataType::None { "set" } else { "map" },
        name: set.name,
        comment: set.comment,
        declaration: declaration(set),
        settings: settings(set),
        elements: of_set.map(|element| element_text(set, element)).collect(),
    }
}

/// A verdict map's key has a type, since nft 1.0.6 lists no expressions for one.
fn declaration(set: &Set) -> String {
    let key = fields(&set.key);
    match &set.data {
        DataType::None => format!("typeof {key}"),
        DataType::Verdict => {
            let types: Vec<_> = set.key.iter().map(|field| field.data_type().1).collect();
            format!("type {} : verdict", types.join(" . "))
        }
        DataType::Fields(data) => format!("typeof {key} : {}", fields(data)),
    }
}

fn settings(set: &Set) -> Vec<String> {
    match (set.is_ranged, set.max_dynamic_elements) {
        (true, _) => vec!["flags interval".to_owned()],
        (false, Some(max_elements)) => {
            vec![format!("size {max_elements}"), "flags dynamic,timeout".to_owned()]
        }
        (false, None) => Vec::new(),
    }
}

fn fields(fields: &[Field]) -> String {
    fields.iter().map(Field::to_string).collect::<Vec<_>>().join(" . ")
}

/// A lookup's key.
fn key_of(lookup: &Lookup) -> String {
    let texts = lookup.key.iter().map(|field| {
        match lookup.prefix.filter(|prefix| prefix.field == *field) {
            Some(prefix) => prefix.to_string(),
            None => field.to_string(),
        }
    });
    texts.collect::<Vec<_>>().join(" . ")
}

fn element_text(set: &Set, element: &Element) -> ElementText {
    let value = match (&element.value, &set.data) {
        (Value::Member, _) => None,
        (Value::Goto(chain), _) => Some(format!("goto {chain}")),
        (Value::Data(data), DataType::Fields(fields)) => {
            let text = FieldsText { fields, range: None, bytes: data.as_bytes() };
            Some(text.to_string())
        }
        (Value::Data(data), DataType::None | DataType::Verdict) => Some(format!("{data:?}")),
    };
    ElementText {
        key: set.key_text(&element.key).to_string(),
        value,
        comment: element.comment.as_deref().map(str::to_owned),
    }
}

fn chain_text(family: TableFamily, chain: &Chain) -> ChainText {
    let hook = chain.base.map(|base| {
        let (kind, hook, priority) = (base.kind.as_str(), base.hook.as_str(), base.priority);
        format!("type {kind} hook {hook} priority {priority}; policy accept;")
    });
    let rules = chain
        .rules
        .iter()
        .map(|rule| RuleText { rule: rule_text(rule), comment: rule.comment(family) });
    ChainText { name: chain.name.to_string(), comment: chain.why, hook, rules: rules.collect() }
}

fn rule_text(rule: &Rule) -> String {
    rule.statements.iter().map(Statement::to_string).collect::<Vec<_>>().join(" ")
}

impl fmt::Display for Statement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Equals(field, value) => {
                write!(f, "{field} ")?;
                write_value(*field, f, value.as_bytes())
            }
            Self::NotEquals(field, value) => {
                write!(f, "{field} != ")?;
                write_value(*field, f, value.as_bytes())
            }
            Self::Between(field, first, last) => {
                write!(f, "{field} ")?;
                // nft takes no names as the bounds of a range.
                if let (Field::PacketType, [first, ..], [last, ..]) =
                    (field, first.as_bytes(), last.as_bytes())
                {
                    return write!(f, "{first}-{last}");
                }
                write_value(*field, f, first.as_bytes())?;
                f.write_str("-")?;
                write_value(*field, f, last.as_bytes())
            }
            Self::BeginsWith(field, prefix) => write!(f, "{field} \"{prefix}*\""),
            Self::Within(field, network, prefix) => write!(f, "{field} {network}/{prefix}"),
            Self::Bits { field, mask, equal, value } => {
                f.write_str(&bits_text(*field, *mask, *equal, *value))
            }
            Self::In(lookup) => write!(f, "{} @{}", key_of(lookup), lookup.set),
            Self::NotIn(lookup) => write!(f, "{} != @{}", key_of(lookup), lookup.set),
            Self::Xtables { name, .. } => write!(f, "xt match \"{name}\""),
            Self::Assign(variable, to) => {
                let field = Field::from(*variable);
                write!(f, "{field} set {}", assigned_text(field, to))
            }
            Self::VerdictMap(lookup) => write!(f, "{} vmap @{}", key_of(lookup), lookup.set),
            Self::Dnat(version, lookup) => {
                write!(f, "dnat {} to {lookup}", TableFamily::from(*version).name())
            }
            Self::Update(update) => f.write_str(&update_text(update)),
            Self::Masquerade => f.write_str("masquerade fully-random"),
            Self::Redirect(port) => write!(f, "redirect to :{port}"),
            Self::Counter => f.write_str("counter"),
            Self::Limit(limit) => write!(f, "{limit}"),
            Self::Trace => f.write_str("meta nftrace set 1"),
            Self::Reject(Reject::TcpReset) => f.write_str("reject with tcp reset"),
            Self::Reject(Reject::PortUnreachable) => f.write_str("reject"),
            Self::Verdict(verdict) => write!(f, "{verdict}"),
        }
    }
}

impl fmt::Display for FieldPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} & ", self.field)?;
        write_value(self.field, f, &self.mask())?;
        if self.is_marked() {
            f.write_str(" | ")?;
            write_value(self.field, f, &self.mark())?;
        }
        Ok(())
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "limit rate {}/hour burst {} packets", self.hourly, self.burst)
    }
}

impl fmt::Display for Lookup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} map @{}", key_of(self), self.set)
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Accept => f.write_str("accept"),
            Self::Drop => f.write_str("drop"),
            Self::Return => f.write_str("return"),
            Self::Jump(chain) => write!(f, "jump {chain}"),
            Self::Goto(chain) => write!(f, "goto {chain}"),
        }
    }
}

/// A comparison of bits, by the bits' names if they have names.
fn bits_text(field: Field, mask: u32, equal: bool, value: u32) -> String {
    let operator = if equal { "==" } else { "!=" };
    match bit_names(field, mask) {
        Some(names) if !equal && value == 0 => format!("{field} {names}"),
        Some(names) => format!("{field} & {names} {operator} {value}"),
        None => format!(
            "{field} & {} {operator} {}",
            number_text(field, mask),
            number_text(field, value)
        ),
    }
}

fn assigned_text(field: Field, to: &Assigned) -> String {
    match to {
        Assigned::Zero => number_text(field, 0),
        Assigned::And(bits) => format!("{field} & {}", number_text(field, *bits)),
        Assigned::Or(bits) => format!("{field} | {}", number_text(field, *bits)),
        Assigned::Found(lookup) => lookup.to_string(),
    }
}

/// A number of a field as nft writes it: a priority is a traffic class, in two halves.
fn number_text(field: Field, number: u32) -> String {
    match (field, number) {
        (Field::Priority, 0) => "none".to_owned(),
        (Field::Priority, class) => class_text(class),
        (Field::DestinationPort, port) => port.to_string(),
        (_, number) => format!("{number:#010x}"),
    }
}

fn class_text(class: u32) -> String {
    format!("{:x}:{:x}", class >> 16, class & 0xffff)
}

fn update_text(update: &Update) -> String {
    let key = update.key.iter().map(|(field, bits)| match bits {
        Some(bits) => format!("{field} & {}", number_text(*field, *bits)),
        None => field.to_string(),
    });
    let mut element = key.collect::<Vec<_>>().join(" . ");
    let operation = match update.operation {
        Operation::Update { seconds, limit } => {
            element += &format!(" timeout {seconds}s");
            if let Some(limit) = limit {
                element += &format!(" {limit}");
            }
            "update"
        }
        Operation::Count { seconds, is_renewed } => {
            element += &format!(" timeout {seconds}s counter");
            if is_renewed { "update" } else { "add" }
        }
        Operation::Delete => "delete",
    };
    if let Some(data) = update.data {
        element += &format!(" : {data}");
    }
    format!("{operation} @{} {{ {element} }}", update.set)
}

impl fmt::Display for Rendering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, table) in self.tables.iter().enumerate() {
            if n > 0 {
                writeln!(f)?;
            }
            table.fmt(f)?;
        }
        Ok(())
    }
}

impl fmt::Display for TableText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "table {} {} {{", self.family, self.name)?;
        writeln!(f, "\tcomment \"{}\"", self.comment)?;
        self.sets.iter().try_for_each(|set| set.fmt(f))?;
        self.chains.iter().try_for_each(|chain| chain.fmt(f))?;
        writeln!(f, "}}")
    }
}

impl fmt::Display for SetText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\n\t{} {} {{", self.kind, self.name)?;
        writeln!(f, "\t\t{}", self.declaration)?;
        self.settings.iter().try_for_each(|setting| writeln!(f, "\t\t{setting}"))?;
        writeln!(f, "\t\tcomment \"{}\"", self.comment)?;
        if !self.elements.is_empty() {
            writeln!(f, "\t\telements = {{")?;
            for element in &self.elements {
                writeln!(f, "\t\t\t{element},")?;
            }
            writeln!(f, "\t\t}}")?;
        }
        writeln!(f, "\t}}")
    }
}

impl fmt::Display for ElementText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.key)?;
        if let Some(comment) = &self.comment {
            write!(f, " comment \"{comment}\"")?;
        }
        match &self.value {
            Some(value) => write!(f, " : {value}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for ChainText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\n\tchain {} {{", self.name)?;
        writeln!(f, "\t\tcomment \"{}\"", self.comment)?;
        if let Some(hook) = &self.hook {
            writeln!(f, "\t\t{hook}")?;
        }
        for RuleText { rule, comment } in &self.rules {
            writeln!(f, "\t\t{rule} comment \"{comment}\"")?;
        }
        writeln!(f, "\t}}")
    }
}
