//! nft itself as the oracle: what it makes of the program's text is what the agent makes by
//! netlink; what it lists is what it reads back; and whatever it spoils is repaired.
//!
//! The features are those of the golden files of `render`.

mod feature;
mod firewall;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use denizen_tests::agent::Agent;
use denizen_tests::eventually::eventually;
use denizen_tests::kernel::ruleset;
use denizen_tests::node::netns::Netns;
use serde_json::Value;

use self::feature::{Feature, features};

/// Where denizen may have a table. Nobody else has one in these namespaces.
const FAMILIES: [&str; 3] = ["bridge", "ip", "ip6"];

/// A repair that has not come by then never will.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A family's table as nft tells it in JSON, without what differs from time to time.
fn table_of(at: &Netns, family: &str) -> Result<BTreeSet<String>> {
    let text = at.output("nft", &["-j", "list", "ruleset", family])?;
    let all: Value = serde_json::from_str(&text).with_context(|| format!("nft -j:\n{text}"))?;
    let objects = all["nftables"].as_array().context("nftables")?;
    // The first is about nft itself.
    let objects = objects[1..].iter().cloned();
    Ok(objects.map(|object| settled(object).to_string()).collect())
}

fn settled(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let passing = ["handle", "packets", "bytes"];
            let lasting = fields.into_iter().filter(|(name, _)| !passing.contains(&&**name));
            let settled = lasting.map(|(name, value)| {
                let value = settled_elements(&name, settled(value));
                (name, value)
            });
            settled.collect()
        }
        Value::Array(items) => items.into_iter().map(settled).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value,
    }
}

/// A set's elements have no order.
fn settled_elements(name: &str, mut value: Value) -> Value {
    if let (true, Some(items)) = (name == "elem", value.as_array_mut()) {
        items.sort_by_key(Value::to_string);
    }
    value
}

/// Each chain's rules in order, by table and chain: a set of objects would hide it.
fn rules_in_order(at: &Netns, family: &str) -> Result<BTreeMap<(String, String), Vec<String>>> {
    let mut chains = BTreeMap::new();
    let tables = ruleset::tables(at)?.into_iter();
    let prefix = format!("table {family} ");
    for table in tables.filter_map(|table| Some(table.strip_prefix(&prefix)?.to_owned())) {
        let text = at.output("nft", &["list", "table", family, &table])?;
        for block in text.split("\n\n") {
            let Some(block) = block.trim_start().strip_prefix("chain ") else { continue };
            let (name, rules) = block.split_once(" {").context("a chain")?;
            // The last one's block ends the table too.
            let rules = rules.lines().map(str::trim).filter(|line| *line != "}");
            let rules: Vec<String> = rules.map(str::to_owned).collect();
            chains.insert((table.clone(), name.to_owned()), rules);
        }
    }
    Ok(chains)
}

/// What nft's JSON tells of the pod firewall's tables is taken out: without a policy they are empty
/// sets for the plugin and for what may come, which `render` does not show.
fn without_idle_firewall(at: &Netns) -> Result<()> {
    for family in FAMILIES {
        for object in table_of(at, family)? {
            let object: Value = serde_json::from_str(&object)?;
            let (kind, content) =
                object.as_object().and_then(|fields| fields.iter().next()).context("one")?;
            let table = if kind == "table" { &content["name"] } else { &content["table"] };
            if table != "denizen-firewall" {
                continue;
            }
            let is_idle = match &**kind {
                "table" => true,
                "set" | "map" => content.get("elem").is_none(),
                _ => false,
            };
            ensure!(is_idle, "{family}: {object}");
        }
        at.nft(&format!("delete table {family} denizen-firewall"))?;
    }
    Ok(())
}

/// The links of the recorded pods: the agent removes the record of a link that is gone, and follows
/// one that moved.
fn add_links(at: &Netns) -> Result<()> {
    for link in [
        "cni0 type bridge",
        "veth1 index 12 address 02:00:00:00:00:01 type veth peer name peer1",
        "a-long-name-123 index 13 address 02:00:00:00:00:02 type bridge",
    ] {
        at.ip(&format!("link add {link}"))?;
    }
    at.ip("link set veth1 master cni0")
}

