//! Opens and closes listeners to match the wanted addresses.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::TcpSocket;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tracing::{info, warn};

use super::Site;
use super::answer::Answers;
use super::connection::accept;
use super::slots::Slots;
use crate::config::Listen;
use denizen_model::{Notice, NoticeReason, NoticeSubject};
use denizen_plan::HealthPorts;
use denizen_source::events::Notices;

/// Time until an address that cannot be bound is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// Connections that the kernel queues for us, at most `net.core.somaxconn`. If the queue is full, a
/// client's first packet is lost, and sent again a second later.
const BACKLOG: u32 = 4096;

/// The addresses, and what each serves.
pub(super) type Sites = BTreeMap<SocketAddr, Site>;

/// Listens at the `wanted` addresses, until the channel of `ports` is closed.
pub(super) async fn serve(
    wanted: impl Fn(&HealthPorts) -> Sites,
    mut ports: watch::Receiver<HealthPorts>,
    answers: Arc<Answers>,
    reporter: ProblemReporter,
) {
    let mut listeners =
        Listeners { answers, slots: SlotsOfSites::default(), open: BTreeMap::new() };
    loop {
        let wanted = wanted(&ports.borrow_and_update());
        let failed = listeners.update(&wanted);
        let is_well = failed.is_empty();
        reporter.report(failed);
        tokio::select! {
            changed = ports.changed() => if changed.is_err() { return },
            () = sleep(RETRY), if !is_well => {}
        }
    }
}

/// Addresses that other hosts and pods may reach.
pub(super) fn public(listen: Listen, ports: &HealthPorts) -> Sites {
    let checks = ports.sockets().map(|at| (at, Site::HealthCheck));
    // The operator's own addresses come last and have precedence.
    let own =
        [listen.metrics.map(|at| (at, Site::Metrics)), listen.health.map(|at| (at, Site::Health))];
    checks.chain(own.into_iter().flatten()).collect()
}

/// The address for kubelet's probes: a socket of its own, so that connections of other hosts and
/// pods never wait in the kernel's queue before a probe. If health or metrics are served at the
/// same address, that listener answers the probes, too.
pub(super) fn for_kubelet(listen: Listen) -> Sites {
    let is_shared = |at: &SocketAddr| [listen.health, listen.metrics].contains(&Some(*at));
    let at = listen.probe.filter(|at| !is_shared(at));
    at.map(|at| (at, Site::Probe)).into_iter().collect()
}

/// The beginning of a problem's text: the agent cannot listen at `at`.
pub(super) fn cannot_listen(at: SocketAddr) -> String {
    format!("cannot listen at {at} ")
}

/// Reports addresses that cannot be bound.
pub(super) struct ProblemReporter {
    /// The current problems.
    pub(super) problems: watch::Sender<Vec<String>>,
    /// Events for new problems.
    pub(super) notices: Notices,
}

impl ProblemReporter {
    fn report(&self, failed: Vec<Notice>) {
        self.problems.send_if_modified(|now| {
            for new in failed.iter().filter(|notice| !now.contains(&notice.text)) {
                warn!(error = new.text, "cannot listen; will retry");
                self.notices.send(new.clone());
            }
            let failed: Vec<String> = failed.into_iter().map(|notice| notice.text).collect();
            let differs = *now != failed;
            *now = failed;
            differs
        });
    }
}

/// Separate slots for each site, so that clients of one take none from the others.
#[derive(Default)]
struct SlotsOfSites {
    health: Slots,
    probe: Slots,
    metrics: Slots,
    /// For all health-check ports together: there may be hundreds.
    health_check: Slots,
}

impl SlotsOfSites {
    fn of(&self, site: Site) -> &Slots {
        match site {
            Site::Health => &self.health,
            Site::Probe => &self.probe,
            Site::Metrics => &self.metrics,
            Site::HealthCheck => &self.health_check,
        }
    }
}

struct Listeners {
    answers: Arc<Answers>,
    slots: SlotsOfSites,
    /// The task that serves each address. A health-check port that passes to another service keeps
    /// its task: the owner is looked up at every request.
    open: BTreeMap<SocketAddr, (Site, JoinSet<()>)>,
}

