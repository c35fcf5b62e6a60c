//! Pods that come and go: nobody is led to a pod that is gone, and nothing is left.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use denizen_tests::node::cluster::serve;
use denizen_tests::node::cni::Call;
use denizen_tests::node::fixture::{PORT, Who};
use denizen_tests::node::netns::Netns;
use denizen_tests::node::pod::{Wiring, addresses_of};
use denizen_tests::packets::probe::{Outcome, Probe, Protocol, SILENCE};
use serde_json::json;

use super::context::{Context, Services, port, port_at};

#[test]
fn the_first_syn_after_an_add_is_answered() -> Result<()> {
    for services in [Services::SERVED[0], Services::Off] {
        let context = Context::new("hp-first", services)?;
        let to = SocketAddr::new(context.addresses()[0], 8080);
        for _ in 0..20 {
            let asking = context.asks("pod", Wiring::Routed, &json!([port(8080)]))?;
            let from = context.fixture.address(Who::Outside, to.ip())?;
            let probe = Probe::tcp(to).from(from).patience(SILENCE);
            let outcome = probe.ask_in(&context.fixture.cluster.world.client);
            ensure!(outcome.endpoint().is_some(), "{services:?}: {outcome:?}");
            asking.pod.detach(context.node())?;
            let outcome = probe.ask_in(&context.fixture.cluster.world.client);
            assert_eq!(outcome, Outcome::Refused, "{services:?}");
        }
    }
    Ok(())
}

/// A thousand ADDs and DELs of one pod. Every hundredth comes while a killed agent starts again.
#[test]
fn no_first_syn_of_a_thousand_adds_is_lost() -> Result<()> {
    const ADDS: u16 = 1000;
    let mut context = Context::new("hp-1000", Services::SERVED[0])?;
    let chain = context.chain(Wiring::Routed, &json!(null)).without_denizen();
    let netns = Netns::new("hp-1000-asks")?;
    let call = Call::of_pod(netns.name(), "asks", &netns.path());
    let refused = |refusal| anyhow!("{refusal}");
    let result = chain.add(context.node(), &call).map_err(refused)?;
    let ip = addresses_of(&result).into_iter().find(IpAddr::is_ipv4).context("one of IPv4")?;
    let _server = serve(&netns, &[ip], &[(Protocol::Tcp, PORT)])?;
    let at = context.addresses()[0];
    let from = context.fixture.address(Who::Outside, at)?;
    for number in 0..ADDS {
        let host_port = 20_000 + number;
        let asked = context.chain(Wiring::Routed, &json!([port(host_port)]));
        let denizen = asked.plugins.last().context("denizen is the last plugin")?;
        let killed = number % 100 == 99;
        if killed {
            context.restart_agent()?;
        }
        let done = |command| asked.call(context.node(), &call, command, denizen, Some(&result));
        done("ADD").map_err(refused)?;
        let to = SocketAddr::new(at, host_port);
        let probe = Probe::tcp(to).from(from).patience(SILENCE);
        let outcome = probe.ask_in(&context.fixture.cluster.world.client);
        let by = outcome.endpoint().map(|endpoint| endpoint.ip());
        ensure!(by == Some(ip), "after ADD {number}, killed {killed}: {outcome:?}");
        done("DEL").map_err(refused)?;
        let outcome = probe.ask_in(&context.fixture.cluster.world.client);
        ensure!(outcome == Outcome::Refused, "after DEL {number}, killed {killed}: {outcome:?}");
    }
    Ok(())
}

/// A stream of datagrams from one port, which never begins anew.
struct Stream(UdpSocket);

impl Stream {
    fn open(context: &Context, who: Who, to: SocketAddr) -> Result<Self> {
        let from = SocketAddr::new(context.fixture.address(who, to.ip())?, 0);
        let socket = context.fixture.place(who).0.run(|| {
            let socket = UdpSocket::bind(from)?;
            socket.connect(to)?;
            socket.set_read_timeout(Some(Duration::from_millis(50)))?;
            std::io::Result::Ok(socket)
        })??;
        Ok(Self(socket))
    }