#[test]
fn text_makes_what_netlink_makes() -> Result<()> {
    for feature in features()? {
        let (by_agent, by_nft) = (Netns::new("agent")?, Netns::new("nft")?);
        add_links(&by_agent)?;
        let agent = feature.start(&by_agent)?;
        let rendered = feature.rendered()?;
        // It would repair what is taken away.
        agent.terminate()?;
        if !rendered.contains("table ip denizen-firewall") {
            without_idle_firewall(&by_agent).with_context(|| feature.name.clone())?;
        }
        by_nft.nft(&rendered).with_context(|| feature.name.clone())?;
        if rendered.contains("table bridge denizen-firewall") {
            // Without a kernel nobody knows the bridges' addresses and the node's own veths.
            for set in ["taken-macs", "node-veths"] {
                by_agent.nft(&format!("flush set bridge denizen-firewall {set}"))?;
                by_nft.nft(&format!("flush set bridge denizen-firewall {set}"))?;
            }
        }
        have_the_same(&by_agent, &by_nft).with_context(|| feature.name.clone())?;
    }
    Ok(())
}

/// Whether nft lists the same tables in both.
fn have_the_same(one: &Netns, other: &Netns) -> Result<()> {
    for family in FAMILIES {
        let (tables, others) = (table_of(one, family)?, table_of(other, family)?);
        let differ: Vec<_> = tables.symmetric_difference(&others).collect();
        ensure!(differ.is_empty(), "{family}: {differ:#?}");
        let (rules, others) = (rules_in_order(one, family)?, rules_in_order(other, family)?);
        ensure!(rules == others, "{family}: {rules:#?}\nand\n{others:#?}");
    }
    Ok(())
}

#[test]
fn what_nft_lists_it_reads_back() -> Result<()> {
    for feature in features()? {
        let at = Netns::new("list")?;
        drop(feature.start(&at)?);
        is_read_back(&at).with_context(|| feature.name.clone())?;
    }
    Ok(())
}

/// Whether nft reads back what it lists, and it is the same then.
fn is_read_back(at: &Netns) -> Result<()> {
    let listed = at.output("nft", &["list", "ruleset"])?;
    // The target of an ICMPv6 message has no name in nft before 1.0.9, which reads this back.
    let named = listed.replace("@th,64,128", "");
    for nonsense in ["@nh,", "@th,", "@ih,", "unknown", "(null)", "[invalid", "expression"] {
        ensure!(!named.contains(nonsense), "{nonsense} in\n{listed}");
    }
    let state = || -> Result<Vec<_>> {
        let of = |family| Ok((table_of(at, family)?, rules_in_order(at, family)?));
        FAMILIES.into_iter().map(of).collect()
    };
    let before = state()?;
    at.nft(&format!("flush ruleset\n{listed}"))?;
    let after = state()?;
    ensure!(before == after, "{before:#?}\nbecame\n{after:#?}");
    Ok(())
}

/// Clients that the rules remember are elements too, and they are not the agent's to remove.
#[test]
fn remembered_clients_are_listed_and_left_alone() -> Result<()> {
    let feature = Feature::golden("affinity")?;
    let at = Netns::new("clients")?;
    let agent = feature.start(&at)?;
    let clients = [("ip", "10.0.0.9"), ("ip6", "2001:db8::99")];
    for (family, client) in clients {
        let element = format!("{{ 4000:4000 . {client} timeout 300s : 4000:4001 }}");
        at.nft(&format!("add element {family} denizen affinity {element}"))?;
    }
    at.nft("add rule ip denizen services counter")?;
    repaired(&at, "a rule, beside clients", &agent, 0)?;
    for (family, client) in clients {
        let listed = at.output("nft", &["list", "map", family, "denizen", "affinity"])?;
        assert!(listed.contains(client) && listed.contains(": 4000:4001"), "{listed}");
    }
    Ok(())
}

fn repairs(agent: &Agent) -> Result<u64> {
    let status = agent.status()?;
    status["driftRepaired"].as_u64().with_context(|| status.to_string())
}

/// Waits until more repairs were counted than before.
fn repaired(at: &Netns, what: &str, agent: &Agent, before: u64) -> Result<()> {
    eventually(what, TIMEOUT, || Ok(repairs(agent)? > before))
        .with_context(|| at.output("nft", &["list", "ruleset"]).unwrap_or_default())
}

