//! The rules of a redirected pod, in order: the conditions of each, and what happens to a
//! connection that it matches. Pure. The plugin renders them for the kernel, and the agent's
//! `explain` finds the rule that decides, so the two cannot differ.
//!
//! A rule that linkerd has too bears linkerd's comment, so that people who know linkerd or read its
//! documentation find it. The comment of a rule that only denizen has begins with `denizen/`.

use std::fmt::{self, Display};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU16;

use ipnetwork::IpNetwork;

use super::{Hairpin, PacketMark, PortRange, Redirect};

/// Which connections a chain sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChainDirection {
    /// What arrives for the pod.
    Inbound,
    /// What the pod's processes send.
    Outbound,
}

impl Display for ChainDirection {
    /// The name of the chain.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Inbound => "inbound",
            Self::Outbound => "outbound",
        })
    }
}

/// A rule of a redirected pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedirectRule {
    /// [`Self::comment`] without the value at its end, such as a port or an address.
    pub why: &'static str,
    /// Unique in its chain, except that both IP versions and several interfaces may have it.
    pub comment: String,
    /// All of this must hold.
    pub conditions: Vec<RuleCondition>,
    /// What happens to the connection then.
    pub action: RuleAction,
}

/// A condition for a connection's first packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RuleCondition {
    /// It is IPv6.
    Ipv6,
    /// Its protocol is this one.
    Protocol(RedirectProtocol),
    /// Its destination port is one of these.
    Port(PortRange),
    /// Its source is one of these.
    From(IpNetwork),
    /// Its destination is one of these.
    To(IpNetwork),
    /// Its destination has this IP version, but is not this address.
    NotTo(IpAddr),
    /// It comes in through this interface.
    Enters(String),
    /// It leaves through this interface.
    Leaves(String),
    /// A process of this user sends it.
    User(u32),
    /// A process of this group sends it.
    Group(u32),
    /// It has this mark.
    Mark(PacketMark),
}

/// The protocols that rules distinguish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RedirectProtocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// What a rule does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuleAction {
    /// The connection keeps its destination.
    Skip,
    /// The connection goes to this port of the pod.
    Redirect(NonZeroU16),
}

/// The first packet of a connection without a mark, sent by a user and a group that no rule names:
/// neither the proxy's nor those that are skipped.
#[derive(Debug, Clone, Copy)]
pub struct UnmarkedConnection<'a> {
    /// The interface of the pod through which it comes in, or leaves.
    pub interface: &'a str,
    /// `None` if it is not known: then no rule with a condition on it matches.
    pub source: Option<IpAddr>,
    /// The destination address before the redirection.
    pub destination: IpAddr,
    /// The destination port before the redirection.
    pub port: u16,
    /// `None` if it is neither TCP nor UDP.
    pub protocol: Option<RedirectProtocol>,
}

impl RedirectRule {
    /// Whether the rule matches this connection.
    pub fn matches(&self, connection: &UnmarkedConnection<'_>) -> bool {
        self.conditions.iter().all(|condition| condition.holds(connection))
    }
}

impl Display for RedirectRule {
    /// Its comment, what must hold, and what happens then.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.comment)?;
        self.conditions.iter().try_for_each(|condition| write!(f, " {condition}"))?;
        match self.action {
            RuleAction::Skip => f.write_str(", not redirected"),
            RuleAction::Redirect(port) => write!(f, ", to port {port} of the pod"),
        }
    }
}

impl Display for RuleCondition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ipv6 => f.write_str("IPv6"),
            Self::Protocol(RedirectProtocol::Tcp) => f.write_str("TCP"),
            Self::Protocol(RedirectProtocol::Udp) => f.write_str("UDP"),
            Self::Port(range) => write!(f, "to port {range}"),
            Self::From(cidr) => write!(f, "from {cidr}"),
            Self::To(cidr) => write!(f, "to {cidr}"),
            Self::NotTo(address) => write!(f, "not to {address}"),
            Self::Enters(name) => write!(f, "in through {name}"),
            Self::Leaves(name) => write!(f, "out through {name}"),
            Self::User(uid) => write!(f, "of user {uid}"),
            Self::Group(gid) => write!(f, "of group {gid}"),
            Self::Mark(mark) => write!(f, "with mark {mark}"),
        }
    }
}

