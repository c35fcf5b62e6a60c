//! BIRD's configuration. The same facts give the same text: BIRD is reconfigured only when the text
//! differs.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use ipnetwork::IpNetwork;
use sha2::{Digest, Sha256};

use super::config::{BgpPeer, BirdConfig};
use crate::routes::METRIC;
use denizen_model::{Family, family_of};
use denizen_plan::AnnouncementClass;
use denizen_route::PROTOCOL;

/// The longest password of a TCP connection (`TCP_MD5SIG_MAXKEYLEN`, linux/tcp.h), in bytes.
const LONGEST_PASSWORD: usize = 80;

/// After an error, BIRD neither opens nor accepts a session with that peer for some time, in
/// seconds: the first wait, and the longest one, since each error within 5 minutes doubles it. An
/// expired hold timer is such an error, so BIRD's default of 60 would keep a node that lost power
/// out for a minute after it is back. 5 is what BIRD waits in any case before it connects (`connect
/// delay time`). A peer that fails repeatedly is tried once a minute, not every 5 minutes (BIRD's
/// default of 300), so that its routes are back soon after it is repaired.
const ERROR_WAIT: &str = "5, 60";

/// Prefixes that are never routed, beside this node's own.
const SPECIAL: [&str; 2] =
    ["0.0.0.0/8+, 127.0.0.0/8+, 169.254.0.0/16+, 224.0.0.0/3+", "::/8+, fe80::/10+, ff00::/8+"];

/// Facts about the node that the configuration depends on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RenderInputs {
    /// The kernel's table of announcements.
    pub table: u32,
    pub node: Arc<str>,
    /// The node's addresses that its links have, the primary one of each family first.
    pub addresses: Vec<IpAddr>,
    /// Routes within these are accepted from nobody: pods and networks of this node, and services.
    pub protected: BTreeSet<IpNetwork>,
    /// The nodes of the mesh, by address, each with the podCIDRs that are accepted from it.
    pub neighbours: BTreeMap<IpAddr, BTreeSet<IpNetwork>>,
}

/// The configuration, and what could not be rendered.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RenderedConfig {
    pub text: String,
    /// Why sessions are missing.
    pub problems: Vec<String>,
}

/// Checks a password as it is in its file: BIRD's strings have no escapes. The error says why it
/// cannot be used.
pub fn password(text: &str) -> Result<&str, String> {
    let text = text.trim_end_matches(['\n', '\r']);
    if text.is_empty() || text.len() > LONGEST_PASSWORD {
        return Err(format!("a password has 1 to {LONGEST_PASSWORD} bytes"));
    }
    match text.contains(|c: char| c == '"' || c.is_control()) {
        true => Err("BIRD takes no password with quotes or control characters".to_owned()),
        false => Ok(text),
    }
}

/// The configuration for sessions with these peers, each with its password.
pub fn render(
    config: &BirdConfig,
    peers: &[(&BgpPeer, Option<String>)],
    inputs: &RenderInputs,
) -> RenderedConfig {
    let mut rendered = RenderedConfig { text: base(config, inputs), problems: Vec::new() };
    if peers.iter().any(|(peer, _)| peer.bfd) {
        rendered.text += "protocol bfd {}\n";
    }
    for (peer, password) in peers {
        match local(peer, inputs) {
            Ok(local) => rendered.text += &router(config, peer, local, password.as_deref()),
            Err(problem) => rendered.problems.push(problem),
        }
    }
    let is_peer = |address: &IpAddr| peers.iter().any(|(peer, _)| peer.address.ip() == *address);
    for (address, ranges) in inputs.neighbours.iter().filter(|(address, _)| !is_peer(address)) {
        match inputs.of_family(family_of(*address)) {
            Some(local) => rendered.text += &neighbour(config, *address, local, ranges),
            None => rendered.problems.push(format!(
                "no BGP session with node {address}: this node has no address of its family"
            )),
        }
    }
    rendered
}

impl RenderInputs {
    fn of_family(&self, family: Family) -> Option<IpAddr> {
        self.addresses.iter().copied().find(|address| family_of(*address) == family)
    }

    /// BGP's identifier: an IPv4 address or, if there is none, a hash that is unique in practice.
    fn router_id(&self) -> Ipv4Addr {
        match self.of_family(Family::V4) {
            Some(IpAddr::V4(address)) => address,
            Some(IpAddr::V6(_)) | None => {
                let hash = Sha256::digest(self.node.as_bytes());
                // An identifier must not be 0.
                Ipv4Addr::new(hash[0] | 1, hash[1], hash[2], hash[3])
            }
        }
    }
}

/// This node's address in a session; `None` if BIRD uses the link's.
fn local(peer: &BgpPeer, inputs: &RenderInputs) -> Result<Option<IpAddr>, String> {
    let own = || inputs.of_family(peer.address.family());
    match (peer.local_address, peer.multihop) {
        (Some(address), _) => Ok(Some(address)),
        (None, 0) => Ok(None),
        (None, _) => own().map(Some).ok_or_else(|| {
            let BgpPeer { name, address, .. } = peer;
            format!(
                "no BGP session with {name} ({address}): this node has no address of its family"
            )
        }),
    }
}

