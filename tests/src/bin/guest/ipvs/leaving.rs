//! Connections through a virtual server that is not wanted any more.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use denizen_tests::agent::Agent;
use denizen_tests::eventually::eventually;
use denizen_tests::kernel::system_calls::at_each_message;
use denizen_tests::node::fixture::{Host, service_ips};
use denizen_tests::node::manifest::Port;
use denizen_tests::packets::long_connection::{ECHO, LongConnection};
use denizen_tests::packets::probe::{Outcome, Probe, Protocol};
use denizen_tests::peers::kube_proxy::ipvs::DEVICE;
use nix::unistd::Pid;

use crate::context::GuestContext;
use crate::ipvs::backend::{OWN_PORT, own_port};

/// An emulated processor has to load the kernel's modules first.
const TIMEOUT: Duration = Duration::from_secs(90);

/// A service moves to nf_tables, and is then deleted: neither ends a connection through IPVS.
pub(crate) fn connections_go_on() -> Result<()> {
    let context = GuestContext::new("ipvs-leave")?;
    let agent = context.start(vec!["--backend=ipvs".to_owned()])?;
    let [echo, _] = service_ips(11).map(|ip| SocketAddr::new(ip, 7));
    let mut streams = context.lasting()?;
    let mut alive = |what: &'static str| {
        streams.iter_mut().try_for_each(|stream| stream.still_alive().context(what))
    };
    let fixture = context.fixture();
    let saved = || context.node().output("ipvsadm", &["--save", "--numeric"]);
    let routed = fixture.address(Host::Routed, echo.ip())?;
    let real = |weight: u8| format!("-a -t {echo} -r {routed}:{ECHO} -m -w {weight}");
    ensure!(saved()?.contains(&real(1)), "{}", saved()?);

    let mut objects =
        fixture.service("echo", 11, &[Port::tcp("echo", 7, ECHO)], &[Host::Routed])?;
    objects[0]["spec"]["sessionAffinity"] = "ClientIP".into();
    fixture.cluster.manifests.put("echo", &objects)?;
    eventually("no new connections for IPVS", TIMEOUT, || Ok(saved()?.contains(&real(0))))?;
    alive("nf_tables carries the service")?;
    let outside = fixture.place(Host::Outside).0;
    LongConnection::open(outside, echo)?.still_alive().context("through nf_tables")?;

    fixture.cluster.manifests.remove("echo")?;
    eventually("the service is gone", TIMEOUT, || {
        Ok(Probe::tcp(echo).send_in(outside) == Outcome::Refused)
    })?;
    alive("the service is gone")?;
    ensure!(saved()?.contains(&real(0)), "{}", saved()?);
    agent.terminate()?;
    kube_proxys_stay(&context)
}

/// Starts an agent with another backend. After each of its messages to the kernel, clients connect
/// to a port of the node itself at these addresses of services, which the backend ipvs has left.
/// They must never be answered.
pub(crate) fn step_by_step(
    context: &GuestContext,
    flags: Vec<String>,
    left: [IpAddr; 2],
) -> Result<Agent> {
    let fixture = context.fixture();
    let _own = own_port(context.node())?;
    let mut agent = context.spawn(flags)?;
    let pid = Pid::from_raw(i32::try_from(agent.pid())?);
    let messages = at_each_message(
        pid,
        || Ok(()),
        |sent| {
            for (who, ip) in [Host::Outside, Host::ThisNode].into_iter().zip(left) {
                let outcome = fixture.probe(who, SocketAddr::new(ip, OWN_PORT), Protocol::Tcp)?;
                let describe =
                    || format!("behind {sent} messages, {who:?} got from {ip}: {outcome:?}");
                ensure!(outcome.endpoint().is_none(), describe());
            }
            Ok(())
        },
    )?;
    println!("  asked behind {messages} messages");
    agent.wait_programmed(TIMEOUT)?;
    Ok(agent)
}

/// Another backend removes denizen's virtual servers, and spares those that are kube-proxy's, too.
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
    // The virtual server of `echo` is not wanted any more, and has an open connection.
    let agent = step_by_step(context, vec!["--backend=nftables".to_owned()], service_ips(11))?;
    eventually("denizen's are gone", TIMEOUT, || {
        let now = listed()?;
        Ok(now.lines().count() == theirs(&now).len())
    })?;
    ensure!(theirs(&listed()?) == before, "{before:#?}, but now\n{}", listed()?);
    agent.terminate()?;
    Ok(())
}
