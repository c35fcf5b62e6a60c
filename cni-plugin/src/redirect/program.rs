//! The kernel's rules for a [`Redirect`]. Pure.
//!
//! Comments are those of linkerd's own rules where there is one, so that its documentation, and
//! whoever knows it, finds them. What is denizen's alone begins with `denizen/`.

use std::fmt::Display;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use denizen_nft::{
    BaseChain, Chain, Family, Field, Hook, IpVersion, Key, Kind, Rule, Schema, Statement, Verdict,
};
use denizen_state::redirect::{Hairpin, PortRange, Redirect, TABLE};
use ipnetwork::IpNetwork;
use nix::libc;

/// Before `dstnat` (-100), at which the rules of containers inside the pod translate.
const PRIORITY: i32 = -110;

/// After conntrack (-200), which finds packets invalid.
const INVALID_PRIORITY: i32 = -150;

/// The chain that is there only with [`Redirect::drop_invalid`].
pub(super) const INVALID: &str = "invalid";

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
pub(super) fn chains(redirect: &Redirect) -> Vec<Commented> {
    let mut chains = vec![
        inbound(redirect).at(Hook::Prerouting, "inbound", "what arrives for the pod"),
        outbound(redirect).at(Hook::Output, "outbound", "what the pod's processes send"),
    ];
    if redirect.drop_invalid {
        chains.push(invalid());
    }
    chains
}

/// Rules with their comments, in order.
#[derive(Default)]
struct Rules {
    rules: Vec<Rule>,
    comments: Vec<String>,
}

impl Rules {
    /// Adds a rule that counts the first packet of each connection that it matches. One that is
    /// there already matches nothing more: it is not added twice.
    fn add(
        &mut self,
        why: &'static str,
        of: impl Display,
        asks: impl IntoIterator<Item = Statement>,
        does: Statement,
    ) {
        let statements = asks.into_iter().chain([Statement::Counter, does]).collect();
        let rule = Rule { statements, why };
        if !self.rules.contains(&rule) {
            self.rules.push(rule);
            self.comments.push(format!("{why}{of}"));
        }
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
        self.called(BaseChain { kind: Kind::Nat, hook, priority: PRIORITY }, name, why)
    }

