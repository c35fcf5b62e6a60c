//! This node's addresses and links, live from the kernel (rtnetlink).
//!
//! The source sends the addresses that packets can reach right now, of every link and scope, the
//! loopback included; the plan decides which of them serve what. *Deprecated* addresses are
//! included, since they still take connections. *Tentative* addresses (duplicate detection has not
//! ended) and those that failed it are not, since the kernel does not answer at them; it sends a
//! notification when that changes.
//!
//! The source subscribes before it lists, so that nothing is missed in between. If notifications
//! overflow, it lists again.

mod table;
#[cfg(test)]
mod tests;
mod tunnel;

use std::collections::BTreeSet;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{Stream, StreamExt};
use nix::sys::socket::{setsockopt, sockopt};
use rtnetlink::packet_core::{
    ErrorMessage, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload,
};
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::address::AddressMessage;
use rtnetlink::packet_route::link::{LinkAttribute, LinkExtentMask, LinkMessage};
use rtnetlink::sys::{AsyncSocket, SocketAddr};
use rtnetlink::{Handle, MulticastGroup, new_connection, new_multicast_connection};
use thiserror::Error;
use tokio::sync::watch as latest;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};
use tracing::{debug, info, warn};

use self::table::LinkTable;
pub use self::table::{Link, LinkKind};
use super::{Closed, Outlet, RETRY};
use denizen_model::{Event, Listing, NodeAddress, NodeLinks, Tunnel};
use denizen_text::describe;

/// After a notification, the source collects further ones until none came for this long …
const QUIET: Duration = Duration::from_millis(5);

/// … but no longer than this.
const PATIENCE: Duration = Duration::from_millis(50);

/// Time limit for an answer. The kernel answers in milliseconds; a lost answer never comes.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// How often a list is repeated at once if a change interrupted it.
const LIST_ATTEMPTS: u32 = 10;

/// How often the ports of Foo-over-UDP are listed: the kernel sends no notification when they
/// change. They are also listed at every change of a link.
const FOO_OVER_UDP: Duration = Duration::from_secs(5);

/// Receive buffer in bytes: the notifications of some thousand links that appear at once.
const RECEIVE_BUFFER: usize = 4 << 20;

/// All notifications about links and addresses.
const GROUPS: [MulticastGroup; 3] =
    [MulticastGroup::Link, MulticastGroup::Ipv4Ifaddr, MulticastGroup::Ipv6Ifaddr];

