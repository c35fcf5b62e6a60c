//! The program as nft's text: what `nft list` shows of it, as far as nft reads that back. Pure.
//!
//! Two things are written otherwise than nft lists them. A port is translated only where the
//! protocol is named before (`meta l4proto tcp`), which nft then folds into the key; and `th dport`
//! stays what it is.

use std::fmt;

use serde::Serialize;

use super::element::{Element, KeyText, Value};
use super::message::{TABLE_COMMENT, rule_comment};
use super::name::{SetName, TABLE, TableFamily};
use super::rule::{Action, Budget, Chain, ENDPOINT_BITS, Hook, Match, Rule, SCRATCH, SCRATCH_BITS};
use super::set::{Data, MOST_SLOTS, Part, room};
use super::table::Table;
use crate::model::Family;

/// The rules of all families.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Rendering {
    tables: Vec<TableText>,
}

/// One family's table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct TableText {
    family: String,
    name: &'static str,
    comment: &'static str,
    sets: Vec<SetText>,
    chains: Vec<ChainText>,
}

/// A set or a map, its elements sorted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct SetText {
    kind: &'static str,
    name: &'static str,
    comment: &'static str,
    /// Of what keys and values are.
    declaration: String,
    /// What else it must be told.
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
    /// Where a base chain hangs.
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
    /// Of these tables.
    pub(super) fn of<'a>(tables: impl Iterator<Item = &'a Table>) -> Self {
        Self { tables: tables.map(table).collect() }
    }
}

fn table(table: &Table) -> TableText {
    let table_family = table.table_family;
    let elements = table.elements();
    let sets = SetName::of(table_family).iter().map(|name| {
        let (name, family) = (*name, name.family(table_family));
        let of_set = elements.iter().filter(|element| element.set == name);
        SetText {
            kind: if name.shape().data == Data::None { "set" } else { "map" },
            name: name.as_str(),
            comment: name.why(),
            declaration: declaration(family, name),
            settings: settings(name),
            elements: of_set.map(|element| element_text(family, element)).collect(),
        }
    });
    TableText {
        family: table_family.to_string(),
        name: TABLE,
        comment: TABLE_COMMENT,
        sets: sets.collect(),
        chains: table.chains().iter().map(|chain| chain_text(table_family, chain)).collect(),
    }
}

/// A verdict map's key has a type, since nft 1.0.6 lists no expressions for one.
fn declaration(family: Family, set: SetName) -> String {
    let shape = set.shape();
    let types: Vec<&str> = shape.key.iter().map(|part| part_type(family, *part)).collect();
    let key = key(family, set, MOST_SLOTS);
    match shape.data {
        Data::None => format!("typeof {key}"),
        Data::Verdict => format!("type {} : verdict", types.join(" . ")),
        Data::Endpoint => format!("typeof {key} : {} daddr . th dport", TableFamily::Ip(family)),
        Data::Number => format!("typeof {key} : meta priority"),
    }
}

fn settings(set: SetName) -> Vec<String> {
    let is_ranged = set.shape().is_ranged();
    let ranged = is_ranged.then(|| vec!["flags interval".to_owned()]);
    let dynamic = |room| vec![format!("size {room}"), "flags dynamic,timeout".to_owned()];
    ranged.or_else(|| room(set).map(dynamic)).unwrap_or_default()
}

fn part_type(family: Family, part: Part) -> &'static str {
    match part {
        Part::Source | Part::SourceRange | Part::Destination => match family {
            Family::V4 => "ipv4_addr",
            Family::V6 => "ipv6_addr",
        },
        Part::Protocol => "inet_proto",
        Part::Port => "inet_service",
        Part::Slot => "integer",
        Part::Interface => "ifname",
        Part::Scratch => "classid",
    }
}

/// The values of a packet that are looked up in a set; `slots` to draw among, where a slot is one
/// of them.
fn key(family: Family, set: SetName, slots: u32) -> String {
    let ip = TableFamily::Ip(family);
    let parts = set.shape().key.iter().map(|part| match part {
        Part::Source | Part::SourceRange => format!("{ip} saddr"),
        Part::Destination => format!("{ip} daddr"),
        Part::Protocol => "meta l4proto".to_owned(),
        Part::Port => "th dport".to_owned(),
        Part::Slot => format!("numgen random mod {slots}"),
        Part::Interface => "iifname".to_owned(),
        Part::Scratch => "meta priority".to_owned(),
    });
    parts.collect::<Vec<_>>().join(" . ")
}

/// The same in a rule of this table family.
fn key_of(table_family: TableFamily, set: SetName, slots: u32) -> String {
    key(set.family(table_family), set, slots)
}

fn element_text(family: Family, element: &Element) -> ElementText {
    let Element { set, key, .. } = element;
    ElementText {
        key: KeyText { set: *set, family, key }.to_string(),
        value: match element.value {
            Value::Member => None,
            Value::Goto(chain) => Some(format!("goto {chain}")),
            Value::Number(number) => Some(priority(number)),
            Value::Endpoint(endpoint) => Some(format!("{} . {}", endpoint.ip(), endpoint.port())),
        },
        comment: element.comment.as_deref().map(str::to_owned),
    }
}

