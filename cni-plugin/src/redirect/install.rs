//! A [`Redirect`] in the kernel, in the pod's network namespace.

use std::net::IpAddr;
use std::sync::Arc;

use denizen_netlink::NetlinkError;
use denizen_nft::{ChainView, Kernel, NftError, RulePosition, RuleView, TableFamily};
use denizen_state::redirect::{Redirect, RedirectBackend};
use nix::errno::Errno;

use super::entry::Verify;
use super::iptables::{self, Before};
use super::location::Location;
use super::program::{COMMENT, Commented, INVALID, chains};
use super::verify::verify;
use crate::error::{CniError, in_full};
use crate::kernel::Netns;

/// A redirection that is in the kernel, and can still be taken back.
pub(crate) struct Installed {
    programmed: UndoWith,
    redirect: Redirect,
}

/// What the undo needs.
enum UndoWith {
    Nftables(Kernel),
    Iptables(Before),
}

impl Installed {
    /// What is redirected.
    pub(crate) fn redirect(&self) -> &Redirect {
        &self.redirect
    }

    /// Takes the redirection back because of `error`: the pod is as it was before, with what an
    /// `earlier` ADD has programmed. Returns `error`, with any failure of the undo.
    pub(crate) fn undo(
        self,
        location: &Location<'_>,
        earlier: Option<&Redirect>,
        error: CniError,
    ) -> CniError {
        let mut kernel = match self.programmed {
            UndoWith::Nftables(kernel) => kernel,
            UndoWith::Iptables(before) => return before.restore(location.netns, error),
        };
        let table = &location.table;
        let undone = match earlier.filter(|earlier| earlier.backend == RedirectBackend::Nftables) {
            Some(earlier) => write(&mut kernel, table, earlier),
            None => kernel
                .write(TableFamily::Inet, |batch| batch.delete_table(table))
                .map_err(|error| refused(table, &error)),
        };
        match undone {
            Ok(()) => error,
            Err(also) => {
                let also = also.in_full();
                CniError::TryAgainLater(format!(
                    "{error}; and {table} could not be brought back to what it was: {also}"
                ))
            }
        }
    }
}

/// Programs `redirect` at `location`, in place of what an earlier call programmed, and tests it as
/// `how` says. `gateways` are the pod's. If it fails, the pod is as it was before, with the rules
/// of `earlier`.
pub(crate) fn install(
    location: &Location<'_>,
    redirect: Redirect,
    how: Verify,
    gateways: &[IpAddr],
    earlier: impl Fn() -> Option<Redirect>,
) -> Result<Installed, CniError> {
    let programmed = match redirect.backend {
        RedirectBackend::Nftables => UndoWith::Nftables(program(location, &redirect)?),
        RedirectBackend::Iptables => {
            UndoWith::Iptables(iptables::program(location.netns, &redirect)?)
        }
    };
    let installed = Installed { programmed, redirect };
    let verified = match how {
        Verify::Connect => verify(location.netns, &installed.redirect, gateways),
        Verify::None => Ok(()),
    };
    match verified {
        Ok(()) => Ok(installed),
        Err(why) => {
            let error = CniError::TryAgainLater(format!(
                "the pod's connections are not redirected: {why} (redirect.verify is \"connect\")"
            ));
            Err(installed.undo(location, earlier().as_ref(), error))
        }
    }
}

/// Removes what an `earlier` ADD has programmed at `location`, except rules of iptables that the
/// redirections `kept` need.
pub(crate) fn remove_obsolete(
    location: &Location<'_>,
    earlier: &Redirect,
    kept: &[&Redirect],
) -> Result<(), CniError> {
    match earlier.backend {
        RedirectBackend::Nftables => open(location.netns)?
            .write(TableFamily::Inet, |batch| {
                // Added first, since another program may have deleted the table, and then its
                // deletion fails.
                batch.add_table_named(&location.table, COMMENT);
                batch.delete_table(&location.table);
            })
            .map_err(|error| refused(&location.table, &error)),
        RedirectBackend::Iptables => iptables::remove(location.netns, earlier, kept),
    }
}

