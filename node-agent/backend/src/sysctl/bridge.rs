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

use super::CheckScope;
use super::saved_switches::{SavedSwitches, SavedSwitchesFile};
use denizen_text::describe;

/// Length of `struct ifinfomsg`, and the offset of its index.
const IFINFOMSG: usize = 16;
const INDEX: usize = 4;

/// `IFLA_BR_NF_CALL_IPTABLES`, `IFLA_BR_NF_CALL_IP6TABLES`, which libc lacks.
const SWITCHES: [u16; 2] = [36, 37];

/// `IFLA_BR_MULTI_BOOLOPT`, which libc lacks; since Linux 5.0. It has two masks: the values of the
/// options, and which options are meant (`struct br_boolopt_multi`).
const OPTIONS: u16 = 46;
/// `BR_BOOLOPT_NO_LL_LEARN`: a bridge does not learn from frames to link-local groups
/// (01:80:c2:00:00:00 to 0f) which Ethernet address is behind a port. By default it learns from
/// such frames, for instance of LLDP, before any rule sees them.
const NO_LINK_LOCAL_LEARNING: u32 = 1;

/// Time limit for an answer of the kernel, which normally comes at once.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// A setting that exists if the module is loaded, which adds it to every network namespace.
const MODULE: &str = "net/bridge/bridge-nf-call-iptables";

