//! What is served over HTTP: health-check node ports, health, metrics and the page for people.
//!
//! It runs in threads of its own, so that a client that is slow, or many of them, cost the loop
//! nothing, and so that health is told even while the loop hangs. All that it knows comes from the
//! loop: what is published ([`Published`]), and what it answers when it is asked (as the agent's
//! socket asks it). Nothing that is asked here changes anything.

mod answer;
mod connection;
mod listeners;
mod page;
mod slots;

use std::io;
use std::sync::Arc;
use std::thread;

use tokio::sync::{mpsc, watch};

use self::listeners::Wanted;
use crate::config::Listen;
use crate::control::Asked;
use crate::events::Notices;
use crate::plan::HealthPorts;
use crate::status::health::Pulse;
use crate::status::metrics::Metrics;

/// What the loop publishes for the servers, always as it is now.
#[derive(Debug, Clone)]
pub struct Published {
    /// How the loop is.
    pub pulse: watch::Receiver<Pulse>,
    /// Which health-check node ports there are.
    pub ports: watch::Receiver<HealthPorts>,
    /// What is counted and measured.
    pub metrics: Metrics,
    /// Where the loop is asked.
    pub requests: mpsc::Sender<Asked>,
}

/// What is served at an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Site {
    /// `/healthz` and `/livez`.
    Health,
    /// The same on this node's loopback interface, for kubelet's probes: other hosts and pods
    /// cannot reach it.
    Probe,
    /// The page for people, `/metrics`, and what else kube-proxy has beside it.
    Metrics,
    /// Whatever service has the health-check node port at the moment of the question.
    HealthCheck,
}

/// Serves until the loop publishes no more. Each receiver holds what cannot be served right now,
/// and why; it is an event too.
///
/// Kubelet's probes have a thread of their own: however busy others keep the servers, they are
/// answered as soon as the kernel gives it a processor.
///
/// # Errors
/// When there is no thread or no runtime to be had.
pub fn start(
    listen: Listen,
    published: Published,
    notices: Notices,
) -> io::Result<[watch::Receiver<Vec<String>>; 2]> {
    let ports = published.ports.clone();
    let answers = Arc::new(answer::Answers::new(published));
    let serve = |name: &str, wanted: fn(Listen, &HealthPorts) -> Wanted| {
        let (problems, receiver) = watch::channel(Vec::new());
        let reporter = listeners::ProblemReporter { problems, notices: notices.clone() };
        let wanted = move |ports: &HealthPorts| wanted(listen, ports);
        let serve = listeners::serve(wanted, ports.clone(), answers.clone(), reporter);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        thread::Builder::new().name(name.to_owned()).spawn(move || runtime.block_on(serve))?;
        io::Result::Ok(receiver)
    };
    Ok([
        serve("http", listeners::of_everybody)?,
        serve("probes", |listen, _| listeners::of_kubelet(listen))?,
    ])
}
