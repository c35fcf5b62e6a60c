//! Connections through a virtual server that nobody wants any more.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use denizen_tests::eventually::eventually;
use denizen_tests::fixture::{Who, service_ips};
use denizen_tests::kube_proxy::ipvs::DEVICE;
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
    kube_proxys_stay(&context)
}

/// Another backend removes denizen's virtual servers, and spares those that kube-proxy has, too.
fn kube_proxys_stay(context: &GuestContext) -> Result<()> {
    let [web, _] = service_ips(10);
    let node = context.node();
    node.ip(&format!("link add {DEVICE} type dummy\naddr add {web}/32 dev {DEVICE}"))?;
    let listed = || node.output("ipvsadm", &["--save", "--numeric"]);
    let theirs = |all: &str| -> Vec<String> {
        all.lines().filter(|line| line.contains(&format!(" {web}:"))).map(str::to_owned).collect()
    };
    let before = theirs(&listed()?);
    ensure!(before.iter().any(|line| line.trim_end().ends_with("-w 1")), "{before:#?}");
    let agent = context.start(vec!["--backend=nftables".to_owned()])?;
    eventually("denizen's are gone", PATIENCE, || {
        let now = listed()?;
        Ok(now.lines().count() == theirs(&now).len())
    })?;
    ensure!(theirs(&listed()?) == before, "{before:#?}, but now\n{}", listed()?);
    agent.terminate()?;
    Ok(())
}