/// Everything but the sessions.
fn base(config: &BirdConfig, inputs: &RenderInputs) -> String {
    let router_id = config.router_id.unwrap_or_else(|| inputs.router_id());
    let mut text = format!(
        "# Written by denizen-agent (--routing-mode bird), which replaces it.\n\
         log stderr all;\n\
         timeformat protocol iso long;\n\
         router id {router_id};\n\
         # A dead peer must not keep the others waiting for long.\n\
         graceful restart wait 30;\n\
         protocol device {{ scan time 10; }}\n\
         # The table of announcements: {PROTOCOL} is the agent's protocol. By their metric, those of a\n\
         # node that drains are preferred less (GRACEFUL_SHUTDOWN, RFC 8326). Of two nodes that have\n\
         # one pod's address, that one is preferred where it is new, and then the one that has it\n\
         # since later: krt_window is the second when it was recorded.\n\
         function announced() {{\n  \
           if proto != \"announced4\" && proto != \"announced6\" then return false;\n  \
           if krt_metric > 200 then {{ bgp_community.add((65535,0)); bgp_local_pref = 0; }}\n  \
           if krt_metric = {fresh} then {{ bgp_local_pref = 200; bgp_origin = ORIGIN_IGP; }}\n  \
           if krt_metric = {pod} then bgp_origin = ORIGIN_INCOMPLETE;\n  \
           if krt_metric = {fresh} || krt_metric = {pod} then {{\n    \
             bgp_med = 4294967295;\n    \
             if defined(krt_window) then bgp_med = bgp_med - krt_window;\n  }}\n  \
           return true;\n}}\n\
         function taken() {{\n  \
           if (65535,0) ~ bgp_community then bgp_local_pref = 0;\n  \
           return true;\n}}\n",
        fresh = AnnouncementClass::FreshPod.metric(false),
        pod = AnnouncementClass::Pod.metric(false),
    );
    for (family, special) in [Family::V4, Family::V6].into_iter().zip(SPECIAL) {
        text += &tables(family, special, inputs);
    }
    text
}

/// What is learned from the kernel and exported to it, in one family.
fn tables(family: Family, special: &str, inputs: &RenderInputs) -> String {
    let n = number(family);
    let own = inputs.protected.iter().filter(|range| family_of(range.ip()) == family);
    let own: String = own.map(|range| format!(", {}+", prefix(*range))).collect();
    let source = inputs.of_family(family).map(|ip| format!(" krt_prefsrc = {ip};"));
    format!(
        "ipv{n} table denizen{n};\n\
         # What is this node's own, or a service's, is taken of nobody.\n\
         define own{n} = [ {special}{own} ];\n\
         protocol kernel announced{n} {{\n  \
           kernel table {table}; learn; scan time 10; netlink rx buffer 4194304;\n  \
           ipv{n} {{ table denizen{n}; preference 200; import where krt_source = {PROTOCOL}; \
             export none; }};\n}}\n\
         protocol pipe denizen{n}p {{\n  \
           table master{n}; peer table denizen{n}; import all; export none;\n}}\n\
         # The metric is behind the kernel's own routes. They stay while BIRD restarts.\n\
         protocol kernel learned{n} {{\n  \
           metric {METRIC}; persist; graceful restart; merge paths on; scan time 10;\n  \
           ipv{n} {{ import none; export filter {{\n    \
             if source != RTS_BGP || dest != RTD_UNICAST then reject;{source}\n    \
             accept;\n  }}; }};\n}}\n",
        table = inputs.table,
        source = source.unwrap_or_default(),
    )
}

/// The session with a router.
fn router(
    config: &BirdConfig,
    peer: &BgpPeer,
    local: Option<IpAddr>,
    password: Option<&str>,
) -> String {
    let BgpPeer { name, address, asn, port, multihop, .. } = peer;
    let mut options = match multihop {
        0 => "  direct;\n".to_owned(),
        hops => format!("  multihop {hops};\n"),
    };
    if let Some(interface) = address.interface() {
        let _ = writeln!(options, "  interface \"{interface}\";");
    }
    let restart = if peer.bfd { 0 } else { config.graceful_restart.as_secs() };
    options += &timers(config, restart);
    let switches = [
        (peer.bfd, "  bfd on;\n".to_owned()),
        (peer.ttl_security, "  ttl security on;\n".to_owned()),
        (peer.rr_client, "  rr client;\n".to_owned()),
        (peer.allow_local_as > 0, format!("  allow local as {};\n", peer.allow_local_as)),
    ];
    options.extend(switches.into_iter().filter(|(is_on, _)| *is_on).map(|(_, text)| text));
    if let Some(password) = password {
        let _ = writeln!(options, "  password \"{password}\";");
    }
    let local = local.map(|ip| format!("{ip} ")).unwrap_or_default();
    let channels: String =
        peer.families().into_iter().map(|family| channel(config, peer, family)).collect();
    format!(
        "protocol bgp 'peer:{name}' {{\n  \
           local {local}as {own};\n  neighbor {ip} port {port} as {asn};\n{options}{channels}}}\n",
        own = config.asn,
        ip = address.ip(),
    )
}