impl Listeners {
    /// Closes unwanted listeners, opens missing ones, and returns those that cannot be opened.
    fn update(&mut self, wanted: &BTreeMap<SocketAddr, Site>) -> Vec<Notice> {
        self.open.retain(|at, (site, _)| {
            let stays = wanted.get(at) == Some(site);
            if !stays {
                info!(address = %at, ?site, "no longer served");
            }
            stays
        });
        let mut failed = Vec::new();
        for (at, site) in wanted {
            if self.open.contains_key(at) {
                continue;
            }
            match bind(*at, *site).and_then(pollable) {
                Err(error) => failed.push(self.problem(*site, *at, &error)),
                Ok(listener) => {
                    info!(address = %at, ?site, "served");
                    let mut task = JoinSet::new();
                    let slots = self.slots.of(*site).clone();
                    task.spawn(accept(listener, *site, self.answers.clone(), slots));
                    self.open.insert(*at, (*site, task));
                }
            }
        }
        failed
    }

    fn problem(&self, site: Site, at: SocketAddr, error: &io::Error) -> Notice {
        let (about, reason, what) = match site {
            Site::Health => (
                NoticeSubject::Node,
                NoticeReason::HealthUnserved,
                "health of this agent".to_owned(),
            ),
            Site::Probe => (
                NoticeSubject::Node,
                NoticeReason::HealthUnserved,
                "probes of this agent".to_owned(),
            ),
            Site::Metrics => (
                NoticeSubject::Node,
                NoticeReason::MetricsUnserved,
                "metrics of this agent".to_owned(),
            ),
            Site::HealthCheck => {
                let port = format!("health-check node port {}", at.port());
                match self.answers.owner(at.port()) {
                    Some(service) => {
                        let what = format!("{port} of {service}");
                        (NoticeSubject::Service(service), NoticeReason::HealthCheckUnserved, what)
                    }
                    None => (NoticeSubject::Node, NoticeReason::HealthCheckUnserved, port),
                }
            }
        };
        Notice { about, reason, text: format!("{}for the {what}: {error}", cannot_listen(at)) }
    }
}

fn pollable(listener: TcpListener) -> io::Result<AsyncFd<TcpListener>> {
    // SAFETY: a listener owns its socket for its whole life, and always returns the same
    // descriptor.
    #[expect(unsafe_code, reason = "AsRawFd alone does not guarantee this")]
    let pollable = unsafe { AsyncFd::register_with_interest(listener, Interest::READABLE) };
    Ok(pollable?)
}

/// Listens at `at`. As in kube-proxy, 0.0.0.0 also stands for every IPv6 address, if the kernel has
/// IPv6. Not for a health check, which answers for each family by itself.
fn bind(at: SocketAddr, site: Site) -> io::Result<TcpListener> {
    if at.ip() == Ipv4Addr::UNSPECIFIED && site != Site::HealthCheck {
        let both = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), at.port());
        match listen(TcpSocket::new_v6(), both, site) {
            Err(error) if is_without_ipv6(&error) => {}
            done => return done,
        }
    }
    let socket = if at.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() };
    listen(socket, at, site)
}

fn is_without_ipv6(error: &io::Error) -> bool {
    use nix::libc::{EADDRNOTAVAIL, EAFNOSUPPORT};
    matches!(error.raw_os_error(), Some(EAFNOSUPPORT | EADDRNOTAVAIL))
}

fn listen(socket: io::Result<TcpSocket>, at: SocketAddr, site: Site) -> io::Result<TcpListener> {
    let socket = socket?;
    // Connections of an earlier agent may still be closing.
    socket.set_reuseaddr(true)?;
    // With this, one socket can bind the port at every address and another the same port at one
    // address.
    socket.set_reuseport(matches!(site, Site::Health | Site::Probe))?;
    if at.is_ipv6() {
        let both_families = at.ip().is_unspecified() && site != Site::HealthCheck;
        setsockopt(&socket, sockopt::Ipv6V6Only, &!both_families)?;
    }
    if site == Site::HealthCheck {
        // A load balancer's address may become the node's own later, or never.
        setsockopt(&socket, sockopt::IpFreebind, &true)?;
    }
    socket.bind(at)?;
    socket.listen(BACKLOG)?.into_std()
}
