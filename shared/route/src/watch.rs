//! Notifications about changes of routes and links.

use std::os::fd::{AsRawFd, RawFd};

use denizen_netlink::{Message, NetlinkError, Socket};
use nix::libc;

use crate::kernel::RouteError;
use crate::message::read_route;
use crate::route::ObservedRoute;

/// Offsets in `struct ifinfomsg`.
const IFINFOMSG_INDEX: usize = 4;
const IFINFOMSG_FLAGS: usize = 8;

/// A notification about a route or a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RouteChange {
    /// A route was added, perhaps in place of another one.
    Added(ObservedRoute),
    /// A route was removed.
    Removed(ObservedRoute),
    /// A link was added, changed or removed. When a link goes down or loses an address, the kernel
    /// removes its IPv4 routes without notifications about them.
    Link {
        /// The link's index.
        index: u32,
        /// It is up (`IFF_UP`).
        is_up: bool,
    },
    /// Notifications were lost: anything may have changed.
    Lost,
}

/// Listens for changes of the routes and links of this network namespace.
#[derive(Debug)]
pub struct RouteWatch {
    socket: Socket,
    own: Vec<u32>,
}

impl RouteWatch {
    /// Listens from now on. Changes by sockets with the portids `own` are ignored.
    pub fn open(own: Vec<u32>) -> Result<Self, RouteError> {
        let open = || {
            let socket = Socket::route()?;
            for group in [libc::RTNLGRP_LINK, libc::RTNLGRP_IPV4_ROUTE, libc::RTNLGRP_IPV6_ROUTE] {
                socket.join(group as libc::c_int)?;
            }
            Ok(Self { socket, own })
        };
        open().map_err(RouteError::netlink("listen to changes of routes"))
    }

    /// Passes all pending changes to `each`, and does not wait.
    pub fn changes(&mut self, mut each: impl FnMut(RouteChange)) -> Result<(), RouteError> {
        let Self { socket, own } = self;
        loop {
            let more = socket.receive(false, |message| {
                if !own.contains(&message.portid) {
                    change(&message).into_iter().for_each(&mut each);
                }
            });
            match more {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err(NetlinkError::Overflow) => each(RouteChange::Lost),
                Err(error) => {
                    return Err(RouteError::netlink("listen to changes of routes")(error));
                }
            }
        }
    }
}

impl AsRawFd for RouteWatch {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

fn change(message: &Message<'_>) -> Option<RouteChange> {
    let number = |at: usize| Some(u32::from_ne_bytes(*message.payload.get(at..)?.first_chunk()?));
    match message.kind {
        libc::RTM_NEWROUTE => read_route(message).map(RouteChange::Added),
        libc::RTM_DELROUTE => read_route(message).map(RouteChange::Removed),
        libc::RTM_NEWLINK | libc::RTM_DELLINK => {
            let is_up = message.kind == libc::RTM_NEWLINK
                && number(IFINFOMSG_FLAGS)? & libc::IFF_UP as u32 != 0;
            Some(RouteChange::Link { index: number(IFINFOMSG_INDEX)?, is_up })
        }
        _ => None,
    }
}
