//! Removes a service proxy's chains from the nft variant's tables, through netlink.
//!
//! iptables' programs need `CAP_NET_RAW` to read a rule that names a set, so an agent that programs
//! nftables could not read what the iptables backend left. nf_tables itself needs `CAP_NET_ADMIN`
//! alone.

use std::collections::BTreeSet;

use nix::errno::Errno;
use nix::libc;

use super::cleanup::CANARY;
use super::name::{MARK_MASQ, Whose, is_a_proxys};
use crate::backend::nftables::foreign::{commit, dump, handle, leads_to, xt_comment};
use crate::backend::nftables::{Kernel, kind};
use crate::backend::why::Why;
use crate::iptables::{IptablesError, Table};
use crate::model::Family;
use denizen_netlink::{NetlinkError, Socket, Writer};

/// Tables that a service proxy's chains may be in. In the last there is nothing but kube-proxy's
/// canary.
const TABLES: [&str; 4] = ["filter", "nat", "security", "mangle"];

/// How often it begins anew when somebody changes the ruleset between the look and the batch.
const TRIES: usize = 20;

/// A chain: its table and its name.
type ChainOf = (String, String);

/// Removes the chains of both families, and the rules of other chains that lead to them; how many
/// chains there were. Each family's go in one batch, which the kernel rejects when anybody has
/// changed anything since they were read.
///
/// # Errors
/// [`IptablesError::Netlink`]; the other family's are removed all the same.
pub fn remove(whose: Whose) -> Result<usize, IptablesError> {
    let removed = Family::BOTH.map(|family| remove_of(family, whose));
    removed.into_iter().sum()
}

/// Whether denizen's own chains are there.
pub fn is_there() -> bool {
    let there = |family| {
        let mut socket = Socket::open().ok()?;
        let chains = chains_of(&mut socket, family, Whose::Denizens).ok()?;
        Some(!chains.is_empty())
    };
    Family::BOTH.into_iter().any(|family| there(family).unwrap_or(false))
}

fn remove_of(family: Family, whose: Whose) -> Result<usize, IptablesError> {
    let mut result = attempt(family, whose);
    for _ in 1..TRIES {
        match &result {
            Err(IptablesError::Netlink { source, .. }) if is_raced(source) => {
                result = attempt(family, whose);
            }
            Ok(_) | Err(_) => break,
        }
    }
    result
}

fn is_raced(error: &NetlinkError) -> bool {
    error.errno() == Some(Errno::ERESTART)
        || matches!(error, NetlinkError::Interrupted | NetlinkError::Overflow)
}

fn attempt(family: Family, whose: Whose) -> Result<usize, IptablesError> {
    let steps_and_count = || {
        let mut socket = Socket::open()?;
        let generation = Kernel::open()?.generation()?;
        let chains = chains_of(&mut socket, family, whose)?;
        let steps = steps(&mut socket, family, &chains)?;
        Ok((socket, generation, steps, chains.len()))
    };
    let unread = |source| IptablesError::Netlink {
        what: format!("read iptables-nft's {family} tables"),
        source,
    };
    let (mut socket, generation, steps, count) = steps_and_count().map_err(unread)?;
    let taken = commit(&mut socket, Some(generation), &steps, |w, sequence, step| {
        step.write(w, sequence, family);
    });
    taken.map(|()| count).map_err(|error| {
        let what = error.at.and_then(|at| steps.get(at));
        let what = what.map_or("the service proxy's chains".to_owned(), Step::to_string);
        IptablesError::Netlink {
            what: format!("remove {what} of iptables-nft's {family} tables"),
            source: error.source,
        }
    })
}

/// The chains that go. The names of services' chains are the same, kube-proxy's or denizen's: the
/// comment in one that is always there tells. Egress masquerade is nobody's but denizen's, the
/// canaries are nobody's but kube-proxy's.
fn chains_of(
    socket: &mut Socket,
    family: Family,
    whose: Whose,
) -> Result<BTreeSet<ChainOf>, NetlinkError> {
    const HOOK: u16 = 4;
    let mut chains = BTreeSet::new();
    dump(socket, libc::NFT_MSG_GETCHAIN, number(family), &[], |chain| {
        let attributes = chain.attributes();
        let Some((table, name)) = attributes.find_str(1).zip(attributes.find_str(3)) else {
            return;
        };
        let is_a_proxys = Table::named(table).is_some_and(|table| is_a_proxys(table, name));
        let is_candidate = TABLES.contains(&table) && (is_a_proxys || name == CANARY);
        // Nothing leads to a base chain, and the service proxies make none.
        if is_candidate && attributes.find(HOOK).is_none() {
            chains.insert((table.to_owned(), name.to_owned()));
        }
    })?;
    let services_are_ours = is_ours(socket, family, &chains)?;
    chains.retain(|(table, name)| {
        let is_denizens =
            name != CANARY && (services_are_ours || *table == Table::Security.to_string());
        is_denizens == (whose == Whose::Denizens)
    });
    Ok(chains)
}

