//! Reads and writes nf_tables through netlink.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use denizen_netlink::{Message, NetlinkError, Socket, Writer};
use nix::errno::Errno;
use nix::libc;
use thiserror::Error;
use tracing::trace_span;

use crate::batch::{Batch, kind};
use crate::chain::Chain;
use crate::counted::CountedElement;
use crate::family::TableFamily;
use crate::observed::{Observed, about};
use crate::read::{ChainView, RuleView, TableView};
use crate::rule::Rule;
use crate::rule_id::RuleId;
use crate::set::{Schema, Set};
use crate::subject::MessageSubject;

/// How often a dump is repeated if another program's changes interrupt it.
const DUMP_TRIES: usize = 20;

/// Why nf_tables could not be read or changed.
#[derive(Debug, Error)]
pub enum NftError {
    /// nf_tables cannot be read or written at all.
    #[error("nf_tables, {family} table: cannot {doing}")]
    Netlink {
        /// The table's family.
        family: TableFamily,
        /// The operation, as a verb.
        doing: &'static str,
        /// The netlink error.
        #[source]
        source: NetlinkError,
    },
    /// A batch was refused; everything is as it was before.
    #[error(
        "nf_tables, {family} table: the kernel refused {}",
        what.as_ref().map_or("the batch".to_owned(), MessageSubject::to_string)
    )]
    Refused {
        /// The table's family.
        family: TableFamily,
        /// What was refused; `None` when it was not a single message.
        what: Option<MessageSubject>,
        /// The kernel's error, with its message if it sent one.
        #[source]
        source: NetlinkError,
    },
    /// No netlink socket could be opened.
    #[error("cannot open netlink to nf_tables")]
    Open(#[source] NetlinkError),
    /// Only its owner process may change the table, and the kernel removes the table with that
    /// process (`NFT_TABLE_F_OWNER`).
    #[error("nf_tables, {family} table: it is owned by another process (netlink portid {owner})")]
    Owned {
        /// The table's family.
        family: TableFamily,
        /// The owner's portid: most often its process id.
        owner: u32,
    },
    /// A table of another version of Denizen exists, and not all of its new content is known:
    /// replacing it now would lose what it does.
    #[error("nf_tables, {family} table: the table of another version stays until all is known")]
    OtherVersion {
        /// The table's family.
        family: TableFamily,
    },
    /// The kernel refused some parts; everything else was programmed.
    #[error("nf_tables, {family} table: the kernel refused {}", rejected.join("; "))]
    PartlyRefused {
        /// The table's family.
        family: TableFamily,
        /// What was refused, and why.
        rejected: Vec<String>,
    },
    /// Another program changed the ruleset between the read and the batch that was made from it.
    #[error("nf_tables, {family} table: the ruleset changed while it was being repaired")]
    Raced {
        /// The table's family.
        family: TableFamily,
    },
}

impl NftError {
    /// The family of the table that the error is about; `None` if it is about no table.
    pub fn family(&self) -> Option<TableFamily> {
        match self {
            Self::Netlink { family, .. }
            | Self::Refused { family, .. }
            | Self::Owned { family, .. }
            | Self::OtherVersion { family }
            | Self::PartlyRefused { family, .. }
            | Self::Raced { family } => Some(*family),
            Self::Open(_) => None,
        }
    }

    /// The errno that the kernel answered with, if it answered.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Netlink { source, .. } | Self::Refused { source, .. } | Self::Open(source) => {
                source.errno()
            }
            Self::Owned { .. } | Self::OtherVersion { .. } | Self::PartlyRefused { .. } => None,
            Self::Raced { .. } => Some(Errno::ERESTART),
        }
    }
}

/// A connection to nf_tables in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct Kernel {
    pub(crate) socket: Socket,
    /// How many batches the kernel took from this connection and its
    /// [siblings](Self::sibling_connection).
    taken: Arc<AtomicU32>,
}

/// A state of the ruleset: its generation, and how many batches of ours were taken by then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    generation: u32,
    taken: u32,
}

impl Mark {
    /// Whether only we have committed since: every accepted batch that changes something, whoever
    /// sent it, raises the generation by one.
    pub fn only_ours_since(self, since: Self) -> bool {
        let all = self.generation.wrapping_sub(since.generation);
        all == self.taken.wrapping_sub(since.taken)
    }
}

impl Kernel {
    /// Opens a connection.
    ///
    /// # Errors
    /// [`NetlinkError`] if no netlink socket can be opened.
    pub fn open() -> Result<Self, NetlinkError> {
        Socket::open().map(|socket| Self { socket, taken: Arc::default() })
    }

