//! Links and addresses of one network namespace.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use denizen_netlink::{Attributes, Message, NetlinkError, Socket, Writer};
use nix::libc;

/// Length of `struct ifinfomsg`, and the offsets of its index and flags.
const IFINFOMSG: usize = 16;
const IFINFOMSG_INDEX: usize = 4;
const IFINFOMSG_FLAGS: usize = 8;

/// Length of `struct ifaddrmsg`, and the offset of its index.
const IFADDRMSG: usize = 8;
const IFADDRMSG_INDEX: usize = 4;

/// Length of `struct rtmsg`.
const RTMSG: usize = 12;

/// Length of `struct rtgenmsg`, padded.
const RTGENMSG: usize = 4;

/// How often a dump is attempted if changes interrupt it.
const DUMP_TRIES: usize = 10;

/// Time limit for an answer of the kernel.
const ANSWER: Duration = Duration::from_secs(2);

// Constants that libc lacks.
const NETNSA_NSID: u16 = 1;
const NETNSA_FD: u16 = 3;
const IFLA_TARGET_NETNSID: u16 = 46;
const IFA_TARGET_NETNSID: u16 = 10;
const IFLA_VLAN_ID: u16 = 1;
const IFLA_BR_VLAN_FILTERING: u16 = 7;
const IFLA_BRIDGE_VLAN_INFO: u16 = 2;
const RTEXT_FILTER_BRVLAN: u32 = 2;
const BRIDGE_VLAN_INFO_PVID: u16 = 2;
const BRIDGE_VLAN_INFO_UNTAGGED: u16 = 4;

/// A link, with the properties that decide where a pod's packets enter.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct NetnsLink {
    pub(crate) index: u32,
    pub(crate) name: String,
    pub(crate) mac: Vec<u8>,
    /// `veth`, `bridge`, `vlan`, `macvlan`, …; `None` for hardware.
    pub(crate) kind: Option<String>,
    /// The bridge or other device whose port it is.
    pub(crate) master: Option<u32>,
    /// The link below it: a veth's other end, a VLAN's or macvlan's device.
    pub(crate) lower: Option<u32>,
    /// The nsid of the namespace of `lower`, as this namespace numbers it; `None` for this
    /// namespace.
    pub(crate) lower_nsid: Option<i32>,
    /// A VLAN device's VLAN.
    pub(crate) vlan: Option<u16>,
    /// Whether a bridge filters VLANs.
    pub(crate) filters_vlans: bool,
    /// Whether it is switched on.
    pub(crate) is_up: bool,
}

impl NetnsLink {
    pub(crate) fn is(&self, kind: &str) -> bool {
        self.kind.as_deref() == Some(kind)
    }

    /// The MAC address, as `ip` prints it.
    pub(crate) fn mac_text(&self) -> String {
        self.mac.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(":")
    }

    /// Reads an `RTM_NEWLINK`.
    fn parse(message: &Message<'_>) -> io::Result<NetnsLink> {
        let index = u32_at(message.payload, IFINFOMSG_INDEX)?;
        let is_up = u32_at(message.payload, IFINFOMSG_FLAGS)? & libc::IFF_UP as u32 != 0;
        let mut link = NetnsLink { index, is_up, ..NetnsLink::default() };
        for (kind, value) in message.attributes_after(IFINFOMSG) {
            match kind {
                libc::IFLA_IFNAME => link.name = text(value),
                libc::IFLA_ADDRESS => link.mac = value.to_vec(),
                libc::IFLA_MASTER => link.master = Some(u32_at(value, 0)?),
                libc::IFLA_LINK => link.lower = Some(u32_at(value, 0)?),
                libc::IFLA_LINK_NETNSID => link.lower_nsid = Some(u32_at(value, 0)? as i32),
                libc::IFLA_LINKINFO => link.read_info(Attributes::new(value))?,
                _ => {}
            }
        }
        Ok(link)
    }

    fn read_info(&mut self, info: Attributes<'_>) -> io::Result<()> {
        self.kind = info.find(libc::IFLA_INFO_KIND).map(text);
        let data = info.nested(libc::IFLA_INFO_DATA);
        // An attribute's number has another meaning for each kind of link.
        if self.is("vlan") {
            self.vlan = data.find(IFLA_VLAN_ID).map(|id| u16_at(id, 0)).transpose()?;
        } else if self.is("bridge") {
            let filters = data.find(IFLA_BR_VLAN_FILTERING).and_then(<[u8]>::first);
            self.filters_vlans = filters.is_some_and(|on| *on != 0);
        }
        Ok(())
    }
}

/// A VLAN of a bridge's port, or of the bridge itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PortVlan {
    pub(crate) id: u16,
    /// Untagged frames that enter the bridge here belong to this VLAN.
    pub(crate) is_default: bool,
    /// Frames of this VLAN leave the bridge untagged here.
    pub(crate) untagged: bool,
}