impl RuleCondition {
    fn holds(&self, connection: &UnmarkedConnection<'_>) -> bool {
        let UnmarkedConnection { interface, source, destination, port, protocol } = connection;
        match self {
            Self::Ipv6 => destination.is_ipv6(),
            Self::Protocol(wanted) => *protocol == Some(*wanted),
            Self::Port(range) => range.contains(*port),
            Self::From(cidr) => source.is_some_and(|source| cidr.contains(source)),
            Self::To(cidr) => cidr.contains(*destination),
            Self::NotTo(address) => {
                address.is_ipv4() == destination.is_ipv4() && address != destination
            }
            Self::Enters(wanted) | Self::Leaves(wanted) => wanted == interface,
            Self::User(_) | Self::Group(_) | Self::Mark(_) => false,
        }
    }
}

/// See [`Redirect::rules`].
pub(super) fn rules(redirect: &Redirect, direction: ChainDirection) -> Vec<RedirectRule> {
    let mut rules = RuleList::default();
    match direction {
        ChainDirection::Inbound => rules.inbound(redirect),
        ChainDirection::Outbound => rules.outbound(redirect),
    }
    rules.0
}

const LOOPBACK: &str = "lo";
const LOOPBACKS: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];

/// Envoy's source addresses when it passes inbound connections on to the pod's server: 127.0.0.6
/// and ::6.
const PASSED_ON: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(127, 0, 0, 6)), IpAddr::V6(Ipv6Addr::new(0, 0, 0, 0, 0, 0, 0, 6))];

const TCP: RuleCondition = RuleCondition::Protocol(RedirectProtocol::Tcp);

#[derive(Default)]
struct RuleList(Vec<RedirectRule>);

impl RuleList {
    /// Adds a rule, unless there is an equal one: a second one would never match.
    fn add(
        &mut self,
        why: &'static str,
        of: impl Display,
        conditions: impl IntoIterator<Item = RuleCondition>,
        action: RuleAction,
    ) {
        let conditions = conditions.into_iter().collect();
        let rule = RedirectRule { why, comment: format!("{why}{of}"), conditions, action };
        if !self.0.contains(&rule) {
            self.0.push(rule);
        }
    }

    /// Adds a rule whose connections are not redirected.
    fn skip(
        &mut self,
        why: &'static str,
        of: impl Display,
        conditions: impl IntoIterator<Item = RuleCondition>,
    ) {
        self.add(why, of, conditions, RuleAction::Skip);
    }

    fn skip_ports(&mut self, ports: &[PortRange]) {
        for range in ports {
            self.skip("proxy-init/ignore-port-", range, [TCP, RuleCondition::Port(*range)]);
        }
    }

    fn skip_cidrs(&mut self, cidrs: &[IpNetwork], ask: fn(IpNetwork) -> RuleCondition) {
        for cidr in cidrs {
            self.skip("proxy-init/ignore-subnet-", cidr, [ask(*cidr)]);
        }
    }

    /// If IPv6 is not to be redirected: IPv6 packets bypass the proxy, and are counted.
    fn bypass_ipv6(&mut self, redirect: &Redirect) {
        if redirect.bypass_ipv6 {
            self.skip("denizen/ignore-ipv6", "", [RuleCondition::Ipv6]);
        }
    }

    fn inbound(&mut self, redirect: &Redirect) {
        let Some(port) = redirect.inbound_port else { return };
        let to = RuleAction::Redirect(port);
        self.bypass_ipv6(redirect);
        self.skip_ports(&redirect.always_skip_inbound_ports);
        self.skip_ports(&redirect.skip_inbound_ports);
        self.skip_cidrs(&redirect.skip_inbound_cidrs, RuleCondition::From);
        // At the pod's own interfaces only: what containers inside the pod send is not for the pod.
        for interface in &redirect.interfaces {
            let enters = || RuleCondition::Enters(interface.clone());
            for range in &redirect.only_inbound_ports {
                let of = format!("{range}-to-proxy-port");
                let conditions = [enters(), TCP, RuleCondition::Port(*range)];
                self.add("proxy-init/redirect-port-", of, conditions, to);
            }
            if redirect.only_inbound_ports.is_empty() {
                let why = "proxy-init/redirect-all-incoming-to-proxy-port";
                self.add(why, "", [enters(), TCP], to);
            }
        }
    }

    fn outbound(&mut self, redirect: &Redirect) {
        if let Some(port) = redirect.dns_port {
            self.redirect_dns(port);
        }
        let Some(port) = redirect.outbound_port else { return };
        self.bypass_ipv6(redirect);
        if let (Hairpin::Inbound, Some(inbound)) = (redirect.hairpin, redirect.inbound_port) {
            self.hairpin(redirect, inbound);
        }
        self.skip_senders(redirect);
        self.skip_ports(&redirect.skip_outbound_ports);
        self.skip_cidrs(&redirect.skip_outbound_cidrs, RuleCondition::To);
        for interface in &redirect.interfaces {
            self.redirect_outbound(redirect, interface, port);
        }
        if redirect.hairpin == Hairpin::Outbound {
            self.redirect_outbound(redirect, LOOPBACK, port);
        }
    }