/// Ways to spoil one family's table, in nft's language.
fn harms(family: &str) -> Vec<(&'static str, String)> {
    let (frontend, slot) = match family {
        "ip" => ("10.96.0.10 . tcp . 80", "10.96.0.10 . tcp . 80 . 0"),
        _ => ("fd00:96::10 . tcp . 80", "fd00:96::10 . tcp . 80 . 0"),
    };
    let foreign = if family == "ip" { "10.96.0.77" } else { "fd00:96::77" };
    let endpoint = if family == "ip" { "10.6.6.6" } else { "fd00::6666" };
    let t = format!("{family} denizen");
    vec![
        ("delete the table", format!("delete table {t}")),
        ("flush the table", format!("flush table {t}")),
        ("put the table to sleep", format!("add table {t} {{ flags dormant; }}")),
        ("delete an endpoint", format!("delete element {t} endpoints {{ {slot} }}")),
        ("delete a service", format!("delete element {t} services {{ {frontend} }}")),
        ("delete a set's element", format!("flush set {t} cluster-ips")),
        (
            "add a foreign service",
            format!("add element {t} services {{ {foreign} . tcp . 80 : goto no-endpoints }}"),
        ),
        (
            "lead a service elsewhere",
            format!(
                "delete element {t} services {{ {frontend} }}\nadd element {t} services {{ {frontend} : goto no-endpoints }}"
            ),
        ),
        (
            "lead an endpoint elsewhere",
            format!(
                "delete element {t} endpoints {{ {slot} }}\nadd element {t} endpoints {{ {slot} : {endpoint} . 80 }}"
            ),
        ),
        ("add a foreign member", format!("add element {t} cluster-ips {{ {foreign} }}")),
        ("add a rule", format!("add rule {t} prerouting counter drop")),
        ("put a rule first", format!("insert rule {t} services counter drop")),
        ("flush a chain", format!("flush chain {t} postrouting")),
        ("delete a base chain", format!("flush chain {t} output\ndelete chain {t} output")),
        ("drop by policy", format!("chain {t} prerouting {{ policy drop; }}")),
        ("add a chain", format!("add chain {t} strange")),
        (
            "add chains that refer to each other",
            format!(
                "add chain {t} a-strange\nadd chain {t} b-strange\nadd rule {t} b-strange goto a-strange"
            ),
        ),
        (
            "hook a chain in",
            format!(
                "add chain {t} hooked {{ type filter hook forward priority 0; policy accept; }}"
            ),
        ),
        ("add a set", format!("add set {t} strange {{ type inet_service; }}")),
    ]
}

#[test]
fn whatever_is_spoiled_is_repaired_to_what_a_fresh_start_makes() -> Result<()> {
    let feature = Feature::golden("external-local")?;
    let at = Netns::new("drift")?;
    let agent = feature.start(&at)?;
    let mut harms: Vec<_> = ["ip", "ip6"].into_iter().flat_map(harms).collect();
    harms.push(("flush the ruleset", "flush ruleset".to_owned()));
    all_repaired(&at, &agent, &harms)
}

#[test]
fn a_bridges_table_is_repaired_like_the_others() -> Result<()> {
    let feature = Feature::golden("detect-port-exact")?;
    let at = Netns::new("drift-bridge")?;
    add_links(&at)?;
    let agent = feature.start(&at)?;
    let t = "bridge denizen";
    let harms = [
        ("delete the table", format!("delete table {t}")),
        ("flush the table", format!("flush table {t}")),
        ("delete a port", format!("delete element {t} pod-ports {{ \"veth1\" . 10.1.2.3 }}")),
        ("add a port", format!("add element {t} pod-ports6 {{ \"veth9\" . fd00::9 }}")),
        ("add a rule", format!("add rule {t} prerouting meta mark set 0")),
        ("flush a chain", format!("flush chain {t} bridged")),
        (
            "see every frame later",
            format!(
                "flush chain {t} prerouting\ndelete chain {t} prerouting\nadd chain {t} prerouting {{ type filter hook prerouting priority 5; }}"
            ),
        ),
        (
            "read later",
            "flush chain ip denizen clear-port-bit\ndelete chain ip denizen clear-port-bit"
                .to_owned(),
        ),
        ("flush the ruleset", "flush ruleset".to_owned()),
    ];
    all_repaired(&at, &agent, &harms)
}

/// Does each harm, and waits until all is as it was.
fn all_repaired(at: &Netns, agent: &Agent, harms: &[(&str, String)]) -> Result<()> {
    let state = || -> Result<Vec<_>> {
        let of = |family| Ok((table_of(at, family)?, rules_in_order(at, family)?));
        FAMILIES.into_iter().map(of).collect()
    };
    let fresh = state()?;
    for (what, harm) in harms {
        let before = repairs(agent)?;
        at.nft(harm).with_context(|| (*what).to_owned())?;
        repaired(at, what, agent, before)?;
        assert!(state()? == fresh, "{what}: {harm}\n{}", at.output("nft", &["list", "ruleset"])?);
    }
    Ok(())
}

#[test]
fn ten_thousand_services_have_the_rules_of_ten() -> Result<()> {
    let mut sizes = Vec::new();
    for services in [10, 10_000] {
        let at = Netns::new("size")?;
        let _agent = Feature::many(services)?.start(&at)?;
        sizes.push(ruleset::size(&at)?);
    }
    assert_eq!(sizes[0], sizes[1], "chains and rules");
    Ok(())
}