/// The links of one network namespace.
pub(crate) struct NetnsLinks {
    socket: Socket,
    /// The nsid of the namespace, as the socket's own namespace numbers it; `None` for the socket's
    /// own.
    nsid: Option<i32>,
    /// See [`NetnsLinks::vlans`].
    vlans: Option<Vlans>,
}

/// The VLANs of bridge ports, and all links.
pub(crate) struct Vlans {
    /// The VLANs of every port of every bridge and of the bridges themselves, by link index, sorted
    /// by it.
    pub(crate) ports: Vec<(u32, Vec<PortVlan>)>,
    /// Every link.
    pub(crate) links: Vec<NetnsLink>,
}

impl NetnsLinks {
    /// The links of the calling thread's network namespace.
    pub(crate) fn open() -> io::Result<NetnsLinks> {
        let socket = Socket::route()?;
        socket.set_timeout(ANSWER)?;
        Ok(NetnsLinks { socket, nsid: None, vlans: None })
    }

    /// The links of the namespace with the number `nsid` in the calling thread's namespace (since
    /// Linux 4.20). This needs `CAP_NET_ADMIN`; entering a namespace needs `CAP_SYS_ADMIN`.
    pub(crate) fn of_namespace(nsid: i32) -> io::Result<NetnsLinks> {
        let links = NetnsLinks::open()?;
        // Otherwise the kernel lists the addresses of the socket's own namespace.
        links.socket.check_strictly()?;
        let nsid = Some(nsid);
        Ok(NetnsLinks { nsid, ..links })
    }

    pub(crate) fn named(&mut self, name: &str) -> io::Result<Option<NetnsLink>> {
        self.one(0, |request| request.put_str(libc::IFLA_IFNAME, name))
    }

    pub(crate) fn at(&mut self, index: u32) -> io::Result<Option<NetnsLink>> {
        self.one(index, |_| {})
    }

    fn one(&mut self, index: u32, fill: impl FnOnce(&mut Writer)) -> io::Result<Option<NetnsLink>> {
        let mut header = [0; IFINFOMSG];
        header[IFINFOMSG_INDEX..][..4].copy_from_slice(&index.to_ne_bytes());
        let nsid = self.nsid;
        let fill = |request: &mut Writer| {
            fill(request);
            if let Some(nsid) = nsid {
                request.put(IFLA_TARGET_NETNSID, &nsid.to_ne_bytes());
            }
        };
        self.get(libc::RTM_GETLINK, &header, fill, |message| NetnsLink::parse(&message))
    }

    /// The VLANs of this namespace's bridges, cached at the first call: listing them again for each
    /// of many pods would be quadratic.
    pub(crate) fn vlans(&mut self) -> io::Result<&Vlans> {
        let vlans = match self.vlans.take() {
            Some(vlans) => vlans,
            None => Vlans { ports: self.port_vlans()?, links: self.all()? },
        };
        Ok(self.vlans.insert(vlans))
    }

    fn all(&mut self) -> io::Result<Vec<NetnsLink>> {
        self.dump(libc::RTM_GETLINK, &[0; IFINFOMSG], |_| {}, |message| NetnsLink::parse(&message))
    }

    fn port_vlans(&mut self) -> io::Result<Vec<(u32, Vec<PortVlan>)>> {
        let mut header = [0; IFINFOMSG];
        header[0] = libc::AF_BRIDGE as u8;
        let fill = |request: &mut Writer| {
            request.put(libc::IFLA_EXT_MASK, &RTEXT_FILTER_BRVLAN.to_ne_bytes());
        };
        let mut ports = self.dump(libc::RTM_GETLINK, &header, fill, |message| {
            let of_bridge = message.attributes_after(IFINFOMSG).nested(libc::IFLA_AF_SPEC);
            let vlans = of_bridge
                .filter(|(kind, _)| *kind == IFLA_BRIDGE_VLAN_INFO)
                .map(|(_, value)| Ok(port_vlan(u16_at(value, 0)?, u16_at(value, 2)?)))
                .collect::<io::Result<Vec<_>>>()?;
            Ok((u32_at(message.payload, IFINFOMSG_INDEX)?, vlans))
        })?;
        ports.sort_unstable_by_key(|(index, _)| *index);
        Ok(ports)
    }

    /// The addresses of link `index`.
    pub(crate) fn addresses(&mut self, index: u32) -> io::Result<Vec<IpAddr>> {
        let nsid = self.nsid;
        let fill = |request: &mut Writer| {
            if let Some(nsid) = nsid {
                request.put(IFA_TARGET_NETNSID, &nsid.to_ne_bytes());
            }
        };
        let found = self.dump(libc::RTM_GETADDR, &[0; IFADDRMSG], fill, |message| {
            let all = message.attributes_after(IFADDRMSG);
            // For an IPv4 address with a peer, IFA_ADDRESS is the far end's. IFA_LOCAL exists only
            // for IPv4.
            let value = all.find(libc::IFA_LOCAL).or_else(|| all.find(libc::IFA_ADDRESS));
            let is_wanted = u32_at(message.payload, IFADDRMSG_INDEX)? == index;
            Ok(value.filter(|_| is_wanted).and_then(address))
        })?;
        Ok(found.into_iter().flatten().collect())
    }

