//! A node and what surrounds it: a router that joins it to an outside client and to another node's
//! pods.
//!
//! ```text
//!   pods ─ node ─ eth0 ── fabric ── remote   pods of another node, answering at any address given
//!                           └────── client   hosts outside the cluster
//! ```
//!
//! The fabric knows the way to every single address of `remote` and `client` and sends all else to
//! the node, as a load balancer would: service addresses too. What the node sends out for an
//! address that nobody has is answered with "no route", so that an untouched packet is not mistaken
//! for a dropped one.

use std::fmt::Write;
use std::fs::DirBuilder;
use std::net::IpAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nix::ifaddrs::getifaddrs;
use tempfile::TempDir;

use crate::netns::{self, Netns};
use crate::server::socket_address;

/// The addresses that the world's hosts have. Nothing but these tells which is whose.
#[derive(Debug, Clone)]
pub struct Addresses {
    /// The node's own; the first of each family is what it sends from.
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

/// What the node sends to an address that only the node could have: there is no such host.
const NO_WAY_BACK: &str = r#"
table inet fabric {
    chain forward {
        type filter hook forward priority 0
        iifname "to-node" oifname "to-node" reject with icmpx type no-route
    }
}
"#;

/// A host's way to everybody over IPv4.
const GATEWAY: &str = "route replace default via 169.254.0.1 dev eth0 onlink";

/// Parses an address that a test wrote down.
///
/// # Panics
/// When it is none.
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
    /// The node. Its way out is `eth0`.
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

    /// Every address of the node now, those of bridges and of pods' host interfaces too: what a
    /// masqueraded packet may come from.
    pub fn node_addresses(&self) -> Result<Vec<IpAddr>> {
        let listed = self.node.run(|| -> nix::Result<Vec<IpAddr>> {
            let all = getifaddrs()?;
            Ok(all.filter_map(|it| Some(socket_address(it.address.as_ref()?)?.ip())).collect())
        })?;
        listed.context("cannot list the node's addresses")
    }

    /// Gives the remote node one more pod address.
    pub fn add_remote(&self, address: IpAddr) -> Result<()> {
        self.place("remote", &self.remote, &[Place::Add(address)])
    }

    /// Gives the outside one more host address.
    pub fn add_client(&self, address: IpAddr) -> Result<()> {
        self.place("client", &self.client, &[Place::Add(address)])
    }

    /// From now on the hosts outside and the pods of the other node have these addresses, and no
    /// others.
    pub fn replace_others(&mut self, client: Vec<IpAddr>, remote: Vec<IpAddr>) -> Result<()> {
        self.place("client", &self.client, &changes(&self.addresses.client, &client))?;
        self.place("remote", &self.remote, &changes(&self.addresses.remote, &remote))?;
        (self.addresses.client, self.addresses.remote) = (client, remote);
        Ok(())
    }

    fn place(&self, link: &str, host: &Netns, changes: &[Place]) -> Result<()> {
        if changes.is_empty() {
            return Ok(());
        }
        let mut commands: String = changes.iter().map(|change| change.on_host()).collect();
        // It went with the last IPv4 address, if that went.
        commands += GATEWAY;
        host.ip(&commands)?;
        self.fabric.ip(&changes.iter().map(|change| change.on_fabric(link)).collect::<String>())
    }

    /// Has the node's connection tracking forget connections soon after they end. Thousands a
    /// second would otherwise fill its table within the minute, and the kernel would drop what is
    /// in nobody's rules.
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
        // What its ICMPv6 errors come from: nobody forwards one that comes from a link-local
        // address.
        let mut commands = "addr add fd00:fab::1/128 dev lo nodad\n".to_owned();
        for (link, peer) in
            [("node", &self.node), ("client", &self.client), ("remote", &self.remote)]
        {
            let (near, far) = (format!("to-{link}"), peer.name());
            writeln!(commands, "link add {near} type veth peer name eth0 netns {far}")?;
            // The same gateway address on every link: nobody's traffic goes to it, only its MAC is
            // asked for.
            writeln!(commands, "addr add 169.254.0.1/32 dev {near}\nlink set {near} up")?;
            writeln!(commands, "addr add fe80::1/64 dev {near} nodad")?;
        }
        self.fabric.ip(&commands)
    }

    /// Each host's own side: a command is a program's start, so that there are few of them.
    fn address_hosts(&self) -> Result<()> {
        let Addresses { node, client, remote } = &self.addresses;
        // The node sends from its first address.
        let first = node.iter().find(|address| address.is_ipv4());
        let source = first.map(|first| format!("src {first}")).unwrap_or_default();
        for (host, addresses, source) in [
            (&self.node, node, source.as_str()),
            (&self.client, client, ""),
            (&self.remote, remote, ""),
        ] {
            let mut commands = "link set eth0 up\naddr add fe80::2/64 dev eth0 nodad\n".to_owned();
            commands.extend(addresses.iter().map(|address| Place::Add(*address).on_host()));
            writeln!(commands, "{GATEWAY} {source}\nroute add default via fe80::1 dev eth0")?;
            host.ip(&commands)?;
        }
        Ok(())
    }

    fn route(&self) -> Result<()> {
        let Addresses { node, client, remote } = &self.addresses;
        let mut commands = String::new();
        for address in node {
            writeln!(commands, "route add {address} dev to-node")?;
        }
        if let Some(first) = node.iter().find(|address| address.is_ipv4()) {
            writeln!(commands, "route add default via {first} dev to-node onlink")?;
        }
        writeln!(commands, "route add default via fe80::2 dev to-node")?;
        for (link, addresses) in [("client", client), ("remote", remote)] {
            commands.extend(addresses.iter().map(|address| Place::Add(*address).on_fabric(link)));
        }
        self.fabric.ip(&commands)?;
        // By nft, since the kernel's own "no route" answers are limited to one a second.
        self.fabric.nft(NO_WAY_BACK)
    }
}

/// A change of a host's addresses.
#[derive(Debug, Clone, Copy)]
enum Place {
    Add(IpAddr),
    Remove(IpAddr),
}

impl Place {
    fn on_host(self) -> String {
        let (verb, address, nodad) = match self {
            Self::Add(address) => ("add", address, nodad(address)),
            Self::Remove(address) => ("del", address, ""),
        };
        format!("addr {verb} {address}/{} dev eth0 {nodad}\n", host_length(address))
    }

    /// The fabric's way to it.
    fn on_fabric(self, link: &str) -> String {
        let (verb, address) = match self {
            Self::Add(address) => ("add", address),
            Self::Remove(address) => ("del", address),
        };
        let via = if address.is_ipv4() { "" } else { "via fe80::2" };
        format!("route {verb} {address} {via} dev to-{link}\n")
    }
}

/// What makes these addresses those.
fn changes(from: &[IpAddr], to: &[IpAddr]) -> Vec<Place> {
    let missing = |of: &[IpAddr], there: &[IpAddr]| -> Vec<IpAddr> {
        of.iter().filter(|address| !there.contains(address)).copied().collect()
    };
    let new = missing(to, from).into_iter().map(Place::Add);
    new.chain(missing(from, to).into_iter().map(Place::Remove)).collect()
}

/// The keyword that makes an IPv6 address usable at once; IPv4 knows no such delay.
pub(crate) fn nodad(address: IpAddr) -> &'static str {
    if address.is_ipv4() { "" } else { "nodad" }
}
