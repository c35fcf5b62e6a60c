//! Reads, deletes and marks entries through netlink.

use nix::errno::Errno;
use nix::libc;
use thiserror::Error;
use tracing::trace_span;

use super::entry::{Entry, Part, Treatment, write_dump};
use denizen_model::Family;
use denizen_netlink::{Message, NetlinkError, Refusal, Socket, Writer};

/// Requests in one batch. The kernel answers each that it refuses.
const AT_ONCE: usize = 512;

/// Why entries could not be read or changed.
#[derive(Debug, Error)]
pub enum ConntrackError {
    /// The entries could not be read.
    #[error("conntrack, {part}: cannot read the entries")]
    Read {
        /// Which entries.
        part: Part,
        /// The cause.
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

/// A connection to connection tracking, in the network namespace of the thread that opened it. It
/// may be used from any thread.
#[derive(Debug)]
pub struct Conntrack {
    socket: Socket,
    dumps: u64,
}

impl Conntrack {
    /// Opens the connection.
    ///
    /// # Errors
    /// [`NetlinkError`] if no netlink socket can be opened. Missing connection tracking, or the
    /// lack of permission, only shows later.
    pub fn open() -> Result<Self, NetlinkError> {
        Socket::open().map(|socket| Self { socket, dumps: 0 })
    }

    /// The number of dumps requested.
    pub fn dumps(&self) -> u64 {
        self.dumps
    }

    /// Passes every entry of a part of the table to `each`.
    ///
    /// # Errors
    /// [`ConntrackError::Read`].
    pub fn read(&mut self, part: Part, mut each: impl FnMut(Entry)) -> Result<(), ConntrackError> {
        let _span = trace_span!("conntrack", %part).entered();
        let mut request = Writer::default();
        let sequence = self.socket.sequences(1);
        write_dump(&mut request, sequence, part);
        self.dumps += 1;
        let read = self.socket.dump(request.bytes(), sequence, |message| {
            if let Some(entry) = Entry::parse(&message).filter(|entry| part.has(entry)) {
                each(entry);
            }
        });
        read.map_err(|source| ConntrackError::Read { part, source })
    }

    /// Treats exactly these entries so, and adds to `done` how many still existed.
    ///
    /// # Errors
    /// [`ConntrackError::Change`]; all others are treated.
    pub fn treat(
        &mut self,
        treatment: Treatment,
        entries: &[Entry],
        done: &mut usize,
    ) -> Result<(), ConntrackError> {
        let failed = |source| ConntrackError::Change { source };
        let mut refused = None;
        for some in entries.chunks(AT_ONCE) {
            let unanswered: Vec<Entry>;
            let some = match treatment {
                Treatment::DeleteUnanswered => {
                    unanswered = self.still_unanswered(some);
                    &unanswered
                }
                Treatment::Delete | Treatment::Forbid | Treatment::Permit => some,
            };
            if some.is_empty() {
                continue;
            }
            let refusals = self.treat_some(treatment, some).map_err(failed)?;
            *done += some.len() - refusals.len();
            // An entry that ended by itself meanwhile is no failure.
            let mut others = refusals.into_iter().filter(|refusal| refusal.errno != Errno::ENOENT);
            refused = refused.or(others.next());
        }
        refused.map_or(Ok(()), |refusal| Err(failed(NetlinkError::Refused(refusal))))
    }

    /// Those that nobody has answered since they were read: a dump of a large table takes long
    /// enough for an answer to come.
    fn still_unanswered(&mut self, entries: &[Entry]) -> Vec<Entry> {
        let is_still = |entry: &&Entry| {
            let mut request = Writer::default();
            let sequence = self.socket.sequences(1);
            entry.write_get(&mut request, sequence);
            let read = |message: Message<'_>| Entry::parse(&message);
            // An entry that ended by itself meanwhile is refused.
            let now = self.socket.ask(request.bytes(), sequence, read).ok().flatten();
            now.is_some_and(|now| now.id == entry.id && now.is_unanswered_syn)
        };
        entries.iter().filter(is_still).copied().collect()
    }

    fn treat_some(
        &mut self,
        treatment: Treatment,
        entries: &[Entry],
    ) -> Result<Vec<Refusal>, NetlinkError> {
        let mut requests = Writer::default();
        let mut last = 0;
        for (n, entry) in entries.iter().enumerate() {
            let is_last = n + 1 == entries.len();
            let flags = if is_last { libc::NLM_F_ACK as u16 } else { 0 };
            last = self.socket.sequences(1);
            entry.write(treatment, &mut requests, flags, last);
        }
        self.socket.send(requests.bytes())?;
        self.socket.refusals(last)
    }

    /// Clears [`MarkBit::FORBIDDEN`](denizen_plan::MarkBit::FORBIDDEN) everywhere. Returns how many
    /// entries had it.
    ///
    /// # Errors
    /// [`ConntrackError`].
    pub fn permit_all(&mut self) -> Result<usize, ConntrackError> {
        let (mut forbidden, mut permitted) = (Vec::new(), 0);
        for family in Family::BOTH {
            self.read(Part { family, protocol: None, unanswered_syns: false }, |entry| {
                forbidden.extend(entry.is_forbidden.then_some(entry))
            })?;
        }
        self.treat(Treatment::Permit, &forbidden, &mut permitted)?;
        Ok(permitted)
    }
}
