//! Hairpin mode of bridge ports: whether the bridge sends back to a port what came from it.
//!
//! A pod that a service hands to itself needs it. With bridge netfilter the rules translate its
//! frame on the bridge, which then is for the port that it came from. kubelet set the flag once
//! (`--hairpin-mode=hairpin-veth`); the CNI plugin `bridge` does not by default.
//!
//! A promiscuous bridge (kubelet's `--hairpin-mode=promiscuous-bridge`) is no substitute on current
//! kernels: the copy of the frame that the node gets has no effect.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

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

/// From `linux/if_link.h`; libc lacks it.
const IFLA_INFO_SLAVE_KIND: u16 = 4;
const IFLA_INFO_SLAVE_DATA: u16 = 5;
const IFLA_BRPORT_MODE: u16 = 4;

/// The most pods that a warning names.
const NAMED: usize = 5;

/// Time limit for an answer of the kernel, which normally comes at once.
const ANSWER: Duration = Duration::from_secs(2);

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

    /// Turns it on, if that is wanted, for these bridge ports of this thread's network namespace.
    /// With [`CheckScope::Changed`], only new ports are checked.
    pub fn keep(&mut self, ports: BTreeSet<Arc<str>>, check: CheckScope) {
        let mut socket = None;
        let mut off = BTreeMap::new();
        for port in &ports {
            let former = self.off.get(port);
            let why = match check == CheckScope::All || !self.ports.contains(port) {
                true => self.why_off(socket.get_or_insert_with(open), port),
                false => former.cloned(),
            };
            let Some(why) = why else { continue };
            if former != Some(&why) {
                warn!(%port, why, "hairpin mode of a pod's bridge port is off");
            }
            off.insert(port.clone(), why);
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

    /// Turns it on, unless the mode is `none`. Returns why it is off; `None` if it is on.
    fn why_off(&self, socket: &mut Result<Socket, NetlinkError>, port: &str) -> Option<String> {
        let socket = match socket {
            Ok(socket) => socket,
            Err(error) => return Some(describe(error)),
        };
        let kept = lacking(socket, port).and_then(|header| match (header, self.mode) {
            (None, _) => Ok(None),
            (Some(_), HairpinMode::None) => Ok(Some("--hairpin-mode is none".to_owned())),
            (Some(header), HairpinMode::HairpinVeth) => {
                turn_on(socket, &header)?;
                debug!(%port, "hairpin mode of a bridge port is on");
                Ok(None)
            }
        });
        kept.unwrap_or_else(|error| Some(describe(&error)))
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

fn open() -> Result<Socket, NetlinkError> {
    let socket = Socket::route()?;
    socket.set_timeout(ANSWER)?;
    Ok(socket)
}

/// The header of a request about this port, if it is a bridge's and has hairpin mode off.
fn lacking(socket: &mut Socket, port: &str) -> Result<Option<[u8; IFINFOMSG]>, NetlinkError> {
    let sequence = socket.sequences(1);
    let mut request = Writer::default();
    let open = request.begin_message_with(libc::RTM_GETLINK, 0, sequence, &[0; IFINFOMSG]);
    request.put_str(libc::IFLA_IFNAME, port);
    request.end_message(open);
    match socket.ask(request.bytes(), sequence, |link| read(&link)) {
        // The pod is gone, and its record will soon be.
        Err(error) if error.errno() == Some(Errno::ENODEV) => Ok(None),
        found => found,
    }
}

fn read(link: &Message<'_>) -> Option<[u8; IFINFOMSG]> {
    let info: Attributes<'_> = link.attributes_after(IFINFOMSG).nested(libc::IFLA_LINKINFO);
    if info.find_str(IFLA_INFO_SLAVE_KIND) != Some("bridge") {
        return None;
    }
    let mode = *info.nested(IFLA_INFO_SLAVE_DATA).find(IFLA_BRPORT_MODE)?.first()?;
    let mut header = [0; IFINFOMSG];
    header[INDEX].copy_from_slice(link.payload.get(INDEX)?);
    (mode == 0).then_some(header)
}

fn turn_on(socket: &mut Socket, header: &[u8; IFINFOMSG]) -> Result<(), NetlinkError> {
    let sequence = socket.sequences(1);
    let mut request = Writer::default();
    let flags = libc::NLM_F_ACK as u16;
    let open = request.begin_message_with(libc::RTM_NEWLINK, flags, sequence, header);
    let info = request.begin(libc::IFLA_LINKINFO);
    request.put_str(IFLA_INFO_SLAVE_KIND, "bridge");
    let data = request.begin(IFLA_INFO_SLAVE_DATA);
    request.put(IFLA_BRPORT_MODE, &[1]);
    request.end(data);
    request.end(info);
    request.end_message(open);
    socket.send(request.bytes())?;
    socket.outcome(sequence)
}