/// Which routes of a family are exchanged with a router.
fn channel(config: &BirdConfig, peer: &BgpPeer, family: Family) -> String {
    let n = number(family);
    let (import, export, limit) = (imports(peer, n), exports(config, peer), peer.import_limit);
    // A reflected route keeps its next hop.
    let next_hop = if peer.rr_client { "" } else { " next hop self;" };
    // IPv4 routes by way of an IPv6 neighbour (RFC 8950).
    let extended = if peer.address.family() == family { "" } else { " extended next hop on;" };
    format!(
        "  ipv{n} {{\n    import limit {limit} action block;{next_hop}{extended}\n    \
           import filter {{\n{import}    }};\n    export filter {{\n{export}    }};\n  }};\n",
    )
}

/// How long BIRD waits for a peer, and a peer for BIRD.
fn timers(config: &BirdConfig, restart: u64) -> String {
    let hold = config.hold_time.as_secs();
    let mut text = format!("  hold time {hold};\n  error wait time {ERROR_WAIT};\n");
    match restart {
        0 => text += "  graceful restart off;\n",
        _ => {
            let _ = write!(text, "  graceful restart on;\n  graceful restart time {restart};\n");
        }
    }
    text
}

/// The body of the import filter for a router.
fn imports(peer: &BgpPeer, n: u8) -> String {
    let mut text = String::new();
    if peer.import.default {
        let default = if n == 4 { "0.0.0.0/0" } else { "::/0" };
        let _ = writeln!(text, "      if net = {default} && taken() then accept;");
    }
    if !peer.import.prefixes.is_empty() {
        let within = peer.import.prefixes.iter().map(|range| format!("{}+", prefix(*range)));
        let within = within.collect::<Vec<_>>().join(", ");
        let _ = writeln!(text, "      if net ~ own{n} then reject;");
        let _ = writeln!(text, "      if net ~ [ {within} ] && taken() then accept;");
    }
    text + "      reject;\n"
}

/// The body of the export filter for a router.
fn exports(config: &BirdConfig, peer: &BgpPeer) -> String {
    let mut text = String::new();
    if peer.rr_client {
        text += "      if source = RTS_BGP then accept;\n";
    }
    text += "      if !announced() then reject;\n";
    // A peer in the same autonomous system would take a path with this number for a loop.
    if config.drain_prepend > 0 && peer.asn != config.asn {
        let prepend = format!(" bgp_path.prepend({});", config.asn);
        let prepend = prepend.repeat(config.drain_prepend.into());
        let _ = writeln!(text, "      if krt_metric > 200 then {{{prepend} }}");
    }
    for class in AnnouncementClass::ALL {
        let communities = peer.communities.get(class.as_str()).into_iter().flatten();
        let add: String = communities.map(|community| format!(" {community}")).collect();
        if !add.is_empty() {
            let metrics = metrics(class).map(|metric| format!("krt_metric = {metric}"));
            let _ = writeln!(text, "      if {} then {{{add} }}", metrics.join(" || "));
        }
    }
    text + "      accept;\n"
}

/// The metrics of the announcements that get the communities of a class. A pod that was recorded
/// just now gets those of class `Pod` as well.
fn metrics(class: AnnouncementClass) -> [u32; 2] {
    let metric = class.metric(false);
    match class {
        AnnouncementClass::Pod => [metric, AnnouncementClass::FreshPod.metric(false)],
        AnnouncementClass::PodRange
        | AnnouncementClass::FreshPod
        | AnnouncementClass::ClusterIp
        | AnnouncementClass::ExternalIp
        | AnnouncementClass::LoadBalancerIp => [metric, class.metric(true)],
    }
}

/// The session with a node: exactly its podCIDRs are accepted.
fn neighbour(
    config: &BirdConfig,
    address: IpAddr,
    local: IpAddr,
    ranges: &BTreeSet<IpNetwork>,
) -> String {
    let n = number(family_of(address));
    let exact = ranges.iter().map(|range| prefix(*range)).collect::<Vec<_>>().join(", ");
    format!(
        "protocol bgp 'node:{address}' {{\n  \
           local {local} as {asn};\n  neighbor {address} as {asn};\n  direct;\n{timers}  \
           ipv{n} {{\n    import limit {limit} action block; next hop self;\n    \
           import where net ~ [ {exact} ];\n    export where announced();\n  }};\n}}\n",
        asn = config.asn,
        timers = timers(config, config.graceful_restart.as_secs()),
        limit = ranges.len(),
    )
}

fn number(family: Family) -> u8 {
    match family {
        Family::V4 => 4,
        Family::V6 => 6,
    }
}

/// Without host bits, which are an error for BIRD.
fn prefix(range: IpNetwork) -> String {
    format!("{}/{}", range.network(), range.prefix())
}
