//! The forward hook of legacy iptables, whose tables have no netlink: iptables itself is the writer
//! that knows their format and takes their lock.

use std::fs;
use std::io;
use std::process::{Command, Output};

use super::chain::{Act, Chains, Rule, filter};
use super::{Chain, ForwardError, OWN};
use crate::backend::why::Why;
use crate::model::Family;
use crate::plan::MarkBit;

const CHAIN: &str = "FORWARD";

fn program(family: Family) -> &'static str {
    match family {
        Family::V4 => "iptables-legacy",
        Family::V6 => "ip6tables-legacy",
    }
}

/// The family's forward chain; `None` while nobody uses legacy iptables here.
///
/// # Errors
/// [`ForwardError`] when there is one that cannot be read.
#[expect(clippy::disallowed_methods, reason = "the kernel tells of legacy tables here alone")]
pub fn read(family: Family) -> Result<Option<Chain>, ForwardError> {
    let names = match family {
        Family::V4 => "/proc/net/ip_tables_names",
        Family::V6 => "/proc/net/ip6_tables_names",
    };
    // Asking iptables would make the table.
    let there =
        fs::read_to_string(names).is_ok_and(|names| names.lines().any(|name| name == "filter"));
    if !there {
        return Ok(None);
    }
    let text = run(family, &["-S"])?;
    let (chains, policy_drops) = parse(&text);
    let own = chains.get(CHAIN).into_iter().flatten().filter_map(|rule| rule.own);
    Ok(Some(Chain {
        what: format!("the filter table of {}, chain {CHAIN}", program(family)),
        judgement: filter(&chains, CHAIN, policy_drops),
        own: own.collect(),
    }))
}

/// What `-S` prints: the chains, and whether the forward chain's policy drops. A rule of ours is
/// known by which of the two it is.
fn parse(text: &str) -> (Chains, bool) {
    let mut chains = Chains::new();
    let mut policy_drops = false;
    for line in text.lines() {
        if let Some(policy) = line.strip_prefix("-P FORWARD ") {
            policy_drops = policy == "DROP";
        }
        let Some((chain, spec)) = line.strip_prefix("-A ").and_then(|rest| rest.split_once(' '))
        else {
            continue;
        };
        chains.entry(chain.to_owned()).or_default().push(rule(spec));
    }
    (chains, policy_drops)
}

fn rule(spec: &str) -> Rule {
    let own = OURS.iter().zip(0..).find(|(why, _)| spec.contains(&comment(**why)));
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
    Rule { conditional: !asked.is_empty(), act, own: own.map(|(_, which)| which) }
}

/// In the order in which they stand.
const OURS: [Why; 2] = [Why::AdmitAnswers, Why::AdmitServices];

fn comment(why: Why) -> String {
    format!("{OWN}{}", why.text())
}

/// Our rules' words, without the chain.
fn specs(admitted: MarkBit) -> [Vec<String>; 2] {
    let mark = format!("{admitted}/{admitted}");
    let asked = [["conntrack", "--ctstate", "RELATED,ESTABLISHED"], ["connmark", "--mark", &mark]];
    let spec = |(asked, why): ([&str; 3], Why)| -> Vec<String> {
        let words = [["-m"].as_slice(), &asked, &["-m", "comment", "--comment"]].concat();
        let words = words.into_iter().map(str::to_owned);
        let end = [comment(why), "-j".to_owned(), "ACCEPT".to_owned()];
        words.chain(end).collect()
    };
    let [first, second] = [(asked[0], OURS[0]), (asked[1], OURS[1])].map(spec);
    [first, second]
}

/// Puts our rules first.
///
/// # Errors
/// [`ForwardError`].
pub fn open(family: Family, admitted: MarkBit) -> Result<(), ForwardError> {
    for spec in specs(admitted).iter().rev() {
        write(family, &["-I", CHAIN, "1"], spec)?;
    }
    Ok(())
}

/// Removes our rules; `own` says which there are.
///
/// # Errors
/// [`ForwardError`].
pub fn close(family: Family, admitted: MarkBit, own: &[u64]) -> Result<(), ForwardError> {
    let specs = specs(admitted);
    let spec = |which: &u64| specs.get(usize::try_from(*which).ok()?);
    own.iter().filter_map(spec).try_for_each(|spec| write(family, &["-D", CHAIN], spec))
}

fn write(family: Family, command: &[&str], spec: &[String]) -> Result<(), ForwardError> {
    let words: Vec<&str> = command.iter().copied().chain(spec.iter().map(String::as_str)).collect();
    run(family, &words).map(drop)
}

#[expect(clippy::disallowed_methods, reason = "legacy tables have no netlink")]
fn run(family: Family, words: &[&str]) -> Result<String, ForwardError> {
    let program = program(family);
    let failed = |source| ForwardError::Program { program, source };
    let mut command = Command::new(program);
    // The lock is everybody's; kube-proxy waits as long.
    command.args(["-w", "5", "-t", "filter"]).args(words);
    let Output { status, stdout, stderr } = command.output().map_err(failed)?;
    if status.success() {
        return Ok(String::from_utf8_lossy(&stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&stderr).trim().to_owned();
    Err(failed(io::Error::other(said)))
}

#[cfg(test)]
mod tests {
    use super::super::chain::Judgement;
    use super::*;

    #[test]
    fn what_iptables_prints_is_judged() {
        let ours = format!("-A FORWARD -m comment --comment \"{}\" -j ACCEPT", comment(OURS[1]));
        let drops = |all| Judgement::Drops { all };
        let cases = [
            ("-P FORWARD ACCEPT", Judgement::Passes),
            ("-P FORWARD DROP", drops(true)),
            ("-P FORWARD DROP\n-A FORWARD -j ACCEPT", Judgement::Passes),
            ("-P FORWARD DROP\n-A FORWARD -o docker0 -j DOCKER\n-A DOCKER -j ACCEPT", drops(false)),
            (
                "-P FORWARD ACCEPT\n-A FORWARD -s 10.0.0.0/8 -j ACCEPT\n-A FORWARD -j REJECT --reject-with icmp-host-prohibited",
                drops(false),
            ),
            ("-P FORWARD ACCEPT\n-A FORWARD -p tcp -g X\n-A X -j DROP", Judgement::Passes),
            (&format!("-P FORWARD DROP\n{ours}"), drops(true)),
        ];
        for (text, expected) in cases {
            let (chains, policy) = parse(text);
            assert_eq!(filter(&chains, CHAIN, policy), expected, "{text}");
        }
        assert_eq!(parse(&ours).0[CHAIN][0].own, Some(1));
    }
}
