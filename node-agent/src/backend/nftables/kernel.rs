//! Reads and writes nf_tables through netlink.

use nix::errno::Errno;
use nix::libc;
use thiserror::Error;
use tracing::{debug, trace_span};

use super::dump::{Observed, is_of, rule_comment_of};
use super::message::{Batch, kind};
use super::name::{Facts, Group, SetName, TABLE, TableFamily};
use crate::backend::why::Why;
use denizen_netlink::{Attributes, Message, NetlinkError, Socket, Writer};

/// How many packets a rule counted, if it is one with this reason.
fn counted(message: &Message<'_>, why: Why) -> u64 {
    const EXPRESSIONS: u16 = 4;
    const PACKETS: u16 = 2;
    let rule = message.attributes();
    if !rule_comment_of(rule).is_some_and(|text| text.ends_with(why.text())) {
        return 0;
    }
    let counters = rule.nested(EXPRESSIONS).filter_map(|(_, expression)| {
        let expression = Attributes::new(expression);
        (expression.find_str(1) == Some("counter")).then(|| expression.nested(2).find(PACKETS))?
    });
    let packets = counters.filter_map(|bytes| bytes.try_into().ok().map(u64::from_be_bytes));
    packets.sum()
}

/// How often a dump that was torn by somebody's change is taken anew.
const DUMP_TRIES: usize = 20;

/// Why the kernel's table is not as it should be.
#[derive(Debug, Error)]
pub enum NftablesError {
    /// nf_tables cannot be read or written at all.
    #[error("nf_tables, {table_family} table: cannot {doing}")]
    Netlink {
        /// Whose table.
        table_family: TableFamily,
        /// What was tried.
        doing: &'static str,
        /// Why it failed.
        #[source]
        source: NetlinkError,
    },
    /// A batch was refused; the table is as it was before.
    #[error("nf_tables, {table_family} table: the kernel refused {what}")]
    Refused {
        /// Whose table.
        table_family: TableFamily,
        /// What was refused.
        what: String,
        /// The kernel's answer.
        #[source]
        source: NetlinkError,
    },
    /// An older version's table is there, and services are not known yet: replacing it would take
    /// them away.
    #[error(
        "nf_tables, {table_family} table: the table of an older version stays until all services are known"
    )]
    OlderTable {
        /// Whose table.
        table_family: TableFamily,
    },
    /// The kernel lets nobody but its owner change it, and removes it with that process
    /// (`NFT_TABLE_F_OWNER`).
    #[error(
        "nf_tables, {table_family} table: it is owned by another process (netlink portid {owner})"
    )]
    Owned {
        /// Whose table.
        table_family: TableFamily,
        /// The owner's portid: most often its process id.
        owner: u32,
    },
    /// Everything was programmed but these.
    #[error("nf_tables, {table_family} table: the kernel refused {}", names.join("; "))]
    Parts {
        /// Whose table.
        table_family: TableFamily,
        /// What was refused, and why.
        names: Vec<String>,
    },
    /// Somebody changed the ruleset between a look and the batch that was made from it.
    #[error("nf_tables, {table_family} table: the ruleset changed while it was being repaired")]
    Raced {
        /// Whose table.
        table_family: TableFamily,
    },
}

/// A connection to nf_tables in this thread's network namespace.
#[derive(Debug)]
pub struct Kernel {
    socket: Socket,
    /// How many batches of ours the kernel took.
    taken: u32,
}

/// A state of the ruleset: its generation, and how many batches of ours were taken by then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    generation: u32,
    taken: u32,
}

impl Kernel {
    /// Opens it.
    ///
    /// # Errors
    /// [`NetlinkError`] when there is no netlink socket to be had.
    pub fn open() -> Result<Self, NetlinkError> {
        Socket::open().map(|socket| Self { socket, taken: 0 })
    }

    /// The portid by which the kernel's notifications name what came through here.
    pub fn portid(&self) -> u32 {
        self.socket.portid()
    }

    /// A batch for a table.
    pub fn batch(&mut self, table_family: TableFamily, generation: Option<u32>) -> Batch {
        // A batch has fewer messages than this by far; numbers need only differ from the last
        // batch's.
        const MESSAGES: u32 = 1 << 20;
        Batch::new(table_family, self.socket.sequences(MESSAGES), generation)
    }