    /// What is skipped for its sender, and what the pod sends to itself.
    fn skip_senders(&mut self, redirect: &Redirect) {
        // Nothing that the proxy sends may come back to it.
        if let Some(uid) = redirect.proxy_uid {
            self.skip("proxy-init/ignore-proxy-user-id", "", [RuleCondition::User(uid)]);
        }
        if let Some(gid) = redirect.proxy_gid {
            self.skip("proxy-init/ignore-proxy-group-id", "", [RuleCondition::Group(gid)]);
        }
        match redirect.hairpin {
            // What the pod sends to itself by any of its addresses.
            Hairpin::Direct | Hairpin::Inbound => {
                self.skip("proxy-init/ignore-loopback", "", [over_loopback()]);
            }
            Hairpin::Outbound => {
                for loopback in LOOPBACKS {
                    self.skip(
                        "denizen/ignore-loopback-address",
                        "",
                        [RuleCondition::To(loopback.into())],
                    );
                }
            }
        }
        for uid in &redirect.skip_outbound_uids {
            self.skip("denizen/ignore-user-id-", uid, [RuleCondition::User(*uid)]);
        }
        if let Some(mark) = redirect.skip_mark {
            self.skip("denizen/ignore-mark-", mark, [RuleCondition::Mark(mark)]);
        }
    }

    /// What the pod sends at this interface.
    fn redirect_outbound(&mut self, redirect: &Redirect, interface: &str, port: NonZeroU16) {
        let (leaves, to) =
            (|| RuleCondition::Leaves(interface.to_owned()), RuleAction::Redirect(port));
        for cidr in &redirect.only_outbound_cidrs {
            let of = format!("{cidr}-to-proxy-port");
            self.add("denizen/redirect-subnet-", of, [leaves(), TCP, RuleCondition::To(*cidr)], to);
        }
        for range in &redirect.only_outbound_ports {
            let of = format!("{range}-to-proxy-port");
            self.add(
                "proxy-init/redirect-port-",
                of,
                [leaves(), TCP, RuleCondition::Port(*range)],
                to,
            );
        }
        if redirect.only_outbound_cidrs.is_empty() && redirect.only_outbound_ports.is_empty() {
            let why = "proxy-init/redirect-all-outgoing-to-proxy-port";
            self.add(why, "", [leaves(), TCP], to);
        }
    }

    /// Resolvers ask at the loopback, where the proxy does not listen at port 53.
    fn redirect_dns(&mut self, port: NonZeroU16) {
        const DNS: NonZeroU16 = NonZeroU16::new(53).expect("53 is not 0");
        for loopback in LOOPBACKS {
            for protocol in [RedirectProtocol::Udp, RedirectProtocol::Tcp] {
                let to = RuleCondition::To(loopback.into());
                let conditions =
                    [to, RuleCondition::Protocol(protocol), RuleCondition::Port(DNS.into())];
                self.add(
                    "denizen/redirect-dns-to-port-",
                    port,
                    conditions,
                    RuleAction::Redirect(port),
                );
            }
        }
    }

    /// A connection of the proxy to the pod is redirected to the proxy's inbound port, but only
    /// once: what the proxy then sends to the pod's own server is recognised by its source
    /// ([`PASSED_ON`]).
    fn hairpin(&mut self, redirect: &Redirect, port: NonZeroU16) {
        // Ports that are not redirected outbound are not redirected here either.
        self.skip_ports(&redirect.skip_outbound_ports);
        for range in &redirect.always_skip_inbound_ports {
            let conditions = [over_loopback(), TCP, RuleCondition::Port(*range)];
            self.skip("denizen/ignore-hairpin-port-", range, conditions);
        }
        let proxy = match (redirect.proxy_uid, redirect.proxy_gid) {
            (Some(uid), _) => RuleCondition::User(uid),
            (None, Some(gid)) => RuleCondition::Group(gid),
            (None, None) => return,
        };
        for (passed_on, loopback) in PASSED_ON.into_iter().zip(LOOPBACKS) {
            let from = RuleCondition::From(passed_on.into());
            self.skip("denizen/ignore-passed-on", "", [over_loopback(), from]);
            let conditions = [over_loopback(), RuleCondition::NotTo(loopback), TCP, proxy.clone()];
            let why = "denizen/redirect-hairpin-to-proxy-port";
            self.add(why, "", conditions, RuleAction::Redirect(port));
        }
    }
}

fn over_loopback() -> RuleCondition {
    RuleCondition::Leaves(LOOPBACK.to_owned())
}