    /// Another connection, in the network namespace of the calling thread, which must be the
    /// namespace of this connection. For [`Mark::only_ours_since`], the batches of both count as
    /// ours.
    ///
    /// *Invariant:* one thread uses both. With two threads, the generation could be read between a
    /// commit and the count of it.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn sibling_connection(&self) -> Result<Self, NetlinkError> {
        Socket::open().map(|socket| Self { socket, taken: self.taken.clone() })
    }

    /// The portid that the kernel's notifications have of changes made through this connection.
    pub fn portid(&self) -> u32 {
        self.socket.portid()
    }

    /// A batch about tables of a family, and of others after [`Batch::about`]. With `generation`,
    /// the kernel refuses it if any program has changed anything since then ([`NftError::Raced`]).
    pub fn batch(&mut self, family: TableFamily, generation: Option<u32>) -> Batch {
        // A batch has fewer messages than this by far; numbers need only differ from the last
        // batch's.
        const MESSAGES: u32 = 1 << 20;
        Batch::new(family, self.socket.sequences(MESSAGES), generation)
    }

    /// Sends a batch and reads the kernel's answer.
    ///
    /// # Errors
    /// [`NftError::Refused`] or [`NftError::Raced`]: nothing was changed.
    pub fn commit(&mut self, batch: Batch) -> Result<(), NftError> {
        if batch.is_empty() {
            return Ok(());
        }
        let family = batch.family();
        let batch = batch.finish();
        let _span = trace_span!("commit", %family, messages = batch.count()).entered();
        let sent = self.socket.send_pieces(&batch.pieces);
        let sent = sent.and_then(|()| self.socket.outcome(batch.last));
        self.taken.fetch_add(u32::from(sent.is_ok()), Ordering::Relaxed);
        sent.map_err(|source| match source {
            NetlinkError::Refused(ref refusal) if refusal.errno == Errno::ERESTART => {
                NftError::Raced { family }
            }
            NetlinkError::Refused(ref refusal) => match batch.what(refusal.sequence).cloned() {
                Some((family, what)) => NftError::Refused { family, what: Some(what), source },
                None => NftError::Refused { family, what: None, source },
            },
            source @ (NetlinkError::Io { .. }
            | NetlinkError::Overflow
            | NetlinkError::Interrupted
            | NetlinkError::Unacknowledged) => NftError::Netlink { family, doing: "write", source },
        })
    }

    /// Commits what `fill` puts into a batch.
    ///
    /// # Errors
    /// As [`Self::commit`].
    pub fn write(
        &mut self,
        family: TableFamily,
        fill: impl FnOnce(&mut Batch),
    ) -> Result<(), NftError> {
        let mut batch = self.batch(family, None);
        fill(&mut batch);
        self.commit(batch)
    }

    /// Reads a whole table, except the elements of sets that packets fill.
    ///
    /// # Errors
    /// [`NftError::Netlink`]; a read that a change interrupts is repeated a bounded number of times
    /// first.
    pub fn observe(&mut self, schema: &Schema) -> Result<Observed, NftError> {
        let family = schema.family;
        let _span = trace_span!("observe", %family).entered();
        retried(|| self.observe_once(schema)).map_err(|source| NftError::Netlink {
            family,
            doing: "read",
            source,
        })
    }

    fn observe_once(&mut self, schema: &Schema) -> Result<Observed, NetlinkError> {
        let Schema { family, name, .. } = *schema;
        let mut seen = Observed { generation: self.generation()?, ..Observed::default() };
        // A dump of tables takes no name.
        self.dump(libc::NFT_MSG_GETTABLE, Some(family), &[], |m| seen.read_table(name, &m))?;
        if !seen.exists {
            return Ok(seen);
        }
        self.dump(libc::NFT_MSG_GETCHAIN, Some(family), &[name], |m| seen.read_chain(name, &m))?;
        self.dump(libc::NFT_MSG_GETRULE, Some(family), &[name], |m| seen.read_rule(name, &m))?;
        self.dump(libc::NFT_MSG_GETSET, Some(family), &[name], |m| seen.read_set(name, &m))?;
        for set in schema.compared() {
            if seen.has_set_named(set.name) {
                self.read_set(schema, set, &mut seen)?;
            }
        }
        if self.generation()? == seen.generation {
            Ok(seen)
        } else {
            Err(NetlinkError::Interrupted)
        }
    }

    /// Reads the elements of a set, and nothing else of its table.
    ///
    /// # Errors
    /// [`NetlinkError`], also if the table or the set is not there.
    pub fn read_set(
        &mut self,
        schema: &Schema,
        set: &Set,
        into: &mut Observed,
    ) -> Result<(), NetlinkError> {
        let of = [schema.name, set.name];
        let read = self.dump(libc::NFT_MSG_GETSETELEM, Some(schema.family), &of, |m| {
            into.read_elements(set, &m)
        });
        into.end_of_set(set);
        read
    }

    /// The elements of a set that count packets, in no order; none if the table or the set is not
    /// there. An element may come twice, if packets fill the set meanwhile.
    pub fn counted_elements(
        &mut self,
        family: TableFamily,
        table: &str,
        set: &str,
    ) -> Result<Vec<CountedElement>, NetlinkError> {
        let read = self.read(libc::NFT_MSG_GETSETELEM, Some(family), &[table, set], |message| {
            Some(CountedElement::read_all(message).collect::<Vec<_>>())
        });
        match read {
            Err(error) if error.errno() == Some(Errno::ENOENT) => Ok(Vec::new()),
            read => read.map(|pieces| pieces.concat()),
        }
    }

    /// How many elements a set has. `None` if the set is not there, or the kernel does not tell:
    /// before 6.16 there is no `NFTA_SET_COUNT`, and all elements would have to be read.
    pub fn count(&mut self, schema: &Schema, set: &Set) -> Result<Option<u32>, NetlinkError> {
        const COUNT: u16 = 20;
        let mut request = Writer::default();
        let sequence = self.socket.sequences(1);
        let message = kind(libc::NFT_MSG_GETSET);
        let open = request.begin_message(message, 0, sequence, schema.family.number(), 0);
        request.put_str(1, schema.name);
        request.put_str(2, set.name);
        request.end_message(open);
        self.socket.send(request.bytes())?;
        let mut count = None;
        self.socket.receive(true, |answer| {
            if answer.sequence == sequence && i32::from(answer.kind) != libc::NLMSG_ERROR {
                count = answer.attributes().find_u32(COUNT);
            }
        })?;
        Ok(count)
    }

    /// The state of the ruleset when `seen` was read, provided that we have committed nothing
    /// since.
    pub fn mark(&self, seen: &Observed) -> Mark {
        Mark { generation: seen.generation, taken: self.taken.load(Ordering::Relaxed) }
    }

    /// The present state; `None` if the kernel does not say.
    pub fn now(&mut self) -> Option<Mark> {
        let taken = self.taken.load(Ordering::Relaxed);
        Some(Mark { generation: self.generation().ok()?, taken })
    }

    /// The present generation of the ruleset of this network namespace. All tables share it.
    pub fn generation(&mut self) -> Result<u32, NetlinkError> {
        const GENERATION_ID: u16 = 1;
        let sequence = self.socket.sequences(1);
        let mut request = Writer::default();
        let open = request.begin_message(kind(libc::NFT_MSG_GETGEN), 0, sequence, 0, 0);
        request.end_message(open);
        let generation = self.socket.ask(request.bytes(), sequence, |message| {
            message.attributes().find_u32(GENERATION_ID)
        })?;
        generation.ok_or(NetlinkError::Unacknowledged)
    }

    /// Every table for which `each` returns something.
    pub fn tables<T>(
        &mut self,
        mut each: impl FnMut(TableView<'_>) -> Option<T>,
    ) -> Result<Vec<T>, NetlinkError> {
        self.read(libc::NFT_MSG_GETTABLE, None, &[], |message| each(TableView(message)))
    }

    /// Every chain of a family's tables (`None`: of all families) for which `each` returns
    /// something.
    pub fn chains<T>(
        &mut self,
        family: Option<TableFamily>,
        mut each: impl FnMut(ChainView<'_>) -> Option<T>,
    ) -> Result<Vec<T>, NetlinkError> {
        self.read(libc::NFT_MSG_GETCHAIN, family, &[], |message| each(ChainView(message)))
    }

    /// Every rule of a table, or of one of its chains, for which `each` returns something.
    pub fn rules<T>(
        &mut self,
        family: TableFamily,
        table: &str,
        chain: Option<&str>,
        mut each: impl FnMut(RuleView<'_>) -> Option<T>,
    ) -> Result<Vec<T>, NetlinkError> {
        let of: Vec<&str> = [table].into_iter().chain(chain).collect();
        // A kernel that does not filter the dump by table sends other tables' rules, too.
        self.read(libc::NFT_MSG_GETRULE, Some(family), &of, |message| {
            about(table, &message).and_then(|_| each(RuleView(message)))
        })
    }

    /// The packets that rules of these chains have counted, if `reason` names a reason for the
    /// rule. Rules are found by chain and id: another chain may have an equal rule for another
    /// reason.
    pub fn packets_by_reason<R: Copy>(
        &mut self,
        schema: &Schema,
        chains: &[Chain],
        reason: impl Fn(&Rule) -> Option<R>,
    ) -> Result<Vec<(R, u64)>, NftError> {
        let family = schema.family;
        let mut reasons: HashMap<(&str, RuleId), R> = HashMap::new();
        for chain in chains {
            let of_rules = chain.rules.iter().filter_map(|rule| Some((rule, reason(rule)?)));
            reasons.extend(of_rules.map(|(rule, of)| ((&*chain.name, rule.id(family)), of)));
        }
        let counted = self.rules(family, schema.name, None, |rule| {
            Some((*reasons.get(&(rule.chain()?, rule.id()?))?, rule.packets()))
        });
        counted.map_err(|source| NftError::Netlink { family, doing: "read", source })
    }

    fn read<T>(
        &mut self,
        message: i32,
        family: Option<TableFamily>,
        of: &[&str],
        mut each: impl FnMut(Message<'_>) -> Option<T>,
    ) -> Result<Vec<T>, NetlinkError> {
        retried(|| {
            let mut found = Vec::new();
            self.dump(message, family, of, |answer| found.extend(each(answer)))?;
            Ok(found)
        })
    }

    /// Gives every answer to a dump request to `each`: those of one family (`None`: of all). `of`
    /// narrows the request further: a table's name, or a table's and a chain's or a set's.
    fn dump(
        &mut self,
        message: i32,
        family: Option<TableFamily>,
        of: &[&str],
        mut each: impl FnMut(Message<'_>),
    ) -> Result<(), NetlinkError> {
        let sequence = self.socket.sequences(1);
        let mut request = Writer::default();
        let flags = libc::NLM_F_DUMP as u16;
        let number = family.map(TableFamily::number);
        let open =
            request.begin_message(kind(message), flags, sequence, number.unwrap_or_default(), 0);
        for (attribute, name) in (1..).zip(of) {
            request.put_str(attribute, name);
        }
        request.end_message(open);
        self.socket.dump(request.bytes(), sequence, |answer| {
            if number.is_none() || answer.family() == number {
                each(answer);
            }
        })
    }
}

/// Repeats a dump while other programs' changes interrupt it, a bounded number of times.
fn retried<T>(mut attempt: impl FnMut() -> Result<T, NetlinkError>) -> Result<T, NetlinkError> {
    let mut result = attempt();
    for _ in 1..DUMP_TRIES {
        if !matches!(result, Err(NetlinkError::Interrupted | NetlinkError::Overflow)) {
            break;
        }
        result = attempt();
    }
    result
}

#[cfg(test)]
mod tests {
    use nix::sched::{CloneFlags, unshare};

    use super::*;

    fn table(family: TableFamily) -> Schema {
        Schema { family, name: "some", comment: "for a test", sets: Vec::new() }
    }

    #[test]
    fn only_what_others_commit_disturbs() {
        let alone = std::thread::spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).expect("the kernel tests need root");
            let mut kernel = Kernel::open().unwrap();
            let (v4, v6) = (table(TableFamily::Ip), table(TableFamily::Ip6));
            let seen = kernel.observe(&v4).unwrap();
            let mark = kernel.mark(&seen);
            assert!(kernel.now().unwrap().only_ours_since(mark), "nothing happened");
            kernel.write(v4.family, |batch| batch.add_table(&v4)).unwrap();
            kernel.write(v6.family, |batch| batch.add_table(&v6)).unwrap();
            assert!(kernel.now().unwrap().only_ours_since(mark), "our own changes");
            kernel.write(v6.family, |batch| batch.delete_table(v6.name)).unwrap();
            kernel.write(v6.family, |batch| batch.delete_table(v6.name)).unwrap_err();
            assert!(
                kernel.now().unwrap().only_ours_since(mark),
                "a change of ours that was refused"
            );
            let mut beside = kernel.sibling_connection().unwrap();
            beside.write(v6.family, |batch| batch.add_table(&v6)).unwrap();
            assert!(
                kernel.now().unwrap().only_ours_since(mark),
                "a change through another connection of ours"
            );
            let seen = beside.observe(&v6).unwrap();
            let theirs = beside.mark(&seen);
            kernel.write(v6.family, |batch| batch.delete_table(v6.name)).unwrap();
            assert!(beside.now().unwrap().only_ours_since(theirs), "and the other way round");
            let mut other = Kernel::open().unwrap();
            other.write(v4.family, |batch| batch.delete_table(v4.name)).unwrap();
            assert!(!kernel.now().unwrap().only_ours_since(mark), "somebody else's change");
            assert!(!beside.now().unwrap().only_ours_since(theirs), "somebody else's change");
            kernel.write(v4.family, |batch| batch.add_table(&v4)).unwrap();
            assert!(!kernel.now().unwrap().only_ours_since(mark), "and for good");
        });
        alone.join().unwrap();
    }
}
