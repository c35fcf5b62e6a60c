//! Datagrams to addresses, sent already before a pod has them.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::Result;
use socket2::{Domain, Socket, Type};

use super::recorder::PORT;
use crate::node::netns::Netns;

/// The addresses to send to now.
pub type Targets = Arc<Mutex<BTreeSet<IpAddr>>>;

/// Sends to every target, once a round, until it is dropped.
#[derive(Debug)]
pub struct Spray {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<io::Result<()>>>>,
}

const ROUND: Duration = Duration::from_millis(2);

impl Spray {
    /// Sends from a pod.
    pub fn start(from: &Netns, targets: &Targets) -> Result<Self> {
        Self::every(ROUND, from, targets)
    }

    /// The same with this pause between two rounds.
    pub fn every(round: Duration, from: &Netns, targets: &Targets) -> Result<Self> {
        let stop = Arc::<AtomicBool>::default();
        let thread = from.spawn({
            let (targets, stop) = (targets.clone(), stop.clone());
            move || spray(round, &targets, &stop)
        })?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Spray {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Uses the same two sockets all the time: a flow that was let through once goes on as established.
fn spray(round: Duration, targets: &Targets, stop: &AtomicBool) -> io::Result<()> {
    let [v4, v6] =
        [Domain::IPV4, Domain::IPV6].map(|family| Socket::new(family, Type::DGRAM, None));
    let (v4, v6) = (v4?, v6?);
    v4.set_nonblocking(true)?;
    v6.set_nonblocking(true)?;
    while !stop.load(Ordering::Relaxed) {
        let all = targets.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for target in all {
            let socket = if target.is_ipv4() { &v4 } else { &v6 };
            // Errors are expected while no pod has the address.
            let _ = socket.send_to(b"hello", &SocketAddr::new(target, PORT).into());
        }
        thread::sleep(round);
    }
    Ok(())
}