    /// Sends a batch and reads what became of it.
    ///
    /// # Errors
    /// [`NftablesError::Refused`] or [`NftablesError::Raced`]: nothing was changed.
    pub fn commit(&mut self, table_family: TableFamily, batch: Batch) -> Result<(), NftablesError> {
        if batch.is_empty() {
            return Ok(());
        }
        let batch = batch.finish();
        let _span = trace_span!("commit", %table_family, bytes = batch.bytes.len()).entered();
        let sent = self.socket.send(&batch.bytes).and_then(|()| self.socket.outcome(batch.last));
        self.taken = self.taken.wrapping_add(u32::from(sent.is_ok()));
        sent.map_err(|source| match source {
            NetlinkError::Refused(ref refusal) if refusal.errno == Errno::ERESTART => {
                NftablesError::Raced { table_family }
            }
            NetlinkError::Refused(ref refusal) => {
                let what = batch.what(refusal.sequence).map(ToString::to_string);
                NftablesError::Refused {
                    table_family,
                    what: what.unwrap_or("the batch".to_owned()),
                    source,
                }
            }
            source @ (NetlinkError::Io { .. }
            | NetlinkError::Overflow
            | NetlinkError::Interrupted
            | NetlinkError::Unacknowledged) => {
                NftablesError::Netlink { table_family, doing: "write", source }
            }
        })
    }

    /// Commits what `fill` puts into a batch.
    ///
    /// # Errors
    /// As [`Self::commit`].
    pub fn write(
        &mut self,
        table_family: TableFamily,
        fill: impl FnOnce(&mut Batch),
    ) -> Result<(), NftablesError> {
        let mut batch = self.batch(table_family, None);
        fill(&mut batch);
        self.commit(table_family, batch)
    }

    /// Reads all of a table.
    ///
    /// # Errors
    /// [`NftablesError::Netlink`]; a look that was torn is repeated a bounded number of
    /// times first.
    pub fn observe(&mut self, table_family: TableFamily) -> Result<Observed, NftablesError> {
        let _span = trace_span!("observe", %table_family).entered();
        let mut result = Err(NetlinkError::Interrupted);
        for _ in 0..DUMP_TRIES {
            result = self.look(table_family);
            if !matches!(result, Err(NetlinkError::Interrupted | NetlinkError::Overflow)) {
                break;
            }
        }
        result.map_err(|source| NftablesError::Netlink { table_family, doing: "read", source })
    }

    fn look(&mut self, table_family: TableFamily) -> Result<Observed, NetlinkError> {
        let mut seen = Observed { generation: self.generation()?, ..Observed::default() };
        self.dump(table_family, libc::NFT_MSG_GETTABLE, None, |m| seen.table(&m))?;
        if !seen.table {
            return Ok(seen);
        }
        self.dump(table_family, libc::NFT_MSG_GETCHAIN, None, |m| seen.chain(&m))?;
        self.dump(table_family, libc::NFT_MSG_GETRULE, None, |m| seen.rule(&m))?;
        self.dump(table_family, libc::NFT_MSG_GETSET, None, |m| seen.set(&m))?;
        // What packets filled is not to be compared. Reading it would take minutes where it is
        // much: for every piece of a dump the kernel counts from the first element.
        let compared = |set: &SetName| set.filled_by() != Facts::Traffic;
        for set in SetName::of(table_family).iter().copied().filter(compared) {
            if seen.sets.contains_key(set.as_str()) {
                self.dump(table_family, libc::NFT_MSG_GETSETELEM, Some(set), |m| {
                    seen.elements(table_family, set, &m);
                })?;
            }
        }
        if self.generation()? == seen.generation {
            Ok(seen)
        } else {
            Err(NetlinkError::Interrupted)
        }
    }

    /// The endpoints that clients of services with session affinity are remembered with. Where the
    /// table, or a set, is not there, there are none.
    pub fn remembered(&mut self, table_family: TableFamily) -> Observed {
        let mut seen = Observed::default();
        for set in Group::ALL.map(Group::affinity_endpoints) {
            let looked = self.dump(table_family, libc::NFT_MSG_GETSETELEM, Some(set), |m| {
                seen.elements(table_family, set, &m);
            });
            if let Err(error) = looked {
                debug!(family = %table_family, %set, %error, "no clients are remembered from an earlier run");
            }
        }
        seen
    }

