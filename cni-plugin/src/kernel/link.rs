//! Links and addresses of one network namespace.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

use nix::libc;

use super::netlink::{Netlink, attribute, attributes, malformed, push, u16_at, u32_at};

/// Length of `struct ifinfomsg`, and where its index lies.
const IFINFOMSG: usize = 16;
const IFINFOMSG_INDEX: usize = 4;

/// Length of `struct ifaddrmsg`, and where its index lies.
const IFADDRMSG: usize = 8;
const IFADDRMSG_INDEX: usize = 4;

/// Length of `struct rtmsg`.
const RTMSG: usize = 12;

/// Length of `struct rtgenmsg`, padded.
const RTGENMSG: usize = 4;

// What libc's headers leave out.
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

/// A link, as far as it matters which way a pod's packets come in.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) index: u32,
    pub(crate) name: String,
    pub(crate) mac: Vec<u8>,
    /// `veth`, `bridge`, `vlan`, `macvlan`, …; `None` for hardware.
    pub(crate) kind: Option<String>,
    /// The bridge or other device that it is a port of.
    pub(crate) master: Option<u32>,
    /// The link that it leads to: a veth's other end, a VLAN's or macvlan's device.
    pub(crate) lower: Option<u32>,
    /// Which namespace `lower` is in, as this one numbers them; `None` for this one itself.
    pub(crate) lower_nsid: Option<i32>,
    /// A VLAN device's VLAN.
    pub(crate) vlan: Option<u16>,
    /// Whether a bridge keeps VLANs apart.
    pub(crate) filters_vlans: bool,
}

impl Link {
    pub(crate) fn is(&self, kind: &str) -> bool {
        self.kind.as_deref() == Some(kind)
    }

    /// The MAC address, as `ip` prints it.
    pub(crate) fn mac_text(&self) -> String {
        self.mac
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect::<Vec<_>>()
            .join(":")
    }

    /// Reads the body of an `RTM_NEWLINK`.
    fn parse(body: &[u8]) -> io::Result<Link> {
        let mut link = Link {
            index: u32_at(body, IFINFOMSG_INDEX)?,
            ..Link::default()
        };
        for (kind, value) in attributes(body.get(IFINFOMSG..).ok_or_else(malformed)?) {
            match kind {
                libc::IFLA_IFNAME => link.name = text(value),
                libc::IFLA_ADDRESS => link.mac = value.to_vec(),
                libc::IFLA_MASTER => link.master = Some(u32_at(value, 0)?),
                libc::IFLA_LINK => link.lower = Some(u32_at(value, 0)?),
                libc::IFLA_LINK_NETNSID => link.lower_nsid = Some(u32_at(value, 0)? as i32),
                libc::IFLA_LINKINFO => link.read_info(value)?,
                _ => {}
            }
        }
        Ok(link)
    }

    fn read_info(&mut self, info: &[u8]) -> io::Result<()> {
        self.kind = attribute(info, libc::IFLA_INFO_KIND).map(text);
        let data = attribute(info, libc::IFLA_INFO_DATA).unwrap_or_default();
        // An attribute's number means something else in every kind of link.
        if self.is("vlan") {
            self.vlan = attribute(data, IFLA_VLAN_ID)
                .map(|id| u16_at(id, 0))
                .transpose()?;
        } else if self.is("bridge") {
            self.filters_vlans = attribute(data, IFLA_BR_VLAN_FILTERING)
                .and_then(<[u8]>::first)
                .is_some_and(|on| *on != 0);
        }
        Ok(())
    }
}

/// A VLAN of a bridge's port, or of the bridge itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PortVlan {
    pub(crate) id: u16,
    /// Frames that come in without a tag are of this VLAN.
    pub(crate) is_default: bool,
    /// Its frames go out without a tag.
    pub(crate) untagged: bool,
}

/// The links of one network namespace.
pub(crate) struct Links {
    netlink: Netlink,
    /// The namespace, as the socket's own one numbers it; `None` for that one itself.
    nsid: Option<i32>,
}

impl Links {
    /// The links of the network namespace that the calling thread is in now.
    pub(crate) fn open() -> io::Result<Links> {
        let netlink = Netlink::open()?;
        Ok(Links { netlink, nsid: None })
    }

    /// The links of the namespace that the calling thread's one has the number `nsid` for (since Linux 4.20). It takes
    /// `CAP_NET_ADMIN`, where entering a namespace takes `CAP_SYS_ADMIN`.
    pub(crate) fn of_namespace(nsid: i32) -> io::Result<Links> {
        let netlink = Netlink::open()?;
        // Else the kernel lists the socket's own addresses, whatever namespace is asked for.
        netlink.check_strictly()?;
        let nsid = Some(nsid);
        Ok(Links { netlink, nsid })
    }

    pub(crate) fn named(&mut self, name: &str) -> io::Result<Option<Link>> {
        let mut request = vec![0; IFINFOMSG];
        push(&mut request, libc::IFLA_IFNAME, format!("{name}\0").as_bytes());
        self.one(request)
    }

