//! Pods that come and go: no packet is sent to a pod that is gone, and no rule is left.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use serde_json::json;

use super::context::{Context, HostPortPod, port, port_at};
use crate::node::cluster::serve;
use crate::node::cni::Call;
use crate::node::fixture::{Host, PORT};
use crate::node::netns::Netns;
use crate::node::pod::{Pod, Wiring, addresses_of};
use crate::node::world::ip;
use crate::packets::probe::{Outcome, Probe, Protocol, SILENCE};

/// The node's first address of each family, at a port.
fn first(context: &Context, number: u16) -> [SocketAddr; 2] {
    [0, 2].map(|at| SocketAddr::new(context.addresses()[at], number))
}

/// What the outside client gets at `to`; a lost first packet would be `Dropped`.
fn first_answer(context: &Context, to: SocketAddr) -> Result<Outcome> {
    let probe = Probe::tcp(to).from(context.fixture.address(Host::Outside, to.ip())?);
    Ok(probe.timeout(SILENCE).send_in(&context.fixture.cluster.world.client))
}

/// The first SYN after an ADD is answered, and after the DEL it is refused; `times` times.
pub fn the_first_syn_after_an_add_is_answered(context: &Context, times: usize) -> Result<()> {
    for _ in 0..times {
        let pod = context.add_pod("pod", Wiring::Routed, &json!([port(8080)]))?;
        for to in first(context, 8080) {
            let outcome = first_answer(context, to)?;
            let by = outcome.endpoint().map(|endpoint| endpoint.ip());
            ensure!(by == Some(pod.address_like(to.ip())?), "{to}: {outcome:?}");
        }
        context.end([pod])?;
        for to in first(context, 8080) {
            let outcome = first_answer(context, to)?;
            ensure!(outcome == Outcome::Refused, "{to}: {outcome:?}");
        }
    }
    Ok(())
}

/// ADDs and DELs of one pod, `adds` times. At every `until_kill`-th ADD, the agent has just been
/// killed and is starting again.
pub fn no_first_syn_of_many_adds_is_lost(
    context: &mut Context,
    adds: u16,
    until_kill: u16,
) -> Result<()> {
    let chain = context.chain(Wiring::Routed, &json!(null)).without_denizen();
    let netns = Netns::new("hp-many-asks")?;
    let call = Call::of_pod(netns.name(), "asks", &netns.path());
    let refused = |refusal| anyhow!("{refusal}");
    let result = chain.add(context.node(), &call).map_err(refused)?;
    let pod = addresses_of(&result);
    let _server = serve(&netns, &pod, &[(Protocol::Tcp, PORT)])?;
    for number in 0..adds {
        let host_port = 20_000 + number;
        let asked = context.chain(Wiring::Routed, &json!([port(host_port)]));
        let denizen = asked.plugins.last().context("denizen is the last plugin")?;
        let killed = number % until_kill == until_kill - 1;
        if killed {
            context.restart_agent()?;
        }
        let done = |command| {
            let done =
                asked.call_with_stderr(context.node(), &call, command, denizen, Some(&result));
            done.map(|(_, output)| output).map_err(refused)
        };
        done("ADD")?;
        let at = first(context, host_port);
        for to in at {
            let outcome = first_answer(context, to)?;
            let by = outcome.endpoint().map(|endpoint| endpoint.ip());
            ensure!(
                by.is_some_and(|by| pod.contains(&by)),
                "{to} after ADD {number}, killed {killed}: {outcome:?}"
            );
        }
        let output = done("DEL")?;
        context.is_removed(&output)?;
        for to in at {
            let outcome = first_answer(context, to)?;
            ensure!(
                outcome == Outcome::Refused,
                "{to} after DEL {number}, which said {output:?}, killed {killed}: {outcome:?}"
            );
        }
    }
    chain.del(context.node(), &call, Some(&result)).map_err(refused)
}

/// A stream of datagrams from one port: always the same flow.
struct Stream(UdpSocket);

impl Stream {
    fn open(context: &Context, who: Host, to: SocketAddr) -> Result<Self> {
        let from = SocketAddr::new(context.fixture.address(who, to.ip())?, 0);
        let socket = context.fixture.place(who).0.run(|| {
            let socket = UdpSocket::bind(from)?;
            socket.connect(to)?;
            socket.set_read_timeout(Some(Duration::from_millis(50)))?;
            std::io::Result::Ok(socket)
        })??;
        Ok(Self(socket))
    }

    /// The answer, which names the address that sent it.
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
            let output = self.answer()?;
            if output.as_deref().is_some_and(|line| line.contains(address)) {
                return Ok(());
            }
            ensure!(begun.elapsed() < within, "{address} does not answer: {output:?}");
        }
    }
}

