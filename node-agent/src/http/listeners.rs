//! Which addresses are listened at: those that are wanted now, as far as they can be had.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tracing::{info, warn};

use super::Site;
use super::answer::Answers;
use super::connection::accept;
use crate::config::Listen;
use crate::notice::{About, Notice, Notices, Reason};
use crate::plan::HealthPorts;

/// How long until an address that cannot be had is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// Connections that the kernel keeps for us.
const BACKLOG: u32 = 128;

/// Listens where it is wanted, until nobody publishes any more.
pub(super) async fn serve(
    listen: Listen,
    mut ports: watch::Receiver<HealthPorts>,
    answers: Arc<Answers>,
    told: Told,
) {
    let mut listeners = Listeners {
        answers,
        open: BTreeMap::new(),
    };
    loop {
        let wanted = wanted(listen, &ports.borrow_and_update());
        let failed = listeners.bring_to(&wanted);
        let is_well = failed.is_empty();
        told.report(failed);
        tokio::select! {
            changed = ports.changed() => if changed.is_err() { return },
            () = sleep(RETRY), if !is_well => {}
        }
    }
}

/// Every address, and what is served there.
fn wanted(listen: Listen, ports: &HealthPorts) -> BTreeMap<SocketAddr, Site> {
    let checks = ports.sockets().map(|at| (at, Site::HealthCheck));
    // The operator's own word comes last, and counts.
    let own = [
        listen.metrics.map(|at| (at, Site::Metrics)),
        listen.health.map(|at| (at, Site::Health)),
    ];
    checks.chain(own.into_iter().flatten()).collect()
}

/// Where it is told what cannot be listened at.
pub(super) struct Told {
    /// As it is now.
    pub(super) problems: watch::Sender<Vec<String>>,
    /// When it begins.
    pub(super) notices: Notices,
}

impl Told {
    fn report(&self, failed: Vec<Notice>) {
        self.problems.send_if_modified(|now| {
            for new in failed.iter().filter(|notice| !now.contains(&notice.text)) {
                warn!(error = new.text, "cannot listen; trying again");
                self.notices.tell(new.clone());
            }
            let failed: Vec<String> = failed.into_iter().map(|notice| notice.text).collect();
            let differs = *now != failed;
            *now = failed;
            differs
        });
    }
}

struct Listeners {
    answers: Arc<Answers>,
    /// What serves each address. One that changes hands goes on: it is asked whose it is with every request.
    open: BTreeMap<SocketAddr, (Site, JoinSet<()>)>,
}

impl Listeners {
    /// Closes what is wanted no more, opens what is missing, and tells what cannot be opened.
    fn bring_to(&mut self, wanted: &BTreeMap<SocketAddr, Site>) -> Vec<Notice> {
        self.open.retain(|at, (site, _)| {
            let stays = wanted.get(at) == Some(site);
            if !stays {
                info!(address = %at, ?site, "served no more");
            }
            stays
        });
        let mut failed = Vec::new();
        for (at, site) in wanted {
            if self.open.contains_key(at) {
                continue;
            }
            match bind(*at) {
                Err(error) => failed.push(self.problem(*site, *at, &error)),
                Ok(listener) => {
                    info!(address = %at, ?site, "served");
                    let mut task = JoinSet::new();
                    task.spawn(accept(listener, *site, self.answers.clone()));
                    self.open.insert(*at, (*site, task));
                }
            }
        }
        failed
    }

    fn problem(&self, site: Site, at: SocketAddr, error: &io::Error) -> Notice {
        let (about, reason, what) = match site {
            Site::Health => (
                About::Node,
                Reason::HealthUnserved,
                "health of this agent".to_owned(),
            ),
            Site::Metrics => (
                About::Node,
                Reason::MetricsUnserved,
                "metrics of this agent".to_owned(),
            ),
            Site::HealthCheck => {
                let port = format!("health-check node port {}", at.port());
                match self.answers.owner(at.port()) {
                    Some(service) => {
                        let what = format!("{port} of {service}");
                        (About::Service(service), Reason::HealthCheckUnserved, what)
                    }
                    None => (About::Node, Reason::HealthCheckUnserved, port),
                }
            }
        };
        Notice {
            about,
            reason,
            text: format!("cannot listen at {at} for the {what}: {error}"),
        }
    }
}

/// Listens at `at`. The address that stands for every one of IPv4 also stands for those of IPv6, as in
/// kube-proxy, where the kernel has IPv6.
fn bind(at: SocketAddr) -> io::Result<TcpListener> {
    if at.ip() == std::net::Ipv4Addr::UNSPECIFIED {
        let both = SocketAddr::new(std::net::Ipv6Addr::UNSPECIFIED.into(), at.port());
        match listen(TcpSocket::new_v6(), both) {
            Err(error) if is_without_ipv6(&error) => {}
            done => return done,
        }
    }
    let socket = if at.is_ipv4() {
        TcpSocket::new_v4()
    } else {
        TcpSocket::new_v6()
    };
    listen(socket, at)
}

fn is_without_ipv6(error: &io::Error) -> bool {
    use nix::libc::{EADDRNOTAVAIL, EAFNOSUPPORT};
    matches!(error.raw_os_error(), Some(EAFNOSUPPORT | EADDRNOTAVAIL))
}

fn listen(socket: io::Result<TcpSocket>, at: SocketAddr) -> io::Result<TcpListener> {
    let socket = socket?;
    // Connections of an agent that was here before may still be closing.
    socket.set_reuseaddr(true)?;
    if at.is_ipv6() {
        setsockopt(&socket, sockopt::Ipv6V6Only, &!at.ip().is_unspecified())?;
    }
    socket.bind(at)?;
    socket.listen(BACKLOG)
}
