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
    problems: watch::Sender<Vec<String>>,
) {
    let mut listeners = Listeners {
        answers,
        open: BTreeMap::new(),
    };
    loop {
        let wanted = wanted(listen, &ports.borrow_and_update());
        let failed = listeners.bring_to(&wanted);
        let is_well = failed.is_empty();
        report(&problems, failed);
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

fn report(problems: &watch::Sender<Vec<String>>, failed: Vec<String>) {
    problems.send_if_modified(|now| {
        for new in failed.iter().filter(|problem| !now.contains(problem)) {
            warn!(error = new, "cannot listen; trying again");
        }
        let differs = *now != failed;
        *now = failed;
        differs
    });
}

struct Listeners {
    answers: Arc<Answers>,
    /// What serves each address. One that changes hands goes on: it is asked whose it is with every request.
    open: BTreeMap<SocketAddr, (Site, JoinSet<()>)>,
}

impl Listeners {
    /// Closes what is wanted no more, opens what is missing, and tells what cannot be opened.
    fn bring_to(&mut self, wanted: &BTreeMap<SocketAddr, Site>) -> Vec<String> {
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

    fn problem(&self, site: Site, at: SocketAddr, error: &io::Error) -> String {
        let what = match site {
            Site::Health => "health of this agent".to_owned(),
            Site::Metrics => "metrics of this agent".to_owned(),
            Site::HealthCheck => {
                let service = self.answers.owner(at.port());
                let of = service
                    .map(|service| format!(" of {service}"))
                    .unwrap_or_default();
                format!("health-check node port {}{of}", at.port())
            }
        };
        format!("cannot listen at {at} for the {what}: {error}")
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
