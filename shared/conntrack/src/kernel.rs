//! Reads, deletes and marks entries through netlink.

use nix::errno::Errno;
use nix::libc;
use thiserror::Error;
use tracing::trace_span;

use crate::message::{parse, write_dump, write_get, write_treatment};
use denizen_netlink::{KernelRejection, Message, NetlinkError, Socket, Writer};
use denizen_packet::{Family, FlowSelection, TrackedFlow, Treatment};

/// Maximum number of requests in one batch. The kernel answers each request that it rejects.
const BATCH_SIZE: usize = 512;

/// Why entries could not be read or changed.
#[derive(Debug, Error)]
pub enum ConntrackError {
    /// The entries could not be read.
    #[error("conntrack, {selection}: cannot read the entries")]
    Read {
        /// The entries that were asked for.
        selection: FlowSelection,
        /// Why the dump failed.
        #[source]
        source: NetlinkError,
    },
    /// Not all entries could be changed.
    #[error("conntrack: cannot delete or mark all entries")]
    Change {
        /// The cause for one of them.
        #[source]
        source: NetlinkError,
    },
}

/// A socket to connection tracking, in the network namespace of the thread that opened it. Any
/// thread may use it.
#[derive(Debug)]
pub struct Conntrack {
    socket: Socket,
    mark_bit: u32,
    dumps: u64,
}

impl Conntrack {
    /// Opens the socket. `mark_bit` is the bit of connections' marks that
    /// [`TrackedFlow::is_marked`], [`Treatment::Mark`] and [`Treatment::Unmark`] are about.
    ///
    /// # Errors
    ///
    /// [`NetlinkError`] if no netlink socket can be opened. Missing connection tracking, or a lack
    /// of permission, only shows with the first request.
    pub fn open(mark_bit: u32) -> Result<Self, NetlinkError> {
        Socket::open().map(|socket| Self { socket, mark_bit, dumps: 0 })
    }

    /// The number of dumps requested.
    pub fn dumps(&self) -> u64 {
        self.dumps
    }

    /// Passes every entry of a part of the table to `each`.
    pub fn read(
        &mut self,
        selection: FlowSelection,
        mut each: impl FnMut(TrackedFlow),
    ) -> Result<(), ConntrackError> {
        let _span = trace_span!("conntrack", %selection).entered();
        let mut request = Writer::default();
        let sequence = self.socket.sequences(1);
        write_dump(&mut request, sequence, selection);
        let mark_bit = self.mark_bit;
        self.dumps += 1;
        let read = self.socket.dump(request.bytes(), sequence, |message| {
            if let Some(entry) = parse(&message, mark_bit).filter(|entry| selection.has(entry)) {
                each(entry);
            }
        });
        read.map_err(|source| ConntrackError::Read { selection, source })
    }

    /// Applies this treatment to exactly these entries, and adds to `done` how many still existed.
    ///
    /// # Errors
    ///
    /// [`ConntrackError::Change`]. If the kernel rejected single entries, all others are treated.
    pub fn treat(
        &mut self,
        treatment: Treatment,
        entries: &[TrackedFlow],
        done: &mut usize,
    ) -> Result<(), ConntrackError> {
        let failed = |source| ConntrackError::Change { source };
        let mut refused = None;
        for some in entries.chunks(BATCH_SIZE) {
            let unanswered: Vec<TrackedFlow>;
            let some = match treatment {
                Treatment::DeleteUnanswered => {
                    unanswered = self.still_unanswered(some);
                    &unanswered
                }
                Treatment::Delete | Treatment::Mark | Treatment::Unmark => some,
            };
            if some.is_empty() {
                continue;
            }
            let refusals = self.treat_some(treatment, some).map_err(failed)?;
            *done += some.len() - refusals.len();
            // An entry that ended meanwhile is not a failure.
            let mut others = refusals.into_iter().filter(|refusal| refusal.errno != Errno::ENOENT);
            refused = refused.or(others.next());
        }
        refused.map_or(Ok(()), |refusal| Err(failed(NetlinkError::Refused(refusal))))
    }

    /// The entries that are still unanswered: a dump of a large table takes long enough for an
    /// answer to come.
    fn still_unanswered(&mut self, entries: &[TrackedFlow]) -> Vec<TrackedFlow> {
        let is_still = |entry: &&TrackedFlow| {
            let mark_bit = self.mark_bit;
            let mut request = Writer::default();
            let sequence = self.socket.sequences(1);
            write_get(&mut request, entry, sequence);
            let read = |message: Message<'_>| parse(&message, mark_bit);
            // The kernel rejects the request if the entry has ended.
            let now = self.socket.ask(request.bytes(), sequence, read).ok().flatten();
            now.is_some_and(|now| now.id == entry.id && now.is_unanswered_syn)
        };
        entries.iter().filter(is_still).copied().collect()
    }

    fn treat_some(
        &mut self,
        treatment: Treatment,
        entries: &[TrackedFlow],
    ) -> Result<Vec<KernelRejection>, NetlinkError> {
        let mut requests = Writer::default();
        let mut last = 0;
        for (n, entry) in entries.iter().enumerate() {
            let is_last = n + 1 == entries.len();
            let flags = if is_last { libc::NLM_F_ACK as u16 } else { 0 };
            last = self.socket.sequences(1);
            write_treatment(&mut requests, entry, treatment, self.mark_bit, flags, last);
        }
        self.socket.send(requests.bytes())?;
        self.socket.refusals(last)
    }

    /// Clears the mark's bit in all entries. Returns how many entries had it.
    pub fn unmark_all(&mut self) -> Result<usize, ConntrackError> {
        let (mut marked, mut unmarked) = (Vec::new(), 0);
        for family in Family::BOTH {
            self.read(FlowSelection { family, protocol: None, unanswered_syns: false }, |entry| {
                marked.extend(entry.is_marked.then_some(entry))
            })?;
        }
        self.treat(Treatment::Unmark, &marked, &mut unmarked)?;
        Ok(unmarked)
    }
}
