//! HTTP: health-check node ports, health, metrics and the status page.
//!
//! It runs in threads of its own, so that slow or many clients do not delay the loop, and so that
//! health is answered even if the loop hangs. All its data comes from the loop: values that the
//! loop publishes ([`Published`]), and answers to requests, as on the agent's socket. No request
//! changes anything.

#![expect(clippy::disallowed_methods, reason = "the listeners bound each wait for a client")]

mod answer;
mod ask;
mod connection;
mod connections;
mod listeners;
mod page;
mod slots;
mod z_pages;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;

use tokio::sync::{mpsc, watch};

use self::listeners::Sites;
pub use self::z_pages::StartFacts;
use crate::config::Listen;
use crate::control::AgentRequest;
use denizen_observe::status::health::LoopState;
use denizen_observe::status::metrics::Metrics;
use denizen_plan::HealthPorts;
use denizen_source::events::Notices;

/// The values that the loop publishes for the servers.
#[derive(Debug, Clone)]
pub struct Published {
    /// The loop's health.
    pub loop_state: watch::Receiver<LoopState>,
    /// The health-check node ports.
    pub ports: watch::Receiver<HealthPorts>,
    /// The metrics.
    pub metrics: Metrics,
    /// Requests to the loop.
    pub requests: mpsc::Sender<AgentRequest>,
    /// Facts from the start, such as flags.
    pub start: Arc<StartFacts>,
}

/// What an address serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Site {
    /// `/healthz` and `/livez`.
    Health,
    /// `/denizen/ready` and `/denizen/live`, for kubelet's probes: on this node's loopback
    /// interface, which other hosts and pods cannot reach, and at a port and by paths that
    /// kube-proxy does not have.
    Probe,
    /// The status page, `/metrics`, and kube-proxy's other paths at this address.
    Metrics,
    /// A health-check node port, for the service that has it at the time of the request.
    HealthCheck,
}

/// The beginning of a problem's text: the agent cannot listen at `at`.
pub fn cannot_listen(at: SocketAddr) -> String {
    listeners::cannot_listen(at)
}

/// Serves until the loop stops publishing. Each receiver holds the addresses that cannot be served
/// now, with the reasons. They are also written as events.
///
/// Kubelet's probes have a thread of their own, so that they are answered however busy the other
/// servers are.
///
/// # Errors
/// If a thread or a runtime cannot be created.
pub fn start(
    listen: Listen,
    published: Published,
    notices: Notices,
) -> io::Result<[watch::Receiver<Vec<String>>; 2]> {
    let ports = published.ports.clone();
    let answers = Arc::new(answer::Answers::new(published));
    let serve = |name: &str, wanted: fn(Listen, &HealthPorts) -> Sites| {
        let (problems, receiver) = watch::channel(Vec::new());
        let reporter = listeners::ProblemReporter { problems, notices: notices.clone() };
        let wanted = move |ports: &HealthPorts| wanted(listen, ports);
        let serve = listeners::serve(wanted, ports.clone(), answers.clone(), reporter);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        thread::Builder::new().name(name.to_owned()).spawn(move || runtime.block_on(serve))?;
        io::Result::Ok(receiver)
    };
    Ok([
        serve("http", listeners::public)?,
        serve("probes", |listen, _| listeners::for_kubelet(listen))?,
    ])
}
