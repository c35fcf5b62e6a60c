//! The machine's clock jumps by years: pods can still be added, and the agent's times follow the
//! clock.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use denizen_tests::node::cluster::Cluster;
use denizen_tests::node::fixture::{PORT, is_local, service_ips};
use denizen_tests::node::manifest::Port;
use denizen_tests::node::netns::Netns;
use denizen_tests::node::pod::{Pod, Wiring};
use nix::sys::time::TimeSpec;
use nix::time::{ClockId, clock_gettime, clock_settime};
use serde_json::{Value, json};

/// A day in seconds.
const DAY: i64 = 86_400;

/// An emulated processor is slow, and other tests use the machine too.
const TIMEOUT: Duration = Duration::from_secs(90);

pub(crate) fn jumps() -> Result<()> {
    let wait = json!({ "timeout": "30s", "onTimeout": "fail" });
    let cluster = Cluster::new("clock", &wait)?;
    let node = &cluster.world.node;
    let _server = cluster.remote_web(&service_ips(10), Port::tcp("web", 80, PORT))?;
    let agent = cluster.start_agent()?;
    let year = |status: &Value| status["lastSync"]["at"].as_str().map(|at| at[..4].to_owned());
    let mut years = vec![year(&agent.status()?).context("a time")?];
    // A pod that is dropped takes its link along, and the agent removes its record then.
    let mut pods: Vec<Pod> = Vec::new();
    for (round, days) in [800, -1600, 800].into_iter().enumerate() {
        set_by(days)?;
        let pod = cluster.add_pod(&format!("p{round}"), Wiring::Routed)?;
        ensure!(is_local(&pod), "not programmed when ADD returned, after {days} days");
        pods.push(pod);
        // A sync is reported only after the search for stale flows that follows it.
        let now = agent.until("it is known, and the sync is reported", TIMEOUT, |status| {
            status["pods"] == pods.len() && year(status) != years.last().cloned()
        })?;
        years.push(year(&now).context("a time")?);
        ensure!(now["errors"] == json!([]), "after {days} days: {now}");
        for (port, path) in [(10256, "/healthz"), (10256, "/livez"), (10249, "/metrics")] {
            let reply = fetched(node, port, path)?;
            ensure!(reply.starts_with("HTTP/1.0 200"), "{path} after {days} days: {reply}");
        }
    }
    let read: Vec<i32> = years.iter().map(|year| year.parse()).collect::<Result<_, _>>()?;
    ensure!(read[1] > read[0] && read[2] < read[0], "the clock did not jump: {read:?}");
    Ok(())
}

/// The guest has no `curl`.
fn fetched(node: &Netns, port: u16, path: &str) -> Result<String> {
    let mut stream = node.run(|| TcpStream::connect((Ipv4Addr::LOCALHOST, port)))??;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let request = format!("GET {path} HTTP/1.0\r\nHost: {}:{port}\r\n\r\n", Ipv4Addr::LOCALHOST);
    stream.write_all(request.as_bytes())?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply)?;
    Ok(reply)
}

/// Sets the clock of the whole machine.
fn set_by(days: i64) -> Result<()> {
    let now = clock_gettime(ClockId::CLOCK_REALTIME)?;
    let then = TimeSpec::new(now.tv_sec() + days * DAY, now.tv_nsec());
    Ok(clock_settime(ClockId::CLOCK_REALTIME, then)?)
}
