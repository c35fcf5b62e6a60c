//! Parses nft's text into tables, sets and chains.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};

use super::rule::{RuleReader, verdict};
use super::syntax::{Base, Datum, ReadChain, Ruleset, Set, Table};
use super::token::{Cursor, Token, tokens};
use super::value::{Atom, NftType, Pattern};

/// Reads a ruleset. Anything unknown is an error.
pub fn ruleset(text: &str) -> Result<Ruleset> {
    let mut words = Cursor::new(tokens(text)?);
    let mut ruleset = Ruleset::default();
    loop {
        words.skip_ends();
        if words.peek().is_none() {
            return Ok(ruleset);
        }
        words.expect("table")?;
        ruleset.tables.push(table(&mut words)?);
    }
}

fn table(words: &mut Cursor) -> Result<Table> {
    let family = words.text()?;
    ensure!(
        ["ip", "ip6", "inet", "bridge"].contains(&&*family),
        "the family {family} is not known"
    );
    let _name = words.text()?;
    let (mut sets, mut chains) = (BTreeMap::new(), BTreeMap::new());
    words.expect("{")?;
    loop {
        words.skip_ends();
        match &*words.text()? {
            "}" => break,
            "comment" => drop(words.text()?),
            "set" | "map" => {
                let name = words.text()?;
                let set = set(&family, words).with_context(|| format!("set {name}"))?;
                ensure!(sets.insert(name, set).is_none(), "a set twice");
            }
            "chain" => {
                let name = words.text()?;
                let chain = chain(&family, words).with_context(|| format!("chain {name}"))?;
                ensure!(chains.insert(name, chain).is_none(), "a chain twice");
            }
            other => bail!("{other} in a table is not known"),
        }
    }
    Ok(Table { family, sets, chains })
}

fn set(family: &str, words: &mut Cursor) -> Result<Set> {
    let mut set = Set {
        key: Vec::new(),
        data: Vec::new(),
        exact: BTreeMap::new(),
        ranged: Vec::new(),
        dynamic: false,
    };
    words.expect("{")?;
    loop {
        words.skip_ends();
        match &*words.text()? {
            "}" => return Ok(set),
            "comment" => drop(words.text()?),
            "size" => drop(words.text()?.parse::<u32>()?),
            "type" => types(words, &mut set)?,
            "typeof" => typeof_(family, words, &mut set)?,
            "flags" => {
                for flag in words.text()?.split(',') {
                    ensure!(
                        ["interval", "dynamic", "timeout"].contains(&flag),
                        "flag {flag} is not known"
                    );
                    set.dynamic |= flag == "dynamic";
                }
            }
            "elements" => elements(words, &mut set)?,
            other => bail!("{other} in a set is not known"),
        }
    }
}

fn types(words: &mut Cursor, set: &mut Set) -> Result<()> {
    set.key.push(NftType::named(&words.text()?)?);
    while words.take(".") {
        set.key.push(NftType::named(&words.text()?)?);
    }
    if words.take(":") {
        set.data.push(NftType::named(&words.text()?)?);
    }
    Ok(())
}

fn typeof_(family: &str, words: &mut Cursor, set: &mut Set) -> Result<()> {
    let rules = RuleReader { family };
    set.key = rules.concat(words)?.kinds();
    if words.take(":") {
        set.data = rules.concat(words)?.kinds();
    }
    Ok(())
}

fn elements(words: &mut Cursor, set: &mut Set) -> Result<()> {
    words.expect("=")?;
    words.expect("{")?;
    loop {
        words.skip_ends();
        if words.take("}") {
            return Ok(());
        }
        element(words, set)?;
        words.skip_ends();
        if !words.take(",") {
            words.expect("}")?;
            return Ok(());
        }
    }
}

fn element(words: &mut Cursor, set: &mut Set) -> Result<()> {
    let mut patterns = Vec::new();
    for (n, kind) in set.key.iter().enumerate() {
        if n > 0 {
            words.expect(".")?;
        }
        patterns.push(kind.pattern(&words.text()?)?);
    }
    if words.take("comment") {
        words.text()?;
    }
    let datum = if words.take(":") { Some(datum(words, &set.data)?) } else { None };
    ensure!(
        datum.is_some() != set.data.is_empty(),
        "a value where none should be, or none where one should"
    );
    let fits = |key: &Vec<Atom>| patterns.iter().zip(key).all(|(pattern, atom)| pattern.fits(atom));
    let overlaps = |(other, _): &(Vec<Pattern>, _)| {
        other.iter().zip(&patterns).all(|(one, other)| one.overlaps(other))
    };
    ensure!(!set.ranged.iter().any(overlaps), "an element overlaps another, {}", words.place());
    let exact = patterns.iter().map(|pattern| match pattern {
        Pattern::Is(atom) => Some(atom.clone()),
        Pattern::Between(..) | Pattern::Begins(_) => None,
    });
    match exact.collect::<Option<Vec<_>>>() {
        Some(key) => {
            ensure!(set.exact.insert(key, datum).is_none(), "one key twice, {}", words.place())
        }
        None => {
            ensure!(!set.exact.keys().any(fits), "an element overlaps another, {}", words.place());
            set.ranged.push((patterns, datum));
        }
    }
    Ok(())
}

fn datum(words: &mut Cursor, kinds: &[NftType]) -> Result<Datum> {
    if kinds == [NftType::Verdict] {
        let word = words.text()?;
        return Ok(Datum::Verdict(
            verdict(&word, words)?.with_context(|| format!("{word} is no verdict"))?,
        ));
    }
    let mut atoms = Vec::new();
    for (n, kind) in kinds.iter().enumerate() {
        if n > 0 {
            words.expect(".")?;
        }
        atoms.push(kind.atom(&words.text()?)?);
    }
    Ok(Datum::Atoms(atoms))
}

fn chain(family: &str, words: &mut Cursor) -> Result<ReadChain> {
    let mut chain = ReadChain { base: None, rules: Vec::new() };
    words.expect("{")?;
    loop {
        words.skip_ends();
        if words.take("}") {
            return Ok(chain);
        }
        if words.take("type") {
            chain.base = Some(base(words)?);
        } else if words.take("comment") {
            words.text()?;
        } else {
            chain.rules.push(RuleReader { family }.rule(words)?);
        }
        ensure!(words.is_end(), "more after a statement, {}", words.place());
    }
}

fn base(words: &mut Cursor) -> Result<Base> {
    let nat = match &*words.text()? {
        "nat" => true,
        "filter" => false,
        other => bail!("the type of chain {other} is not known"),
    };
    words.expect("hook")?;
    let hook = words.text()?;
    let hooks = ["prerouting", "input", "forward", "output", "postrouting"];
    ensure!(hooks.contains(&&*hook), "the hook {hook} is not known");
    words.expect("priority")?;
    let priority = words.text()?.parse().context("a priority that is a number")?;
    ensure!(words.next() == Some(Token::LineEnd), "a priority ends");
    words.expect("policy")?;
    words.expect("accept")?;
    Ok(Base { nat, hook, priority })
}
