//! Changes a namespace's links, addresses and routes by netlink. In an emulated machine, starting
//! the program `ip` once takes as long as a hundred of these changes.

use std::fs::File;
use std::net::IpAddr;
use std::os::fd::AsRawFd;

use anyhow::{Context, Result};
use denizen_netlink::{Socket, Writer};
use nix::libc;
use nix::net::if_::if_nametoindex;

use crate::node::netns::Netns;

// linux/if_link.h, linux/veth.h
const IFLA_INFO_SLAVE_KIND: u16 = 4;
const IFLA_INFO_SLAVE_DATA: u16 = 5;
const IFLA_BRPORT_MODE: u16 = 4;
const VETH_INFO_PEER: u16 = 1;
/// linux/rtnetlink.h.
const RTNH_F_ONLINK: u32 = 4;

/// A MAC address.
pub type Mac = [u8; 6];

/// A netlink socket in the namespace of the thread that opened it.
#[derive(Debug)]
pub struct Links {
    socket: Socket,
}

/// The other end of a veth.
#[derive(Debug, Clone, Copy)]
pub struct VethPeer<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its address; `None` for a random one.
    pub mac: Option<Mac>,
    /// The namespace that it is in.
    pub netns: &'a Netns,
}

/// A route of the main table.
#[derive(Debug, Clone, Copy)]
pub struct LinkRoute<'a> {
    /// To this address alone; `None`: the default route, of the gateway's family.
    pub to: Option<IpAddr>,
    /// The gateway, which counts as on the link whatever other routes say.
    pub via: Option<IpAddr>,
    /// Through this interface.
    pub device: &'a str,
    /// The source address of what the host itself sends.
    pub source: Option<IpAddr>,
}

impl<'a> LinkRoute<'a> {
    /// A route to one address on the link.
    pub fn to(address: IpAddr, device: &'a str) -> Self {
        Self { to: Some(address), via: None, device, source: None }
    }

    /// The default route.
    pub fn out(via: IpAddr, device: &'a str) -> Self {
        Self { to: None, via: Some(via), device, source: None }
    }
}

impl Links {
    /// A socket in this thread's namespace.
    ///
    /// # Errors
    /// When there is no netlink socket.
    pub fn open() -> Result<Self> {
        Ok(Self { socket: Socket::route()? })
    }

    /// Makes a veth. Neither end is up.
    pub fn veth(&mut self, name: &str, peer: VethPeer<'_>) -> Result<()> {
        let netns = File::open(peer.netns.path())?;
        let mut end = Writer::default();
        end.put_str(libc::IFLA_IFNAME, peer.name);
        end.put(libc::IFLA_NET_NS_FD, &netns.as_raw_fd().to_ne_bytes());
        if let Some(mac) = peer.mac {
            end.put(libc::IFLA_ADDRESS, &mac);
        }
        let end = [&link_header(0, false)[..], end.bytes()].concat();
        self.new_link(name, None, "veth", Some((VETH_INFO_PEER, &end)))
    }

    /// Makes a bridge, which is not up.
    pub fn bridge(&mut self, name: &str, mac: Mac) -> Result<()> {
        self.new_link(name, Some(mac), "bridge", None)
    }

    fn new_link(
        &mut self,
        name: &str,
        mac: Option<Mac>,
        kind: &str,
        data: Option<(u16, &[u8])>,
    ) -> Result<()> {
        let flags = libc::NLM_F_CREATE | libc::NLM_F_EXCL;
        let fill = |writer: &mut Writer| {
            writer.put_str(libc::IFLA_IFNAME, name);
            if let Some(mac) = mac {
                writer.put(libc::IFLA_ADDRESS, &mac);
            }
            let about = writer.begin(libc::IFLA_LINKINFO);
            writer.put_str(libc::IFLA_INFO_KIND, kind);
            if let Some((attribute, value)) = data {
                let open = writer.begin(libc::IFLA_INFO_DATA);
                writer.put(attribute, value);
                writer.end(open);
            }
            writer.end(about);
        };
        self.request(libc::RTM_NEWLINK, flags, &link_header(0, false), fill)
            .with_context(|| format!("cannot make the {kind} {name}"))
    }

    /// Sets an interface up.
    pub fn up(&mut self, name: &str) -> Result<()> {
        let header = link_header(index(name)?, true);
        self.request(libc::RTM_NEWLINK, 0, &header, |_| {})
            .with_context(|| format!("cannot set {name} up"))
    }

    /// Makes an interface a bridge port in hairpin mode: the bridge may send its packets back to
    /// it.
    pub fn enslave(&mut self, port: &str, bridge: &str) -> Result<()> {
        let (header, bridge_index) = (link_header(index(port)?, false), index(bridge)?);
        let doing = || format!("cannot make {port} a port of {bridge}");
        let master = |writer: &mut Writer| {
            writer.put(libc::IFLA_MASTER, &bridge_index.to_ne_bytes());
        };
        self.request(libc::RTM_NEWLINK, 0, &header, master).with_context(doing)?;
        let hairpin = |writer: &mut Writer| {
            let about = writer.begin(libc::IFLA_LINKINFO);
            writer.put_str(IFLA_INFO_SLAVE_KIND, "bridge");
            let open = writer.begin(IFLA_INFO_SLAVE_DATA);
            writer.put(IFLA_BRPORT_MODE, &[1]);
            writer.end(open);
            writer.end(about);
        };
        self.request(libc::RTM_NEWLINK, 0, &header, hairpin).with_context(doing)
    }

