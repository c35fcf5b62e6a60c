//! How much observing others slows down a load: clients that connect without pause to a service,
//! beside a `trace` of another client, and beside `drops --watch`.
//!
//! Each turn measures the load alone, beside `trace`, and beside `drops --watch`, so that a
//! disturbance of the machine affects all three alike. What counts is the difference within a turn.
//! The processor time is that of this process alone: its clients, its server, and the kernel's work
//! for their packets meanwhile. It is meaningful on a machine that others use too, where
//! connections a second are not.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use denizen_tests::agent::Agent;
use denizen_tests::agent::trace::TraceCommand;
use denizen_tests::agent::watch::WatchCommand;
use denizen_tests::bench::processor_time;
use denizen_tests::eventually::eventually;
use denizen_tests::node::fixture::{Fixture, Host, service_ips};
use denizen_tests::packets::probe::Protocol;
use nix::libc;
use nix::poll::{PollFd, PollFlags, poll};
use socket2::{Domain, Socket, Type};

/// A port at which only the load's own listener is.
pub const PORT: u16 = 9090;

const CLIENTS: usize = 2;
/// How many connections a client makes at once. So a processor makes many before it turns to
/// another thread, and both clients make ten thousand a second.
const WAVE: u32 = 64;
/// A connection that is not answered within this many milliseconds is an error.
const ANSWER_TIMEOUT_MS: u16 = 2000;
const TURNS: usize = 20;
const TURN: Duration = Duration::from_millis(1500);
/// Pause between two connections of the client that `trace` follows.
const PAUSE: Duration = Duration::from_millis(200);
/// Of 20 differences in order, the true median lies between the 6th and the 15th with 96 %.
const INTERVAL: [usize; 2] = [5, 14];
/// How long anything is waited for.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The result of a load.
#[derive(Debug, Clone, Copy)]
struct Load {
    a_second: f64,
    /// Microseconds of processor time for each connection.
    each: f64,
}

/// Measures and prints it.
pub fn measure(fixture: &Fixture, agent: &Agent) -> Result<()> {
    let node = &fixture.cluster.world.node;
    let to = SocketAddr::new(service_ips(10)[0], 80);
    let at = SocketAddr::new(fixture.address(Host::Routed, to.ip())?, PORT);
    let listener = fixture.routed.netns.run(|| listen(at))??;
    std::thread::spawn(move || listener.incoming().for_each(drop));
    let followed = SocketAddr::new(service_ips(11)[0], 80);
    let source = fixture.address(Host::Remote, to.ip())?.to_string();
    let arguments = ["--from", &source, "--to", &followed.to_string(), "--count", "1000"];
    let load = || load(fixture, to, followed);
    println!("\n## {CLIENTS} clients that connect without pause, {TURNS} turns\n");
    println!("{:<40}{:>14}{:>14}{:>14}", "", "alone", "trace", "drops --watch");
    load()?;
    let mut turns = Vec::new();
    for _ in 0..TURNS {
        let alone = load()?;
        let tracing = TraceCommand::start(node, agent, &arguments)?;
        let traced = load()?;
        tracing.kill()?;
        let watching = WatchCommand::start(node, agent, &["drops"])?;
        let watched = load()?;
        watching.kill()?;
        let rules = || node.output("nft", &["list", "ruleset"]);
        eventually("nobody looks", TIMEOUT, || Ok(!rules()?.contains("nftrace")))?;
        turns.push([alone, traced, watched]);
    }
    report("connections a second", &turns, |load| load.a_second);
    report("processor time of each connection (µs)", &turns, |load| load.each);
    Ok(())
}

/// With a backlog for all connections of some waves: if it were full, a client would retry its SYN
/// only after a second.
fn listen(at: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(at), Type::STREAM, None)?;
    socket.bind(&at.into())?;
    socket.listen(1024)?;
    Ok(socket.into())
}

/// Prints the medians, and how much the load beside either command differs from the load alone.
fn report(what: &str, turns: &[[Load; 3]], figure: impl Fn(&Load) -> f64) {
    let sorted = |values: Vec<f64>| {
        let mut values = values;
        values.sort_by(f64::total_cmp);
        values
    };
    let of = |which: usize| sorted(turns.iter().map(|turn| figure(&turn[which])).collect());
    let [alone, traced, watched] = [0, 1, 2].map(|which| of(which)[TURNS / 2]);
    println!("{what:<40}{alone:>14.1}{traced:>14.1}{watched:>14.1}");
    for (which, beside) in [(1, "beside a trace"), (2, "beside drops --watch")] {
        let more = |turn: &[Load; 3]| 100.0 * (figure(&turn[which]) / figure(&turn[0]) - 1.0);
        let more = sorted(turns.iter().map(more).collect());
        let [low, high] = INTERVAL.map(|at| more[at]);
        let half = more[TURNS / 2];
        println!("  {beside:<38}{half:>+13.1} %   (96 %: {low:+.1} % to {high:+.1} %)");
    }
}

/// Clients connect for a turn. Every [`PAUSE`], another client makes a connection that the commands
/// may follow.
fn load(fixture: &Fixture, to: SocketAddr, followed: SocketAddr) -> Result<Load> {
    let stop = Arc::new(AtomicBool::new(false));
    let (begun, used) = (Instant::now(), processor_time()?);
    let clients = (0..CLIENTS).map(|_| {
        let stop = stop.clone();
        fixture.cluster.world.client.spawn(move || connect(to, &stop))
    });
    let clients = clients.collect::<Result<Vec<_>>>()?;
    while begun.elapsed() < TURN {
        std::thread::sleep(PAUSE);
        let outcome = fixture.probe(Host::Remote, followed, Protocol::Tcp)?;
        ensure!(outcome.endpoint().is_some(), "{outcome:?}");
    }
    stop.store(true, Ordering::Relaxed);
    let mut connected = 0;
    for client in clients {
        connected += client.join().ok().context("a client panicked")???;
    }
    let (took, used) = (begun.elapsed(), processor_time()? - used);
    let connected = f64::from(connected);
    Ok(Load {
        a_second: connected / took.as_secs_f64(),
        each: 1e6 * used.as_secs_f64() / connected,
    })
}

/// Connects in waves, and counts. Each connection is reset, so that its port can be used again at
/// once.
fn connect(to: SocketAddr, stop: &AtomicBool) -> Result<u32> {
    let mut connected = 0;
    while !stop.load(Ordering::Relaxed) {
        let wave = (0..WAVE).map(|_| begin(to)).collect::<io::Result<Vec<_>>>()?;
        for socket in &wave {
            let mut asked = [PollFd::new(socket.as_fd(), PollFlags::POLLOUT)];
            ensure!(poll(&mut asked, ANSWER_TIMEOUT_MS)? == 1, "a connection was not answered");
            if let Some(error) = socket.take_error()? {
                bail!("a connection was refused: {error}");
            }
        }
        connected += WAVE;
    }
    Ok(connected)
}

/// A connection that is under way.
fn begin(to: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.set_linger(Some(Duration::ZERO))?;
    match socket.connect(&to.into()) {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
        Ok(()) | Err(_) => Ok(socket),
    }
}
