//! The connection to the kernel.

use denizen_netlink::{Message, NetlinkError, Socket, Writer};
use nix::errno::Errno;
use nix::libc;
use thiserror::Error;

use super::message::{
    IPVS_CMD_FLUSH, IPVS_CMD_GET_CONFIG, IPVS_CMD_GET_DEST, IPVS_CMD_GET_INFO,
    IPVS_CMD_GET_SERVICE, IPVS_CMD_SET_CONFIG, read_info, read_real, read_server, read_timeouts,
    write_key, write_timeouts,
};
use super::server::{Info, IpvsCommand, ObservedServer, ServerKey, Timeouts, VirtualServer};

/// linux/genetlink.h.
const GENL_ID_CTRL: u16 = 0x10;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
/// Length of `struct genlmsghdr`.
const GENLMSGHDR: usize = 4;
const IPVS_GENL_VERSION: u8 = 1;

/// How many commands are sent at once. If the kernel rejects all of them, its answers still fit the
/// socket's buffer.
const BATCH_SIZE: usize = 1000;

/// Why IPVS did not do what it should.
#[derive(Debug, Error)]
pub enum IpvsError {
    /// The kernel has no IPVS: its module `ip_vs` is not loaded.
    #[error("the kernel's module ip_vs is not loaded")]
    Missing,
    /// Netlink failed, or the kernel rejected a request.
    #[error("cannot {doing}")]
    Netlink {
        /// The operation, as a verb and its object.
        doing: &'static str,
        /// The kernel's error.
        #[source]
        source: NetlinkError,
    },
    /// The kernel's answer lacks what was requested.
    #[error("cannot {doing}: the kernel's answer is not understood")]
    Answer {
        /// The operation, as a verb and its object.
        doing: &'static str,
    },
}

impl IpvsError {
    pub(crate) fn netlink(doing: &'static str) -> impl FnOnce(NetlinkError) -> Self {
        move |source| Self::Netlink { doing, source }
    }
}

/// A command that the kernel rejected. The commands before and after it were done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RejectedCommand {
    /// The index of the refused command among those that were sent.
    pub command: usize,
    /// The kernel's error number.
    pub errno: Errno,
}

/// The IPVS of one network namespace.
#[derive(Debug)]
pub struct Ipvs {
    socket: Socket,
    /// The number of the generic netlink family `IPVS`.
    family: u16,
}

impl Ipvs {
    /// Opens the IPVS of this thread's network namespace.
    ///
    /// # Errors
    ///
    /// [`IpvsError::Missing`] if the kernel has no IPVS.
    pub fn open() -> Result<Self, IpvsError> {
        const DOING: &str = "open netlink to IPVS";
        let mut socket = Socket::generic().map_err(IpvsError::netlink(DOING))?;
        let sequence = socket.sequences(1);
        let message = request(GENL_ID_CTRL, CTRL_CMD_GETFAMILY, 0, sequence, |writer| {
            writer.put_str(CTRL_ATTR_FAMILY_NAME, "IPVS");
        });
        let found = socket.ask(&message, sequence, |answer| {
            let id = answer.attributes_after(GENLMSGHDR).find(CTRL_ATTR_FAMILY_ID);
            id.and_then(|id| id.try_into().ok()).map(u16::from_ne_bytes)
        });
        match found {
            Ok(Some(family)) => Ok(Self { socket, family }),
            Ok(None) => Err(IpvsError::Answer { doing: DOING }),
            Err(error) if error.errno() == Some(Errno::ENOENT) => Err(IpvsError::Missing),
            Err(error) => Err(IpvsError::netlink(DOING)(error)),
        }
    }

    /// The version of IPVS, and the size of its connection table.
    pub fn info(&mut self) -> Result<Info, IpvsError> {
        self.ask("ask IPVS what it is", IPVS_CMD_GET_INFO, |answer| {
            read_info(answer.attributes_after(GENLMSGHDR))
        })
    }

    /// The idle timeouts of the network namespace's connections.
    pub fn timeouts(&mut self) -> Result<Timeouts, IpvsError> {
        self.ask("read the time-outs of IPVS", IPVS_CMD_GET_CONFIG, |answer| {
            read_timeouts(answer.attributes_after(GENLMSGHDR))
        })
    }

    /// Sets the timeouts of connections. An existing connection gets them with its next packet.
    pub fn set_timeouts(&mut self, timeouts: &Timeouts) -> Result<(), IpvsError> {
        let doing = "set the time-outs of IPVS";
        self.command(IPVS_CMD_SET_CONFIG, |writer| write_timeouts(writer, timeouts))
            .map_err(IpvsError::netlink(doing))
    }

    /// All virtual servers, of any program, except those that match packets by their mark.
    ///
    /// The kernel does not report that its list changed while it was read: a server may be missing,
    /// or be there twice.
    pub fn servers(&mut self) -> Result<Vec<VirtualServer>, IpvsError> {
        let mut servers = Vec::new();
        self.dump(
            IPVS_CMD_GET_SERVICE,
            |_| {},
            |answer| servers.extend(read_server(answer.attributes_after(GENLMSGHDR))),
        )
        .map_err(IpvsError::netlink("list the virtual servers of IPVS"))?;
        Ok(servers)
    }

