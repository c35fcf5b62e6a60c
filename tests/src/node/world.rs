//! A node and what surrounds it: a router that joins it to an outside client and to another node's
//! pods.
//!
//! ```text
//!   pods ─ node ─ eth0 ── fabric ── remote   pods of another node, answering at any address given
//!                           └────── client   hosts outside the cluster
//! ```
//!
//! The fabric has a route to every single address of `remote` and `client` and sends all else to
//! the node, as a load balancer would: service addresses too. What the node sends out for an
//! address that nobody has is answered with "no route", so that an untouched packet is not mistaken
//! for a dropped one.

use std::fs::DirBuilder;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nix::ifaddrs::getifaddrs;
use tempfile::TempDir;

use crate::node::links::{LinkRoute, Links, VethPeer};
use crate::node::netns::{self, Netns};
use crate::packets::server::socket_address;

/// The addresses of the world's hosts. By them alone it is known whose an address is.
#[derive(Debug, Clone)]
pub struct Addresses {
    /// The node's own addresses; it sends from the first of each family.
    pub node: Vec<IpAddr>,
    /// Hosts outside the cluster.
    pub client: Vec<IpAddr>,
    /// Pods of another node.
    pub remote: Vec<IpAddr>,
}

impl Default for Addresses {
    fn default() -> Self {
        Self {
            node: vec![
                ip("192.168.0.2"),
                ip("192.168.1.2"),
                ip("2001:db8::1"),
                ip("2001:db8:1::2"),
            ],
            client: vec![ip("203.0.113.2"), ip("2600:5200::1")],
            remote: vec![ip("192.168.77.10"), ip("fd00:77::10")],
        }
    }
}

/// Rejects what the node sends to an address that only the node could have: there is no such host.
const NO_WAY_BACK: &str = r#"
table inet fabric {
    chain forward {
        type filter hook forward priority 0
        iifname "to-node" oifname "to-node" reject with icmpx type no-route
    }
}
"#;

/// The fabric's addresses, the same on every link. They only resolve to the fabric's MAC address:
/// no traffic is addressed to them.
const GATEWAYS: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(169, 254, 0, 1)),
    IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1)),
];

/// Every host's link-local address.
const LINK_LOCAL: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 2));

/// The source of the fabric's ICMPv6 errors: errors from a link-local address are not forwarded.
const FABRIC: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfd00, 0xfab, 0, 0, 0, 0, 0, 1));

/// Parses an address that a test wrote down.
///
/// # Panics
/// When it is not an address.
pub fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address written in a test")
}

