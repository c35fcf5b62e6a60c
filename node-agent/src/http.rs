//! What is served over HTTP: health-check node ports, health, metrics and the page for people.
//!
//! It runs in a thread of its own, so that a client that is slow, or many of them, cost the loop nothing, and so
//! that health is told even while the loop hangs. All that it knows comes from the loop: what is published
//! ([`Published`]), and what it answers when it is asked (as the agent's socket asks it). Nothing that is asked here
//! changes anything.

mod answer;
mod connection;
mod listeners;
mod page;

use std::io;
use std::sync::Arc;
use std::thread;

use tokio::sync::{mpsc, watch};

use crate::config::Listen;
use crate::control::Asked;
use crate::notice::Notices;
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
    /// The page for people, `/metrics`, and what else kube-proxy has beside it.
    Metrics,
    /// Whatever service has the health-check node port at the moment of the question.
    HealthCheck,
}

/// Serves until the loop publishes no more. The receiver holds what cannot be served right now, and why; it is an
/// event too.
///
/// # Errors
/// When there is no thread or no runtime to be had.
pub fn start(
    listen: Listen,
    published: Published,
    notices: Notices,
) -> io::Result<watch::Receiver<Vec<String>>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let (problems, receiver) = watch::channel(Vec::new());
    let told = listeners::Told { problems, notices };
    let ports = published.ports.clone();
    let answers = Arc::new(answer::Answers::new(published));
    let serve = listeners::serve(listen, ports, answers, told);
    thread::Builder::new()
        .name("http".to_owned())
        .spawn(move || runtime.block_on(serve))?;
    Ok(receiver)
}