/// Why links and addresses cannot be updated.
#[derive(Debug, Error)]
pub enum NodeError {
    #[error("cannot open a route netlink socket")]
    Open(#[source] io::Error),
    #[error("cannot ask the kernel for links and addresses")]
    Ask(#[source] rtnetlink::Error),
    #[error("the kernel refused to list links and addresses: {0}")]
    Refused(ErrorMessage),
    #[error("the kernel did not list its links and addresses in time")]
    TimedOut,
    #[error("links and addresses change faster than they can be listed")]
    Disturbed,
    #[error("the kernel's notifications ended")]
    Ended,
}

/// Why the source stops listening.
enum ListenEnd {
    Closed,
    Failed(NodeError),
}

impl From<Closed> for ListenEnd {
    fn from(Closed: Closed) -> Self {
        Self::Closed
    }
}

impl From<NodeError> for ListenEnd {
    fn from(error: NodeError) -> Self {
        Self::Failed(error)
    }
}

/// Sends the addresses, and publishes the links in `links`, now and after each change, until the
/// receiver is closed. The network namespace is that of the calling thread.
///
/// `links` is empty until the first list. From then on, an attachment whose link is not in it has
/// lost its link.
pub async fn run(outlet: Outlet, links: latest::Sender<Arc<[Link]>>) {
    let mut source = NodeSource { outlet, links, sent: None, sent_links: NodeLinks::default() };
    loop {
        match source.listen().await {
            ListenEnd::Closed => return,
            ListenEnd::Failed(error) => source.trouble(Some(&error)),
        }
        tokio::select! {
            () = source.outlet.closed() => return,
            () = sleep(RETRY) => {}
        }
    }
}

struct NodeSource {
    outlet: Outlet,
    links: latest::Sender<Arc<[Link]>>,
    sent: Option<Vec<NodeAddress>>,
    sent_links: NodeLinks,
}

impl NodeSource {
    /// Listens on a socket of its own until that fails.
    async fn listen(&mut self) -> ListenEnd {
        let (mut connection, handle, messages) = match new_multicast_connection(&GROUPS) {
            Ok(opened) => opened,
            Err(error) => return NodeError::Open(error).into(),
        };
        // The message that ends a list also says whether the list is consistent.
        connection.set_forward_done(true);
        // Without the privilege the default size will do: an overflow is noticed.
        let socket = connection.socket_mut().socket_mut();
        if let Err(error) = setsockopt(socket, sockopt::RcvBufForce, &RECEIVE_BUFFER) {
            debug!(%error, "receive buffer stays at its default");
        }
        tokio::select! {
            () = connection => NodeError::Ended.into(),
            stop = self.follow(handle, messages) => stop,
        }
    }

    /// Lists once, then applies the notifications.
    async fn follow(
        &mut self,
        handle: Handle,
        messages: impl Stream<Item = (NetlinkMessage<RouteNetlinkMessage>, SocketAddr)>,
    ) -> ListenEnd {
        let mut messages = pin!(messages);
        let mut poll = interval(FOO_OVER_UDP);
        poll.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let mut table = match list_all(&handle).await {
                Ok(table) => table,
                Err(error) => return error.into(),
            };
            let mut is_due = true;
            loop {
                if is_due && let Err(closed) = self.send(&table).await {
                    return closed.into();
                }
                let first = tokio::select! {
                    () = self.outlet.closed() => return ListenEnd::Closed,
                    message = messages.next() => message,
                    _ = poll.tick() => {
                        is_due = true;
                        continue;
                    }
                };
                is_due = match collect(first, &mut messages, &mut table).await {
                    Ok(Notifications::Complete { changed }) => changed,
                    Ok(Notifications::Lost) => break,
                    Err(error) => return error.into(),
                };
            }
            info!("link notifications were lost; listing again");
        }
    }

    /// Sends what changed.
    async fn send(&mut self, table: &LinkTable) -> Result<(), Closed> {
        self.trouble(None);
        self.links.send_if_modified(|links| {
            let now = table.links();
            let differs = **links != *now;
            *links = now.into();
            differs
        });
        let addresses = table.addresses();
        let mut batch = Vec::new();
        if self.sent.as_ref() != Some(&addresses) {
            batch.push(Event::Addresses(addresses.clone()));
            if self.sent.is_none() {
                batch.push(Event::Listed(Listing::Addresses));
            }
            self.sent = Some(addresses);
        }
        let mut links = table.node_links();
        links.tunnels.extend(self.foo_over_udp());
        if self.sent_links != links {
            self.sent_links = links.clone();
            batch.push(Event::Links(links));
        }
        match batch.is_empty() {
            true => Ok(()),
            false => self.outlet.send(batch).await,
        }
    }

    /// The ports of Foo-over-UDP; the last known ones if they cannot be listed.
    fn foo_over_udp(&self) -> BTreeSet<Tunnel> {
        tunnel::foo_over_udp().unwrap_or_else(|error| {
            debug!(error = describe(&error), "cannot list the ports of Foo-over-UDP");
            let udp = |tunnel: &&Tunnel| matches!(tunnel, Tunnel::Udp(_));
            self.sent_links.tunnels.iter().filter(udp).copied().collect()
        })
    }

    /// Reports the current problem, and logs it once.
    fn trouble(&self, error: Option<&NodeError>) {
        let problems: Vec<String> = error.iter().map(|error| describe(*error)).collect();
        let news = self.outlet.report(problems.clone());
        if let (true, Some(error)) = (news, problems.first()) {
            warn!(error, "cannot follow this node's addresses; keeping the last known ones");
        }
    }
}

/// Whether notifications were lost.
enum Notifications {
    Complete {
        /// Whether one of them changed the table.
        changed: bool,
    },
    Lost,
}

/// Applies a notification, and those that follow closely.
async fn collect(
    first: Option<(NetlinkMessage<RouteNetlinkMessage>, SocketAddr)>,
    messages: &mut (impl Stream<Item = (NetlinkMessage<RouteNetlinkMessage>, SocketAddr)> + Unpin),
    table: &mut LinkTable,
) -> Result<Notifications, NodeError> {
    let deadline = Instant::now() + PATIENCE;
    let (mut next, mut changed) = (first, false);
    loop {
        let (message, sender) = next.ok_or(NodeError::Ended)?;
        match message.payload {
            // The kernel's portid is 0.
            NetlinkPayload::InnerMessage(message) if sender.port_number() == 0 => {
                changed |= table.apply(&message);
            }
            NetlinkPayload::Overrun(_) => return Ok(Notifications::Lost),
            NetlinkPayload::InnerMessage(_)
            | NetlinkPayload::Done(_)
            | NetlinkPayload::Error(_)
            | NetlinkPayload::Noop => {}
            _ => {}
        }
        if Instant::now() >= deadline {
            return Ok(Notifications::Complete { changed });
        }
        next = match timeout(QUIET, messages.next()).await {
            Ok(next) => next,
            Err(_quiet) => return Ok(Notifications::Complete { changed }),
        };
    }
}

/// The links that the kernel has now, from a consistent list that begins after the call.
/// # Errors
/// [`NodeError`], also while links change faster than they can be listed.
pub async fn links() -> Result<Vec<Link>, NodeError> {
    let (mut connection, handle, _) = new_connection().map_err(NodeError::Open)?;
    connection.set_forward_done(true);
    tokio::select! {
        () = connection => Err(NodeError::Ended),
        table = list_all(&handle) => table.map(|table| table.links()),
    }
}

/// All links and addresses that the kernel has now.
async fn list_all(handle: &Handle) -> Result<LinkTable, NodeError> {
    for _ in 0..LIST_ATTEMPTS {
        let mut table = LinkTable::default();
        let mut links = LinkMessage::default();
        // Statistics are the largest part of a link's message.
        links.attributes.push(LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats]));
        let links = list(handle, RouteNetlinkMessage::GetLink(links), &mut table);
        let undisturbed =
            timeout(ANSWER_TIMEOUT, links).await.map_err(|_| NodeError::TimedOut)??;
        let addresses = RouteNetlinkMessage::GetAddress(AddressMessage::default());
        let addresses = list(handle, addresses, &mut table);
        if timeout(ANSWER_TIMEOUT, addresses).await.map_err(|_| NodeError::TimedOut)??
            && undisturbed
        {
            return Ok(table);
        }
    }
    Err(NodeError::Disturbed)
}

/// Applies a list. Returns whether it is consistent: nothing changed while the kernel made it.
async fn list(
    handle: &Handle,
    what: RouteNetlinkMessage,
    table: &mut LinkTable,
) -> Result<bool, NodeError> {
    let mut request = NetlinkMessage::from(what);
    request.header.flags = NLM_F_REQUEST | NLM_F_DUMP;
    let mut answers = handle.clone().request(request).map_err(NodeError::Ask)?;
    let mut undisturbed = true;
    while let Some(answer) = answers.next().await {
        undisturbed &= answer.header.flags & NLM_F_DUMP_INTR == 0;
        match answer.payload {
            NetlinkPayload::InnerMessage(message) => drop(table.apply(&message)),
            NetlinkPayload::Error(error) => return Err(NodeError::Refused(error)),
            NetlinkPayload::Done(_) => return Ok(undisturbed),
            NetlinkPayload::Noop => {}
            // Part of the list is lost.
            NetlinkPayload::Overrun(_) => undisturbed = false,
            _ => {}
        }
    }
    Err(NodeError::Ended)
}
