//! Somebody else changes denizen's tables: they are repaired, at once, and it is counted.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use denizen_tests::agent::Agent;
use denizen_tests::eventually::observed;
use denizen_tests::kernel::ruleset;
use denizen_tests::node::fixture::{Fixture, Host, every_protocol};

/// A repair that has not come by then never will.
const TIMEOUT: Duration = Duration::from_secs(5);

struct Harm<'a> {
    fixture: &'a Fixture,
    agent: &'a Agent,
    expected: String,
}

impl Harm<'_> {
    /// Does `harm` and waits until it is repaired and counted.
    fn repaired(&self, what: &str, harm: &str) -> Result<()> {
        let repairs = self.repairs()?;
        self.undone(what, harm)?;
        assert!(self.repairs()? > repairs, "{what}: not counted in {}", self.agent.status()?);
        Ok(())
    }

    /// Does `harm`, in nft's language, and waits until the kernel holds again what it held.
    fn undone(&self, what: &str, harm: &str) -> Result<()> {
        let node = &self.fixture.cluster.world.node;
        let started = Instant::now();
        node.nft(harm).with_context(|| what.to_owned())?;
        let dump = || Ok(ruleset::dump(node).unwrap_or_default());
        observed(&format!("repaired: {what}"), TIMEOUT, dump, |now| *now == self.expected)?;
        let millis = &self.agent.status()?["lastRepairMilliseconds"];
        eprintln!(
            "{what}: seen right after {:?}; the agent says its repair took {millis} ms",
            started.elapsed()
        );
        Ok(())
    }

    fn repairs(&self) -> Result<u64> {
        let status = self.agent.status()?;
        let repaired = &status["driftRepaired"];
        // A number, or an object that has one beside the time that the repair took.
        repaired
            .as_u64()
            .or(repaired["count"].as_u64())
            .with_context(|| format!("driftRepaired in {status}"))
    }
}

#[test]
fn whatever_others_do_to_the_tables_is_repaired() -> Result<()> {
    let fixture = Fixture::new("foreign")?;
    let members = [Host::Bridged, Host::Routed, Host::Remote];
    fixture
        .cluster
        .manifests
        .put("web", &fixture.service("web", 10, &every_protocol(), &members)?)?;
    let agent = fixture.cluster.start_agent()?;
    let node = &fixture.cluster.world.node;
    let expected = ruleset::dump(node)?;
    let harm = Harm { fixture: &fixture, agent: &agent, expected: expected.clone() };
    let chain = first_after(&expected, "chain").context("a chain")?;
    let map = "endpoints";
    for family in ["ip", "ip6"] {
        harm.repaired("a rule is added", &format!("add rule {family} denizen {chain} counter"))?;
        harm.repaired("a map is emptied", &format!("flush map {family} denizen {map}"))?;
        harm.repaired("one element is removed", &one_element(&fixture, family, map)?)?;
        harm.repaired("a chain is emptied", &format!("flush chain {family} denizen {chain}"))?;
        harm.repaired("a rule is replaced, its comment kept", &same_comment(&fixture, family)?)?;
        // Nothing jumps to it, so it is no drift: it goes, but does not count.
        harm.undone("a chain is added", &format!("add chain {family} denizen strange"))?;
        harm.repaired("all rules are flushed", &format!("flush table {family} denizen"))?;
        harm.repaired("the table is deleted", &format!("delete table {family} denizen"))?;
    }
    harm.repaired("everything is flushed", "flush ruleset")?;
    for (to, protocol) in denizen_tests::node::fixture::every_way(10) {
        assert!(
            fixture.probe(Host::Outside, to, protocol)?.endpoint().is_some(),
            "{to}/{protocol}"
        );
    }
    Ok(())
}

/// The name in the first line of the dump that says `kind NAME {`.
fn first_after<'a>(dump: &'a str, kind: &str) -> Option<&'a str> {
    dump.lines().find_map(|line| line.strip_prefix(kind)?.trim().strip_suffix('{').map(str::trim))
}

/// A command that replaces a rule by one that does something else and says the same of itself.
fn same_comment(fixture: &Fixture, family: &str) -> Result<String> {
    let chain = ["-a", "list", "chain", family, "denizen", "services"];
    let text = fixture.cluster.world.node.output("nft", &chain)?;
    let rule = text.lines().find(|line| line.contains("vmap @services"));
    let (rule, handle) =
        rule.and_then(|line| line.split_once(" # handle ")).context("a rule with a handle")?;
    let comment = rule.split_once(" comment ").context("a comment")?.1;
    Ok(format!("replace rule {family} denizen services handle {handle} counter comment {comment}"))
}

/// A command that removes one element of a map, whatever its key looks like.
fn one_element(fixture: &Fixture, family: &str, map: &str) -> Result<String> {
    let text =
        fixture.cluster.world.node.output("nft", &["-n", "list", "map", family, "denizen", map])?;
    let elements = text.split_once("elements = {").context("an element")?.1;
    let first = elements.split([',', '}']).next().context("an element")?;
    // `key comment "…" : value`: a key alone is what deletes.
    let key = first
        .split(" comment ")
        .next()
        .and_then(|text| text.split(" : ").next())
        .context("a key")?;
    Ok(format!("delete element {family} denizen {map} {{ {} }}", key.trim()))
}
