//! The rules as `iptables-restore --noflush` takes them (and the bridge's table as nft does), and
//! the same as data. Pure.

use denizen_model::Family;
use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::name::IpsetName;
use super::pods::Pods;
use super::ruleset::Ruleset;
use denizen_iptables::{Desired, Element, Table};

/// The rules of both families.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct IptablesRendering {
    families: Vec<FamilyText>,
    /// The bridge's table, if the ports of bridges matter.
    #[serde(skip_serializing_if = "Option::is_none")]
    bridge: Option<denizen_nft::Rendering>,
}

/// One family's rules.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct FamilyText {
    /// The program whose `-restore` reads them.
    program: &'static str,
    sets: Vec<SetText>,
    tables: Vec<TableText>,
}

/// A set of local pods.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct SetText {
    name: &'static str,
    elements: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct TableText {
    name: String,
    /// Chains with their rules. Of the kernel's own chains only the jumps to ours, which are put
    /// first there.
    chains: BTreeMap<String, Vec<String>>,
    #[serde(skip)]
    own: Vec<String>,
}

impl IptablesRendering {
    /// From these rules and pods, and the bridge's table.
    pub(super) fn of(
        rules: &[Ruleset],
        pods: &Pods,
        bridge: Option<denizen_nft::Rendering>,
    ) -> Self {
        Self { families: rules.iter().map(|rules| family(rules, pods)).collect(), bridge }
    }
}

fn family(rules: &Ruleset, pods: &Pods) -> FamilyText {
    let mut tables = Table::ALL.map(|table| TableText {
        name: table.to_string(),
        chains: BTreeMap::new(),
        own: Vec::new(),
    });
    for ((table, chain), line) in rules.jumps() {
        tables[table as usize].chains.entry(chain).or_default().push(line);
    }
    rules.for_each(|(table, chain), lines| {
        tables[table as usize].own.push(chain.clone());
        tables[table as usize].chains.insert(chain, lines);
    });
    let sets = IpsetName::ALL.into_iter().rev();
    let sets = sets.filter(|set| set.family() == rules.family());
    let set = |set: IpsetName| SetText {
        name: set.as_str(),
        elements: pods.of(set).iter().map(|(element, pod)| element_text(element, pod)).collect(),
    };
    FamilyText {
        program: match rules.family() {
            Family::V4 => "iptables",
            Family::V6 => "ip6tables",
        },
        sets: sets.map(set).collect(),
        tables: tables.into_iter().filter(|table| !table.chains.is_empty()).collect(),
    }
}

/// As `ipset add` takes it.
fn element_text(Element { address, interface }: &Element, pod: &str) -> String {
    format!("{address},{interface} comment \"{pod}\"")
}

impl fmt::Display for IptablesRendering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(bridge) = &self.bridge {
            writeln!(f, "# nft -f -\n{bridge}")?;
        }
        for family in &self.families {
            writeln!(f, "# {}-restore --noflush", family.program)?;
            let inet = if family.program == "iptables" { "inet" } else { "inet6" };
            for SetText { name, elements } in &family.sets {
                writeln!(f, "# create {name} hash:net,iface family {inet} comment")?;
                elements.iter().try_for_each(|pod| writeln!(f, "# add {name} {pod}"))?;
            }
            family.tables.iter().try_for_each(|table| write!(f, "{table}"))?;
            writeln!(f)?;
        }
        Ok(())
    }
}

impl fmt::Display for TableText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "*{}", self.name)?;
        let is_own = |name: &String| self.own.contains(name);
        let own = self.chains.keys().filter(|name| is_own(name));
        own.clone().try_for_each(|name| writeln!(f, ":{name} - [0:0]"))?;
        for (name, lines) in &self.chains {
            let how = if is_own(name) { "-A" } else { "-I" };
            lines.iter().try_for_each(|line| writeln!(f, "{how} {name} {line}"))?;
        }
        writeln!(f, "COMMIT")
    }
}