/// Whether services' chains are denizen's: kube-proxy writes the rule that marks without a comment.
fn is_ours(
    socket: &mut Socket,
    family: Family,
    chains: &BTreeSet<ChainOf>,
) -> Result<bool, NetlinkError> {
    let marks = (Table::Nat.to_string(), MARK_MASQ.to_string());
    if !chains.contains(&marks) {
        return Ok(false);
    }
    let mut is_ours = false;
    let of = [marks.0.as_str(), marks.1.as_str()];
    dump(socket, libc::NFT_MSG_GETRULE, number(family), &of, |rule| {
        let comment = xt_comment(rule.attributes());
        is_ours |= comment.is_some_and(|text| text.contains(Why::MarkForMasquerade.text()));
    })?;
    Ok(is_ours)
}

/// One message of the batch.
#[derive(Debug)]
enum Step {
    /// A rule of somebody else's chain, by its handle: it leads to a chain that goes.
    Jump(ChainOf, u64),
    /// All rules of a chain that goes: they may lead to others of these.
    Rules(ChainOf),
    /// The chain, which nothing leads to any more.
    Chain(ChainOf),
}

impl std::fmt::Display for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Jump((table, chain), handle) => {
                write!(f, "rule {handle} of chain {chain} in table {table}")
            }
            Self::Rules((table, chain)) => write!(f, "the rules of chain {chain} in table {table}"),
            Self::Chain((table, chain)) => write!(f, "chain {chain} in table {table}"),
        }
    }
}

impl Step {
    fn write(&self, w: &mut Writer, sequence: u32, family: Family) {
        // linux/netfilter/nf_tables.h: NFTA_RULE_… and NFTA_CHAIN_….
        let (message, of, name) = match self {
            Self::Jump(of, _) | Self::Rules(of) => (libc::NFT_MSG_DELRULE, of, 2),
            Self::Chain(of) => (libc::NFT_MSG_DELCHAIN, of, 3),
        };
        let open = w.begin_message(kind(message), 0, sequence, number(family), 0);
        w.put_str(1, &of.0);
        w.put_str(name, &of.1);
        if let Self::Jump(_, handle) = self {
            w.put(3, &handle.to_be_bytes());
        }
        w.end_message(open);
    }
}

/// What removes these chains, in the order in which the kernel lets it: a chain that a rule leads
/// to stays.
fn steps(
    socket: &mut Socket,
    family: Family,
    chains: &BTreeSet<ChainOf>,
) -> Result<Vec<Step>, NetlinkError> {
    let tables: BTreeSet<&str> = chains.iter().map(|(table, _)| table.as_str()).collect();
    let mut steps = Vec::new();
    for table in tables {
        dump(socket, libc::NFT_MSG_GETRULE, number(family), &[table], |rule| {
            let rule = rule.attributes();
            let goes = |chain: &str| chains.contains(&(table.to_owned(), chain.to_owned()));
            // Where the kernel does not narrow the dump, other tables have rules too.
            if rule.find_str(1) != Some(table) || !leads_to(rule).is_some_and(goes) {
                return;
            }
            let within = rule.find_str(2).filter(|chain| !goes(chain));
            if let Some((chain, handle)) = within.zip(handle(rule)) {
                steps.push(Step::Jump((table.to_owned(), chain.to_owned()), handle));
            }
        })?;
    }
    steps.extend(chains.iter().cloned().map(Step::Rules));
    steps.extend(chains.iter().cloned().map(Step::Chain));
    Ok(steps)
}

fn number(family: Family) -> u8 {
    match family {
        Family::V4 => libc::NFPROTO_IPV4 as u8,
        Family::V6 => libc::NFPROTO_IPV6 as u8,
    }
}
