//! Tests the rules before any container runs: a connection from the pod arrives at the proxy's
//! port, and the kernel reports its original destination.

use denizen_packet::{Family, family_of};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use denizen_state::redirect::Redirect;
use ipnetwork::IpNetwork;
use nix::libc;
use nix::sys::socket::{getsockopt, setsockopt, sockopt};

use crate::kernel::Netns;

/// How long a connection may take. On the loopback it takes microseconds; one that is not
/// redirected may never be answered.
const TIMEOUT: Duration = Duration::from_secs(1);

/// The pause between two attempts, and the number of attempts.
const PAUSE: Duration = Duration::from_millis(10);
const ATTEMPTS: u32 = 100;

/// Addresses for documentation (RFC 5737, RFC 3849), if no gateway can be used.
const NOBODY: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
];

/// Fails, with the reason, if a connection from the pod does not arrive at its proxy. An IP version
/// in which the pod cannot send yet, without a route or an address, is skipped.
pub(super) fn verify(
    netns: &Netns,
    redirect: &Redirect,
    gateways: &[IpAddr],
) -> Result<(), String> {
    let Some(port) = redirect.outbound_port else {
        return Ok(());
    };
    loopback(netns)?;
    let versions =
        Family::BOTH.into_iter().filter(|version| *version == Family::V4 || !redirect.bypass_ipv6);
    for version in versions {
        let targets = targets(redirect, version, gateways);
        netns
            .within(|| match targets.iter().find(|target| can_send(**target)) {
                Some(target) => connect(*target, port.get()),
                None => Ok(()),
            })
            .map_err(|error| format!("cannot enter the namespace: {error}"))??;
    }
    Ok(())
}

/// Destinations that are redirected, the best one first.
fn targets(redirect: &Redirect, version: Family, gateways: &[IpAddr]) -> Vec<SocketAddr> {
    let (cidrs, ports) = (&redirect.only_outbound_cidrs, &redirect.only_outbound_ports);
    let is_skipped =
        |port: &u16| redirect.skip_outbound_ports.iter().any(|skipped| skipped.contains(*port));
    // If networks and ports are listed, either is enough.
    let is_wanted = |port: &u16| {
        !cidrs.is_empty() || ports.is_empty() || ports.iter().any(|range| range.contains(*port))
    };
    let Some(port) = (1..=u16::MAX).find(|port| !is_skipped(port) && is_wanted(port)) else {
        return Vec::new();
    };
    let candidates: Vec<IpAddr> = match cidrs.is_empty() {
        true => gateways.iter().chain(&NOBODY).copied().collect(),
        false => cidrs.iter().filter_map(host).collect(),
    };
    candidates
        .into_iter()
        .filter(|ip| family_of(*ip) == version)
        .filter(|ip| !redirect.skip_outbound_cidrs.iter().any(|cidr| cidr.contains(*ip)))
        .map(|ip| SocketAddr::new(ip, port))
        .collect()
}

/// An address of the network that a host can have: the first one may be a broadcast address.
fn host(cidr: &IpNetwork) -> Option<IpAddr> {
    match cidr {
        IpNetwork::V4(cidr) => cidr.nth(1).or(cidr.nth(0)).map(IpAddr::from),
        IpNetwork::V6(cidr) => cidr.nth(1).or(cidr.nth(0)).map(IpAddr::from),
    }
}

/// Whether the calling thread's namespace has a route to `target` and an address to send from. This
/// only asks the kernel; nothing is sent. While an IPv6 address is tentative (RFC 4862), there may
/// only be a link-local address.
fn can_send(target: SocketAddr) -> bool {
    let any: IpAddr = match target {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0));
    let source =
        socket.and_then(|socket| socket.connect(target).and_then(|()| socket.local_addr()));
    source.is_ok_and(|source| match source {
        SocketAddr::V4(_) => true,
        SocketAddr::V6(source) => !source.ip().is_unicast_link_local(),
    })
}

/// Connects from the calling thread's namespace.
fn connect(target: SocketAddr, port: u16) -> Result<(), String> {
    let loopback: IpAddr = match target {
        SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    };
    let proxy = SocketAddr::new(loopback, port);
    let listener = listen(proxy)
        .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
        .map_err(|error| format!("cannot listen at {proxy}: {error}"))?;
    let client = TcpStream::connect_timeout(&target, TIMEOUT)
        .map_err(|error| format!("a connection to {target} did not arrive at {proxy}: {error}"))?;
    let (accepted, _) = listener.accept().map_err(|error| {
        if error.kind() == ErrorKind::WouldBlock {
            return format!("a connection to {target} passed {proxy} by");
        }
        format!("cannot accept at {proxy}: {error}")
    })?;
    // Both ends are reset: a closed connection would stay for a minute, and block the port for a
    // proxy that does not reuse addresses.
    let reset = libc::linger { l_onoff: 1, l_linger: 0 };
    for end in [&accepted, &client] {
        setsockopt(end, sockopt::Linger, &reset)
            .map_err(|errno| format!("cannot reset: {errno}"))?;
    }
    match original(&accepted, target) {
        Ok(found) if found == target => Ok(()),
        Ok(found) => Err(format!("the kernel has {found} as the original destination of {target}")),
        Err(error) => Err(format!("the kernel has no original destination of {target}: {error}")),
    }
}

/// Listens at `proxy`, once the port is free: runtimes attach several interfaces of a pod at the
/// same time, and the ADD of another interface may be testing, too.
fn listen(proxy: SocketAddr) -> io::Result<TcpListener> {
    for _ in 1..ATTEMPTS {
        match TcpListener::bind(proxy) {
            Err(error) if error.kind() == ErrorKind::AddrInUse => std::thread::sleep(PAUSE),
            listener => return listener,
        }
    }
    TcpListener::bind(proxy)
}

/// Waits until the loopback is up: some runtimes call the plugin `loopback` at the same time.
fn loopback(netns: &Netns) -> Result<(), String> {
    let unreadable = |error: io::Error| format!("cannot look at the loopback: {error}");
    let mut links = netns.links().map_err(unreadable)?;
    for _ in 0..ATTEMPTS {
        if links.named("lo").map_err(unreadable)?.is_some_and(|lo| lo.is_up) {
            return Ok(());
        }
        std::thread::sleep(PAUSE);
    }
    Err("the loopback is down".to_owned())
}

/// The original destination of `accepted`, the proxy's end of a connection to `target`.
fn original(accepted: &TcpStream, target: SocketAddr) -> nix::Result<SocketAddr> {
    Ok(match target {
        SocketAddr::V4(_) => {
            let address = getsockopt(accepted, sockopt::OriginalDst)?;
            let ip = Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr));
            SocketAddr::new(ip.into(), u16::from_be(address.sin_port))
        }
        SocketAddr::V6(_) => {
            let address = getsockopt(accepted, sockopt::Ip6tOriginalDst)?;
            let ip = Ipv6Addr::from(address.sin6_addr.s6_addr);
            SocketAddr::new(ip.into(), u16::from_be(address.sin6_port))
        }
    })
}
