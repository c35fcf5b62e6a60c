//! The kernel's rules for a [`Redirect`]. Pure.
//!
//! Comments are those of linkerd's own rules where there is one, so that its documentation, and
//! whoever knows it, finds them. What is denizen's alone begins with `denizen/`.

use std::fmt::Display;

use denizen_nft::{
    BaseChain, Chain, Family, Field, Hook, IpVersion, Key, Kind, Rule, Schema, Statement, Verdict,
};
use denizen_state::redirect::{PortRange, Redirect, TABLE};
use ipnetwork::IpNetwork;
use nix::libc;

/// Before `dstnat` (-100), at which the rules of containers inside the pod translate.
const PRIORITY: i32 = -110;

/// A chain, and the comments of its rules.
pub(super) struct Commented {
    pub(super) chain: Chain,
    pub(super) comments: Vec<String>,
}

/// The table without its chains.
pub(super) fn schema() -> Schema {
    let comment = "the pod's TCP goes to its proxy; by denizen's CNI plugin";
    Schema { family: Family::Inet, name: TABLE, comment, sets: Vec::new() }
}

/// The table's chains.
pub(super) fn chains(redirect: &Redirect) -> [Commented; 2] {
    [
        inbound(redirect).at(Hook::Prerouting, "inbound", "what arrives for the pod"),
        outbound(redirect).at(Hook::Output, "outbound", "what the pod's processes send"),
    ]
}

/// Rules with their comments, in order.
#[derive(Default)]
struct Rules {
    rules: Vec<Rule>,
    comments: Vec<String>,
}

impl Rules {
    /// Adds a rule that counts the first packet of each connection that it matches.
    fn add(
        &mut self,
        why: &'static str,
        of: impl Display,
        asks: impl IntoIterator<Item = Statement>,
        does: Statement,
    ) {
        let statements = asks.into_iter().chain([Statement::Counter, does]).collect();
        self.rules.push(Rule { statements, why });
        self.comments.push(format!("{why}{of}"));
    }

    /// Leaves alone what it matches.
    fn skip(
        &mut self,
        why: &'static str,
        of: impl Display,
        asks: impl IntoIterator<Item = Statement>,
    ) {
        self.add(why, of, asks, Statement::Verdict(Verdict::Return));
    }

    fn skip_ports(&mut self, ports: &[PortRange]) {
        for range in ports {
            self.skip("proxy-init/ignore-port-", range, to_ports(*range));
        }
    }

    fn skip_cidrs(&mut self, cidrs: &[IpNetwork], field: fn(IpVersion) -> Field) {
        for cidr in cidrs {
            let field = field(IpVersion::of(cidr.ip()));
            let within = Statement::Within(field, cidr.network(), cidr.prefix());
            self.skip("proxy-init/ignore-subnet-", cidr, [within]);
        }
    }

    /// Not asked for IPv6: its packets pass the proxy by, and are counted.
    fn bypass_ipv6(&mut self, redirect: &Redirect) {
        if redirect.bypass_ipv6 {
            self.skip("denizen/ignore-ipv6", "", [Statement::is_of(IpVersion::V6)]);
        }
    }

    fn at(self, hook: Hook, name: &str, why: &'static str) -> Commented {
        let base = Some(BaseChain { kind: Kind::Nat, hook, priority: PRIORITY });
        let chain = Chain { name: name.into(), base, why, rules: self.rules };
        Commented { chain, comments: self.comments }
    }
}

fn inbound(redirect: &Redirect) -> Rules {
    let mut rules = Rules::default();
    let Some(port) = redirect.inbound_port else {
        return rules;
    };
    rules.bypass_ipv6(redirect);
    rules.skip_ports(&redirect.always_skip_inbound_ports);
    rules.skip_ports(&redirect.skip_inbound_ports);
    rules.skip_cidrs(&redirect.skip_inbound_cidrs, Field::Source);
    // At the pod's own interfaces only: what containers inside the pod send is not for the pod.
    for interface in &redirect.interfaces {
        let enters = Statement::Equals(Field::InputInterface, Key::EMPTY.interface(interface));
        let to = Statement::Redirect(port.get());
        for range in &redirect.only_inbound_ports {
            let asks = [enters.clone()].into_iter().chain(to_ports(*range));
            let of = format!("{range}-to-proxy-port");
            rules.add("proxy-init/redirect-port-", of, asks, to.clone());
        }
        if redirect.only_inbound_ports.is_empty() {
            let why = "proxy-init/redirect-all-incoming-to-proxy-port";
            rules.add(why, "", [enters, is_tcp()], to);
        }
    }
    rules
}

fn outbound(redirect: &Redirect) -> Rules {
    let mut rules = Rules::default();
    let Some(port) = redirect.outbound_port else {
        return rules;
    };
    let sent_by = |field, id| [Statement::Equals(field, Key::EMPTY.number(id))];
    // First, since nothing that the proxy sends may come back to it.
    if let Some(uid) = redirect.proxy_uid {
        rules.skip("proxy-init/ignore-proxy-user-id", "", sent_by(Field::SocketUser, uid));
    }
    if let Some(gid) = redirect.proxy_gid {
        rules.skip("proxy-init/ignore-proxy-group-id", "", sent_by(Field::SocketGroup, gid));
    }
    // What the pod sends to itself by any of its addresses.
    let loopback = Statement::Equals(Field::OutputInterface, Key::EMPTY.interface("lo"));
    rules.skip("proxy-init/ignore-loopback", "", [loopback]);
    rules.bypass_ipv6(redirect);
    for uid in &redirect.skip_outbound_uids {
        rules.skip("denizen/ignore-user-id-", uid, sent_by(Field::SocketUser, *uid));
    }
    rules.skip_ports(&redirect.skip_outbound_ports);
    rules.skip_cidrs(&redirect.skip_outbound_cidrs, Field::Destination);
    for interface in &redirect.interfaces {
        let leaves = Statement::Equals(Field::OutputInterface, Key::EMPTY.interface(interface));
        let (why, to) =
            ("proxy-init/redirect-all-outgoing-to-proxy-port", Statement::Redirect(port.get()));
        rules.add(why, "", [leaves, is_tcp()], to);
    }
    rules
}

fn is_tcp() -> Statement {
    Statement::Equals(Field::Protocol, Key::EMPTY.byte(libc::IPPROTO_TCP as u8))
}

fn to_ports(range: PortRange) -> [Statement; 2] {
    let (first, last) = range.bounds();
    let (first, last) = (Key::EMPTY.port(first), Key::EMPTY.port(last));
    let port = match first == last {
        true => Statement::Equals(Field::DestinationPort, first),
        false => Statement::Between(Field::DestinationPort, first, last),
    };
    [is_tcp(), port]
}
