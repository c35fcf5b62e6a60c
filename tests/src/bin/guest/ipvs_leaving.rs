//! Connections through a virtual server that nobody wants any more.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use denizen_tests::eventually::eventually;
use denizen_tests::fixture::{Who, service_ips};
use denizen_tests::lasting::{ECHO, Lasting};
use denizen_tests::manifest::Port;
use denizen_tests::probe::{Outcome, Probe};

use crate::context::GuestContext;

/// An emulated processor has to load the kernel's modules first.
const PATIENCE: Duration = Duration::from_secs(90);

/// A service goes over to nf_tables, and then goes: neither ends a connection through IPVS.
pub(crate) fn connections_go_on() -> Result<()> {
    let context = GuestContext::new("ipvs-leave")?;
    let agent = context.start(vec!["--backend=ipvs".to_owned()])?;
    let [echo, _] = service_ips(11).map(|ip| SocketAddr::new(ip, 7));
    let mut streams = context.lasting()?;
    let mut alive =
        |what: &'static str| streams.iter_mut().try_for_each(|it| it.still_alive().context(what));
    let fixture = context.fixture();
    let saved = || context.node().output("ipvsadm", &["--save", "--numeric"]);
    let routed = fixture.address(Who::Routed, echo.ip())?;
    let real = |weight: u8| format!("-a -t {echo} -r {routed}:{ECHO} -m -w {weight}");
    ensure!(saved()?.contains(&real(1)), "{}", saved()?);

    let mut objects = fixture.service("echo", 11, &[Port::tcp("echo", 7, ECHO)], &[Who::Routed])?;
    objects[0]["spec"]["sessionAffinity"] = "ClientIP".into();
    fixture.cluster.manifests.put("echo", &objects)?;
    eventually("no new connections for IPVS", PATIENCE, || Ok(saved()?.contains(&real(0))))?;
    alive("nf_tables carries the service")?;
    let outside = fixture.place(Who::Outside).0;
    Lasting::open(outside, echo)?.still_alive().context("through nf_tables")?;

    fixture.cluster.manifests.remove("echo")?;
    eventually("the service is gone", PATIENCE, || {
        Ok(Probe::tcp(echo).ask_in(outside) == Outcome::Refused)
    })?;
    alive("the service is gone")?;
    ensure!(saved()?.contains(&real(0)), "{}", saved()?);
    agent.terminate()?;
    Ok(())
}
