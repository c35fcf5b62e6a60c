//! The backend `iptables`: the chains and rules of linkerd-init, for tools that look for them.
//!
//! It executes the node's `iptables-restore` and `iptables-save` in the pod's network namespace:
//! one of each per version of IP.

use denizen_packet::{Family, family_of};
use std::io::{self, Write};
use std::process::{Command, Stdio};

use denizen_state::redirect::{Hairpin, PortRange, Redirect, RedirectBackend};
use ipnetwork::IpNetwork;

use crate::error::CniError;
use crate::kernel::Netns;

/// Chains of linkerd-init: what arrives, and what the pod sends.
const CHAINS: [&str; 2] = ["PROXY_INIT_REDIRECT", "PROXY_INIT_OUTPUT"];

/// The jumps to these chains, as `iptables-save` lists them.
const JUMPS: [&str; 2] = [
    "PREROUTING -m comment --comment \"proxy-init/install-proxy-init-prerouting\" \
     -j PROXY_INIT_REDIRECT",
    "OUTPUT -m comment --comment \"proxy-init/install-proxy-init-output\" -j PROXY_INIT_OUTPUT",
];

/// Maximum number of ports in one rule (`XT_MULTI_PORTS`); a range counts as two.
const MOST_PORTS: usize = 15;

/// Seconds to wait for other programs that hold iptables' lock.
const WAIT: &str = "--wait=5";

/// What each IP version had before, as `iptables-save` listed it.
pub(super) struct Before(Vec<(Family, String)>);

/// Whether linkerd-init's rules can do what `redirect` asks for.
pub(super) fn can(redirect: &Redirect, if_name: &str) -> bool {
    let only_one = matches!(redirect.interfaces.as_slice(), [one] if one == if_name);
    only_one
        && redirect.hairpin == Hairpin::Direct
        && redirect.skip_mark.is_none()
        && !redirect.drop_invalid
        && redirect.dns_port.is_none()
        && redirect.only_outbound_cidrs.is_empty()
        && redirect.only_outbound_ports.is_empty()
}

fn versions(redirect: &Redirect) -> impl Iterator<Item = Family> {
    let is_wanted = |version: &Family| *version == Family::V4 || !redirect.bypass_ipv6;
    Family::BOTH.into_iter().filter(is_wanted)
}

/// Programs `redirect` in `netns`, all at once in each IP version. If one fails, both are as they
/// were before.
pub(super) fn program(netns: &Netns, redirect: &Redirect) -> Result<Before, CniError> {
    let wanted = |version, text: &str| table(&rules(redirect, version), &missing_jumps(text));
    change(netns, versions(redirect), wanted)
}

/// Removes what an `earlier` call has programmed, except in the IP versions that the redirections
/// `kept` need.
pub(super) fn remove(
    netns: &Netns,
    earlier: &Redirect,
    kept: &[&Redirect],
) -> Result<(), CniError> {
    change(netns, obsolete(earlier, kept), |_, now| in_table(&removal(now))).map(drop)
}

