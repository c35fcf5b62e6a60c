//! What is measured of a contender, in which order.

use std::net::SocketAddr;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::CompareOptions;
use super::contender::{Contender, RunningContender};
use super::test_bed::TestBed;
use crate::bench::Memory;
use crate::bench::timing::{Samples, timed};
use crate::packets::probe::Probe;

/// The longest that anything may take.
const TIMEOUT: Duration = Duration::from_secs(600);
/// How long to wait after the first load, so that memory taken right after it is counted too.
const AFTER: Duration = Duration::from_secs(2);
/// Pause between two changes: by default kube-proxy syncs at most once a second.
const PAUSE: Duration = Duration::from_millis(1500);
/// How often a client polls; seldom enough to take little processor time from the contender.
const POLL: Duration = Duration::from_millis(1);
/// How long a client waits for an answer before it asks again.
const ANSWER: Duration = Duration::from_millis(200);

/// What a contender took.
#[derive(Debug, Clone)]
pub struct Figures {
    /// From its start to the first connection that the last service answers.
    pub start: Duration,
    /// From a changed EndpointSlice to the first connection that reaches the new endpoint.
    pub change: Duration,
    /// One connection to the last service.
    pub connect: Duration,
    /// Its memory when all is programmed; `None` where there is no process.
    pub memory: Option<Memory>,
    /// What it received from the API server at the start, and for one change; `None` without an API
    /// server.
    pub bytes: Option<[u64; 2]>,
}

/// Measures a contender.
pub fn measured(
    contender: &Contender,
    test_bed: &TestBed,
    options: &CompareOptions,
) -> Result<Figures> {
    let received = test_bed.received()?;
    let begun = Instant::now();
    let mut running = contender.start(test_bed)?;
    until_answered(test_bed, &mut running, test_bed.endpoint(0)).context("at the start")?;
    let start = begun.elapsed();
    sleep(AFTER);
    contender.check_mode(test_bed)?;
    let memory = running.pid().map(Memory::of).transpose()?;
    let at_start = test_bed.received()? - received;
    let connect = connections(test_bed, options.connections)?;
    let before = test_bed.received()?;
    let changes = (1..=options.changes).map(|number| {
        sleep(PAUSE);
        let begun = Instant::now();
        contender.change(test_bed, number)?;
        until_answered(test_bed, &mut running, test_bed.endpoint(number))?;
        Ok(begun.elapsed())
    });
    let changes: Samples = changes.collect::<Result<Vec<_>>>()?.into_iter().collect();
    sleep(PAUSE);
    let of_change = (test_bed.received()? - before) / options.changes.max(1) as u64;
    Ok(Figures {
        start,
        change: changes.median(),
        connect: connect.median(),
        memory,
        bytes: running.pid().map(|_| [at_start, of_change]),
    })
}

/// Waits until the last service is answered by this endpoint.
fn until_answered(
    test_bed: &TestBed,
    running: &mut RunningContender,
    endpoint: SocketAddr,
) -> Result<()> {
    let probe = Probe::tcp(test_bed.last()).timeout(ANSWER);
    test_bed.client.run(|| {
        let begun = Instant::now();
        loop {
            let outcome = probe.send();
            if outcome.endpoint() == Some(endpoint) {
                return Ok(());
            }
            running.is_alive()?;
            ensure!(begun.elapsed() < TIMEOUT, "{endpoint} does not answer: {outcome:?}");
            sleep(POLL);
        }
    })?
}

fn connections(test_bed: &TestBed, count: usize) -> Result<Samples> {
    let probe = Probe::tcp(test_bed.last());
    test_bed.client.run(|| {
        let connect = |_| {
            let (stream, took) = timed(|| probe.connect());
            stream.map(|_| took)
        };
        let samples = (0..count).map(connect).collect::<Result<Vec<_>, _>>();
        Ok(samples.context("a connection")?.into_iter().collect())
    })?
}
