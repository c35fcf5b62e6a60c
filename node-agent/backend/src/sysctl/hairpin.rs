//! Hairpin mode of bridge ports: whether the bridge sends a frame back to the port that it came
//! from.
//!
//! A pod that reaches itself through a service needs it: with bridge netfilter, the rules translate
//! the pod's frame on the bridge, and the frame then is for the port that it came from. kubelet set
//! the flag once (`--hairpin-mode=hairpin-veth`); the CNI plugin `bridge` does not by default.
//!
//! A promiscuous bridge (kubelet's `--hairpin-mode=promiscuous-bridge`) is no substitute on current
//! kernels: the copy of the frame that the node gets has no effect.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use clap::ValueEnum;
use denizen_netlink::{Attributes, Message, NetlinkError, Socket, Writer};
use nix::errno::Errno;
use nix::libc;
use tracing::{debug, warn};

use super::CheckScope;
use denizen_model::LocalPod;
use denizen_text::describe;

/// Length of `struct ifinfomsg`, and where its index is.
const IFINFOMSG: usize = 16;
const INDEX: Range<usize> = 4..8;

/// From `linux/if_link.h` and `linux/rtnetlink.h`; libc lacks them.
const IFLA_INFO_SLAVE_KIND: u16 = 4;
const IFLA_INFO_SLAVE_DATA: u16 = 5;
const IFLA_BRPORT_MODE: u16 = 4;
const RTEXT_FILTER_SKIP_STATS: u32 = 8;

/// The most pods that a warning names.
const NAMED: usize = 5;

/// Requests in one datagram. The kernel answers them all before they can be read: each takes about
/// 2 KiB of the receive buffer.
const REQUESTS: usize = 64;

/// `--hairpin-mode`: what is done about bridge ports of recorded pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum HairpinMode {
    /// Turn it on.
    HairpinVeth,
    /// Leave it as it is.
    None,
}

/// Keeps hairpin mode on for pods' bridge ports, and remembers where it is off.
#[derive(Debug)]
pub struct HairpinPorts {
    mode: HairpinMode,
    ports: BTreeSet<Arc<str>>,
    off: BTreeMap<Arc<str>, String>,
}

impl HairpinPorts {
    /// No port needs it yet.
    pub fn new(mode: HairpinMode) -> Self {
        Self { mode, ports: BTreeSet::new(), off: BTreeMap::new() }
    }

    /// Turns hairpin mode on, if that is wanted, for these bridge ports of this thread's network
    /// namespace. With [`CheckScope::Changed`], only new ports are checked.
    pub fn keep(&mut self, ports: BTreeSet<Arc<str>>, check: CheckScope) {
        let is_due = |port: &Arc<str>| check == CheckScope::All || !self.ports.contains(port);
        let (due, known): (Vec<_>, Vec<_>) = ports.iter().cloned().partition(is_due);
        let known = known.into_iter().filter_map(|port| self.off.get_key_value(&port));
        let mut off: BTreeMap<_, _> =
            known.map(|(port, why)| (port.clone(), why.clone())).collect();
        off.extend(turn_on(&due, self.mode));
        for (port, why) in off.iter().filter(|(port, why)| self.off.get(*port) != Some(*why)) {
            warn!(%port, why, "hairpin mode of a pod's bridge port is off");
        }
        (self.ports, self.off) = (ports, off);
    }

    /// The ports where it is off, and why.
    pub fn off(&self) -> &BTreeMap<Arc<str>, String> {
        &self.off
    }

    /// For `status`: which of these pods do not reach themselves, one text for each reason.
    pub fn warnings(&self, pods: &[LocalPod]) -> Vec<String> {
        let mut by_reason: BTreeMap<&str, Vec<&LocalPod>> = BTreeMap::new();
        for pod in pods {
            let why = pod.port.as_ref().and_then(|port| self.off.get(port));
            why.into_iter().for_each(|why| by_reason.entry(why).or_default().push(pod));
        }
        by_reason.into_iter().map(|(why, pods)| warning(why, &pods)).collect()
    }
}

fn warning(why: &str, pods: &[&LocalPod]) -> String {
    let named = pods.iter().take(NAMED).map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let (who, ports) = match pods.len() {
        1 => (format!("pod {named} cannot reach itself"), "its bridge port"),
        number => {
            let more = match number.saturating_sub(NAMED) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            (format!("pods {named}{more} cannot reach themselves"), "their bridge ports")
        }
    };
    format!("{who} through a service: hairpin mode of {ports} is off ({why})")
}