/// Whether anything is there that [`remove`] would remove.
pub(super) fn is_left(
    netns: &Netns,
    earlier: &Redirect,
    kept: &[&Redirect],
) -> Result<bool, CniError> {
    for version in obsolete(earlier, kept) {
        if !removal(&save(netns, version)?).is_empty() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The IP versions in which `earlier` had rules, and in which none of `kept` needs any.
fn obsolete(earlier: &Redirect, kept: &[&Redirect]) -> impl Iterator<Item = Family> {
    let needs = |kept: &Redirect, version| {
        kept.backend == RedirectBackend::Iptables && versions(kept).any(|needed| needed == version)
    };
    let is_kept = move |version: &Family| kept.iter().any(|kept| needs(kept, *version));
    versions(earlier).filter(move |version| !is_kept(version))
}

/// Why `redirect` cannot be programmed in a pod whose attachments `others` are redirected, too. The
/// rules of this backend match no interface, so there is one set of them for the whole pod.
pub(crate) fn conflict(redirect: &Redirect, others: &[&Redirect]) -> Option<&'static str> {
    let all = |redirect: &Redirect| {
        Vec::from_iter(versions(redirect).map(|version| rules(redirect, version)))
    };
    let is_other = |other: &&&Redirect| {
        other.backend == RedirectBackend::Iptables && all(other) != all(redirect)
    };
    let conflicts = redirect.backend == RedirectBackend::Iptables
        && others.iter().any(|other| is_other(&other));
    conflicts.then_some(
        "redirect.backend is \"iptables\", whose rules are the whole pod's, and another interface \
         of the pod has other ones",
    )
}

/// Gives `iptables-restore` of each version of IP its `input`, which is made from what
/// `iptables-save` lists.
fn change(
    netns: &Netns,
    versions: impl Iterator<Item = Family>,
    input: impl Fn(Family, &str) -> String,
) -> Result<Before, CniError> {
    let mut before = Before(Vec::new());
    for version in versions {
        let changed = save(netns, version)
            .and_then(|text| restore(netns, version, &input(version, &text)).map(|()| text));
        match changed {
            Ok(text) => before.0.push((version, text)),
            Err(error) => return Err(before.restore(netns, error)),
        }
    }
    Ok(before)
}

impl Before {
    /// Restores what was there before, after `error`. Returns the error, with any failure of this.
    pub(super) fn restore(&self, netns: &Netns, mut error: CniError) -> CniError {
        for (version, before) in &self.0 {
            let restored = save(netns, *version)
                .and_then(|now| restore(netns, *version, &backwards(before, &now)));
            if let Err(also) = restored {
                let also = also.in_full();
                error = CniError::TryAgainLater(format!(
                    "{error}; and iptables' rules could not be removed: {also}"
                ));
            }
        }
        error
    }
}

/// The input of `iptables-restore` that restores what `iptables-save` listed as `before`, in place
/// of what it lists `now`.
fn backwards(before: &str, now: &str) -> String {
    let mut lines = removal(now);
    let had = CHAINS.into_iter().filter(|chain| has_chain(before, chain));
    lines.extend(had.map(|chain| format!("-N {chain}")));
    lines.extend(own_lines(before));
    lines.extend(jumps(before).map(|jump| format!("-A {jump}")));
    in_table(&lines)
}

/// The lines that remove what `iptables-save` lists `now`.
fn removal(now: &str) -> Vec<String> {
    let has = CHAINS.into_iter().filter(|chain| has_chain(now, chain));
    let chains = has.flat_map(|chain| [format!("-F {chain}"), format!("-X {chain}")]);
    jumps(now).map(|jump| format!("-D {jump}")).chain(chains).collect()
}

fn in_table(lines: &[String]) -> String {
    format!("*nat\n{}\nCOMMIT\n", lines.join("\n"))
}

fn has_chain(text: &str, chain: &str) -> bool {
    text.lines().any(|line| line.starts_with(&format!(":{chain} ")))
}

/// How the rules in `netns` differ from those that `redirect` needs, rule by rule.
pub(super) fn differences(netns: &Netns, redirect: &Redirect) -> Result<Vec<String>, CniError> {
    let mut found = Vec::new();
    for version in versions(redirect) {
        let text = save(netns, version)?;
        let (wanted, seen) = (rules(redirect, version), own_lines(&text));
        let absent = wanted.iter().filter(|line| !seen.contains(*line));
        found.extend(absent.map(|line| format!("{version} rule is missing: {line}")));
        let foreign = seen.iter().filter(|line| !wanted.contains(*line));
        found.extend(foreign.map(|line| format!("{version} has a foreign rule: {line}")));
        let jumps = missing_jumps(&text);
        found.extend(jumps.iter().map(|jump| format!("{version} rule is missing: -A {jump}")));
        // iptables-save has its own order of chains.
        if found.is_empty()
            && CHAINS.iter().any(|chain| of_chain(&wanted, chain) != of_chain(&seen, chain))
        {
            found.push(format!("the {version} rules are in another order, or twice"));
        }
    }
    Ok(found)
}

/// The input of `iptables-restore`. An existing chain is emptied by its declaration.
fn table(rules: &[String], jumps: &[&str]) -> String {
    let chains = CHAINS.map(|chain| format!(":{chain} - [0:0]\n")).concat();
    let rules = rules.iter().map(|rule| format!("{rule}\n")).collect::<String>();
    let jumps = jumps.iter().map(|jump| format!("-A {jump}\n")).collect::<String>();
    format!("*nat\n{chains}{rules}{jumps}COMMIT\n")
}

/// The rules in `netns` as `iptables-save` lists them, with the connections that they counted.
pub(super) fn counted(netns: &Netns, redirect: &Redirect) -> Result<String, CniError> {
    let mut text = String::new();
    for version in versions(redirect) {
        let listed = execute(netns, save_program(version), &["-c", "-t", "nat"], "")?;
        text += &format!("{version}, [connections:bytes]\n");
        for line in listed.lines().filter(|line| line.contains("proxy-init/")) {
            text += &format!("{line}\n");
        }
    }
    Ok(text)
}

/// The rules of the two chains in what `iptables-save` lists.
fn own_lines(text: &str) -> Vec<String> {
    let is_own = |line: &&str| CHAINS.iter().any(|chain| line.starts_with(&format!("-A {chain} ")));
    text.lines().map(str::trim_end).filter(is_own).map(str::to_owned).collect()
}

fn of_chain<'a>(rules: &'a [String], chain: &str) -> Vec<&'a String> {
    rules.iter().filter(|rule| rule.starts_with(&format!("-A {chain} "))).collect()
}