/// Whether anything is at `location` that [`remove_obsolete`] would remove.
pub(crate) fn is_left(
    location: &Location<'_>,
    earlier: &Redirect,
    kept: &[&Redirect],
) -> Result<bool, CniError> {
    match earlier.backend {
        RedirectBackend::Nftables => {
            Ok(is_dormant(&mut open(location.netns)?, &location.table)?.is_some())
        }
        RedirectBackend::Iptables => iptables::is_left(location.netns, earlier, kept),
    }
}

fn program(location: &Location<'_>, redirect: &Redirect) -> Result<Kernel, CniError> {
    let mut kernel = open(location.netns)?;
    write(&mut kernel, &location.table, redirect).map(|()| kernel)
}

/// Everything is one batch, and existing chains keep their hooks: every packet meets all of the
/// rules.
fn write(kernel: &mut Kernel, table: &str, redirect: &Redirect) -> Result<(), CniError> {
    let obsolete = match redirect.drop_invalid {
        true => Vec::new(),
        false => invalid_chain(kernel, table)?,
    };
    kernel
        .write(TableFamily::Inet, |batch| {
            batch.add_table_named(table, COMMENT);
            batch.delete_chains(table, &obsolete);
            for Commented { chain, comments } in chains(redirect) {
                batch.add_chain(table, &chain);
                batch.flush_chain(table, &chain.name);
                for (rule, comment) in chain.rules.iter().zip(&comments) {
                    batch.add_rule(table, &chain.name, rule, comment, RulePosition::End);
                }
            }
        })
        .map_err(|error| refused(table, &error))
}

/// The chain with which an earlier ADD dropped invalid packets, if it is there.
fn invalid_chain(kernel: &mut Kernel, table: &str) -> Result<Vec<Arc<str>>, CniError> {
    let name = |chain: ChainView<'_>| {
        let name = chain.name().filter(|name| *name == INVALID)?;
        is_in(table, chain.family(), chain.table()).then(|| name.into())
    };
    kernel.chains(Some(TableFamily::Inet), name).map_err(|error| unreadable(table, &error))
}

/// A connection to nf_tables in `netns`.
pub(super) fn open(netns: &Netns) -> Result<Kernel, CniError> {
    let cannot = |error: NetlinkError| CniError::Io {
        doing: "cannot reach nf_tables in the pod's network namespace".to_owned(),
        source: std::io::Error::other(in_full(&error)),
    };
    let entered = netns.within(Kernel::open);
    entered
        .map_err(|error| CniError::io("cannot enter the pod's network namespace", error))?
        .map_err(cannot)
}

pub(super) fn unreadable(table: &str, error: &NetlinkError) -> CniError {
    CniError::io(
        format!("cannot read {table}: {}", in_full(error)),
        error.errno().unwrap_or(Errno::EIO),
    )
}

fn refused(table: &str, error: &NftError) -> CniError {
    let modules = match error.errno() {
        Some(Errno::ENOENT) => " (does the kernel have nft_chain_nat and nft_redir?)",
        Some(_) | None => "",
    };
    CniError::Io {
        doing: format!("cannot program {table} in the pod's network namespace{modules}"),
        source: std::io::Error::other(in_full(error)),
    }
}

/// Whether the table is dormant; `None` if it is not there.
fn is_dormant(kernel: &mut Kernel, table: &str) -> Result<Option<bool>, CniError> {
    let found = kernel
        .tables(|found| is_in(table, found.family(), found.name()).then(|| found.is_dormant()))
        .map_err(|error| unreadable(table, &error))?;
    Ok(found.first().copied())
}

/// How the rules at `location` differ from those that `redirect` needs, rule by rule.
pub(crate) fn differences(
    location: &Location<'_>,
    redirect: &Redirect,
) -> Result<Vec<String>, CniError> {
    match redirect.backend {
        RedirectBackend::Nftables => nftables_differences(location, redirect),
        RedirectBackend::Iptables => iptables::differences(location.netns, redirect),
    }
}