/// Turns hairpin mode on, unless `mode` is `none`. Returns the ports where it is off, and why.
fn turn_on(ports: &[Arc<str>], mode: HairpinMode) -> Vec<(Arc<str>, String)> {
    if ports.is_empty() {
        return Vec::new();
    }
    let all = |ports: &[Arc<str>], error: &NetlinkError| {
        ports.iter().map(|port| (port.clone(), describe(error))).collect()
    };
    match Socket::route() {
        Ok(mut socket) => {
            let some = |some: &[Arc<str>]| {
                turn_on_some(&mut socket, some, mode).unwrap_or_else(|error| all(some, &error))
            };
            ports.chunks(REQUESTS).flat_map(some).collect()
        }
        Err(error) => all(ports, &error),
    }
}

/// As [`turn_on`], for as many ports as fit in one datagram of requests.
fn turn_on_some(
    socket: &mut Socket,
    ports: &[Arc<str>],
    mode: HairpinMode,
) -> Result<Vec<(Arc<str>, String)>, NetlinkError> {
    let mut lacking = Vec::new();
    let mut off = Vec::new();
    for (port, found) in ports.iter().zip(headers_of_lacking(socket, ports)?) {
        match (found, mode) {
            (Ok(None), _) => {}
            // The pod is gone, and its record will soon be.
            (Err(error), _) if error.errno() == Some(Errno::ENODEV) => {}
            (Err(error), _) => off.push((port.clone(), describe(&error))),
            (Ok(Some(_)), HairpinMode::None) => {
                off.push((port.clone(), "--hairpin-mode is none".to_owned()));
            }
            (Ok(Some(header)), HairpinMode::HairpinVeth) => lacking.push((port, header)),
        }
    }
    if lacking.is_empty() {
        return Ok(off);
    }
    let first = socket.sequences(lacking.len() as u32);
    let last = first.wrapping_add(lacking.len() as u32 - 1);
    let mut requests = Writer::default();
    for (index, (port, header)) in (0..).zip(&lacking) {
        let sequence = first.wrapping_add(index);
        let flags = if sequence == last { libc::NLM_F_ACK as u16 } else { 0 };
        write_turn_on(&mut requests, flags, sequence, header);
        debug!(%port, "hairpin mode of a bridge port is turned on");
    }
    socket.send(requests.bytes())?;
    for refusal in socket.refusals(last)? {
        if let Some((port, _)) = lacking.get(refusal.sequence.wrapping_sub(first) as usize) {
            off.push(((*port).clone(), describe(&NetlinkError::Refused(refusal))));
        }
    }
    Ok(off)
}

/// The header of a request about a link, if that is a bridge's port and has hairpin mode off.
type FoundPort = Result<Option<[u8; IFINFOMSG]>, NetlinkError>;

/// Reads these links.
fn headers_of_lacking(
    socket: &mut Socket,
    links: &[Arc<str>],
) -> Result<Vec<FoundPort>, NetlinkError> {
    let first = socket.sequences(links.len() as u32);
    let mut requests = Writer::default();
    for (index, link) in (0..).zip(links) {
        let (sequence, header) = (first.wrapping_add(index), &[0; IFINFOMSG]);
        let open = requests.begin_message_with(libc::RTM_GETLINK, 0, sequence, header);
        requests.put_str(libc::IFLA_IFNAME, link);
        requests.put(libc::IFLA_EXT_MASK, &RTEXT_FILTER_SKIP_STATS.to_ne_bytes());
        requests.end_message(open);
    }
    let mut found = Vec::new();
    found.resize_with(links.len(), || Err(NetlinkError::Unacknowledged));
    socket.ask_all(requests.bytes(), |sequence, answer| {
        if let Some(found) = found.get_mut(sequence.wrapping_sub(first) as usize) {
            *found = answer.map(|link| header_if_lacking(&link)).map_err(NetlinkError::Refused);
        }
    })?;
    Ok(found)
}

fn header_if_lacking(link: &Message<'_>) -> Option<[u8; IFINFOMSG]> {
    let info: Attributes<'_> = link.attributes_after(IFINFOMSG).nested(libc::IFLA_LINKINFO);
    if info.find_str(IFLA_INFO_SLAVE_KIND) != Some("bridge") {
        return None;
    }
    let mode = *info.nested(IFLA_INFO_SLAVE_DATA).find(IFLA_BRPORT_MODE)?.first()?;
    let mut header = [0; IFINFOMSG];
    header[INDEX].copy_from_slice(link.payload.get(INDEX)?);
    (mode == 0).then_some(header)
}

/// Writes the request that turns it on.
fn write_turn_on(requests: &mut Writer, flags: u16, sequence: u32, header: &[u8; IFINFOMSG]) {
    let open = requests.begin_message_with(libc::RTM_NEWLINK, flags, sequence, header);
    let info = requests.begin(libc::IFLA_LINKINFO);
    requests.put_str(IFLA_INFO_SLAVE_KIND, "bridge");
    let data = requests.begin(IFLA_INFO_SLAVE_DATA);
    requests.put(IFLA_BRPORT_MODE, &[1]);
    requests.end(data);
    requests.end(info);
    requests.end_message(open);
}