/// The jumps that are in what `iptables-save` lists.
fn jumps(text: &str) -> impl Iterator<Item = &'static str> {
    JUMPS.into_iter().filter(|jump| text.lines().any(|line| line == format!("-A {jump}")))
}

fn missing_jumps(text: &str) -> Vec<&'static str> {
    JUMPS.into_iter().filter(|jump| !jumps(text).any(|present| present == *jump)).collect()
}

/// The rules of both chains, as `iptables-save` lists them.
fn rules(redirect: &Redirect, version: Family) -> Vec<String> {
    let mut rules = inbound_rules(redirect, version);
    rules.extend(outbound_rules(redirect, version));
    rules
}

fn inbound_rules(redirect: &Redirect, version: Family) -> Vec<String> {
    let Some(port) = redirect.inbound_port else { return Vec::new() };
    let rule =
        |matches: &str, comment: &str, target: &str| rule(CHAINS[0], matches, comment, target);
    let (always, skipped) = (&redirect.always_skip_inbound_ports, &redirect.skip_inbound_ports);
    let mut rules = skip_ports(CHAINS[0], always.iter().chain(skipped));
    for cidr in of_version(&redirect.skip_inbound_cidrs, version) {
        let comment = format!("proxy-init/ignore-subnet-{cidr}");
        rules.push(rule(&format!("-s {cidr}"), &comment, "RETURN"));
    }
    let to = format!("REDIRECT --to-ports {port}");
    for range in &redirect.only_inbound_ports {
        let comment = format!("proxy-init/redirect-port-{range}-to-proxy-port");
        rules.push(rule(&format!("-p tcp -m tcp --dport {}", colon(*range)), &comment, &to));
    }
    if redirect.only_inbound_ports.is_empty() {
        let comment = "proxy-init/redirect-all-incoming-to-proxy-port";
        rules.push(rule("-p tcp", comment, &to));
    }
    rules
}

