//! The connection to the kernel.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use denizen_netlink::{Message, NetlinkError, Socket, Writer};
use nix::errno::Errno;
use nix::libc;
use thiserror::Error;

use crate::message::{
    family, list_header, path_header, read_gateways, read_path, read_route, read_rule,
    write_destination, write_table,
};
use crate::route::{ObservedRoute, Path, PolicyRoutingRule, RouteCommand};

/// How many commands are sent at once. If the kernel rejects all of them, its answers still fit the
/// socket's buffer.
const BATCH: usize = 1000;

/// How often a list is repeated if changes interrupt it.
const TRIES: usize = 10;

/// Why a request to the kernel failed.
#[derive(Debug, Error)]
#[error("cannot {doing}")]
pub struct RouteError {
    /// The operation, as a verb and its object.
    doing: &'static str,
    /// The kernel's error.
    #[source]
    source: NetlinkError,
}

impl RouteError {
    pub(crate) fn netlink(doing: &'static str) -> impl FnOnce(NetlinkError) -> Self {
        move |source| Self { doing, source }
    }
}

/// A command that the kernel rejected. The commands before and after it were done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RejectedRoute {
    /// The index of the refused command among those that were sent.
    pub command: usize,
    /// The kernel's error number.
    pub errno: Errno,
    /// The kernel's own text, if it has one.
    pub message: Option<String>,
}

/// The routes of one network namespace, for a program that owns a protocol number.
#[derive(Debug)]
pub struct Routes {
    socket: Socket,
    protocol: u8,
}

impl Routes {
    /// Opens the routes of this thread's network namespace. Routes that the returned value adds
    /// have `protocol`, and it removes only routes of `protocol`. `protocol` must not be 0, which
    /// stands for any protocol.
    pub fn open(protocol: u8) -> Result<Self, RouteError> {
        assert_ne!(protocol, libc::RTPROT_UNSPEC, "everybody's routes");
        let open = || {
            let socket = Socket::route()?;
            // With this option the kernel filters lists itself.
            socket.check_strictly()?;
            Ok(Self { socket, protocol })
        };
        open().map_err(RouteError::netlink("open netlink to the routes"))
    }

    /// The portid by which notifications identify the socket that caused them.
    pub fn portid(&self) -> u32 {
        self.socket.portid()
    }

    /// The routes of this protocol in all tables, of both families.
    pub fn own(&mut self) -> Result<Vec<ObservedRoute>, RouteError> {
        self.of(self.protocol)
    }

    /// The routes of any protocol (`RTPROT_*`) in all tables, of both families.
    pub fn of(&mut self, protocol: u8) -> Result<Vec<ObservedRoute>, RouteError> {
        self.list(protocol, None)
    }

    /// The routes of a table, of any program, of both families.
    pub fn in_table(&mut self, table: u32) -> Result<Vec<ObservedRoute>, RouteError> {
        self.list(libc::RTPROT_UNSPEC, Some(table))
    }

    /// The rules of both families that say which table packets are looked up in (`ip rule`).
    ///
    /// # Errors
    /// [`RouteError`], also if the kernel has only one table (no `CONFIG_IP_MULTIPLE_TABLES`).
    pub fn rules(&mut self) -> Result<Vec<PolicyRoutingRule>, RouteError> {
        let mut rules = Vec::new();
        for family in families() {
            let header = list_header(family, libc::RTPROT_UNSPEC);
            let listed = self.dump(family, libc::RTM_GETRULE, &header, None, read_rule);
            rules.extend(listed.map_err(RouteError::netlink("list routing rules"))?);
        }
        Ok(rules)
    }

