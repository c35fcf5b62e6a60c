//! A transparent proxy, as a mesh runs one in each pod, and servers and clients for it: TCP over
//! both IP versions, with sockets of a given user.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::sys::socket::{getsockopt, sockopt};
use nix::unistd::{Uid, setfsuid};
use socket2::{Domain, Socket, Type};

use crate::node::cni::Namespace;

/// The user of linkerd's proxy.
pub const PROXY_UID: u32 = 2102;

/// Some other user.
pub const CLIENT_UID: u32 = 65_534;

/// How long to wait for something that may never come.
const TIMEOUT: Duration = Duration::from_secs(3);

/// A connection as the proxy accepted it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Redirected {
    /// The proxy's port.
    pub port: u16,
    /// The client's address.
    pub source: IpAddr,
    /// The original destination, from the kernel.
    pub to: SocketAddr,
}

/// A proxy that runs as long as its namespace.
#[derive(Debug, Clone, Default)]
pub struct Sidecar {
    seen: Arc<Mutex<Vec<Redirected>>>,
}

impl Sidecar {
    /// Runs a proxy in `pod` at these ports, for both IP versions. It connects to the original
    /// destination of each connection as [`PROXY_UID`], and relays what the server sends.
    pub fn run(pod: &Namespace, ports: &[u16]) -> Self {
        let sidecar = Self::default();
        for port in ports {
            let seen = sidecar.seen.clone();
            accept(pod, *port, move |stream| {
                let Ok(redirected) = redirected(&stream) else { return };
                seen.lock().expect("no test panics with it").push(redirected);
                // A connection that was not redirected would come back to the proxy for ever.
                if redirected.to.port() != redirected.port {
                    let _ = pass_on(stream, redirected.to);
                }
            });
        }
        sidecar
    }

    /// The connections that the proxy has accepted since the last call.
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

/// Runs a server in `namespace` at this port, for both IP versions. It sends its port number and
/// ends the connection.
pub fn serve(namespace: &Namespace, port: u16) {
    accept(namespace, port, move |mut stream| {
        let _ = stream.write_all(port.to_string().as_bytes());
    });
}

/// Calls `each` with every connection to the port, each in a thread of its own.
fn accept(namespace: &Namespace, port: u16, each: impl Fn(TcpStream) + Clone + Send + 'static) {
    for ip in [IpAddr::from(Ipv4Addr::UNSPECIFIED), Ipv6Addr::UNSPECIFIED.into()] {
        let address = SocketAddr::new(ip, port);
        let listener = namespace.run(move || listen(address)).expect("the port is free");
        let each = each.clone();
        // Started from within: a new thread is in the namespace of the thread that starts it.
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

/// What a server sends to a client of this user in `namespace`; `None` if there is no connection.
pub fn fetch(namespace: &Namespace, uid: u32, to: SocketAddr) -> Option<String> {
    namespace.run(move || std::thread::spawn(move || ask(uid, to)).join().expect("it ends").ok())
}

/// Connects from the calling thread's namespace, and reads to the end.
fn ask(uid: u32, to: SocketAddr) -> io::Result<String> {
    // A socket belongs to the user that its thread has when it is made; only this thread changes
    // user.
    let before = setfsuid(Uid::from_raw(uid));
    let stream = TcpStream::connect_timeout(&to, TIMEOUT);
    setfsuid(before);
    let mut stream = stream?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let mut output = String::new();
    stream.read_to_string(&mut output)?;
    if output.is_empty() { Err(ErrorKind::UnexpectedEof.into()) } else { Ok(output) }
}
