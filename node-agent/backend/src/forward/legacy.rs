//! The chains of legacy iptables, whose tables cannot be read or changed through netlink.

use super::chain::{Chains, Rule, RuleEffect, filter};
use super::{Chain, ForwardError, OWN, Passing};
use crate::why::Why;
use denizen_iptables::{IptablesError, Programs, Table, Variant, appended, legacy_tables};
use denizen_model::Family;
use denizen_plan::MarkBit;

/// The family's chains; none if the legacy filter table does not exist.
///
/// # Errors
/// [`ForwardError`] if the table exists and cannot be read.
pub fn read(family: Family) -> Result<Vec<Chain>, ForwardError> {
    // Running iptables would create the table.
    if !legacy_tables(family).iter().any(|name| name == Table::Filter.as_str()) {
        return Ok(Vec::new());
    }
    let (chains, dropping) = parse(&saved(family)?);
    let program = match family {
        Family::V4 => "iptables-legacy",
        Family::V6 => "ip6tables-legacy",
    };
    let chain = |passing: Passing| {
        let name = passing.chain();
        let own = chains.get(name).into_iter().flatten().filter_map(|rule| rule.own);
        Chain {
            what: format!("the filter table of {program}, chain {name}"),
            passing,
            default_fate: filter(&chains, name, dropping.contains(&name)),
            own: own.collect(),
        }
    };
    Ok(Passing::ALL.map(chain).into())
}

/// Parses the output of `iptables-save`: the chains, and those whose policy drops. Our rules are
/// numbered by position.
fn parse(text: &str) -> (Chains, Vec<&'static str>) {
    let mut chains = Chains::new();
    let mut dropping = Vec::new();
    let mut own = 0..;
    for line in text.lines() {
        let is_declared = |name: &&str| line.starts_with(&format!(":{name} DROP "));
        dropping.extend(Passing::ALL.map(Passing::chain).into_iter().find(is_declared));
        if let Some((chain, spec)) = appended(line) {
            let rule = rule(spec, is_ours(spec).then(|| own.next()).flatten());
            chains.entry(chain.to_owned()).or_default().push(rule);
        }
    }
    (chains, dropping)
}

/// Whether a rule is ours: its comment begins with our name, whatever words follow.
fn is_ours(spec: &str) -> bool {
    spec.contains(&format!("--comment \"{OWN}"))
}

fn rule(spec: &str, own: Option<u64>) -> Rule {
    let (matches, target) = match spec.rfind("-j ").into_iter().chain(spec.rfind("-g ")).max() {
        Some(at) => spec.split_at(at),
        None => (spec, ""),
    };
    let mut words = target.split_whitespace();
    let (how, to) = (words.next(), words.next().unwrap_or_default());
    let act = match (how, to) {
        (_, "ACCEPT") => RuleEffect::Accept,
        (_, "DROP" | "REJECT") => RuleEffect::Drop,
        (_, "RETURN") => RuleEffect::Return,
        (None, _) | (_, "LOG" | "NFLOG" | "MARK" | "CONNMARK" | "TCPMSS") => RuleEffect::Nothing,
        (_, "QUEUE" | "NFQUEUE") => RuleEffect::Unknown,
        (Some("-g"), chain) => RuleEffect::Goto(chain.to_owned()),
        (Some(_), chain) => RuleEffect::Jump(chain.to_owned()),
    };
    Rule { conditional: !matches.is_empty(), act, own }
}

/// Puts our rules first.
///
/// # Errors
/// [`ForwardError`].
pub fn open(family: Family, passing: Passing, admitted: MarkBit) -> Result<(), ForwardError> {
    let chain = passing.chain();
    let rule = |matches: &str, why: Why| {
        format!("-I {chain} -m {matches} -m comment --comment \"{OWN}{}\" -j ACCEPT\n", why.text())
    };
    let services = rule(&format!("connmark --mark {admitted}/{admitted}"), Why::AdmitServices);
    let answers = rule("conntrack --ctstate RELATED,ESTABLISHED", Why::AdmitAnswers);
    // Each is inserted at the top, so the last one first.
    let rules = match passing {
        Passing::Forward => [services, answers].concat(),
        Passing::Input => services,
    };
    restore(family, &rules)
}

/// Removes our rules.
///
/// # Errors
/// [`ForwardError`].
pub fn close(family: Family, passing: Passing) -> Result<(), ForwardError> {
    let text = saved(family)?;
    let name = passing.chain();
    let ours = |(chain, spec): &(&str, &str)| *chain == name && is_ours(spec);
    let rules = text.lines().filter_map(appended).filter(ours);
    let removals: String = rules.map(|(_, spec)| format!("-D {name} {spec}\n")).collect();
    restore(family, &removals)
}

fn saved(family: Family) -> Result<String, IptablesError> {
    Programs::installed(Variant::Legacy)?.saved(family, Table::Filter)
}

fn restore(family: Family, lines: &str) -> Result<(), ForwardError> {
    let input = format!("*{}\n{lines}COMMIT\n", Table::Filter);
    Ok(Programs::installed(Variant::Legacy)?.restore(family, &input)?)
}

#[cfg(test)]
mod tests {
    use super::super::chain::DefaultFate;
    use super::*;

    #[test]
    fn what_iptables_prints_is_judged() {
        let ours = format!("-A FORWARD -m comment --comment \"{OWN}whatever\" -j ACCEPT");
        let drops = |all| DefaultFate::Drops { all };
        let cases = [
            (":FORWARD ACCEPT [0:0]", DefaultFate::Passes),
            (":FORWARD DROP [0:0]", drops(true)),
            (":FORWARD DROP [0:0]\n-A FORWARD -j ACCEPT", DefaultFate::Passes),
            (
                ":FORWARD DROP [0:0]\n-A FORWARD -o docker0 -j DOCKER\n-A DOCKER -j ACCEPT",
                drops(false),
            ),
            (
                ":FORWARD ACCEPT [0:0]\n-A FORWARD -s 10.0.0.0/8 -j ACCEPT\n\
                 -A FORWARD -j REJECT --reject-with icmp-host-prohibited",
                drops(false),
            ),
            (":FORWARD ACCEPT [0:0]\n-A FORWARD -p tcp -g X\n-A X -j DROP", DefaultFate::Passes),
            (&format!(":FORWARD DROP [0:0]\n{ours}"), drops(true)),
        ];
        for (text, expected) in cases {
            for passing in Passing::ALL {
                let name = passing.chain();
                let text = text.replace("FORWARD", name);
                let (chains, dropping) = parse(&text);
                let fate = filter(&chains, name, dropping.contains(&name));
                assert_eq!(fate, expected, "{text}");
            }
        }
        assert_eq!(parse(&ours).0["FORWARD"][0].own, Some(0));
    }
}