    /// Removes an interface.
    pub fn remove(&mut self, name: &str) -> Result<()> {
        let header = link_header(index(name)?, false);
        self.request(libc::RTM_DELLINK, 0, &header, |_| {})
            .with_context(|| format!("cannot remove {name}"))
    }

    /// Gives an interface an address that can be used at once. No error if it has the address
    /// already.
    pub fn address(&mut self, device: &str, address: IpAddr, length: u8) -> Result<()> {
        let flags = libc::NLM_F_CREATE | libc::NLM_F_REPLACE;
        self.change_address(libc::RTM_NEWADDR, flags, device, address, length)
            .with_context(|| format!("cannot give {device} the address {address}/{length}"))
    }

    /// Takes an address from an interface.
    pub fn remove_address(&mut self, device: &str, address: IpAddr, length: u8) -> Result<()> {
        self.change_address(libc::RTM_DELADDR, 0, device, address, length)
            .with_context(|| format!("cannot take the address {address}/{length} from {device}"))
    }

    fn change_address(
        &mut self,
        kind: u16,
        flags: libc::c_int,
        device: &str,
        address: IpAddr,
        length: u8,
    ) -> Result<()> {
        let nodad = if address.is_ipv6() { libc::IFA_F_NODAD as u8 } else { 0 };
        let fixed = [family(address), length, nodad, libc::RT_SCOPE_UNIVERSE];
        let header = [fixed, index(device)?.to_ne_bytes()].concat();
        let bytes = bytes(address);
        self.request(kind, flags, &header, |writer| {
            writer.put(libc::IFA_LOCAL, &bytes);
            writer.put(libc::IFA_ADDRESS, &bytes);
        })
    }

    /// Makes a route, or replaces it.
    pub fn route(&mut self, way: LinkRoute<'_>) -> Result<()> {
        let flags = libc::NLM_F_CREATE | libc::NLM_F_REPLACE;
        self.change_route(libc::RTM_NEWROUTE, flags, way)
            .with_context(|| format!("cannot make the route {way:?}"))
    }

    /// Removes a route.
    pub fn remove_route(&mut self, way: LinkRoute<'_>) -> Result<()> {
        self.change_route(libc::RTM_DELROUTE, 0, way)
            .with_context(|| format!("cannot remove the route {way:?}"))
    }

    fn change_route(&mut self, kind: u16, flags: libc::c_int, way: LinkRoute<'_>) -> Result<()> {
        let like = way.to.or(way.via).context("neither a destination nor a gateway")?;
        let device = index(way.device)?;
        let length = way.to.map_or(0, |to| bytes(to).len() as u8 * 8);
        let scope = match (way.via, like) {
            (None, IpAddr::V4(_)) => libc::RT_SCOPE_LINK,
            (_, IpAddr::V4(_) | IpAddr::V6(_)) => libc::RT_SCOPE_UNIVERSE,
        };
        let table = [libc::RT_TABLE_MAIN, libc::RTPROT_BOOT, scope, libc::RTN_UNICAST];
        let onlink = if way.via.is_some() { RTNH_F_ONLINK } else { 0 };
        let header = [[family(like), length, 0, 0], table, onlink.to_ne_bytes()].concat();
        self.request(kind, flags, &header, |writer| {
            writer.put(libc::RTA_OIF, &device.to_ne_bytes());
            let addresses = [
                (libc::RTA_DST, way.to),
                (libc::RTA_GATEWAY, way.via),
                (libc::RTA_PREFSRC, way.source),
            ];
            for (attribute, address) in addresses {
                if let Some(address) = address {
                    writer.put(attribute, &bytes(address));
                }
            }
        })
    }

    fn request(
        &mut self,
        kind: u16,
        flags: libc::c_int,
        header: &[u8],
        fill: impl FnOnce(&mut Writer),
    ) -> Result<()> {
        let (mut writer, sequence) = (Writer::default(), self.socket.sequences(1));
        let flags = (flags | libc::NLM_F_ACK) as u16;
        let message = writer.begin_message_with(kind, flags, sequence, header);
        fill(&mut writer);
        writer.end_message(message);
        self.socket.send(writer.bytes())?;
        Ok(self.socket.outcome(sequence)?)
    }
}

/// `struct ifinfomsg`: no family and no type; the index; the flags, and which of them change.
fn link_header(index: u32, up: bool) -> [u8; 16] {
    let up = if up { libc::IFF_UP as u32 } else { 0 };
    let mut header = [0; 16];
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    header[8..12].copy_from_slice(&up.to_ne_bytes());
    header[12..].copy_from_slice(&up.to_ne_bytes());
    header
}

fn index(name: &str) -> Result<u32> {
    if_nametoindex(name).with_context(|| format!("there is no interface {name}"))
}

fn family(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => libc::AF_INET as u8,
        IpAddr::V6(_) => libc::AF_INET6 as u8,
    }
}

fn bytes(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}