/// Why frames between ports of a bridge do not pass the hooks.
#[derive(Debug, Error)]
pub enum BridgeError {
    /// The module br_netfilter is not loaded, so the switch has no effect.
    #[error("the kernel module br_netfilter is not loaded")]
    NoModule,
    /// There is no link of that name, or it cannot be read.
    #[error("cannot read it")]
    Read(#[source] NetlinkError),
    /// The link is not a bridge, or the kernel has no CONFIG_BRIDGE_NETFILTER.
    #[error("it is not a bridge, or this kernel has no nf_call_iptables for it")]
    NoSwitch,
    /// The kernel refused.
    #[error("cannot set nf_call_iptables")]
    Write(#[source] NetlinkError),
    /// The kernel accepted the switch, but it is not set.
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
    former: SavedSwitchesFile,
    wanted: BTreeSet<Arc<str>>,
    /// The bridges that are kept from learning from frames to link-local groups.
    unlearning: BTreeSet<Arc<str>>,
    problems: BTreeMap<Arc<str>, String>,
}

impl BridgeFilter {
    /// For the settings below the folder `sysctls`; no bridge needs it yet. What the switches were
    /// before is kept in `run_dir`.
    pub fn new(sysctls: &Path, run_dir: &Path) -> Self {
        Self {
            sysctls: sysctls.to_owned(),
            former: SavedSwitchesFile::of(run_dir),
            wanted: BTreeSet::new(),
            unlearning: BTreeSet::new(),
            problems: BTreeMap::new(),
        }
    }

    /// Turns the switch on for these bridges of this thread's network namespace.
    pub fn keep(&mut self, wanted: BTreeSet<Arc<str>>, check: CheckScope) {
        let were_right = self.problems.is_empty();
        if self.wanted == wanted && were_right && check == CheckScope::Changed {
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

    /// Keeps these bridges from learning from frames to link-local groups, which no rule sees: by
    /// such frames a pod could take a neighbour's traffic.
    pub fn keep_from_learning(&mut self, bridges: BTreeSet<Arc<str>>, check: CheckScope) {
        if self.unlearning == bridges && check == CheckScope::Changed {
            return;
        }
        for bridge in &bridges {
            if let Err(error) = self.stop_learning(bridge) {
                let error = describe(&error);
                warn!(%bridge, error, "a pod can take a neighbour's traffic by frames of LLDP");
            }
        }
        self.unlearning = bridges;
    }

    fn stop_learning(&self, bridge: &str) -> Result<(), BridgeError> {
        let mut socket = open()?;
        let BridgeLink { header, switches, learns } = read(&mut socket, bridge)?;
        if learns != Some(true) {
            return Ok(());
        }
        self.former.remember(bridge, index_in(&header), switches);
        self.former.note_learning(bridge);
        write(&mut socket, &header, |data| {
            data.put(OPTIONS, &[NO_LINK_LOCAL_LEARNING; 2].map(u32::to_ne_bytes).concat());
        })
        .map_err(BridgeError::Write)
    }

    /// The bridges whose frames do not pass the hooks, and why.
    pub fn unfiltered_bridges(&self) -> &BTreeMap<Arc<str>, String> {
        &self.problems
    }

    /// Turns the switch on, unless it is on, and reads it back.
    fn turn_on(&self, bridge: &str) -> Result<(), BridgeError> {
        if !is_module_loaded(&self.sysctls) {
            return Err(BridgeError::NoModule);
        }
        let mut socket = open()?;
        let BridgeLink { header, switches, .. } = read(&mut socket, bridge)?;
        if switches == [true; 2] {
            return Ok(());
        }
        self.former.remember(bridge, index_in(&header), switches);
        let on = |data: &mut Writer| put_switches(data, [true; 2]);
        write(&mut socket, &header, on).map_err(BridgeError::Write)?;
        info!(%bridge, from = ?switches, "nf_call_iptables and nf_call_ip6tables are on for this bridge");
        match read(&mut socket, bridge)?.switches {
            [true, true] => Ok(()),
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
                    info!(
                        bridge = former.bridge,
                        to = ?former.switches,
                        "nf_call_iptables and nf_call_ip6tables are set back"
                    );
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
    Ok(read(&mut open()?, bridge)?.switches)
}

fn open() -> Result<Socket, BridgeError> {
    let socket = Socket::route().map_err(BridgeError::Read)?;
    socket.set_timeout(ANSWER_TIMEOUT).map_err(BridgeError::Read)?;
    Ok(socket)
}

/// Returns whether it changed anything: the bridge may be gone, or another bridge may have its
/// name.
fn set_back(former: &SavedSwitches) -> Result<bool, BridgeError> {
    let mut socket = open()?;
    let BridgeLink { header, switches, learns } = match read(&mut socket, &former.bridge) {
        Err(BridgeError::Read(error)) if error.errno() == Some(Errno::ENODEV) => return Ok(false),
        found => found?,
    };
    let learns_again = former.learned && learns == Some(false);
    if index_in(&header) != former.index || switches == former.switches && !learns_again {
        return Ok(false);
    }
    let as_before = |data: &mut Writer| {
        put_switches(data, former.switches);
        if learns_again {
            data.put(OPTIONS, &[0, NO_LINK_LOCAL_LEARNING].map(u32::to_ne_bytes).concat());
        }
    };
    write(&mut socket, &header, as_before).map_err(BridgeError::Write)?;
    Ok(true)
}

fn index_in(header: &[u8; IFINFOMSG]) -> u32 {
    let index = header[INDEX..].first_chunk().expect("4 bytes begin there");
    u32::from_ne_bytes(*index)
}

/// A bridge, as the kernel has it.
struct BridgeLink {
    /// The header of a request about it.
    header: [u8; IFINFOMSG],
    switches: [bool; 2],
    /// Whether it learns from frames to link-local groups; `None` if that cannot be changed.
    learns: Option<bool>,
}

fn read(socket: &mut Socket, bridge: &str) -> Result<BridgeLink, BridgeError> {
    let sequence = socket.sequences(1);
    let mut request = Writer::default();
    let open = request.begin_message_with(libc::RTM_GETLINK, 0, sequence, &[0; IFINFOMSG]);
    request.put_str(libc::IFLA_IFNAME, bridge);
    request.end_message(open);
    let found = socket.ask(request.bytes(), sequence, |link| parse(&link));
    found.map_err(BridgeError::Read)?.ok_or(BridgeError::NoSwitch)
}

fn parse(link: &Message<'_>) -> Option<BridgeLink> {
    let info: Attributes<'_> = link.attributes_after(IFINFOMSG).nested(libc::IFLA_LINKINFO);
    if info.find_str(libc::IFLA_INFO_KIND) != Some("bridge") {
        return None;
    }
    let mut header = [0; IFINFOMSG];
    header[INDEX..INDEX + 4].copy_from_slice(link.payload.get(INDEX..INDEX + 4)?);
    let is_on = |kind| Some(*info.nested(libc::IFLA_INFO_DATA).find(kind)?.first()? != 0);
    let options = info.nested(libc::IFLA_INFO_DATA).find(OPTIONS);
    let options = options.and_then(|data| data.first_chunk().copied()).map(u32::from_ne_bytes);
    Some(BridgeLink {
        header,
        switches: [is_on(SWITCHES[0])?, is_on(SWITCHES[1])?],
        learns: options.map(|options| options & NO_LINK_LOCAL_LEARNING == 0),
    })
}

fn put_switches(data: &mut Writer, switches: [bool; 2]) {
    for (switch, is_on) in SWITCHES.into_iter().zip(switches) {
        data.put(switch, &[u8::from(is_on)]);
    }
}

fn write(
    socket: &mut Socket,
    header: &[u8; IFINFOMSG],
    fill: impl FnOnce(&mut Writer),
) -> Result<(), NetlinkError> {
    let sequence = socket.sequences(1);
    let mut request = Writer::default();
    let flags = libc::NLM_F_ACK as u16;
    let open = request.begin_message_with(libc::RTM_NEWLINK, flags, sequence, header);
    let info = request.begin(libc::IFLA_LINKINFO);
    request.put_str(libc::IFLA_INFO_KIND, "bridge");
    let data = request.begin(libc::IFLA_INFO_DATA);
    fill(&mut request);
    request.end(data);
    request.end(info);
    request.end_message(open);
    socket.send(request.bytes())?;
    socket.outcome(sequence)
}
