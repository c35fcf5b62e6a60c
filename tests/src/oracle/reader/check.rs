//! Checks that a ruleset is consistent, as nft and the kernel would: names that are used exist, and
//! lookups have the type of their set.

use anyhow::{Context, Result, ensure};

use super::syntax::{Datum, Expr, RightSide, Ruleset, Statement, Table, Verdict};
use super::value::NftType;

pub fn check(ruleset: &Ruleset) -> Result<()> {
    for table in &ruleset.tables {
        for (name, chain) in &table.chains {
            for statement in chain.rules.iter().flatten() {
                self::statement(table, statement)
                    .with_context(|| format!("in chain {name}: {statement:?}"))?;
            }
        }
        for (name, set) in &table.sets {
            let ranged = set.ranged.iter().map(|(_, datum)| datum);
            for datum in set.exact.values().chain(ranged).flatten() {
                if let Datum::Verdict(verdict) = datum {
                    self::verdict(table, verdict).with_context(|| format!("in map {name}"))?;
                }
            }
        }
    }
    Ok(())
}

fn statement(table: &Table, statement: &Statement) -> Result<()> {
    match statement {
        Statement::Match { left, right, .. } => {
            expr(table, left)?;
            match right {
                RightSide::Set(set) => {
                    key(table, left, set)?;
                    ensure!(table.sets[set].data.is_empty(), "{set} is a map");
                }
                RightSide::Pattern(_) | RightSide::Bits(_) => {}
            }
            Ok(())
        }
        Statement::VerdictMap { key, map } => {
            self::key(table, key, map)?;
            ensure!(table.sets[map].data == [NftType::Verdict], "{map} has no verdicts");
            Ok(())
        }
        Statement::Verdict(verdict) => self::verdict(table, verdict),
        Statement::Set { field, value } => {
            expr(table, value)?;
            if let Expr::Map(_, map) = value {
                ensure!(table.sets[map].data == [field.kind()], "{map} has other values");
            }
            Ok(())
        }
        Statement::Update { map, key, data } => {
            self::key(table, key, map)?;
            let of = &table.sets[map];
            ensure!(of.dynamic && of.data == data.kinds(), "{map} takes no such element");
            Ok(())
        }
        Statement::Limit { set, key } | Statement::Count { set, key } => {
            let of = &table.sets[set];
            ensure!(of.dynamic && of.data.is_empty(), "{set} counts nobody's packets");
            self::key(table, key, set)
        }
        Statement::Delete { map, key } => {
            ensure!(table.sets.get(map).is_some_and(|set| set.dynamic), "{map} is not dynamic");
            self::key(table, key, map)
        }
        Statement::Dnat { to } => {
            expr(table, to)?;
            let Expr::Map(_, map) = to else { return Ok(()) };
            let address = if table.family == "ip6" { NftType::Ipv6 } else { NftType::Ipv4 };
            ensure!(
                table.sets[map].data == [address, NftType::Port],
                "{map} has no addresses and ports"
            );
            Ok(())
        }
        Statement::Counter | Statement::Masquerade => Ok(()),
    }
}

fn verdict(table: &Table, verdict: &Verdict) -> Result<()> {
    match verdict {
        Verdict::Jump(chain) | Verdict::Goto(chain) => {
            let to = table.chains.get(chain).with_context(|| format!("no chain {chain}"))?;
            ensure!(to.base.is_none(), "{chain} is a base chain");
            Ok(())
        }
        Verdict::Accept | Verdict::Drop | Verdict::Reject | Verdict::Return => Ok(()),
    }
}

fn expr(table: &Table, expr: &Expr) -> Result<()> {
    match expr {
        Expr::Map(of, map) => key(table, of, map),
        Expr::And(of, _) | Expr::Or(of, _) => self::expr(table, of),
        Expr::Concat(parts) => parts.iter().try_for_each(|part| self::expr(table, part)),
        Expr::Field(_) | Expr::Random(_) | Expr::Constant(_) => Ok(()),
    }
}

fn key(table: &Table, key: &Expr, set: &str) -> Result<()> {
    expr(table, key)?;
    let kinds = key.kinds();
    let of = table.sets.get(set).with_context(|| format!("no set {set}"))?;
    ensure!(kinds == of.key, "{kinds:?} is looked up in {set}, of {:?}", of.key);
    Ok(())
}
