//! Connections that must outlive whatever a test does to the node.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use socket2::{Domain, Socket, Type};

use crate::node::fixture::{Fixture, Host, every_protocol, every_way};
use crate::node::manifest::Port;
use crate::node::netns::Netns;
use crate::packets::load::Load;
use crate::packets::probe::{ANSWER_TIMEOUT, Probe, Protocol};

/// The port of the echo server.
pub const ECHO: u16 = 9000;

/// The endpoints of `web`, see [`fixture`].
pub const MEMBERS: [Host; 3] = [Host::Bridged, Host::Routed, Host::Remote];

/// The fixture with two services: `web` (number 10) over every protocol, and `echo` (number 11,
/// port 7) for long connections, at the routed pod.
pub fn fixture(label: &str) -> Result<Fixture> {
    let fixture = Fixture::new(label)?;
    let manifests = &fixture.cluster.manifests;
    manifests.put("web", &fixture.service("web", 10, &every_protocol(), &MEMBERS)?)?;
    let echo = [Port::tcp("echo", 7, ECHO)];
    manifests.put("echo", &fixture.service("echo", 11, &echo, &[Host::Routed])?)?;
    let routed = &fixture.routed;
    routed.addresses.iter().try_for_each(|address| serve(&routed.netns, *address))?;
    Ok(fixture)
}

/// Clients that connect to `web` of [`fixture`] all the time, over TCP and UDP and in both
/// families.
pub fn load(fixture: &Fixture) -> Result<Load> {
    fixture.cluster.world.forget_quickly()?;
    let mut load = Load::default();
    for who in [Host::Bridged, Host::Routed, Host::Outside] {
        let targets = every_way(10).filter(|(_, protocol)| *protocol != Protocol::Sctp).collect();
        load.client(fixture.place(who).0, targets, |outcome| outcome.endpoint().is_some())?;
    }
    Ok(load)
}

/// One connection, open since it was made.
#[derive(Debug)]
pub struct LongConnection(TcpStream);

/// Starts an echo server at [`ECHO`] of `address`, which `netns` has.
pub fn serve(netns: &Netns, address: IpAddr) -> Result<()> {
    let listener = netns.run(|| TcpListener::bind((address, ECHO)))??;
    thread::spawn(move || {
        listener.incoming().flatten().for_each(|stream| drop(thread::spawn(|| echoes(stream))))
    });
    Ok(())
}

fn echoes(mut stream: TcpStream) {
    let mut byte = [0];
    while stream.read_exact(&mut byte).and_then(|()| stream.write_all(&byte)).is_ok() {}
}

impl LongConnection {
    /// Connects to an echo service.
    pub fn open(from: &Netns, to: SocketAddr) -> Result<Self> {
        let stream = from.run(|| Probe::tcp(to).connect())?.context("the echo service")?;
        Self::over(stream)
    }

    /// The same from a source port that connections to other addresses may use, too.
    pub fn open_from(from: &Netns, port: u16, to: SocketAddr) -> Result<Self> {
        let any: IpAddr = match to {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let socket = from.run(|| -> io::Result<Socket> {
            let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
            socket.set_reuse_address(true)?;
            socket.bind(&SocketAddr::new(any, port).into())?;
            socket.connect_timeout(&to.into(), ANSWER_TIMEOUT)?;
            Ok(socket)
        })?;
        Self::over(socket.with_context(|| format!("from port {port} to {to}"))?.into())
    }

    fn over(stream: TcpStream) -> Result<Self> {
        stream.set_read_timeout(Some(Duration::from_secs(3)))?;
        Ok(Self(stream))
    }

    /// An error unless an echo comes back.
    pub fn still_alive(&mut self) -> Result<()> {
        let mut answer = [0];
        self.0.write_all(b"?")?;
        self.0.read_exact(&mut answer).context("an established connection broke")?;
        Ok(())
    }

    /// An error if an echo or a reset comes back.
    pub fn is_silent(&mut self) -> Result<()> {
        let error = self.still_alive().err().context("the connection goes on")?;
        let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
        ensure!(kind == Some(io::ErrorKind::WouldBlock), "{error:#}");
        Ok(())
    }

    /// Closes this end while no answer is outstanding; an error unless a reset comes back.
    pub fn is_reset_when_closed(&mut self) -> Result<()> {
        self.0.shutdown(Shutdown::Write)?;
        let answer = self.0.read(&mut [0]).map_err(|error| error.kind());
        ensure!(answer == Err(io::ErrorKind::ConnectionReset), "{answer:?}");
        Ok(())
    }

    /// An error unless the next byte is answered by a reset.
    pub fn is_reset(&mut self) -> Result<()> {
        let error = self.still_alive().err().context("the connection goes on")?;
        let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
        ensure!(kind == Some(io::ErrorKind::ConnectionReset), "{error:#}");
        Ok(())
    }
}