    /// Who answers now, by its own account.
    fn answer(&self) -> Result<Option<String>> {
        let _ = self.0.send(b"?");
        let mut line = [0; 256];
        match self.0.recv(&mut line) {
            Ok(length) => Ok(Some(String::from_utf8_lossy(&line[..length]).into_owned())),
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => Ok(None),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Waits until `address` answers.
    fn is_answered_by(&self, address: &str, within: Duration) -> Result<()> {
        let begun = Instant::now();
        loop {
            let said = self.answer()?;
            if said.as_deref().is_some_and(|line| line.contains(address)) {
                return Ok(());
            }
            ensure!(begun.elapsed() < within, "{address} does not answer: {said:?}");
        }
    }
}

#[test]
fn a_udp_sender_is_led_to_the_new_pod() -> Result<()> {
    const SOON: Duration = Duration::from_secs(2);
    for services in Services::ALL {
        let context = Context::new("hp-udp", services)?;
        let to = SocketAddr::new(context.addresses()[0], 5353);
        let ports = json!([port_at(5353, "udp", "")]);
        // It begins before there is any pod.
        let stream = Stream::open(&context, Who::Outside, to)?;
        ensure!(stream.answer()?.is_none());
        // A flow of the same port to somebody else, which is not to be cut.
        let dns = SocketAddr::new(context.fixture.address(Who::Remote, to.ip())?, PORT);
        let other = Stream::open(&context, Who::Routed, dns)?;
        ensure!(other.answer()?.is_some());
        let first = context.asks("first", Wiring::Bridged, &ports)?;
        stream.is_answered_by(&first.pod.address_like(to.ip()).unwrap().to_string(), SOON)?;
        // The new one comes before the old one goes.
        let second = context.asks("second", Wiring::Routed, &ports)?;
        stream.is_answered_by(&second.pod.address_like(to.ip()).unwrap().to_string(), SOON)?;
        first.pod.detach(context.node())?;
        stream.is_answered_by(&second.pod.address_like(to.ip()).unwrap().to_string(), SOON)?;
        // hostPort becomes hostNetwork.
        second.pod.detach(context.node())?;
        let _own = serve(context.node(), &[to.ip()], &[(Protocol::Udp, to.port())])?;
        stream.is_answered_by(&to.ip().to_string(), SOON)?;
        ensure!(other.answer()?.is_some(), "{services:?}");
    }
    Ok(())
}

/// Whatever the order of ADDs and DELs, the newest pod that lives has the port.
#[test]
fn the_newest_pod_has_the_port_in_any_order() -> Result<()> {
    const STEPS: usize = 60;
    let context = Context::new("hp-order", Services::Off)?;
    let to = SocketAddr::new(context.addresses()[0], 8080);
    let from = context.fixture.address(Who::Outside, to.ip())?;
    // Any sequence will do, if it is always the same.
    let mut number: u32 = 7;
    let mut below = |count: usize| {
        number = number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (number >> 16) as usize % count
    };
    let mut pods = Vec::new();
    for step in 0..STEPS {
        if pods.is_empty() || below(2) == 0 && pods.len() < 4 {
            let ports = json!([port(8080)]);
            pods.push(context.asks(&format!("p{step}"), Wiring::Routed, &ports)?);
        } else {
            let chosen = below(pods.len());
            pods.remove(chosen).pod.detach(context.node())?;
        }
        let probe = Probe::tcp(to).from(from).patience(SILENCE);
        let outcome = probe.ask_in(&context.fixture.cluster.world.client);
        let newest = pods.last().map(|newest| newest.pod.address_like(from).context("IPv4"));
        let newest = newest.transpose()?;
        ensure!(
            outcome.endpoint().map(|endpoint| endpoint.ip()) == newest,
            "{step}: {outcome:?}, {newest:?}"
        );
    }
    Ok(())
}
