//! Records which hosts reached a pod: the sender of every datagram and connection to port 80.

use std::collections::BTreeSet;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Result;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{setsockopt, sockopt::RcvBufForce};
use socket2::{Domain, Socket, Type};

use crate::node::netns::Netns;

/// The recorder's port.
pub const PORT: u16 = 80;

/// Packets that waited for a new pod's MAC address arrive all at once when it is resolved, from all
/// senders: more than a socket usually holds while a busy machine lets the recorder wait.
const RECEIVE_BUFFER: usize = 16 << 20;

type Senders = Arc<Mutex<BTreeSet<IpAddr>>>;

/// Answers every sender, and remembers it, until it is dropped.
#[derive(Debug)]
pub struct Recorder {
    senders: Senders,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Recorder {
    /// Every packet that is sent after this has returned is recorded.
    pub fn start(pod: &Netns) -> Result<Self> {
        let sockets = pod.run(|| -> io::Result<Vec<Socket>> {
            let kinds = [Type::DGRAM, Type::STREAM];
            let families = [Domain::IPV4, Domain::IPV6];
            let all = kinds.into_iter().flat_map(|kind| families.map(|family| (family, kind)));
            all.map(|(family, kind)| listen(family, kind)).collect()
        })??;
        let (senders, stop) = <(Senders, Arc<AtomicBool>)>::default();
        let thread = pod.spawn({
            let (senders, stop) = (senders.clone(), stop.clone());
            move || serve(&sockets, &senders, &stop)
        })?;
        Ok(Self { senders, stop, thread: Some(thread) })
    }

    /// All senders until now.
    pub fn senders(&self) -> BTreeSet<IpAddr> {
        self.senders.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Removes these addresses from the record.
    pub fn forget(&self, addresses: &[IpAddr]) {
        let mut senders = self.senders.lock().unwrap_or_else(PoisonError::into_inner);
        senders.retain(|sender| !addresses.contains(sender));
    }

    /// Empties the record.
    pub fn forget_all(&self) {
        self.senders.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn listen(family: Domain, kind: Type) -> io::Result<Socket> {
    let socket = Socket::new(family, kind, None)?;
    let any: IpAddr = if family == Domain::IPV4 {
        Ipv4Addr::UNSPECIFIED.into()
    } else {
        socket.set_only_v6(true)?;
        Ipv6Addr::UNSPECIFIED.into()
    };
    socket.set_nonblocking(true)?;
    setsockopt(&socket, RcvBufForce, &RECEIVE_BUFFER)?;
    socket.bind(&SocketAddr::new(any, PORT).into())?;
    if kind == Type::STREAM {
        socket.listen(1024)?;
    }
    Ok(socket)
}

fn serve(sockets: &[Socket], senders: &Senders, stop: &AtomicBool) {
    let round = PollTimeout::try_from(Duration::from_millis(20)).unwrap_or(PollTimeout::MAX);
    while !stop.load(Ordering::Relaxed) {
        let mut ready: Vec<_> =
            sockets.iter().map(|socket| PollFd::new(socket.as_fd(), PollFlags::POLLIN)).collect();
        if poll(&mut ready, round).is_err() {
            return;
        }
        for socket in sockets {
            while let Ok(sender) = answer(socket) {
                senders.lock().unwrap_or_else(PoisonError::into_inner).extend(sender);
            }
        }
    }
}

/// Answers the next packet or connection; an error if there is none.
fn answer(socket: &Socket) -> io::Result<Option<IpAddr>> {
    let peer = if socket.r#type()? == Type::STREAM {
        // The connection ends ordinarily: a reset could be taken for a refusal.
        socket.accept()?.1
    } else {
        let mut buffer = [std::mem::MaybeUninit::uninit(); 64];
        match socket.recv_from(&mut buffer) {
            Ok((_, peer)) => {
                let _ = socket.send_to(b"here", &peer);
                peer
            }
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => return Ok(None),
            Err(error) => return Err(error),
        }
    };
    Ok(peer.as_socket().map(|peer| peer.ip()))
}