    fn called(self, base: BaseChain, name: &str, why: &'static str) -> Commented {
        let base = Some(base);
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

/// Of a connection whose translation conntrack has lost, the answers come from an address that the
/// client does not know: it resets the connection.
fn invalid() -> Commented {
    const INVALID_STATE: u32 = 1;
    let mut rules = Rules::default();
    let is_invalid = Statement::Bits {
        field: Field::ConnectionState,
        mask: INVALID_STATE,
        equal: false,
        value: 0,
    };
    let drop = Statement::Verdict(Verdict::Drop);
    rules.add("denizen/drop-invalid", "", [is_tcp(), is_invalid], drop);
    let base = BaseChain { kind: Kind::Filter, hook: Hook::Prerouting, priority: INVALID_PRIORITY };
    rules.called(base, INVALID, "what conntrack finds invalid")
}

fn outbound(redirect: &Redirect) -> Rules {
    let mut rules = Rules::default();
    if let Some(port) = redirect.dns_port {
        rules.redirect_dns(port.get());
    }
    let Some(port) = redirect.outbound_port else {
        return rules;
    };
    rules.bypass_ipv6(redirect);
    if let (Hairpin::Inbound, Some(inbound)) = (redirect.hairpin, redirect.inbound_port) {
        rules.hairpin(redirect, inbound.get());
    }
    // Nothing that the proxy sends may come back to it.
    if let Some(uid) = redirect.proxy_uid {
        let proxy = sent_by(Field::SocketUser, uid);
        rules.skip("proxy-init/ignore-proxy-user-id", "", [proxy]);
    }
    if let Some(gid) = redirect.proxy_gid {
        let proxy = sent_by(Field::SocketGroup, gid);
        rules.skip("proxy-init/ignore-proxy-group-id", "", [proxy]);
    }
    match redirect.hairpin {
        // What the pod sends to itself by any of its addresses.
        Hairpin::Direct | Hairpin::Inbound => {
            rules.skip("proxy-init/ignore-loopback", "", [over_loopback()]);
        }
        Hairpin::Outbound => {
            for version in IpVersion::BOTH {
                let to_loopback = Statement::Equals(Field::Destination(version), loopback(version));
                rules.skip("denizen/ignore-loopback-address", "", [to_loopback]);
            }
        }
    }
    for uid in &redirect.skip_outbound_uids {
        let user = sent_by(Field::SocketUser, *uid);
        rules.skip("denizen/ignore-user-id-", uid, [user]);
    }
    if let Some(mark) = redirect.skip_mark {
        let (mask, value) = (mark.mask(), mark.value());
        let marked = Statement::Bits { field: Field::Mark, mask, equal: true, value };
        rules.skip("denizen/ignore-mark-", mark, [marked]);
    }
    rules.skip_ports(&redirect.skip_outbound_ports);
    rules.skip_cidrs(&redirect.skip_outbound_cidrs, Field::Destination);
    for interface in &redirect.interfaces {
        rules.redirect_outbound(redirect, interface, port.get());
    }
    if redirect.hairpin == Hairpin::Outbound {
        rules.redirect_outbound(redirect, "lo", port.get());
    }
    rules
}

impl Rules {
    /// What the pod sends at this interface.
    fn redirect_outbound(&mut self, redirect: &Redirect, interface: &str, port: u16) {
        let leaves = Statement::Equals(Field::OutputInterface, Key::EMPTY.interface(interface));
        let to = Statement::Redirect(port);
        for cidr in &redirect.only_outbound_cidrs {
            let field = Field::Destination(IpVersion::of(cidr.ip()));
            let within = Statement::Within(field, cidr.network(), cidr.prefix());
            let of = format!("{cidr}-to-proxy-port");
            let asks = [leaves.clone(), is_tcp(), within];
            self.add("denizen/redirect-subnet-", of, asks, to.clone());
        }
        for range in &redirect.only_outbound_ports {
            let asks = [leaves.clone()].into_iter().chain(to_ports(*range));
            let of = format!("{range}-to-proxy-port");
            self.add("proxy-init/redirect-port-", of, asks, to.clone());
        }
        if redirect.only_outbound_cidrs.is_empty() && redirect.only_outbound_ports.is_empty() {
            let why = "proxy-init/redirect-all-outgoing-to-proxy-port";
            self.add(why, "", [leaves, is_tcp()], to);
        }
    }

    /// Resolvers ask at the loopback, where the proxy does not listen at port 53.
    fn redirect_dns(&mut self, port: u16) {
        const DNS: u16 = 53;
        for version in IpVersion::BOTH {
            for protocol in [libc::IPPROTO_UDP, libc::IPPROTO_TCP] {
                let asks = [
                    Statement::Equals(Field::Destination(version), loopback(version)),
                    Statement::Equals(Field::Protocol, Key::EMPTY.byte(protocol as u8)),
                    Statement::Equals(Field::DestinationPort, Key::EMPTY.port(DNS)),
                ];
                self.add("denizen/redirect-dns-to-port-", port, asks, Statement::Redirect(port));
            }
        }
    }

    /// What the proxy sends to the pod comes back to its port for what arrives, once: what it then
    /// sends to the pod's own server has a source that tells it.
    fn hairpin(&mut self, redirect: &Redirect, port: u16) {
        // Whatever is not redirected outbound is not redirected here either.
        self.skip_ports(&redirect.skip_outbound_ports);
        for range in &redirect.always_skip_inbound_ports {
            let asks = [over_loopback()].into_iter().chain(to_ports(*range));
            self.skip("denizen/ignore-hairpin-port-", range, asks);
        }
        let proxy = match (redirect.proxy_uid, redirect.proxy_gid) {
            (Some(uid), _) => sent_by(Field::SocketUser, uid),
            (None, Some(gid)) => sent_by(Field::SocketGroup, gid),
            (None, None) => return,
        };
        for (version, passed_on) in PASSED_ON {
            let from = Statement::Equals(Field::Source(version), Key::EMPTY.address(passed_on));
            self.skip("denizen/ignore-passed-on", "", [over_loopback(), from]);
            let to_pod = Statement::NotEquals(Field::Destination(version), loopback(version));
            let asks = [over_loopback(), to_pod, is_tcp(), proxy.clone()];
            let why = "denizen/redirect-hairpin-to-proxy-port";
            self.add(why, "", asks, Statement::Redirect(port));
        }
    }
}

/// From where Envoy connects to the pod's server when it passes on what arrived: 127.0.0.6 and ::6.
const PASSED_ON: [(IpVersion, IpAddr); 2] = [
    (IpVersion::V4, IpAddr::V4(Ipv4Addr::new(127, 0, 0, 6))),
    (IpVersion::V6, IpAddr::V6(Ipv6Addr::new(0, 0, 0, 0, 0, 0, 0, 6))),
];

fn sent_by(field: Field, id: u32) -> Statement {
    Statement::Equals(field, Key::EMPTY.number(id))
}

fn over_loopback() -> Statement {
    Statement::Equals(Field::OutputInterface, Key::EMPTY.interface("lo"))
}

fn loopback(version: IpVersion) -> Key {
    Key::EMPTY.address(match version {
        IpVersion::V4 => Ipv4Addr::LOCALHOST.into(),
        IpVersion::V6 => Ipv6Addr::LOCALHOST.into(),
    })
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
