//! When the kernels notify changes: of the node's rules and announcements, of the router's routes.

use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use denizen_route::{MAIN, RouteChange, Routes};
use denizen_tests::node::netns::Netns;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::TIMEOUT;

/// How often routes are counted.
const GLANCE: Duration = Duration::from_millis(10);

/// When each change was first notified.
#[derive(Debug, Default, Clone, Copy)]
pub struct Times {
    /// A batch of nf_tables was committed on the node.
    pub rules: Option<Instant>,
    /// The route to the address changed in the node's table of announcements.
    pub table: Option<Instant>,
    /// The router's route to the address changed.
    pub router: Option<Instant>,
}

/// Notifications of the node's and of the router's kernel.
pub struct Heard {
    rules: denizen_nft::Watch,
    node: denizen_route::RouteWatch,
    router: denizen_route::RouteWatch,
    table: u32,
}

impl Heard {
    /// Listens from now on.
    pub fn listen(node: &Netns, router: &Netns, table: u32) -> Result<Self> {
        Ok(Self {
            rules: node.run(|| denizen_nft::Watch::open(&[], Vec::new()))??,
            node: node.run(|| denizen_route::RouteWatch::open(Vec::new()))??,
            router: router.run(|| denizen_route::RouteWatch::open(Vec::new()))??,
            table,
        })
    }

    /// Discards notifications until none has come for 300 ms.
    pub fn settle(&mut self) -> Result<()> {
        while self.wait(Duration::from_millis(300))? {
            self.rules.changes()?;
            self.node.changes(drop)?;
            self.router.changes(drop)?;
        }
        Ok(())
    }

    /// Waits until all three were notified for this address: that it is there now, or gone.
    pub fn of(&mut self, address: IpAddr, is_there: bool) -> Result<Times> {
        let (mut times, begun) = (Times::default(), Instant::now());
        while times.rules.is_none() || times.table.is_none() || times.router.is_none() {
            ensure!(begun.elapsed() < TIMEOUT, "{address}: {times:?}");
            self.wait(TIMEOUT)?;
            let now = Instant::now();
            let mut is_lost = false;
            if self.rules.changes()?.other_tables_changed {
                times.rules.get_or_insert(now);
            }
            let watches = [
                (&mut self.node, self.table, &mut times.table),
                (&mut self.router, MAIN, &mut times.router),
            ];
            for (watch, table, time) in watches {
                watch.changes(|change| {
                    let (route, is_new) = match change {
                        RouteChange::Added(route) => (route, true),
                        RouteChange::Removed(route) => (route, false),
                        RouteChange::Link { .. } => return,
                        RouteChange::Lost => return is_lost = true,
                    };
                    if (route.key.table, route.key.destination.ip()) == (table, address)
                        && is_new == is_there
                    {
                        time.get_or_insert(now);
                    }
                })?;
            }
            if is_lost {
                bail!("notifications were lost");
            }
        }
        Ok(times)
    }

    fn wait(&self, patience: Duration) -> Result<bool> {
        wait([self.rules.as_raw_fd(), self.node.as_raw_fd(), self.router.as_raw_fd()], patience)
    }
}

/// Whether one of these sockets becomes readable within `patience`.
fn wait<const N: usize>(raw: [RawFd; N], patience: Duration) -> Result<bool> {
    // SAFETY: the caller's watches have these sockets as long as they live.
    #[expect(unsafe_code, reason = "the watches have no `AsFd`")]
    let mut polled =
        raw.map(|fd| PollFd::new(unsafe { BorrowedFd::borrow_raw(fd) }, PollFlags::POLLIN));
    let timeout = PollTimeout::try_from(patience).context("too long")?;
    Ok(poll(&mut polled, timeout)? > 0)
}

/// Waits until a route to this range is added; returns when that was notified.
pub fn added(watch: &mut denizen_route::RouteWatch, range: &str) -> Result<Instant> {
    loop {
        ensure!(wait([watch.as_raw_fd()], TIMEOUT)?, "no route to {range}");
        let (now, mut is_there) = (Instant::now(), false);
        watch.changes(|change| {
            is_there |=
                matches!(change, RouteChange::Added(it) if it.key.destination.to_string() == range);
        })?;
        if is_there {
            return Ok(now);
        }
    }
}

/// Counts the routes of one protocol in a table until there are `all` of them. Returns when the
/// first one was there, and when all were.
pub fn counted(netns: &Netns, protocol: u8, table: u32, all: usize) -> Result<[Instant; 2]> {
    let mut routes = netns.run(|| Routes::open(protocol))??;
    let (begun, mut first) = (Instant::now(), None);
    loop {
        let own = routes.own()?;
        let count = own.iter().filter(|route| route.key.table == table).count();
        let now = Instant::now();
        if count > 0 {
            first.get_or_insert(now);
        }
        match first {
            Some(first) if count >= all => return Ok([first, now]),
            _ => ensure!(begun.elapsed() < TIMEOUT, "{count} routes of {all}"),
        }
        std::thread::sleep(GLANCE);
    }
}
