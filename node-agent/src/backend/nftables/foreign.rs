//! Tables of nf_tables that are somebody else's: reading them, changing single rules and chains in
//! them, and removing the tables of kube-proxy's nftables mode.

use nix::errno::Errno;
use nix::libc;

use super::kernel::NftablesError;
use super::message::kind;
use super::name::TableFamily;
use crate::model::Family;
use denizen_netlink::{Attributes, Message, NetlinkError, Socket, Writer};

/// kube-proxy's, of its nftables mode.
const KUBE_PROXYS: &str = "kube-proxy";

/// How often a dump that was torn by somebody's change is taken anew.
const TRIES: usize = 10;

/// A batch that the kernel did not take: nothing was changed.
#[derive(Debug)]
pub struct NotTaken {
    /// Which of the batch's messages was rejected, from 0 on; `None` when it was not a single one.
    pub at: Option<usize>,
    /// Why.
    pub source: NetlinkError,
}

impl From<NotTaken> for NetlinkError {
    fn from(NotTaken { source, .. }: NotTaken) -> Self {
        source
    }
}

/// Commits one batch with a message for each of `each`. With `generation`, the kernel rejects it
/// (`ERESTART`) when anybody has changed anything since then.
///
/// # Errors
/// [`NotTaken`].
pub fn commit<T>(
    socket: &mut Socket,
    generation: Option<u32>,
    each: &[T],
    message: impl Fn(&mut Writer, u32, &T),
) -> Result<(), NotTaken> {
    // linux/netfilter/nfnetlink.h, NFNL_BATCH_GENID.
    const GENERATION: u16 = 1;
    let count = each.len() as u32;
    if count == 0 {
        return Ok(());
    }
    let first = socket.sequences(count + 2);
    let mut w = Writer::default();
    let edge = |w: &mut Writer, message: i32, sequence, generation| {
        let subsystem = libc::NFNL_SUBSYS_NFTABLES as u16;
        let open = w.begin_message(message as u16, 0, sequence, 0, subsystem);
        if let Some(generation) = generation {
            w.put_u32(GENERATION, generation);
        }
        w.end_message(open);
    };
    edge(&mut w, libc::NFNL_MSG_BATCH_BEGIN, first, generation);
    let mut last_at = 0;
    for (item, sequence) in each.iter().zip(first + 1..) {
        last_at = w.bytes().len();
        message(&mut w, sequence, item);
    }
    w.add_flags(last_at, libc::NLM_F_ACK as u16);
    edge(&mut w, libc::NFNL_MSG_BATCH_END, first + count + 1, None);
    let sent = socket.send(w.bytes());
    sent.and_then(|()| socket.outcome(first + count)).map_err(|source| {
        let at = match &source {
            NetlinkError::Refused(refusal) => refusal.sequence.checked_sub(first + 1),
            NetlinkError::Io { .. }
            | NetlinkError::Overflow
            | NetlinkError::Interrupted
            | NetlinkError::Unacknowledged => None,
        };
        let at = at.map(|at| at as usize).filter(|at| *at < each.len());
        NotTaken { at, source }
    })
}

/// Gives every answer to a dump request to `each`. `of` narrows it: a table's name, or a table's
/// and a chain's.
///
/// # Errors
/// [`NetlinkError`]; what was given to `each` is then of no use.
pub fn dump(
    socket: &mut Socket,
    message: i32,
    family: u8,
    of: &[&str],
    each: impl FnMut(Message<'_>),
) -> Result<(), NetlinkError> {
    let sequence = socket.sequences(1);
    let mut request = Writer::default();
    let open = request.begin_message(kind(message), libc::NLM_F_DUMP as u16, sequence, family, 0);
    for (attribute, name) in (1..).zip(of) {
        request.put_str(attribute, name);
    }
    request.end_message(open);
    socket.dump(request.bytes(), sequence, each)
}

/// Takes a dump again while somebody's change tears it, a bounded number of times.
///
/// # Errors
/// The last attempt's.
pub fn retried<T>(mut attempt: impl FnMut() -> Result<T, NetlinkError>) -> Result<T, NetlinkError> {
    let mut result = attempt();
    for _ in 1..TRIES {
        if !matches!(result, Err(NetlinkError::Interrupted | NetlinkError::Overflow)) {
            break;
        }
        result = attempt();
    }
    result
}

/// A rule's handle, by which it is removed.
pub fn handle(rule: Attributes<'_>) -> Option<u64> {
    rule.find(3)?.try_into().ok().map(u64::from_be_bytes)
}

/// A rule's comment as nft keeps it: in the rule's user data (type, length, value; a comment's type
/// is 0).
pub fn comment(rule: Attributes<'_>) -> Option<&str> {
    let mut data = rule.find(7)?;
    while let [found, length, rest @ ..] = data {
        let value = rest.get(..usize::from(*length))?;
        if *found == 0 {
            return std::str::from_utf8(value.strip_suffix(&[0]).unwrap_or(value)).ok();
        }
        data = &rest[usize::from(*length)..];
    }
    None
}

/// A rule's comment as iptables-nft writes it: a match of xtables (`struct xt_comment_info`).
pub fn xt_comment(rule: Attributes<'_>) -> Option<&str> {
    let is_comment = |(name, data): &(&str, Attributes<'_>)| {
        *name == "match" && data.find_str(1) == Some("comment")
    };
    let (_, data) = expressions(rule).find(is_comment)?;
    let text = data.find(3)?.split(|byte| *byte == 0).next()?;
    std::str::from_utf8(text).ok()
}

/// The chain that a rule jumps or goes to.
pub fn leads_to(rule: Attributes<'_>) -> Option<&str> {
    const VERDICT_REGISTER: u32 = 0;
    expressions(rule).find_map(|(name, data)| {
        let decides = name == "immediate" && data.find_u32(1) == Some(VERDICT_REGISTER);
        decides.then(|| data.nested(2).nested(2).find_str(2))?
    })
}

/// A rule's expressions: the name of each, and its attributes.
pub fn expressions(rule: Attributes<'_>) -> impl Iterator<Item = (&str, Attributes<'_>)> {
    rule.nested(4).map(|(_, expression)| {
        let expression = Attributes::new(expression);
        (expression.find_str(1).unwrap_or_default(), expression.nested(2))
    })
}

/// Removes the tables of kube-proxy's nftables mode; how many there were.
///
/// # Errors
/// The kernel's.
pub fn remove_kube_proxys() -> Result<usize, NftablesError> {
    let mut removed = 0;
    for table_family in Family::BOTH.map(TableFamily::Ip) {
        let is_removed = remove(table_family).map_err(|source| NftablesError::Netlink {
            table_family,
            doing: "remove kube-proxy's",
            source,
        })?;
        removed += usize::from(is_removed);
    }
    Ok(removed)
}

fn remove(table_family: TableFamily) -> Result<bool, NetlinkError> {
    const NAME: u16 = 1;
    let mut socket = Socket::open()?;
    let removed = commit(&mut socket, None, &[KUBE_PROXYS], |w, sequence, name| {
        let open =
            w.begin_message(kind(libc::NFT_MSG_DELTABLE), 0, sequence, table_family.number(), 0);
        w.put_str(NAME, name);
        w.end_message(open);
    });
    match removed.map_err(NetlinkError::from) {
        Err(error) if error.errno() == Some(Errno::ENOENT) => Ok(false),
        done => done.map(|()| true),
    }
}