/// The prefix length that covers one address alone.
pub fn host_length(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// A node with its surroundings. Dropping it removes everything.
#[derive(Debug)]
pub struct World {
    /// The node. Its uplink is `eth0`.
    pub node: Netns,
    /// Hosts outside the cluster.
    pub client: Netns,
    /// Pods of another node.
    pub remote: Netns,
    fabric: Netns,
    addresses: Addresses,
    folder: Folder,
}

#[derive(Debug)]
enum Folder {
    Temporary(TempDir),
    Kept(PathBuf),
}

impl World {
    /// A world of its own for one test.
    pub fn new(label: &str, addresses: Addresses) -> Result<Self> {
        let named = |part: &str| Netns::new(&format!("{label}-{part}"));
        let folder = Folder::Temporary(netns::folder()?);
        Self::build(
            [named("node")?, named("client")?, named("remote")?, named("fabric")?],
            addresses,
            folder,
        )
    }

    /// A world whose namespaces are called `<name>-node` and so on and which outlives this process
    /// once [`Self::keep`] was called. `folder` must exist.
    pub fn named(name: &str, addresses: Addresses, folder: &Path) -> Result<Self> {
        let named = |part: &str| Netns::named(&format!("{name}-{part}"));
        let folder = Folder::Kept(folder.to_owned());
        Self::build(
            [named("node")?, named("client")?, named("remote")?, named("fabric")?],
            addresses,
            folder,
        )
    }

    fn build(parts: [Netns; 4], addresses: Addresses, folder: Folder) -> Result<Self> {
        let [node, client, remote, fabric] = parts;
        let world = Self { node, client, remote, fabric, addresses, folder };
        world.let_packets_through()?;
        world.lay_links()?;
        world.address_hosts()?;
        world.route()?;
        Ok(world)
    }

    /// Leaves everything in place when this value is dropped.
    pub fn keep(&mut self) {
        for part in [&mut self.node, &mut self.client, &mut self.remote, &mut self.fabric] {
            part.keep();
        }
    }

    /// A folder of this world's own, for run directories, manifests and logs.
    pub fn folder(&self) -> &Path {
        match &self.folder {
            Folder::Temporary(folder) => folder.path(),
            Folder::Kept(folder) => folder,
        }
    }

    /// A folder inside [`Self::folder`], made when it is not there.
    pub fn subfolder(&self, name: &str) -> Result<PathBuf> {
        let path = self.folder().join(name);
        let mut builder = DirBuilder::new();
        builder
            .recursive(true)
            .mode(0o700)
            .create(&path)
            .with_context(|| format!("cannot make {}", path.display()))?;
        Ok(path)
    }

    /// The addresses this world was made with.
    pub fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    /// Every address of the node now, those of bridges and of pods' host interfaces too: the
    /// possible sources of a masqueraded packet.
    pub fn node_addresses(&self) -> Result<Vec<IpAddr>> {
        let listed = self.node.run(|| -> nix::Result<Vec<IpAddr>> {
            let all = getifaddrs()?;
            Ok(all
                .filter_map(|interface| Some(socket_address(interface.address.as_ref()?)?.ip()))
                .collect())
        })?;
        listed.context("cannot list the node's addresses")
    }

    /// Gives the remote node one more pod address.
    pub fn add_remote(&self, address: IpAddr) -> Result<()> {
        self.place("remote", &self.remote, &[AddressChange::Add(address)])
    }

    /// Gives the outside one more host address.
    pub fn add_client(&self, address: IpAddr) -> Result<()> {
        self.place("client", &self.client, &[AddressChange::Add(address)])
    }

    /// Replaces the addresses of the hosts outside and of the other node's pods.
    pub fn replace_others(&mut self, client: Vec<IpAddr>, remote: Vec<IpAddr>) -> Result<()> {
        self.place("client", &self.client, &changes(&self.addresses.client, &client))?;
        self.place("remote", &self.remote, &changes(&self.addresses.remote, &remote))?;
        (self.addresses.client, self.addresses.remote) = (client, remote);
        Ok(())
    }

    fn place(&self, link: &str, host: &Netns, changes: &[AddressChange]) -> Result<()> {
        if changes.is_empty() {
            return Ok(());
        }
        host.change(|links| {
            changes.iter().try_for_each(|change| change.on_host(links))?;
            // If the last IPv4 address was removed, the default route went with it.
            links.route(LinkRoute::out(GATEWAYS[0], "eth0"))
        })?;
        self.fabric
            .change(|links| changes.iter().try_for_each(|change| change.on_fabric(links, link)))
    }

    /// Makes the node's connection tracking forget connections soon after they end. Thousands of
    /// connections a second would otherwise fill its table within a minute, and the kernel would
    /// drop packets that no rule drops.
    pub fn forget_quickly(&self) -> Result<()> {
        for (key, seconds) in
            [("udp_timeout", "2"), ("udp_timeout_stream", "2"), ("tcp_timeout_close", "1")]
        {
            self.node.sysctl(&format!("net.netfilter.nf_conntrack_{key}"), seconds)?;
        }
        Ok(())
    }

    fn let_packets_through(&self) -> Result<()> {
        for router in [&self.node, &self.fabric] {
            router.sysctl("net.ipv4.ip_forward", "1")?;
            router.sysctl("net.ipv6.conf.all.forwarding", "1")?;
            // The kernel's limits on ICMP errors would turn some of many refusals into silence.
            router.sysctl("net.ipv4.icmp_ratelimit", "0")?;
            router.sysctl("net.ipv4.icmp_ratemask", "0")?;
            router.sysctl("net.ipv6.icmp.ratelimit", "0")?;
        }
        Ok(())
    }

    fn lay_links(&self) -> Result<()> {
        self.fabric.change(|links| {
            links.address("lo", FABRIC, host_length(FABRIC))?;
            for (near, netns) in
                [("to-node", &self.node), ("to-client", &self.client), ("to-remote", &self.remote)]
            {
                links.veth(near, VethPeer { name: "eth0", mac: None, netns })?;
                links.up(near)?;
                links.address(near, GATEWAYS[0], 32)?;
                links.address(near, GATEWAYS[1], 64)?;
            }
            Ok(())
        })
    }

    /// Gives each host its addresses and its default route.
    fn address_hosts(&self) -> Result<()> {
        let Addresses { node, client, remote } = &self.addresses;
        // The node sends from its first address.
        let first = node.iter().find(|address| address.is_ipv4()).copied();
        for (host, addresses, source) in
            [(&self.node, node, first), (&self.client, client, None), (&self.remote, remote, None)]
        {
            host.change(|links| {
                links.up("eth0")?;
                links.address("eth0", LINK_LOCAL, 64)?;
                addresses
                    .iter()
                    .try_for_each(|address| AddressChange::Add(*address).on_host(links))?;
                links.route(LinkRoute { source, ..LinkRoute::out(GATEWAYS[0], "eth0") })?;
                links.route(LinkRoute::out(GATEWAYS[1], "eth0"))
            })?;
        }
        Ok(())
    }

    fn route(&self) -> Result<()> {
        let Addresses { node, client, remote } = &self.addresses;
        self.fabric.change(|links| {
            node.iter().try_for_each(|address| links.route(LinkRoute::to(*address, "to-node")))?;
            let first = node.iter().find(|address| address.is_ipv4()).copied();
            for via in first.into_iter().chain([LINK_LOCAL]) {
                links.route(LinkRoute::out(via, "to-node"))?;
            }
            for (link, addresses) in [("client", client), ("remote", remote)] {
                addresses
                    .iter()
                    .try_for_each(|address| AddressChange::Add(*address).on_fabric(links, link))?;
            }
            Ok(())
        })?;
        // By nft, since the kernel's own "no route" answers are limited to one a second.
        self.fabric.nft(NO_WAY_BACK)
    }
}

/// A change of a host's addresses.
#[derive(Debug, Clone, Copy)]
enum AddressChange {
    Add(IpAddr),
    Remove(IpAddr),
}

impl AddressChange {
    fn on_host(self, links: &mut Links) -> Result<()> {
        match self {
            Self::Add(address) => links.address("eth0", address, host_length(address)),
            Self::Remove(address) => links.remove_address("eth0", address, host_length(address)),
        }
    }

    /// The fabric's route to the address.
    fn on_fabric(self, links: &mut Links, link: &str) -> Result<()> {
        let device = format!("to-{link}");
        let way = |to: IpAddr| {
            let via = to.is_ipv6().then_some(LINK_LOCAL);
            LinkRoute { via, ..LinkRoute::to(to, &device) }
        };
        match self {
            Self::Add(address) => links.route(way(address)),
            Self::Remove(address) => links.remove_route(way(address)),
        }
    }
}

/// The changes from the addresses `from` to the addresses `to`.
fn changes(from: &[IpAddr], to: &[IpAddr]) -> Vec<AddressChange> {
    let missing = |of: &[IpAddr], there: &[IpAddr]| -> Vec<IpAddr> {
        of.iter().filter(|address| !there.contains(address)).copied().collect()
    };
    let new = missing(to, from).into_iter().map(AddressChange::Add);
    new.chain(missing(from, to).into_iter().map(AddressChange::Remove)).collect()
}