fn outbound_rules(redirect: &Redirect, version: Family) -> Vec<String> {
    let Some(port) = redirect.outbound_port else { return Vec::new() };
    let rule =
        |matches: &str, comment: &str, target: &str| rule(CHAINS[1], matches, comment, target);
    let mut rules = Vec::new();
    if let Some(uid) = redirect.proxy_uid {
        let matches = format!("-m owner --uid-owner {uid}");
        rules.push(rule(&matches, "proxy-init/ignore-proxy-user-id", "RETURN"));
    }
    if let Some(gid) = redirect.proxy_gid {
        let matches = format!("-m owner --gid-owner {gid}");
        rules.push(rule(&matches, "proxy-init/ignore-proxy-group-id", "RETURN"));
    }
    rules.push(rule("-o lo", "proxy-init/ignore-loopback", "RETURN"));
    for uid in &redirect.skip_outbound_uids {
        let matches = format!("-m owner --uid-owner {uid}");
        rules.push(rule(&matches, &format!("denizen/ignore-user-id-{uid}"), "RETURN"));
    }
    rules.extend(skip_ports(CHAINS[1], redirect.skip_outbound_ports.iter()));
    for cidr in of_version(&redirect.skip_outbound_cidrs, version) {
        let comment = format!("proxy-init/ignore-subnet-{cidr}");
        rules.push(rule(&format!("-d {cidr}"), &comment, "RETURN"));
    }
    let comment = "proxy-init/redirect-all-outgoing-to-proxy-port";
    rules.push(rule("-p tcp", comment, &format!("REDIRECT --to-ports {port}")));
    rules
}

fn rule(chain: &str, matches: &str, comment: &str, target: &str) -> String {
    format!("-A {chain} {matches} -m comment --comment \"{comment}\" -j {target}")
}

fn skip_ports<'a>(chain: &str, ranges: impl Iterator<Item = &'a PortRange>) -> Vec<String> {
    let rule = |ports: String| {
        let matches = format!("-p tcp -m multiport --dports {ports}");
        rule(chain, &matches, &format!("proxy-init/ignore-port-{ports}"), "RETURN")
    };
    multiports(ranges).into_iter().map(rule).collect()
}

fn of_version(cidrs: &[IpNetwork], version: Family) -> impl Iterator<Item = &IpNetwork> {
    cidrs.iter().filter(move |cidr| family_of(cidr.ip()) == version)
}

/// As iptables writes ports.
fn colon(range: PortRange) -> String {
    range.to_string().replace('-', ":")
}

/// Lists of ports, each of which fits into one rule.
fn multiports<'a>(ranges: impl Iterator<Item = &'a PortRange>) -> Vec<String> {
    let mut lists: Vec<String> = Vec::new();
    let mut room = 0;
    for range in ranges {
        let (first, last) = range.bounds();
        let takes = if first == last { 1 } else { 2 };
        match lists.last_mut().filter(|_| takes <= room) {
            Some(list) => *list += &format!(",{}", colon(*range)),
            None => {
                lists.push(colon(*range));
                room = MOST_PORTS;
            }
        }
        room -= takes;
    }
    lists
}

fn save(netns: &Netns, version: Family) -> Result<String, CniError> {
    execute(netns, save_program(version), &["-t", "nat"], "")
}

fn save_program(version: Family) -> &'static str {
    match version {
        Family::V4 => "iptables-save",
        Family::V6 => "ip6tables-save",
    }
}

fn restore(netns: &Netns, version: Family, input: &str) -> Result<(), CniError> {
    let program = match version {
        Family::V4 => "iptables-restore",
        Family::V6 => "ip6tables-restore",
    };
    execute(netns, program, &["--noflush", WAIT], input).map(drop)
}

/// Executes the program in `netns` and returns what it printed.
fn execute(
    netns: &Netns,
    program: &str,
    arguments: &[&str],
    input: &str,
) -> Result<String, CniError> {
    let cannot = |error: io::Error| {
        let doing = format!("cannot execute {program} (redirect.backend is \"iptables\")");
        CniError::io(doing, error)
    };
    #[expect(clippy::disallowed_methods, reason = "iptables has no other interface")]
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = netns.within(|| command.spawn()).and_then(|spawned| spawned).map_err(cannot)?;
    // If this fails, the program reports it itself.
    let _ = child.stdin.take().expect("it is piped").write_all(input.as_bytes());
    let output = child.wait_with_output().map_err(cannot)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let message = String::from_utf8_lossy(&output.stderr);
    let message = message.split_whitespace().collect::<Vec<_>>().join(" ");
    let users = match message.contains("Invalid argument") {
        true => " (in a pod with hostUsers: false, iptables cannot match users)",
        false => "",
    };
    Err(CniError::io(format!("{program} failed{users}"), io::Error::other(message)))
}