    /// Whether there is a virtual server at this key. Cheap, however many there are.
    pub fn has(&mut self, key: &ServerKey) -> Result<bool, IpvsError> {
        let sequence = self.socket.sequences(1);
        let message = request(self.family, IPVS_CMD_GET_SERVICE, 0, sequence, |writer| {
            write_key(writer, key)
        });
        match self
            .socket
            .ask(&message, sequence, |answer| read_server(answer.attributes_after(GENLMSGHDR)))
        {
            Ok(found) => Ok(found.is_some()),
            Err(error) if error.errno() == Some(Errno::ESRCH) => Ok(false),
            Err(error) => Err(IpvsError::netlink("ask IPVS for a virtual server")(error)),
        }
    }

    /// A virtual server's real servers; none if there is no such virtual server.
    pub fn real_servers(&mut self, of: &ServerKey) -> Result<Vec<ObservedServer>, IpvsError> {
        let mut servers = Vec::new();
        self.dump(
            IPVS_CMD_GET_DEST,
            |writer| write_key(writer, of),
            |answer| servers.extend(read_real(answer.attributes_after(GENLMSGHDR), of)),
        )
        .map_err(IpvsError::netlink("list the real servers of IPVS"))?;
        Ok(servers)
    }

    /// Executes the commands in order. Returns those that the kernel rejected.
    ///
    /// # Errors
    ///
    /// [`IpvsError`] if it is not known what was done.
    pub fn apply(&mut self, commands: &[IpvsCommand]) -> Result<Vec<RejectedCommand>, IpvsError> {
        let mut refused = Vec::new();
        for (batch, before) in commands.chunks(BATCH_SIZE).zip((0..).step_by(BATCH_SIZE)) {
            let of_batch = self.send(batch).map_err(IpvsError::netlink("change IPVS"))?;
            refused.extend(of_batch.into_iter().map(|RejectedCommand { command, errno }| {
                RejectedCommand { command: before + command, errno }
            }));
        }
        Ok(refused)
    }

    /// Removes all virtual servers, of any program.
    pub fn flush(&mut self) -> Result<(), IpvsError> {
        let doing = "remove all virtual servers of IPVS";
        self.command(IPVS_CMD_FLUSH, |_| {}).map_err(IpvsError::netlink(doing))
    }

    fn send(&mut self, batch: &[IpvsCommand]) -> Result<Vec<RejectedCommand>, NetlinkError> {
        let first = self.socket.sequences(batch.len() as u32);
        let mut writer = Writer::default();
        for (command, sequence) in batch.iter().zip(0..) {
            let is_last = sequence as usize + 1 == batch.len();
            // A rejection is answered in any case.
            let flags = if is_last { libc::NLM_F_ACK as u16 } else { 0 };
            let sequence = first.wrapping_add(sequence);
            write(&mut writer, self.family, command.number(), flags, sequence, |writer| {
                command.write(writer);
            });
        }
        self.socket.send(writer.bytes())?;
        let refusals = self.socket.refusals(first.wrapping_add(batch.len() as u32 - 1))?;
        let place = |sequence: u32| sequence.wrapping_sub(first) as usize;
        let refused = refusals.into_iter().map(|refusal| RejectedCommand {
            command: place(refusal.sequence),
            errno: refusal.errno,
        });
        Ok(refused.collect())
    }

    /// One command that is only acknowledged.
    fn command(&mut self, number: u8, fill: impl FnOnce(&mut Writer)) -> Result<(), NetlinkError> {
        let sequence = self.socket.sequences(1);
        let flags = libc::NLM_F_ACK as u16;
        self.socket.send(&request(self.family, number, flags, sequence, fill))?;
        self.socket.outcome(sequence)
    }

    fn ask<T>(
        &mut self,
        doing: &'static str,
        number: u8,
        read: impl FnMut(Message<'_>) -> Option<T>,
    ) -> Result<T, IpvsError> {
        let sequence = self.socket.sequences(1);
        let message = request(self.family, number, 0, sequence, |_| {});
        let answered = self.socket.ask(&message, sequence, read);
        answered.map_err(IpvsError::netlink(doing))?.ok_or(IpvsError::Answer { doing })
    }

    fn dump(
        &mut self,
        number: u8,
        fill: impl FnOnce(&mut Writer),
        each: impl FnMut(Message<'_>),
    ) -> Result<(), NetlinkError> {
        let sequence = self.socket.sequences(1);
        let message = request(self.family, number, libc::NLM_F_DUMP as u16, sequence, fill);
        self.socket.dump(&message, sequence, each)
    }
}

fn request(
    family: u16,
    command: u8,
    flags: u16,
    sequence: u32,
    fill: impl FnOnce(&mut Writer),
) -> Vec<u8> {
    let mut writer = Writer::default();
    write(&mut writer, family, command, flags, sequence, fill);
    writer.into_bytes()
}

fn write(
    writer: &mut Writer,
    family: u16,
    command: u8,
    flags: u16,
    sequence: u32,
    fill: impl FnOnce(&mut Writer),
) {
    let open =
        writer.begin_message_with(family, flags, sequence, &[command, IPVS_GENL_VERSION, 0, 0]);
    fill(writer);
    writer.end_message(open);
}
