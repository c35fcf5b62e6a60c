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
use tempfile::TempDir;

use crate::netns::{self, Netns};

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
        world.route()?;
        for address in &world.addresses.client {
            world.place(&world.client, "client", *address)?;
        }
        for address in &world.addresses.remote {
            world.place(&world.remote, "remote", *address)?;
        }
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
        let text = self.node.output("ip", &["-o", "addr", "show"])?;
        let words = |line: &str| line.split_whitespace().nth(3).map(str::to_owned);
        let addresses = text.lines().filter_map(words);
        Ok(addresses.filter_map(|word| word.split('/').next()?.parse().ok()).collect())
    }

    /// Gives the remote node one more pod address.
    pub fn add_remote(&self, address: IpAddr) -> Result<()> {
        self.place(&self.remote, "remote", address)
    }

    /// Gives the outside one more host address.
    pub fn add_client(&self, address: IpAddr) -> Result<()> {
        self.place(&self.client, "client", address)
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
        self.fabric.ip("addr add fd00:fab::1/128 dev lo nodad")?;
        for (link, peer) in
            [("node", &self.node), ("client", &self.client), ("remote", &self.remote)]
        {
            let (near, far) = (format!("to-{link}"), peer.name());
            let mut commands = format!("link add {near} type veth peer name eth0 netns {far}\n");
            // The same gateway address on every link: nobody's traffic goes to it, only its MAC is
            // asked for.
            writeln!(commands, "addr add 169.254.0.1/32 dev {near}\nlink set {near} up")?;
            writeln!(commands, "addr add fe80::1/64 dev {near} nodad")?;
            self.fabric.ip(&commands)?;
            peer.ip("link set eth0 up\naddr add fe80::2/64 dev eth0 nodad")?;
        }
        let mut commands = String::new();
        for address in &self.addresses.node {
            writeln!(commands, "addr add {address}/{} dev eth0", host_length(*address))?;
        }
        self.node.ip(&commands)
    }

    fn route(&self) -> Result<()> {
        for host in [&self.node, &self.client, &self.remote] {
            host.ip("route add default via 169.254.0.1 dev eth0 onlink")?;
            host.ip("route add default via fe80::1 dev eth0")?;
        }
        let mut commands = String::new();
        for address in &self.addresses.node {
            writeln!(commands, "route add {address} dev to-node")?;
        }
        if let Some(first) = self.addresses.node.iter().find(|address| address.is_ipv4()) {
            writeln!(commands, "route add default via {first} dev to-node onlink")?;
            // The node sends from its first address, whichever it was given first to reach it.
            self.node
                .ip(&format!("route change default via 169.254.0.1 dev eth0 onlink src {first}"))?;
        }
        writeln!(commands, "route add default via fe80::2 dev to-node")?;
        self.fabric.ip(&commands)?;
        // By nft, since the kernel's own "no route" answers are limited to one a second.
        self.fabric.nft(NO_WAY_BACK)
    }

    /// Gives `host` an address and the fabric the way to it.
    fn place(&self, host: &Netns, link: &str, address: IpAddr) -> Result<()> {
        let length = host_length(address);
        host.ip(&format!("addr add {address}/{length} dev eth0 {}", nodad(address)))?;
        let via = if address.is_ipv4() { "" } else { "via fe80::2" };
        self.fabric.ip(&format!("route add {address} {via} dev to-{link}"))
    }
}

/// The keyword that makes an IPv6 address usable at once; IPv4 knows no such delay.
pub(crate) fn nodad(address: IpAddr) -> &'static str {
    if address.is_ipv4() { "" } else { "nodad" }
}
