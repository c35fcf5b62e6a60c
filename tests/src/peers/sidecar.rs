//! A transparent proxy, as a mesh runs one in each pod, with servers and clients to go with it: TCP
//! of both versions, with sockets of the user who is said.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::sys::socket::{getsockopt, sockopt};
use nix::unistd::{Uid, setfsuid};
use socket2::{Domain, Socket, Type};

use crate::node::cni::Namespace;

/// linkerd's proxy.
pub const PROXY_UID: u32 = 2102;

/// Anybody else.
pub const CLIENT_UID: u32 = 65_534;

/// How long a side waits for the other: for what never comes.
const PATIENCE: Duration = Duration::from_secs(3);

/// A connection as the proxy accepted it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Redirected {
    /// The proxy's port that it came to.
    pub port: u16,
    /// Who connected.
    pub source: IpAddr,
    /// Where it was to go, as the kernel tells.
    pub to: SocketAddr,
}

/// A proxy that runs as long as its namespace.
#[derive(Debug, Clone, Default)]
pub struct Sidecar {
    seen: Arc<Mutex<Vec<Redirected>>>,
}

impl Sidecar {
    /// Runs it in `pod` at these ports, of both versions of IP. It connects to where each
    /// connection was to go, as [`PROXY_UID`], and passes on what the server says.
    pub fn run(pod: &Namespace, ports: &[u16]) -> Self {
        let sidecar = Self::default();
        for port in ports {
            let seen = sidecar.seen.clone();
            accept(pod, *port, move |stream| {
                let Ok(redirected) = redirected(&stream) else { return };
                seen.lock().expect("no test panics with it").push(redirected);
                // One that was not redirected would come back for ever.
                if redirected.to.port() != redirected.port {
                    let _ = pass_on(stream, redirected.to);
                }
            });
        }
        sidecar
    }

    /// What it has accepted since the last call.
    pub fn taken(&self) -> Vec<Redirected> {
        std::mem::take(&mut self.seen.lock().expect("no test panics with it"))
    }
}

fn pass_on(mut client: TcpStream, to: SocketAddr) -> io::Result<()> {
    let output = ask(PROXY_UID, to)?;
    client.write_all(output.as_bytes())
}

fn redirected(stream: &TcpStream) -> io::Result<Redirected> {
    let local = stream.local_addr()?;
    let to = match local {
        SocketAddr::V4(_) => {
            let address = getsockopt(stream, sockopt::OriginalDst)?;
            let ip = Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr));
            SocketAddr::new(ip.into(), u16::from_be(address.sin_port))
        }
        SocketAddr::V6(_) => {
            let address = getsockopt(stream, sockopt::Ip6tOriginalDst)?;
            let ip = Ipv6Addr::from(address.sin6_addr.s6_addr);
            SocketAddr::new(ip.into(), u16::from_be(address.sin6_port))
        }
    };
    Ok(Redirected { port: local.port(), source: stream.peer_addr()?.ip(), to })
}

/// Runs a server in `namespace` at this port, of both versions of IP. It says its port and ends the
/// connection.
pub fn serve(namespace: &Namespace, port: u16) {
    accept(namespace, port, move |mut stream| {
        let _ = stream.write_all(port.to_string().as_bytes());
    });
}

/// Calls `each` with every connection to the port, in a thread of its own.
fn accept(namespace: &Namespace, port: u16, each: impl Fn(TcpStream) + Clone + Send + 'static) {
    for ip in [IpAddr::from(Ipv4Addr::UNSPECIFIED), Ipv6Addr::UNSPECIFIED.into()] {
        let address = SocketAddr::new(ip, port);
        let listener = namespace.run(move || listen(address)).expect("the port is free");
        let each = each.clone();
        // From within, for a thread is in the namespace of the one that starts it.
        namespace.run(move || {
            std::thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    let each = each.clone();
                    std::thread::spawn(move || each(stream));
                }
            })
        });
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(1024)?;
    Ok(socket.into())
}

/// What a server says to a client of this user in `namespace`; `None` when there is no connection.
pub fn fetch(namespace: &Namespace, uid: u32, to: SocketAddr) -> Option<String> {
    namespace.run(move || std::thread::spawn(move || ask(uid, to)).join().expect("it ends").ok())
}

/// Connects from the calling thread's namespace, and reads to the end.
fn ask(uid: u32, to: SocketAddr) -> io::Result<String> {
    // The user of a socket is the thread's of that moment; this affects the thread alone.
    let before = setfsuid(Uid::from_raw(uid));
    let stream = TcpStream::connect_timeout(&to, PATIENCE);
    setfsuid(before);
    let mut stream = stream?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut output = String::new();
    stream.read_to_string(&mut output)?;
    if output.is_empty() { Err(ErrorKind::UnexpectedEof.into()) } else { Ok(output) }
}