fn nftables_differences(
    location: &Location<'_>,
    redirect: &Redirect,
) -> Result<Vec<String>, CniError> {
    let mut kernel = open(location.netns)?;
    let table = &*location.table;
    match is_dormant(&mut kernel, table)? {
        None => return Ok(vec![format!("table {table} is missing in the pod")]),
        Some(true) => return Ok(vec![format!("table {table} is dormant: it redirects nothing")]),
        Some(false) => {}
    }
    let unreadable = |error: NetlinkError| unreadable(table, &error);
    let wanted = chains(redirect);
    let seen = kernel
        .chains(Some(TableFamily::Inet), |chain| {
            is_in(table, chain.family(), chain.table())
                .then(|| found_chain(&wanted, chain))
                .flatten()
        })
        .map_err(unreadable)?;
    let mut found = foreign_chains(table, &seen);
    for wanted in &wanted {
        let name = &wanted.chain.name;
        if !seen.iter().any(|chain| chain.is_wanted && chain.name == **name) {
            found.push(format!("chain {name} is missing in the pod's table {table}"));
            continue;
        }
        let rules = kernel
            .rules(TableFamily::Inet, table, Some(name), |rule| {
                // A kernel that does not filter a dump also sends the rules of other chains.
                (rule.chain() == Some(name)).then(|| found_rule(wanted, rule))
            })
            .map_err(unreadable)?;
        found.extend(rule_differences(wanted, &rules));
    }
    Ok(found)
}

fn is_in(wanted: &str, family: Option<TableFamily>, table: Option<&str>) -> bool {
    family == Some(TableFamily::Inet) && table == Some(wanted)
}

/// A chain of the table.
struct FoundChain {
    name: String,
    is_wanted: bool,
}

fn found_chain(wanted: &[Commented], chain: ChainView<'_>) -> Option<FoundChain> {
    let name = chain.name()?;
    let has_name = |chain: &&Commented| &*chain.chain.name == name;
    let base = wanted.iter().find(has_name).and_then(|found| found.chain.base);
    let is_wanted = base.is_some_and(|base| chain.is_at(base.hook) && !chain.drops_by_policy());
    Some(FoundChain { name: name.to_owned(), is_wanted })
}

fn foreign_chains(table: &str, seen: &[FoundChain]) -> Vec<String> {
    let foreign = seen.iter().filter(|chain| !chain.is_wanted);
    foreign.map(|chain| format!("chain {} in {table} is not denizen's", chain.name)).collect()
}

/// A rule of a chain.
pub(super) struct FoundRule {
    comment: Arc<str>,
    /// Its index among the rules that the chain should have; `None` if it is not one of them.
    pub(super) index: Option<usize>,
}

pub(super) fn found_rule(wanted: &Commented, found: RuleView<'_>) -> FoundRule {
    let comment = found.comment().unwrap_or("a rule without a comment");
    let mut both = wanted.chain.rules.iter().zip(&wanted.comments);
    // A rule is found by its comment, and then compared: another program can change either.
    let index =
        both.position(|(rule, text)| text == comment && found.does(TableFamily::Inet, rule));
    FoundRule { comment: comment.into(), index }
}

fn rule_differences(wanted: &Commented, seen: &[FoundRule]) -> Vec<String> {
    let name = &wanted.chain.name;
    let is_there = |index: &usize| seen.iter().any(|rule| rule.index == Some(*index));
    let missing = (0..wanted.comments.len()).filter(|index| !is_there(index));
    let missing = missing
        .map(|index| format!("rule {:?} of chain {name} is missing", wanted.comments[index]));
    let foreign = seen.iter().filter(|rule| rule.index.is_none());
    let foreign =
        foreign.map(|rule| format!("chain {name} has a foreign rule: {:?}", rule.comment));
    let mut found: Vec<String> = missing.chain(foreign).collect();
    let indexes: Vec<_> = seen.iter().filter_map(|rule| rule.index).collect();
    if !indexes.is_sorted() {
        found.push(format!("the rules of chain {name} are in another order"));
    } else if indexes.windows(2).any(|two| two[0] == two[1]) {
        found.push(format!("chain {name} has a rule twice"));
    }
    found
}