/// A sender that never stops reaches nobody, then a pod, then its successor, and last the node's
/// own listener.
pub fn a_udp_sender_is_led_to_the_new_pod(context: &Context) -> Result<()> {
    const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
    let at = first(context, 5353);
    let ports = json!([port_at(5353, "udp", "")]);
    let each = |so: &dyn Fn(&Stream, SocketAddr) -> Result<()>, streams: &[Stream]| {
        streams.iter().zip(at).try_for_each(|(stream, to)| so(stream, to))
    };
    let led_to = |pod: &HostPortPod, streams: &[Stream]| {
        let is_led = |stream: &Stream, to: SocketAddr| {
            stream.is_answered_by(&pod.address_like(to.ip())?.to_string(), ANSWER_TIMEOUT)
        };
        each(&is_led, streams)
    };
    // The streams begin before there is any pod.
    let streams: Vec<_> =
        at.into_iter().map(|to| Stream::open(context, Host::Outside, to)).collect::<Result<_>>()?;
    for stream in &streams {
        ensure!(stream.answer()?.is_none());
    }
    // Flows to the same port of another host, which must not be cut.
    let other = |to: SocketAddr| {
        let dns = SocketAddr::new(context.fixture.address(Host::Remote, to.ip())?, PORT);
        Stream::open(context, Host::Routed, dns)
    };
    let others: Vec<_> = at.into_iter().map(other).collect::<Result<_>>()?;
    for other in &others {
        ensure!(other.answer()?.is_some());
    }
    let old = context.add_pod("first", Wiring::Bridged, &ports)?;
    led_to(&old, &streams)?;
    // The new pod comes before the old one goes.
    let new = context.add_pod("second", Wiring::Routed, &ports)?;
    led_to(&new, &streams)?;
    context.end([old])?;
    led_to(&new, &streams)?;
    // hostPort becomes hostNetwork.
    context.end([new])?;
    let _own = serve(context.node(), &at.map(|to| to.ip()), &[(Protocol::Udp, 5353)])?;
    let is_nodes = |stream: &Stream, to: SocketAddr| {
        stream.is_answered_by(&to.ip().to_string(), ANSWER_TIMEOUT)
    };
    each(&is_nodes, &streams)?;
    for other in &others {
        ensure!(other.answer()?.is_some(), "a flow to somebody else was cut");
    }
    Ok(())
}

/// Whatever the order of ADDs and DELs, the newest pod that lives has the port.
pub fn the_newest_pod_has_the_port_in_any_order(context: &Context, steps: usize) -> Result<()> {
    // A pseudorandom sequence, the same in every run.
    let mut number: u32 = 7;
    let mut below = |count: usize| {
        number = number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (number >> 16) as usize % count
    };
    let mut pods: Vec<HostPortPod> = Vec::new();
    for step in 0..steps {
        if pods.is_empty() || below(2) == 0 && pods.len() < 4 {
            let ports = json!([port(8080)]);
            pods.push(context.add_pod(&format!("p{step}"), Wiring::Routed, &ports)?);
        } else {
            let chosen = below(pods.len());
            context.end([pods.remove(chosen)])?;
        }
        for to in first(context, 8080) {
            let outcome = first_answer(context, to)?;
            let by = outcome.endpoint().map(|endpoint| endpoint.ip());
            let newest = pods.last().map(|newest| newest.address_like(to.ip())).transpose()?;
            ensure!(by == newest, "{step}: {outcome:?}, {newest:?}");
        }
    }
    context.end(pods)
}

/// A pod ends without a DEL, and the next pod gets its addresses: the host ports of the dead pod
/// lead nowhere.
pub fn an_address_that_is_used_again_has_only_its_own_ports(context: &Context) -> Result<()> {
    let addresses = ["10.10.77.7", "fd00:10:77::7"].map(ip);
    let pod = |name: &str, number: u16| {
        let netns = Netns::new(&format!("hp-again-{name}"))?;
        let mut pod = Pod::wire(context.node(), netns, name, Wiring::Routed, &addresses)?;
        let asked = context.chain(Wiring::Routed, &json!([port(number)]));
        let denizen = asked.plugins.last().context("denizen is the last plugin")?;
        pod.record(context.node(), context.agent.run_dir(), denizen)?;
        let server = serve(&pod.netns, &addresses, &[(Protocol::Tcp, PORT)])?;
        // The kernel may have to resolve the new neighbour first.
        for to in first(context, number) {
            let outcome = context.fixture.probe(Host::Outside, to, Protocol::Tcp)?;
            ensure!(outcome.endpoint().is_some(), "{to}: {outcome:?}");
        }
        anyhow::Ok((pod, server))
    };
    drop(pod("dead", 8081)?);
    let (new, _server) = pod("new", 8082)?;
    for to in first(context, 8081) {
        let outcome = first_answer(context, to)?;
        ensure!(outcome == Outcome::Refused, "{to}: {outcome:?}");
    }
    new.detach(context.node())
}
