//! Clients that connect again and again until they are stopped, and count what went wrong.

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::node::netns::Netns;
use crate::packets::probe::{Outcome, Probe, Protocol};

/// A connection that took at least this long lost its first SYN: only TCP's first retransmission
/// came through.
const LOST_ONCE: Duration = Duration::from_millis(900);

/// The source ports of UDP probes, used in turn. If a port is used again while connection tracking
/// still has its old entry, the probe goes to the old endpoint, and its answer is lost if the entry
/// is deleted at that very moment. Ports that the kernel chooses would hit such an entry once in a
/// hundred thousand probes.
const UDP_PORTS: Range<u16> = 20_000..64_999;

/// The distance between the first ports of two clients: a client that follows another one in its
/// namespace must not hit its entries either.
const APART: usize = 4_001;

/// Pause between two connections of one client. Making a connection takes less than that, so
/// clients without a pause would take all the machine's time from what they test, and from tests
/// beside them. Several clients together still connect some thousand times a second.
const PAUSE: Duration = Duration::from_millis(1);

/// How many failures are described; the rest is only counted.
const REMEMBERED: usize = 5;

/// The result of a load.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    /// Connections that were answered.
    pub answered: usize,
    /// Connections that were not answered, or whose outcome `accept` rejected.
    pub failed: usize,
    /// Connections that were answered only after a packet had been lost.
    pub lost_once: usize,
    /// The first failures, in words.
    pub examples: Vec<String>,
}

/// Clients at work.
#[derive(Debug)]
pub struct Load {
    pause: Duration,
    stop: Arc<AtomicBool>,
    clients: Vec<JoinHandle<Result<Tally>>>,
}

impl Default for Load {
    /// Clients with a short pause between their connections.
    fn default() -> Self {
        Self::with_pause(PAUSE)
    }
}

impl Load {
    /// Clients with another pause: none for races that are rarely hit, a longer one on a slow
    /// machine.
    pub fn with_pause(pause: Duration) -> Self {
        Self { pause, stop: Arc::default(), clients: Vec::new() }
    }

    /// Starts one more client in `netns`, which connects to `targets` one after the other; `accept`
    /// checks the outcome of each connection.
    pub fn client(
        &mut self,
        netns: &Netns,
        targets: Vec<(SocketAddr, Protocol)>,
        accept: impl Fn(&Outcome) -> bool + Send + 'static,
    ) -> Result<()> {
        static CLIENTS: AtomicUsize = AtomicUsize::new(0);
        let first = CLIENTS.fetch_add(1, Ordering::Relaxed) * APART % UDP_PORTS.len();
        let ports = UDP_PORTS.cycle().skip(first);
        let name = netns.name().to_owned();
        let (pause, stop) = (self.pause, Arc::clone(&self.stop));
        let work = move || work(&name, pause, &stop, &targets, ports, &accept);
        self.clients.push(netns.spawn(work)?);
        Ok(())
    }

    /// Stops every client; returns their results together.
    pub fn stop(self) -> Result<Tally> {
        self.stop.store(true, Ordering::Relaxed);
        let mut sum = Tally::default();
        for client in self.clients {
            let Ok(tally) = client.join() else { bail!("a client panicked") };
            sum.add(tally?);
        }
        Ok(sum)
    }
}

impl Tally {
    fn add(&mut self, other: Self) {
        self.answered += other.answered;
        self.failed += other.failed;
        self.lost_once += other.lost_once;
        self.examples.extend(other.examples);
    }
}

fn work(
    name: &str,
    pause: Duration,
    stop: &AtomicBool,
    targets: &[(SocketAddr, Protocol)],
    ports: impl Iterator<Item = u16>,
    accept: &dyn Fn(&Outcome) -> bool,
) -> Tally {
    let mut tally = Tally::default();
    for ((to, protocol), port) in targets.iter().cycle().zip(ports) {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let started = Instant::now();
        let outcome = Probe {
            protocol: *protocol,
            port: if *protocol == Protocol::Udp { port } else { 0 },
            ..Probe::tcp(*to)
        }
        .send();
        if !accept(&outcome) {
            tally.failed += 1;
            if tally.examples.len() < REMEMBERED {
                let example = format!(
                    "{to}/{protocol} from {name}: {outcome:?} after {:?}",
                    started.elapsed()
                );
                tally.examples.push(example);
            }
            continue;
        }
        tally.answered += 1;
        tally.lost_once += usize::from(started.elapsed() > LOST_ONCE);
        thread::sleep(pause);
    }
    tally
}