    /// The link through which packets to `address` leave this namespace; `None` if there is no
    /// route.
    pub(crate) fn route_to(&mut self, address: IpAddr) -> io::Result<Option<u32>> {
        let mut header = [0; RTMSG];
        let (family, octets) = match address {
            IpAddr::V4(address) => (libc::AF_INET, address.octets().to_vec()),
            IpAddr::V6(address) => (libc::AF_INET6, address.octets().to_vec()),
        };
        (header[0], header[1]) = (family as u8, (octets.len() * 8) as u8);
        let fill = |request: &mut Writer| request.put(libc::RTA_DST, &octets);
        let through = self.get(libc::RTM_GETROUTE, &header, fill, |message| {
            let through = message.attributes_after(RTMSG).find(libc::RTA_OIF);
            through.map(|index| u32_at(index, 0)).transpose()
        });
        match through {
            Err(error) if error.kind() == io::ErrorKind::NetworkUnreachable => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::HostUnreachable => Ok(None),
            found => found.map(Option::flatten),
        }
    }

    /// This namespace's number for the namespace `netns`, if it has one.
    pub(crate) fn nsid(&mut self, netns: BorrowedFd<'_>) -> io::Result<Option<i32>> {
        let netns = netns.as_raw_fd().to_ne_bytes();
        let fill = |request: &mut Writer| request.put(NETNSA_FD, &netns);
        let nsid = self.get(libc::RTM_GETNSID, &[0; RTGENMSG], fill, |message| {
            let nsid = message.attributes_after(RTGENMSG).find(NETNSA_NSID);
            Ok(u32_at(nsid.ok_or_else(malformed)?, 0)? as i32)
        })?;
        Ok(nsid.filter(|nsid| *nsid >= 0))
    }

    /// Requests one object. `None` if the kernel has no such object.
    fn get<T>(
        &mut self,
        kind: u16,
        header: &[u8],
        fill: impl FnOnce(&mut Writer),
        read: impl FnMut(Message<'_>) -> io::Result<T>,
    ) -> io::Result<Option<T>> {
        let sequence = self.socket.sequences(1);
        let request = request(kind, 0, sequence, header, fill);
        match self.socket.ask(&request, sequence, read).map_err(io::Error::from) {
            Ok(answer) => answer.map(Some),
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENODEV | libc::ENOENT)) => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Requests all objects of a kind.
    fn dump<T>(
        &mut self,
        kind: u16,
        header: &[u8],
        fill: impl Fn(&mut Writer),
        mut read: impl FnMut(Message<'_>) -> io::Result<T>,
    ) -> io::Result<Vec<T>> {
        for _ in 0..DUMP_TRIES {
            let sequence = self.socket.sequences(1);
            let request = request(kind, libc::NLM_F_DUMP as u16, sequence, header, &fill);
            let mut all = Vec::new();
            match self.socket.dump(&request, sequence, |message| all.push(read(message))) {
                Err(NetlinkError::Interrupted) => {}
                Err(error) => return Err(error.into()),
                Ok(()) => return all.into_iter().collect(),
            }
        }
        Err(io::Error::other("the links change faster than they can be listed"))
    }
}

fn request(
    kind: u16,
    flags: u16,
    sequence: u32,
    header: &[u8],
    fill: impl FnOnce(&mut Writer),
) -> Vec<u8> {
    let mut request = Writer::default();
    let open = request.begin_message_with(kind, flags, sequence, header);
    fill(&mut request);
    request.end_message(open);
    request.into_bytes()
}

fn port_vlan(flags: u16, id: u16) -> PortVlan {
    PortVlan {
        id,
        is_default: flags & BRIDGE_VLAN_INFO_PVID != 0,
        untagged: flags & BRIDGE_VLAN_INFO_UNTAGGED != 0,
    }
}

fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value.split(|byte| *byte == 0).next().unwrap_or_default()).into_owned()
}

fn address(value: &[u8]) -> Option<IpAddr> {
    match value.len() {
        4 => <[u8; 4]>::try_from(value).ok().map(IpAddr::from),
        16 => <[u8; 16]>::try_from(value).ok().map(IpAddr::from),
        _ => None,
    }
}

/// A four-byte number in host byte order.
fn u32_at(bytes: &[u8], at: usize) -> io::Result<u32> {
    let four = bytes.get(at..at + 4).and_then(|four| four.try_into().ok());
    four.map(u32::from_ne_bytes).ok_or_else(malformed)
}

/// A two-byte number in host byte order.
fn u16_at(bytes: &[u8], at: usize) -> io::Result<u16> {
    let two = bytes.get(at..at + 2).and_then(|two| two.try_into().ok());
    two.map(u16::from_ne_bytes).ok_or_else(malformed)
}

fn malformed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the kernel's answer is cut off or malformed")
}