fn chain_text(table_family: TableFamily, chain: &Chain) -> ChainText {
    let hook = chain.base_chain.map(|base_chain| {
        let hook = match base_chain.hook {
            Hook::Prerouting => "prerouting",
            Hook::Forward => "forward",
            Hook::Input => "input",
            Hook::Output => "output",
            Hook::Postrouting => "postrouting",
        };
        let (kind, priority) = (base_chain.kind.as_str(), base_chain.priority);
        format!("type {kind} hook {hook} priority {priority}; policy accept;")
    });
    let rules = chain.rules.iter().map(|rule| RuleText {
        rule: rule_text(table_family, rule),
        comment: rule_comment(table_family, rule),
    });
    ChainText {
        name: chain.name.to_string(),
        comment: chain.why.text(),
        hook,
        rules: rules.collect(),
    }
}

fn rule_text(table_family: TableFamily, rule: &Rule) -> String {
    let matches = rule.matches.iter().map(|wanted| match_text(table_family, wanted));
    let actions = rule.actions.iter().map(|action| action_text(table_family, action));
    matches.chain(actions).collect::<Vec<_>>().join(" ")
}

fn match_text(table_family: TableFamily, wanted: &Match) -> String {
    match wanted {
        Match::In(set) => format!("{} @{set}", key_of(table_family, *set, 0)),
        Match::NotIn(set) => format!("{} != @{set}", key_of(table_family, *set, 0)),
        Match::Protocol(protocol) => format!("meta l4proto {protocol}"),
        Match::InputInterface(name) => format!("iifname \"{name}\""),
        Match::InputKind(kind) => format!("meta iifkind \"{kind}\""),
        Match::Carries(family) => format!("meta protocol {}", TableFamily::Ip(*family)),
        Match::InputPrefix(prefix) => format!("iifname \"{prefix}*\""),
        Match::Source(range) => {
            format!("{} saddr {}/{}", table_family, range.network(), range.prefix())
        }
        Match::Destination(range) => {
            format!("{} daddr {}/{}", table_family, range.network(), range.prefix())
        }
        Match::FirstPacket => "ct status & confirmed == 0".to_owned(),
        Match::Translated => "ct status dnat".to_owned(),
        Match::Marked(bit) => format!("meta mark & {bit} == {bit}"),
        Match::Recalled => format!("meta priority & {} != none", priority(ENDPOINT_BITS)),
        Match::Scratched => {
            format!("meta priority & {} == {}", priority(SCRATCH_BITS), priority(SCRATCH))
        }
    }
}

fn action_text(table_family: TableFamily, action: &Action) -> String {
    match *action {
        Action::Return => "return".to_owned(),
        Action::Jump(chain) => format!("jump {chain}"),
        Action::Goto(chain) => format!("goto {chain}"),
        Action::Lookup(map) => format!("{} vmap @{map}", key_of(table_family, map, 0)),
        Action::Translate { endpoints, slots } => {
            let key = key_of(table_family, endpoints, slots);
            format!("dnat {} to {key} map @{endpoints}", table_family)
        }
        Action::TranslateToNumber(endpoints) => {
            format!(
                "dnat {} to {} map @{endpoints}",
                table_family,
                key_of(table_family, endpoints, 0)
            )
        }
        Action::Draw { numbers, slots } => {
            format!("meta priority set {} map @{numbers}", key_of(table_family, numbers, slots))
        }
        Action::KeepServicePort => {
            format!("meta priority set meta priority & {}", priority(!ENDPOINT_BITS))
        }
        Action::Recall(map) => {
            format!("meta priority set {} map @{map}", key_of(table_family, map, 0))
        }
        Action::Remember { map, seconds } => {
            client_text(table_family, "update", map, &format!(" timeout {seconds}s"))
        }
        Action::Spend(budget) => budget_text(budget),
        Action::Forget(map) => client_text(table_family, "delete", map, ""),
        Action::ClearScratch => "meta priority set none".to_owned(),
        Action::Mark(bit) => format!("meta mark set meta mark | {bit}"),
        Action::Unmark(bit) => format!("meta mark set meta mark & {:#010x}", !bit.mask()),
        Action::Admit(bit) => format!("ct mark set ct mark | {bit}"),
        Action::Masquerade => "masquerade fully-random".to_owned(),
        Action::Count => "counter".to_owned(),
        Action::Drop => "drop".to_owned(),
        Action::Reset => "reject with tcp reset".to_owned(),
        Action::Unreachable => "reject".to_owned(),
    }
}

/// Changes the client's entry in a map of clients.
fn client_text(table_family: TableFamily, operation: &str, map: SetName, timeout: &str) -> String {
    let (ip, bits) = (table_family, priority(!ENDPOINT_BITS));
    format!("{operation} @{map} {{ meta priority & {bits} . {ip} saddr{timeout} : meta priority }}")
}

fn budget_text(budget: Budget) -> String {
    let Budget { burst, hourly, seconds } = budget;
    let (set, bits) = (SetName::AffinityBudget, priority(!ENDPOINT_BITS));
    format!(
        "update @{set} {{ meta priority & {bits} timeout {seconds}s limit rate {hourly}/hour burst {burst} packets }}"
    )
}

/// A packet's priority as nft writes it: a traffic class, in two halves.
fn priority(number: u32) -> String {
    format!("{:x}:{:x}", number >> 16, number & 0xffff)
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