    pub(crate) fn at(&mut self, index: u32) -> io::Result<Option<Link>> {
        let mut request = vec![0; IFINFOMSG];
        request[IFINFOMSG_INDEX..][..4].copy_from_slice(&index.to_ne_bytes());
        self.one(request)
    }

    fn one(&mut self, mut request: Vec<u8>) -> io::Result<Option<Link>> {
        if let Some(nsid) = self.nsid {
            push(&mut request, IFLA_TARGET_NETNSID, &nsid.to_ne_bytes());
        }
        self.netlink
            .get(libc::RTM_GETLINK, &request)?
            .map(|body| Link::parse(&body))
            .transpose()
    }

    pub(crate) fn all(&mut self) -> io::Result<Vec<Link>> {
        let bodies = self.netlink.dump(libc::RTM_GETLINK, &[0; IFINFOMSG])?;
        bodies.iter().map(|body| Link::parse(body)).collect()
    }

    /// The VLANs of every port of every bridge and of the bridges themselves, by link index.
    pub(crate) fn port_vlans(&mut self) -> io::Result<BTreeMap<u32, Vec<PortVlan>>> {
        let mut request = vec![0; IFINFOMSG];
        request[0] = libc::AF_BRIDGE as u8;
        push(
            &mut request,
            libc::IFLA_EXT_MASK,
            &RTEXT_FILTER_BRVLAN.to_ne_bytes(),
        );
        let mut ports = BTreeMap::new();
        for body in self.netlink.dump(libc::RTM_GETLINK, &request)? {
            let all = body.get(IFINFOMSG..).ok_or_else(malformed)?;
            let vlans = attributes(attribute(all, libc::IFLA_AF_SPEC).unwrap_or_default())
                .filter(|(kind, _)| *kind == IFLA_BRIDGE_VLAN_INFO)
                .map(|(_, value)| Ok(port_vlan(u16_at(value, 0)?, u16_at(value, 2)?)))
                .collect::<io::Result<Vec<_>>>()?;
            ports.insert(u32_at(&body, IFINFOMSG_INDEX)?, vlans);
        }
        Ok(ports)
    }

    /// The addresses of link `index`.
    pub(crate) fn addresses(&mut self, index: u32) -> io::Result<Vec<IpAddr>> {
        let mut addresses = Vec::new();
        let mut request = vec![0; IFADDRMSG];
        if let Some(nsid) = self.nsid {
            push(&mut request, IFA_TARGET_NETNSID, &nsid.to_ne_bytes());
        }
        for body in self.netlink.dump(libc::RTM_GETADDR, &request)? {
            if u32_at(&body, IFADDRMSG_INDEX)? == index {
                let all = body.get(IFADDRMSG..).ok_or_else(malformed)?;
                // IFA_ADDRESS is the far end's where an IPv4 address has a peer; IFA_LOCAL is IPv4's only.
                let value = attribute(all, libc::IFA_LOCAL).or_else(|| attribute(all, libc::IFA_ADDRESS));
                addresses.extend(value.and_then(address));
            }
        }
        Ok(addresses)
    }

    /// The link that packets to `address` leave this namespace through; `None` where they cannot.
    pub(crate) fn route_to(&mut self, address: IpAddr) -> io::Result<Option<u32>> {
        let mut request = vec![0; RTMSG];
        let (family, bits) = match address {
            IpAddr::V4(_) => (libc::AF_INET, 32),
            IpAddr::V6(_) => (libc::AF_INET6, 128),
        };
        (request[0], request[1]) = (family as u8, bits);
        match address {
            IpAddr::V4(address) => push(&mut request, libc::RTA_DST, &address.octets()),
            IpAddr::V6(address) => push(&mut request, libc::RTA_DST, &address.octets()),
        }
        let body = match self.netlink.get(libc::RTM_GETROUTE, &request) {
            Err(error) if error.kind() == io::ErrorKind::NetworkUnreachable => None,
            Err(error) if error.kind() == io::ErrorKind::HostUnreachable => None,
            other => other?,
        };
        let Some(body) = body else { return Ok(None) };
        let all = body.get(RTMSG..).ok_or_else(malformed)?;
        attribute(all, libc::RTA_OIF)
            .map(|index| u32_at(index, 0))
            .transpose()
    }

    /// The number that this namespace has for the namespace `netns`, if it has met it.
    pub(crate) fn nsid(&mut self, netns: BorrowedFd<'_>) -> io::Result<Option<i32>> {
        let mut request = vec![0; RTGENMSG];
        push(&mut request, NETNSA_FD, &netns.as_raw_fd().to_ne_bytes());
        let Some(body) = self.netlink.get(libc::RTM_GETNSID, &request)? else {
            return Ok(None);
        };
        let all = body.get(RTGENMSG..).ok_or_else(malformed)?;
        let nsid = u32_at(attribute(all, NETNSA_NSID).ok_or_else(malformed)?, 0)? as i32;
        Ok((nsid >= 0).then_some(nsid))
    }
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
