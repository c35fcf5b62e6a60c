//! The connection to the kernel.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use denizen_netlink::{Message, NetlinkError, Socket, Writer};
use nix::errno::Errno;
use nix::libc;
use thiserror::Error;

use crate::message::{family, list_header, path_header, read_path, read_route, write_destination};
use crate::route::{Command, ObservedRoute, Path};

/// How many commands are sent at once. The kernel's answers to as many refusals fit the socket's
/// buffer.
const BATCH: usize = 1000;

/// How often a list is taken that a change interrupts.
const TRIES: usize = 10;

/// Why the kernel did not do what it should.
#[derive(Debug, Error)]
#[error("cannot {doing}")]
pub struct RouteError {
    /// What was tried.
    doing: &'static str,
    /// Why it failed.
    #[source]
    source: NetlinkError,
}

impl RouteError {
    pub(crate) fn netlink(doing: &'static str) -> impl FnOnce(NetlinkError) -> Self {
        move |source| Self { doing, source }
    }
}

/// A command that was refused. Those before and behind it were done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// Its place among the commands.
    pub command: usize,
    /// The kernel's reason.
    pub errno: Errno,
    /// The kernel's own words, where it has some.
    pub message: Option<String>,
}

/// The routes of one network namespace, for a client who owns a protocol number.
#[derive(Debug)]
pub struct Routes {
    socket: Socket,
    protocol: u8,
}

impl Routes {
    /// Opens those of this thread's network namespace. What this makes bears `protocol`, and this
    /// removes nothing of another. `protocol` is not 0, which stands for any.
    ///
    /// # Errors
    /// [`RouteError`].
    pub fn open(protocol: u8) -> Result<Self, RouteError> {
        debug_assert_ne!(protocol, libc::RTPROT_UNSPEC, "everybody's routes");
        let open = || {
            let socket = Socket::route()?;
            // Then the kernel itself leaves out what a list is not about.
            socket.check_strictly()?;
            Ok(Self { socket, protocol })
        };
        open().map_err(RouteError::netlink("open netlink to the routes"))
    }

    /// The portid by which notifications name who caused them.
    pub fn portid(&self) -> u32 {
        self.socket.portid()
    }

    /// The routes of this protocol in all tables, of both families.
    ///
    /// # Errors
    /// [`RouteError`].
    pub fn own(&mut self) -> Result<Vec<ObservedRoute>, RouteError> {
        self.of(self.protocol)
    }

    /// The routes of any protocol (`RTPROT_*`) in all tables, of both families.
    ///
    /// # Errors
    /// [`RouteError`].
    pub fn of(&mut self, protocol: u8) -> Result<Vec<ObservedRoute>, RouteError> {
        let families = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()].map(family);
        let mut routes = Vec::new();
        for family in families {
            let listed = self.list_family(family, protocol);
            routes.extend(listed.map_err(RouteError::netlink("list routes"))?);
        }
        Ok(routes)
    }

    /// Does these in order. Returns those that the kernel refused.
    ///
    /// # Errors
    /// [`RouteError`] if it is not known what was done.
    pub fn apply(&mut self, commands: &[Command]) -> Result<Vec<Refused>, RouteError> {
        let mut refused = Vec::new();
        for (batch, before) in commands.chunks(BATCH).zip((0..).step_by(BATCH)) {
            let of_batch = self.send(batch).map_err(RouteError::netlink("change routes"))?;
            let place = |refusal: Refused| Refused { command: before + refusal.command, ..refusal };
            refused.extend(of_batch.into_iter().map(place));
        }
        Ok(refused)
    }

    /// How packets to an address leave this node; none if they do not.
    ///
    /// # Errors
    /// [`RouteError`].
    pub fn path(&mut self, to: IpAddr) -> Result<Option<Path>, RouteError> {
        const NO_PATH: [Errno; 5] = [
            Errno::ENETUNREACH,
            Errno::EHOSTUNREACH,
            // What `blackhole`, `prohibit` and `throw` say.
            Errno::EINVAL,
            Errno::EACCES,
            Errno::EAGAIN,
        ];
        let sequence = self.socket.sequences(1);
        let mut writer = Writer::default();
        let header = path_header(to);
        let open = writer.begin_message_with(libc::RTM_GETROUTE, 0, sequence, &header);
        write_destination(&mut writer, to);
        writer.end_message(open);
        match self.socket.ask(writer.bytes(), sequence, |answer| read_path(&answer)) {
            Ok(path) => Ok(path),
            Err(error) if error.errno().is_some_and(|errno| NO_PATH.contains(&errno)) => Ok(None),
            Err(error) => Err(RouteError::netlink("ask for the path to an address")(error)),
        }
    }

    fn list_family(
        &mut self,
        family: u8,
        protocol: u8,
    ) -> Result<Vec<ObservedRoute>, NetlinkError> {
        // A kernel without IPv6 lists other families instead. One before 4.20 lists all routes.
        let is_wanted = |message: &Message<'_>, route: &ObservedRoute| {
            message.family() == Some(family) && route.protocol == protocol
        };
        for _ in 0..TRIES {
            let sequence = self.socket.sequences(1);
            let mut writer = Writer::default();
            let header = list_header(family, protocol);
            let flags = libc::NLM_F_DUMP as u16;
            let open = writer.begin_message_with(libc::RTM_GETROUTE, flags, sequence, &header);
            writer.end_message(open);
            let mut routes = Vec::new();
            let listed = self.socket.dump(writer.bytes(), sequence, |message| {
                routes.extend(read_route(&message).filter(|route| is_wanted(&message, route)));
            });
            match listed {
                Err(NetlinkError::Interrupted) => {}
                Ok(()) => return Ok(routes),
                Err(error) => return Err(error),
            }
        }
        Err(NetlinkError::Interrupted)
    }

    fn send(&mut self, batch: &[Command]) -> Result<Vec<Refused>, NetlinkError> {
        let first = self.socket.sequences(batch.len() as u32);
        let mut writer = Writer::default();
        for (command, sequence) in batch.iter().zip(0..) {
            let is_last = sequence as usize + 1 == batch.len();
            let (kind, flags) = command.kind();
            // A refusal is answered in any case.
            let flags = if is_last { flags | libc::NLM_F_ACK as u16 } else { flags };
            let header = command.header(self.protocol);
            let sequence = first.wrapping_add(sequence);
            let open = writer.begin_message_with(kind, flags, sequence, &header);
            command.write(&mut writer);
            writer.end_message(open);
        }
        self.socket.send(writer.bytes())?;
        let refusals = self.socket.refusals(first.wrapping_add(batch.len() as u32 - 1))?;
        let refused = refusals.into_iter().map(|refusal| Refused {
            command: refusal.sequence.wrapping_sub(first) as usize,
            errno: refusal.errno,
            message: refusal.message,
        });
        Ok(refused.collect())
    }
}
