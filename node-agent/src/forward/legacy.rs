//! The forward hook of legacy iptables, whose tables have no netlink.

use super::chain::{Act, Chains, Rule, filter};
use super::{Chain, ForwardError, OWN};
use crate::backend::why::Why;
use crate::iptables::{IptablesError, Programs, Table, Variant, appended, legacy_tables};
use crate::plan::MarkBit;
use denizen_nft::IpVersion;

const CHAIN: &str = "FORWARD";

/// The family's forward chain; `None` while nobody uses legacy iptables here.
///
/// # Errors
/// [`ForwardError`] when there is one that cannot be read.
pub fn read(family: IpVersion) -> Result<Option<Chain>, ForwardError> {
    // Asking iptables would make the table.
    if !legacy_tables(family).iter().any(|name| name == Table::Filter.as_str()) {
        return Ok(None);
    }
    let (chains, policy_drops) = parse(&saved(family)?);
    let own = chains.get(CHAIN).into_iter().flatten().filter_map(|rule| rule.own);
    let program = match family {
        IpVersion::V4 => "iptables-legacy",
        IpVersion::V6 => "ip6tables-legacy",
    };
    Ok(Some(Chain {
        what: format!("the filter table of {program}, chain {CHAIN}"),
        default_fate: filter(&chains, CHAIN, policy_drops),
        own: own.collect(),
    }))
}

/// What `iptables-save` prints: the chains, and whether the forward chain's policy drops. Our rules
/// are numbered.
fn parse(text: &str) -> (Chains, bool) {
    let mut chains = Chains::new();
    let mut policy_drops = false;
    let mut own = 0..;
    for line in text.lines() {
        if let Some(declared) = line.strip_prefix(":FORWARD ") {
            policy_drops = declared.starts_with("DROP ");
        }
        if let Some((chain, spec)) = appended(line) {
            let rule = rule(spec, is_ours(spec).then(|| own.next()).flatten());
            chains.entry(chain.to_owned()).or_default().push(rule);
        }
    }
    (chains, policy_drops)
}

/// Whether a rule is ours: its comment begins with our name, whatever words follow.
fn is_ours(spec: &str) -> bool {
    spec.contains(&format!("--comment \"{OWN}"))
}

fn rule(spec: &str, own: Option<u64>) -> Rule {
    let (asked, target) = match spec.rfind("-j ").into_iter().chain(spec.rfind("-g ")).max() {
        Some(at) => spec.split_at(at),
        None => (spec, ""),
    };
    let mut words = target.split_whitespace();
    let (how, to) = (words.next(), words.next().unwrap_or_default());
    let act = match (how, to) {
        (_, "ACCEPT") => Act::Accept,
        (_, "DROP" | "REJECT") => Act::Drop,
        (_, "RETURN") => Act::Return,
        (None, _) | (_, "LOG" | "NFLOG" | "MARK" | "CONNMARK" | "TCPMSS") => Act::Nothing,
        (_, "QUEUE" | "NFQUEUE") => Act::Unknown,
        (Some("-g"), chain) => Act::Goto(chain.to_owned()),
        (Some(_), chain) => Act::Jump(chain.to_owned()),
    };
    Rule { conditional: !asked.is_empty(), act, own }
}

/// Puts our rules first.
///
/// # Errors
/// [`ForwardError`].
pub fn open(family: IpVersion, admitted: MarkBit) -> Result<(), ForwardError> {
    let rule = |asked: &str, why: Why| {
        format!("-I {CHAIN} -m {asked} -m comment --comment \"{OWN}{}\" -j ACCEPT\n", why.text())
    };
    let services = rule(&format!("connmark --mark {admitted}/{admitted}"), Why::AdmitServices);
    let answers = rule("conntrack --ctstate RELATED,ESTABLISHED", Why::AdmitAnswers);
    // Each is put before what is there.
    restore(family, &[services, answers].concat())
}

/// Removes our rules.
///
/// # Errors
/// [`ForwardError`].
pub fn close(family: IpVersion) -> Result<(), ForwardError> {
    let text = saved(family)?;
    let ours = |(chain, spec): &(&str, &str)| *chain == CHAIN && is_ours(spec);
    let rules = text.lines().filter_map(appended).filter(ours);
    let removals: String = rules.map(|(_, spec)| format!("-D {CHAIN} {spec}\n")).collect();
    restore(family, &removals)
}

fn saved(family: IpVersion) -> Result<String, IptablesError> {
    Programs::installed(Variant::Legacy)?.saved(family, Table::Filter)
}

fn restore(family: IpVersion, lines: &str) -> Result<(), ForwardError> {
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
                ":FORWARD ACCEPT [0:0]\n-A FORWARD -s 10.0.0.0/8 -j ACCEPT\n-A FORWARD -j REJECT --reject-with icmp-host-prohibited",
                drops(false),
            ),
            (":FORWARD ACCEPT [0:0]\n-A FORWARD -p tcp -g X\n-A X -j DROP", DefaultFate::Passes),
            (&format!(":FORWARD DROP [0:0]\n{ours}"), drops(true)),
        ];
        for (text, expected) in cases {
            let (chains, policy) = parse(text);
            assert_eq!(filter(&chains, CHAIN, policy), expected, "{text}");
        }
        assert_eq!(parse(&ours).0[CHAIN][0].own, Some(0));
    }
}
