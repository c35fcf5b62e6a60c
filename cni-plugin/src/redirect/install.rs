//! A [`Redirect`] in the kernel, in the pod's network namespace.

use std::net::IpAddr;
use std::sync::Arc;

use denizen_netlink::NetlinkError;
use denizen_nft::{At, ChainView, Family, Kernel, NftError, RuleView};
use denizen_state::redirect::{Backend, Redirect, TABLE};
use nix::errno::Errno;

use super::entry::Verify;
use super::iptables::{self, Before};
use super::program::{Commented, INVALID, chains, schema};
use super::verify::verify;
use crate::error::{CniError, in_full};
use crate::kernel::Netns;

/// A redirection that is in the kernel, and can still be taken back.
pub(crate) struct Installed {
    programmed: Programmed,
    redirect: Redirect,
}

/// What is needed to take it back.
enum Programmed {
    Nftables(Kernel),
    Iptables(Before),
}

impl Installed {
    /// What is redirected.
    pub(crate) fn redirect(&self) -> &Redirect {
        &self.redirect
    }

    /// Takes it back, for `error`: `netns` is as it was before, with what an `earlier` ADD has
    /// programmed. Returns the error, with any failure.
    pub(crate) fn undo(
        self,
        netns: &Netns,
        earlier: Option<&Redirect>,
        error: CniError,
    ) -> CniError {
        let mut kernel = match self.programmed {
            Programmed::Nftables(kernel) => kernel,
            Programmed::Iptables(before) => return before.restore(netns, error),
        };
        let undone = match earlier.filter(|earlier| earlier.backend == Backend::Nftables) {
            Some(earlier) => write(&mut kernel, earlier),
            None => kernel
                .write(Family::Inet, |batch| batch.delete_table(TABLE))
                .map_err(|error| refused(&error)),
        };
        match undone {
            Ok(()) => error,
            Err(also) => {
                let also = also.in_full();
                CniError::TryAgainLater(format!(
                    "{error}; and {TABLE} could not be brought back to what it was: {also}"
                ))
            }
        }
    }
}

/// Programs `redirect` in `netns`, in place of what an earlier call did, and tries it as `how`
/// says. `gateways` are the pod's. If it fails, nothing of it stays: the pod is as it was before,
/// with what `earlier` tells.
pub(crate) fn install(
    netns: &Netns,
    redirect: Redirect,
    how: Verify,
    gateways: &[IpAddr],
    earlier: impl Fn() -> Option<Redirect>,
) -> Result<Installed, CniError> {
    let programmed = match redirect.backend {
        Backend::Nftables => Programmed::Nftables(program(netns, &redirect)?),
        Backend::Iptables => Programmed::Iptables(iptables::program(netns, &redirect)?),
    };
    let installed = Installed { programmed, redirect };
    let verified = match how {
        Verify::Connect => verify(netns, &installed.redirect, gateways),
        Verify::None => Ok(()),
    };
    match verified {
        Ok(()) => Ok(installed),
        Err(why) => {
            let error = CniError::TryAgainLater(format!(
                "the pod's connections are not redirected: {why} (redirect.verify is \"connect\")"
            ));
            Err(installed.undo(netns, earlier().as_ref(), error))
        }
    }
}

/// Removes what an `earlier` ADD has programmed in `netns` and `kept` does not replace.
pub(crate) fn remove_obsolete(
    netns: &Netns,
    earlier: &Redirect,
    kept: Option<&Redirect>,
) -> Result<(), CniError> {
    let kept = kept.filter(|kept| kept.backend == earlier.backend);
    match earlier.backend {
        Backend::Nftables if kept.is_some() => Ok(()),
        Backend::Nftables => open(netns)?
            .write(Family::Inet, |batch| {
                // Somebody may have deleted it.
                batch.add_table(&schema());
                batch.delete_table(TABLE);
            })
            .map_err(|error| refused(&error)),
        Backend::Iptables => iptables::remove(netns, earlier, kept),
    }
}

fn program(netns: &Netns, redirect: &Redirect) -> Result<Kernel, CniError> {
    let mut kernel = open(netns)?;
    write(&mut kernel, redirect).map(|()| kernel)
}

/// Everything is one batch, and chains that are there keep their hooks: no packet meets half of the
/// rules, or none.
fn write(kernel: &mut Kernel, redirect: &Redirect) -> Result<(), CniError> {
    let obsolete = match redirect.drop_invalid {
        true => Vec::new(),
        false => invalid_chain(kernel)?,
    };
    kernel
        .write(Family::Inet, |batch| {
            batch.add_table(&schema());
            batch.delete_chains(TABLE, &obsolete);
            for Commented { chain, comments } in chains(redirect) {
                batch.add_chain(TABLE, &chain);
                batch.flush_chain(TABLE, &chain.name);
                for (rule, comment) in chain.rules.iter().zip(&comments) {
                    batch.add_rule(TABLE, &chain.name, rule, comment, At::End);
                }
            }
        })
        .map_err(|error| refused(&error))
}

/// The chain of an earlier ADD that dropped what is invalid, if it is there.
fn invalid_chain(kernel: &mut Kernel) -> Result<Vec<Arc<str>>, CniError> {
    let name = |chain: ChainView<'_>| {
        let name = chain.name().filter(|name| *name == INVALID)?;
        is_ours(chain.family(), chain.table()).then(|| name.into())
    };
    kernel.chains(Some(Family::Inet), name).map_err(|error| unreadable(&error))
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

