//! The flowtable, written by hand as Denizen would write it: tables of its own, the rule behind
//! every firewall, and the devices of pods and the uplink. Of bridged pods the bridge is listed, so
//! that it goes on to learn and to filter, and for comparison the port too.

use std::fmt;
use std::net::IpAddr;

use anyhow::Result;
use denizen_tests::netns::Netns;

use super::cost::UPLINK;

const TABLE: &str = "denizen-fast-path-bench";

/// What KEP-4963 proposes.
const THRESHOLD: u32 = 20;

/// Whether there is a flowtable, and which connections are on it: established ones, which go both
/// ways.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Path {
    /// There is none.
    Slow,
    /// All of them.
    AtOnce,
    /// All of them, by a single look-up: between these interfaces, whoever the pods are.
    AtOnceBriefly,
    /// Those of more than [`THRESHOLD`] packets. Their number is asked last.
    Late,
    /// The same. Their number is asked first, which is cheaper for short connections.
    LateAskedFirst,
    /// Those of more than [`THRESHOLD`] packets, with the ports of bridges among the devices.
    LateWithPorts,
}

impl fmt::Display for Path {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Slow => write!(formatter, "none"),
            Self::AtOnce => write!(formatter, "at once"),
            Self::AtOnceBriefly => write!(formatter, "at once, one look-up"),
            Self::Late => write!(formatter, "after {THRESHOLD} packets"),
            Self::LateAskedFirst => write!(formatter, "after {THRESHOLD} packets, asked first"),
            Self::LateWithPorts => write!(formatter, "after {THRESHOLD} packets, port listed"),
        }
    }
}

impl Path {
    /// Makes it so. `pods` are the addresses of this node's pods, `devices` the interfaces that
    /// they are behind, `ports` those of bridges.
    pub(super) fn set(
        self,
        node: &Netns,
        pods: &[IpAddr],
        devices: &[&str],
        ports: &[&str],
    ) -> Result<()> {
        let late = format!("ct packets > {THRESHOLD}");
        let rules = match self {
            Self::Slow => String::new(),
            Self::AtOnce => careful("", "", pods),
            Self::AtOnceBriefly => BRIEF.to_owned(),
            Self::Late | Self::LateWithPorts => careful("", &late, pods),
            Self::LateAskedFirst => careful(&late, "", pods),
        };
        let mut text = format!("table ip {TABLE}\ndelete table ip {TABLE}\n");
        if self != Self::Slow {
            let ports = if self == Self::LateWithPorts { ports } else { &[] };
            text += &table(&rules, &[devices, ports, &[UPLINK]].concat());
        }
        // `ct packets` turns it on, and nothing off.
        node.sysctl("net.netfilter.nf_conntrack_acct", "0")?;
        node.nft(&text)
    }
}

/// The flowtable, sets of its devices, and these chains.
fn table(chains: &str, devices: &[&str]) -> String {
    let devices: Vec<String> = devices.iter().map(|name| format!("\"{name}\"")).collect();
    let pairs = |same: bool| {
        let all = devices.iter().flat_map(|from| devices.iter().map(move |to| (from, to)));
        let wanted = all.filter(|(from, to)| (from == to) == same);
        wanted.map(|(from, to)| format!("{from} . {to}")).collect::<Vec<_>>().join(", ")
    };
    let (same, ways, devices) = (pairs(true), pairs(false), devices.join(", "));
    format!(
        "table ip {TABLE} {{
            flowtable flows {{ hook ingress priority 0; devices = {{ {devices} }}; counter }}
            set listed {{ type ifname; elements = {{ {devices} }} }}
            set same {{ type ifname . ifname; elements = {{ {same} }} }}
            set ways {{ type iface_index . iface_index; elements = {{ {ways} }} }}
            {chains}
        }}"
    )
}

/// One rule.
const BRIEF: &str = "chain forward {
    type filter hook forward priority 2147483000; policy accept;
    ct state established ct status assured iif . oif @ways meta l4proto { tcp, udp } flow add @flows
}";

/// The rules that ask for everything, with these conditions for a look at the connection, and for
/// the flowtable at last.
fn careful(first: &str, last: &str, pods: &[IpAddr]) -> String {
    let pods: Vec<String> = pods.iter().map(IpAddr::to_string).collect();
    let pods = pods.join(", ");
    format!(
        "set pods {{ type ipv4_addr; elements = {{ {pods} }} }}
        chain forward {{
            type filter hook forward priority 2147483000; policy accept;
            ct state established ct status assured {first} jump admit
        }}
        chain admit {{
            iifname != @listed return
            oifname != @listed return
            iifname . oifname @same return
            ip saddr != @pods ip daddr != @pods return
            meta l4proto {{ tcp, udp }} {last} flow add @flows
        }}"
    )
}