    /// The gateways of the routes in a table.
    pub fn gateways(&mut self, table: u32) -> Result<BTreeSet<IpAddr>, RouteError> {
        let mut gateways = BTreeSet::new();
        for family in families() {
            let header = list_header(family, libc::RTPROT_UNSPEC);
            let read = |message: &Message<'_>| {
                let is_of_table = read_route(message).is_some_and(|route| route.key.table == table);
                is_of_table.then(|| read_gateways(message))
            };
            let listed = self.dump(family, libc::RTM_GETROUTE, &header, Some(table), read);
            gateways.extend(listed.map_err(RouteError::netlink("list gateways"))?.concat());
        }
        Ok(gateways)
    }

    fn list(&mut self, protocol: u8, table: Option<u32>) -> Result<Vec<ObservedRoute>, RouteError> {
        // A kernel before 4.20 does not filter.
        let is_wanted = |route: &ObservedRoute| {
            (protocol == libc::RTPROT_UNSPEC || route.protocol == protocol)
                && table.is_none_or(|table| route.key.table == table)
        };
        let mut routes = Vec::new();
        for family in families() {
            let header = list_header(family, protocol);
            let read = |message: &Message<'_>| read_route(message).filter(is_wanted);
            match self.dump(family, libc::RTM_GETROUTE, &header, table, read) {
                Ok(listed) => routes.extend(listed),
                // A table that was never used does not exist.
                Err(error) if table.is_some() && error.errno() == Some(Errno::ENOENT) => {}
                Err(error) => return Err(RouteError::netlink("list routes")(error)),
            }
        }
        Ok(routes)
    }

    /// Executes the commands in order. Returns those that the kernel rejected.
    ///
    /// # Errors
    ///
    /// [`RouteError`] if it is not known what was done.
    pub fn apply(&mut self, commands: &[RouteCommand]) -> Result<Vec<RejectedRoute>, RouteError> {
        let mut refused = Vec::new();
        for (batch, before) in commands.chunks(BATCH).zip((0..).step_by(BATCH)) {
            let of_batch = self.send(batch).map_err(RouteError::netlink("change routes"))?;
            let place = |refusal: RejectedRoute| RejectedRoute {
                command: before + refusal.command,
                ..refusal
            };
            refused.extend(of_batch.into_iter().map(place));
        }
        Ok(refused)
    }

    /// How packets to an address leave this node; `None` if no route leads there.
    pub fn path(&mut self, to: IpAddr) -> Result<Option<Path>, RouteError> {
        const NO_PATH: [Errno; 5] = [
            Errno::ENETUNREACH,
            Errno::EHOSTUNREACH,
            // The errors for `blackhole`, `prohibit` and `throw`.
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

    /// The results of `read` for all messages of a list of this family. (A kernel without IPv6
    /// lists other families instead.)
    fn dump<T>(
        &mut self,
        family: u8,
        kind: u16,
        header: &[u8],
        table: Option<u32>,
        read: impl Fn(&Message<'_>) -> Option<T>,
    ) -> Result<Vec<T>, NetlinkError> {
        for _ in 0..TRIES {
            let sequence = self.socket.sequences(1);
            let mut writer = Writer::default();
            let flags = libc::NLM_F_DUMP as u16;
            let open = writer.begin_message_with(kind, flags, sequence, header);
            table.into_iter().for_each(|table| write_table(&mut writer, table));
            writer.end_message(open);
            let mut found = Vec::new();
            let listed = self.socket.dump(writer.bytes(), sequence, |message| {
                let is_of_family = message.family() == Some(family);
                found.extend(Some(&message).filter(|_| is_of_family).and_then(&read));
            });
            match listed {
                Err(NetlinkError::Interrupted) => {}
                Ok(()) => return Ok(found),
                Err(error) => return Err(error),
            }
        }
        Err(NetlinkError::Interrupted)
    }

    fn send(&mut self, batch: &[RouteCommand]) -> Result<Vec<RejectedRoute>, NetlinkError> {
        let first = self.socket.sequences(batch.len() as u32);
        let mut writer = Writer::default();
        for (command, sequence) in batch.iter().zip(0..) {
            let is_last = sequence as usize + 1 == batch.len();
            let (kind, flags) = command.kind();
            // A rejection is answered in any case.
            let flags = if is_last { flags | libc::NLM_F_ACK as u16 } else { flags };
            let header = command.header(self.protocol);
            let sequence = first.wrapping_add(sequence);
            let open = writer.begin_message_with(kind, flags, sequence, &header);
            command.write(&mut writer);
            writer.end_message(open);
        }
        self.socket.send(writer.bytes())?;
        let refusals = self.socket.refusals(first.wrapping_add(batch.len() as u32 - 1))?;
        let refused = refusals.into_iter().map(|refusal| RejectedRoute {
            command: refusal.sequence.wrapping_sub(first) as usize,
            errno: refusal.errno,
            message: refusal.message,
        });
        Ok(refused.collect())
    }
}

fn families() -> [u8; 2] {
    [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()].map(family)
}
