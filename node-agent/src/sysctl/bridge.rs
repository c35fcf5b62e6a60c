//! The switch of one bridge with which frames between its ports pass the nf_tables hooks of the IP
//! families (`nf_call_iptables` and `nf_call_ip6tables`), as the sysctls of the same name do for
//! all bridges of a network namespace.
//!
//! A file in the run directory remembers how a bridge's switches were, so that a later run that
//! does not need them, and `cleanup`, set them back. A reboot resets both.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use denizen_netlink::{Attributes, Message, NetlinkError, Socket, Writer};
use nix::errno::Errno;
use nix::libc;
use thiserror::Error;
use tracing::{info, warn};

use super::former_switches::{Former, FormerSwitches};
use crate::describe::describe;

/// Length of `struct ifinfomsg`, and the offset of its index.
const IFINFOMSG: usize = 16;
const INDEX: usize = 4;

/// `IFLA_BR_NF_CALL_IPTABLES`, `IFLA_BR_NF_CALL_IP6TABLES`, which libc lacks.
const SWITCHES: [u16; 2] = [36, 37];

/// Time limit for an answer of the kernel, which comes at once.
const ANSWER: Duration = Duration::from_secs(2);

/// Where sysctls are if the module is loaded; it adds them to every network namespace.
const MODULE: &str = "net/bridge/bridge-nf-call-iptables";