pub(super) fn unreadable(error: &NetlinkError) -> CniError {
    CniError::io(
        format!("cannot read {TABLE}: {}", in_full(error)),
        error.errno().unwrap_or(Errno::EIO),
    )
}

fn refused(error: &NftError) -> CniError {
    let modules = match error.errno() {
        Some(Errno::ENOENT) => " (does the kernel have nft_chain_nat and nft_redir?)",
        Some(_) | None => "",
    };
    CniError::Io {
        doing: format!("cannot program {TABLE} in the pod's network namespace{modules}"),
        source: std::io::Error::other(in_full(error)),
    }
}

/// How the rules in `netns` differ from those that `redirect` needs, rule by rule.
pub(crate) fn differences(netns: &Netns, redirect: &Redirect) -> Result<Vec<String>, CniError> {
    match redirect.backend {
        Backend::Nftables => nftables_differences(netns, redirect),
        Backend::Iptables => iptables::differences(netns, redirect),
    }
}

fn nftables_differences(netns: &Netns, redirect: &Redirect) -> Result<Vec<String>, CniError> {
    let mut kernel = open(netns)?;
    let unreadable = |error: NetlinkError| unreadable(&error);
    let tables = kernel
        .tables(|table| is_ours(table.family(), table.name()).then(|| table.is_dormant()))
        .map_err(unreadable)?;
    match tables.as_slice() {
        [] => return Ok(vec![format!("table {TABLE} is missing in the pod")]),
        [is_dormant, ..] if *is_dormant => {
            return Ok(vec![format!("table {TABLE} is dormant: it redirects nothing")]);
        }
        _ => {}
    }
    let wanted = chains(redirect);
    let seen = kernel
        .chains(Some(Family::Inet), |chain| {
            is_ours(chain.family(), chain.table()).then(|| found_chain(&wanted, chain)).flatten()
        })
        .map_err(unreadable)?;
    let mut found = foreign_chains(&seen);
    for wanted in &wanted {
        let name = &wanted.chain.name;
        if !seen.iter().any(|chain| chain.is_wanted && chain.name == **name) {
            found.push(format!("chain {name} is missing in the pod's table {TABLE}"));
            continue;
        }
        let rules = kernel
            .rules(Family::Inet, TABLE, Some(name), |rule| {
                // Where the kernel does not narrow a dump, it has other chains' rules, too.
                (rule.chain() == Some(name)).then(|| found_rule(wanted, rule))
            })
            .map_err(unreadable)?;
        found.extend(rule_differences(wanted, &rules));
    }
    Ok(found)
}

fn is_ours(family: Option<Family>, table: Option<&str>) -> bool {
    family == Some(Family::Inet) && table == Some(TABLE)
}

/// A chain of the table.
struct FoundChain {
    name: String,
    is_wanted: bool,
}

fn found_chain(wanted: &[Commented], chain: ChainView<'_>) -> Option<FoundChain> {
    let name = chain.name()?;
    let is_it = |it: &&Commented| &*it.chain.name == name;
    let base = wanted.iter().find(is_it).and_then(|it| it.chain.base);
    let is_wanted = base.is_some_and(|base| chain.is_at(base.hook) && !chain.drops_by_policy());
    Some(FoundChain { name: name.to_owned(), is_wanted })
}

fn foreign_chains(seen: &[FoundChain]) -> Vec<String> {
    let foreign = seen.iter().filter(|chain| !chain.is_wanted);
    foreign.map(|chain| format!("chain {} in {TABLE} is not denizen's", chain.name)).collect()
}

/// A rule of a chain.
pub(super) struct FoundRule {
    comment: Arc<str>,
    /// What it is in the chain that is wanted; `None` when it does something else.
    pub(super) place: Option<usize>,
}

pub(super) fn found_rule(wanted: &Commented, rule: RuleView<'_>) -> FoundRule {
    let comment = rule.comment().unwrap_or("a rule without a comment");
    let mut both = wanted.chain.rules.iter().zip(&wanted.comments);
    // The comment distinguishes rules, and what the rule does is compared: either can be changed.
    let place = both.position(|(it, text)| text == comment && rule.does(Family::Inet, it));
    FoundRule { comment: comment.into(), place }
}

fn rule_differences(wanted: &Commented, seen: &[FoundRule]) -> Vec<String> {
    let name = &wanted.chain.name;
    let is_there = |place: &usize| seen.iter().any(|rule| rule.place == Some(*place));
    let missing = (0..wanted.comments.len()).filter(|place| !is_there(place));
    let missing = missing
        .map(|place| format!("rule {:?} of chain {name} is missing", wanted.comments[place]));
    let foreign = seen.iter().filter(|rule| rule.place.is_none());
    let foreign =
        foreign.map(|rule| format!("chain {name} has a foreign rule: {:?}", rule.comment));
    let mut found: Vec<String> = missing.chain(foreign).collect();
    let places: Vec<_> = seen.iter().filter_map(|rule| rule.place).collect();
    if !places.is_sorted() {
        found.push(format!("the rules of chain {name} are in another order"));
    } else if places.windows(2).any(|two| two[0] == two[1]) {
        found.push(format!("chain {name} has a rule twice"));
    }
    found
}