    /// Sums the counters of the rules for each of these reasons.
    ///
    /// # Errors
    /// [`NftablesError::Netlink`].
    pub fn counted<const N: usize>(
        &mut self,
        table_family: TableFamily,
        reasons: [Why; N],
    ) -> Result<[u64; N], NftablesError> {
        let mut sums = [0; N];
        let read = self.dump(table_family, libc::NFT_MSG_GETRULE, None, |message| {
            for (sum, why) in sums.iter_mut().zip(reasons) {
                *sum += counted(&message, why);
            }
        });
        read.map_err(|source| NftablesError::Netlink { table_family, doing: "read", source })?;
        Ok(sums)
    }

    /// How many elements a set has. `None` where the set is not there, or the kernel does not tell:
    /// before 6.16 there is no `NFTA_SET_COUNT`, and all elements would have to be read.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn count(
        &mut self,
        table_family: TableFamily,
        set: SetName,
    ) -> Result<Option<u32>, NetlinkError> {
        const COUNT: u16 = 20;
        let mut request = Writer::default();
        let sequence = self.socket.sequences(1);
        let message = kind(libc::NFT_MSG_GETSET);
        let open = request.begin_message(message, 0, sequence, table_family.number(), 0);
        request.put_str(1, TABLE);
        request.put_str(2, set.as_str());
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

    /// The state that was read last, when nothing of ours was committed since.
    pub fn mark(&self, seen: &Observed) -> Mark {
        Mark { generation: seen.generation, taken: self.taken }
    }

    /// Whether nobody but us has committed anything since: every batch that is taken, anybody's,
    /// raises the generation by one.
    pub fn is_undisturbed(&mut self, since: Mark) -> bool {
        let ours = self.taken.wrapping_sub(since.taken);
        self.generation().is_ok_and(|now| now.wrapping_sub(since.generation) == ours)
    }

    /// Numbers the states of the ruleset of this network namespace, of all tables together.
    ///
    /// # Errors
    /// [`NetlinkError`].
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

    fn dump(
        &mut self,
        table_family: TableFamily,
        message: i32,
        set: Option<SetName>,
        mut each: impl FnMut(Message<'_>),
    ) -> Result<(), NetlinkError> {
        let sequence = self.socket.sequences(1);
        let mut request = Writer::default();
        let flags = libc::NLM_F_DUMP as u16;
        let open = request.begin_message(kind(message), flags, sequence, table_family.number(), 0);
        // A table's own dump takes no name; the others are narrowed by it.
        if message != libc::NFT_MSG_GETTABLE {
            request.put_str(1, TABLE);
        }
        if let Some(set) = set {
            request.put_str(2, set.as_str());
        }
        request.end_message(open);
        self.socket.dump(request.bytes(), sequence, |answer| {
            if is_of(table_family, &answer) {
                each(answer);
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use nix::sched::{CloneFlags, unshare};

    use super::*;
    use crate::model::Family;

    const V4: TableFamily = TableFamily::Ip(Family::V4);
    const V6: TableFamily = TableFamily::Ip(Family::V6);

    #[test]
    fn only_what_others_commit_disturbs() {
        let alone = std::thread::spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).expect("the kernel tests need root");
            let mut kernel = Kernel::open().unwrap();
            let seen = kernel.observe(V4).unwrap();
            let mark = kernel.mark(&seen);
            assert!(kernel.is_undisturbed(mark), "nothing happened");
            kernel.write(V4, Batch::add_table).unwrap();
            kernel.write(V6, Batch::add_table).unwrap();
            assert!(kernel.is_undisturbed(mark), "our own changes");
            kernel.write(V6, Batch::delete_table).unwrap();
            kernel.write(V6, Batch::delete_table).unwrap_err();
            assert!(kernel.is_undisturbed(mark), "a change of ours that was refused");
            let mut other = Kernel::open().unwrap();
            other.write(V4, Batch::delete_table).unwrap();
            assert!(!kernel.is_undisturbed(mark), "somebody else's change");
            kernel.write(V4, Batch::add_table).unwrap();
            assert!(!kernel.is_undisturbed(mark), "and for good");
        });
        alone.join().unwrap();
    }
}