/// Why frames between ports of a bridge do not pass the hooks.
#[derive(Debug, Error)]
pub enum BridgeError {
    /// The switch has no effect.
    #[error("the kernel module br_netfilter is not loaded")]
    NoModule,
    /// There is no link of that name, or it cannot be read.
    #[error("cannot read it")]
    Read(#[source] NetlinkError),
    /// Another kind of link, or a kernel without CONFIG_BRIDGE_NETFILTER.
    #[error("it is not a bridge, or this kernel has no nf_call_iptables for it")]
    NoSwitch,
    /// The kernel refused.
    #[error("cannot set nf_call_iptables")]
    Write(#[source] NetlinkError),
    /// The kernel took it, and it is not set.
    #[error("nf_call_iptables is not set though the kernel accepted it")]
    NotSet,
}

/// Keeps the switch on for the bridges that need it, and remembers which could not be set.
///
/// It is set even where the sysctls are on too: when somebody turns those off, nothing changes.
#[derive(Debug)]
pub struct BridgeFilter {
    /// The folder of the kernel's settings.
    sysctls: PathBuf,
    former: FormerSwitches,
    wanted: BTreeSet<Arc<str>>,
    problems: BTreeMap<Arc<str>, String>,
}

impl BridgeFilter {
    /// For the settings below the folder `sysctls`; no bridge needs it yet. What the switches were
    /// before is kept in `run_dir`.
    pub fn new(sysctls: &Path, run_dir: &Path) -> Self {
        Self {
            sysctls: sysctls.to_owned(),
            former: FormerSwitches::of(run_dir),
            wanted: BTreeSet::new(),
            problems: BTreeMap::new(),
        }
    }

    /// Turns the switch on for these bridges of this thread's network namespace. Unchanged bridges
    /// that were right at the last check are only checked again if `check` is true: at changes of
    /// links (a changed switch is one) and from time to time.
    pub fn keep(&mut self, wanted: BTreeSet<Arc<str>>, check: bool) {
        if self.wanted == wanted && self.problems.is_empty() && !check {
            return;
        }
        let turned_on = |bridge: &Arc<str>| {
            let error = self.turn_on(bridge).err()?;
            Some((bridge.clone(), describe(&error)))
        };
        let problems: BTreeMap<_, _> = wanted.iter().filter_map(turned_on).collect();
        for (bridge, problem) in &problems {
            if self.problems.get(bridge) != Some(problem) {
                warn!(%bridge, problem, "frames between ports of a bridge pass no rules");
            }
        }
        (self.wanted, self.problems) = (wanted, problems);
    }

    /// The bridges whose frames do not pass the hooks, and why.
    pub fn problems(&self) -> &BTreeMap<Arc<str>, String> {
        &self.problems
    }

    /// Turns the switch on, unless it is, and reads it back.
    fn turn_on(&self, bridge: &str) -> Result<(), BridgeError> {
        if !is_module_loaded(&self.sysctls) {
            return Err(BridgeError::NoModule);
        }
        let mut socket = open()?;
        let (header, switches) = read(&mut socket, bridge)?;
        if switches == [true; 2] {
            return Ok(());
        }
        self.former.remember(bridge, index_in(&header), switches);
        write(&mut socket, &header, [true; 2]).map_err(BridgeError::Write)?;
        info!(%bridge, from = ?switches, "nf_call_iptables and nf_call_ip6tables are on for this bridge");
        match read(&mut socket, bridge)? {
            (_, [true, true]) => Ok(()),
            _ => Err(BridgeError::NotSet),
        }
    }

    /// Sets the switches of every bridge back to what they were before denizen turned them on.
    /// Returns the bridges. One that cannot be set back is logged, and tried again by the next
    /// call.
    pub fn set_back(&self) -> Vec<String> {
        let (mut done, mut left) = (Vec::new(), Vec::new());
        for former in self.former.read() {
            match set_back(&former) {
                Ok(true) => {
                    info!(bridge = former.bridge, to = ?former.switches, "nf_call_iptables and nf_call_ip6tables are set back");
                    done.push(former.bridge);
                }
                Ok(false) => {}
                Err(error) => {
                    let error = describe(&error);
                    warn!(bridge = former.bridge, error, "cannot set nf_call_iptables back");
                    left.push(former);
                }
            }
        }
        self.former.write(&left);
        done
    }
}

/// Whether the module br_netfilter is loaded, by the settings below the folder `sysctls`.
pub fn is_module_loaded(sysctls: &Path) -> bool {
    sysctls.join(MODULE).exists()
}

/// `nf_call_iptables` and `nf_call_ip6tables` of a bridge.
///
/// # Errors
/// [`BridgeError`] if there is no such bridge, or it cannot be read.
pub fn switches(bridge: &str) -> Result<[bool; 2], BridgeError> {
    Ok(read(&mut open()?, bridge)?.1)
}

fn open() -> Result<Socket, BridgeError> {
    let socket = Socket::route().map_err(BridgeError::Read)?;
    socket.set_timeout(ANSWER).map_err(BridgeError::Read)?;
    Ok(socket)
}

/// Returns whether it changed anything: the bridge may be gone, or another one have its name.
fn set_back(former: &Former) -> Result<bool, BridgeError> {
    let mut socket = open()?;
    let (header, switches) = match read(&mut socket, &former.bridge) {
        Err(BridgeError::Read(error)) if error.errno() == Some(Errno::ENODEV) => return Ok(false),
        found => found?,
    };
    if index_in(&header) != former.index || switches == former.switches {
        return Ok(false);
    }
    write(&mut socket, &header, former.switches).map_err(BridgeError::Write)?;
    Ok(true)
}

fn index_in(header: &[u8; IFINFOMSG]) -> u32 {
    let index = header[INDEX..].first_chunk().expect("4 bytes begin there");
    u32::from_ne_bytes(*index)
}

/// The header of a request about a bridge, and its switches.
fn read(socket: &mut Socket, bridge: &str) -> Result<([u8; IFINFOMSG], [bool; 2]), BridgeError> {
    let sequence = socket.sequences(1);
    let mut request = Writer::default();
    let open = request.begin_message_with(libc::RTM_GETLINK, 0, sequence, &[0; IFINFOMSG]);
    request.put_str(libc::IFLA_IFNAME, bridge);
    request.end_message(open);
    let found = socket.ask(request.bytes(), sequence, |link| parse(&link));
    found.map_err(BridgeError::Read)?.ok_or(BridgeError::NoSwitch)
}

fn parse(link: &Message<'_>) -> Option<([u8; IFINFOMSG], [bool; 2])> {
    let info: Attributes<'_> = link.attributes_after(IFINFOMSG).nested(libc::IFLA_LINKINFO);
    if info.find_str(libc::IFLA_INFO_KIND) != Some("bridge") {
        return None;
    }
    let mut header = [0; IFINFOMSG];
    header[INDEX..INDEX + 4].copy_from_slice(link.payload.get(INDEX..INDEX + 4)?);
    let is_on = |kind| Some(*info.nested(libc::IFLA_INFO_DATA).find(kind)?.first()? != 0);
    Some((header, [is_on(SWITCHES[0])?, is_on(SWITCHES[1])?]))
}

fn write(
    socket: &mut Socket,
    header: &[u8; IFINFOMSG],
    switches: [bool; 2],
) -> Result<(), NetlinkError> {
    let sequence = socket.sequences(1);
    let mut request = Writer::default();
    let flags = libc::NLM_F_ACK as u16;
    let open = request.begin_message_with(libc::RTM_NEWLINK, flags, sequence, header);
    let info = request.begin(libc::IFLA_LINKINFO);
    request.put_str(libc::IFLA_INFO_KIND, "bridge");
    let data = request.begin(libc::IFLA_INFO_DATA);
    for (switch, is_on) in SWITCHES.into_iter().zip(switches) {
        request.put(switch, &[u8::from(is_on)]);
    }
    request.end(data);
    request.end(info);
    request.end_message(open);
    socket.send(request.bytes())?;
    socket.outcome(sequence)
}
