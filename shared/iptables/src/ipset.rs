//! Sets of addresses and interfaces, by netlink (`linux/netfilter/ipset/ip_set.h`): a pod that is
//! added must be known before its first packet, so no program is executed for it.

use denizen_packet::Family;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use nix::libc;

use super::error::IptablesError;
use denizen_netlink::{Attributes, Message, NetlinkError, Socket, Writer};

/// NFNL_SUBSYS_IPSET.
const SUBSYSTEM: u16 = 6;
const CREATE: u16 = 2;
const DESTROY: u16 = 3;
const LIST: u16 = 7;
const ADD: u16 = 9;
const DELETE: u16 = 10;

/// IPSET_ATTR_… of every message.
const PROTOCOL: u16 = 1;
const SET_NAME: u16 = 2;
const TYPE_NAME: u16 = 3;
const REVISION: u16 = 4;
const FAMILY: u16 = 5;
const DATA: u16 = 7;
const ELEMENTS: u16 = 8;
/// IPSET_ATTR_… of a set's elements.
const ADDRESS: u16 = 1;
const FLAGS: u16 = 8;
const INTERFACE: u16 = 23;
const COMMENT: u16 = 26;

const NET_BYTE_ORDER: u16 = libc::NLA_F_NET_BYTEORDER as u16;
/// The oldest protocol version that today's kernels understand.
const PROTOCOL_VERSION: u8 = 6;
/// The first revision of `hash:net,iface` that has comments.
const WITH_COMMENTS: u8 = 4;
const FLAG_WITH_COMMENT: u32 = 1 << 4;

/// A set of the kind `hash:net,iface`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Set {
    /// The set's name in the kernel, up to 31 bytes.
    pub name: &'static str,
    /// The family of its addresses.
    pub family: Family,
}

/// What a set matches: a source address, and the interface that the packet came in through.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Element {
    /// The source address.
    pub address: IpAddr,
    /// The input interface.
    pub interface: Arc<str>,
}

/// The elements of a set, each with its comment: at most 255 bytes (IPSET_MAX_COMMENT_SIZE).
pub type Elements = BTreeMap<Element, String>;

/// A client's sets, in the network namespace of the thread that opened them.
#[derive(Debug)]
pub struct Sets {
    socket: Socket,
    sets: &'static [Set],
    /// What is in the kernel, in the order of `sets`, if that is known.
    programmed: Option<Vec<Elements>>,
}

/// nf_tables releases the set that a removed rule referred to some time after the batch
/// (`nf_tables_trans_destroy_work`).
const RELEASE_PAUSE: Duration = Duration::from_millis(20);
const RELEASE_TRIES: usize = 100;

/// Whether a rule still names the set: `IPSET_ERR_BUSY`, which is beyond the system's own numbers.
fn is_busy(error: &NetlinkError) -> bool {
    error.errno() == Some(Errno::UnknownErrno)
}

impl Sets {
    /// Opens these sets. Nothing is read or written yet.
    ///
    /// # Errors
    /// [`NetlinkError`] when netlink cannot be opened.
    pub fn open(sets: &'static [Set]) -> Result<Self, NetlinkError> {
        let socket = Socket::open()?;
        Ok(Self { socket, sets, programmed: None })
    }

    /// Creates the sets that are not there. The elements of existing sets stay.
    pub fn create(&mut self) -> Result<(), IptablesError> {
        for set in self.sets {
            let created = self.request(CREATE, *set, |message| {
                message.put_str(TYPE_NAME, "hash:net,iface");
                message.put(REVISION, &[WITH_COMMENTS]);
                message.put(FAMILY, &[inet(set.family)]);
                let data = message.begin(DATA);
                message.put(FLAGS | NET_BYTE_ORDER, &FLAG_WITH_COMMENT.to_be_bytes());
                message.end(data);
            });
            named(*set, created)?;
        }
        Ok(())
    }

    /// Brings each set to what `wanted` says, in the order of the sets. Returns how many elements
    /// were added or removed.
    ///
    /// # Errors
    /// [`IptablesError::Set`]; the next call reads the sets first.
    pub fn program(&mut self, wanted: impl Fn(Set) -> Elements) -> Result<usize, IptablesError> {
        let before = self.programmed.take();
        if before.is_none() {
            self.create()?;
        }
        let mut written = 0;
        let mut programmed = Vec::new();
        for (at, set) in self.sets.iter().enumerate() {
            let held: BTreeSet<Element> = match &before {
                Some(before) => before[at].keys().cloned().collect(),
                None => named(*set, self.held(*set))?,
            };
            let wanted = wanted(*set);
            for element in held.iter().filter(|element| !wanted.contains_key(element)) {
                named(*set, self.delete(*set, element))?;
                written += 1;
            }
            for (element, comment) in wanted.iter().filter(|(element, _)| !held.contains(element)) {
                named(*set, self.add(*set, element, comment))?;
                written += 1;
            }
            programmed.push(wanted);
        }
        self.programmed = Some(programmed);
        Ok(written)
    }

    /// Whether it is known what is in the kernel.
    pub fn are_programmed(&self) -> bool {
        self.programmed.is_some()
    }

    /// Makes the next [`Self::program`] read the sets first: another program may have changed them.
    pub fn forget(&mut self) {
        self.programmed = None;
    }

    /// Whether any of the sets is there.
    pub fn exist(&mut self) -> bool {
        self.sets.iter().any(|set| self.held(*set).is_ok())
    }

    /// Removes the sets. No rule may name them any more.
    pub fn destroy(&mut self) -> Result<(), IptablesError> {
        self.programmed = None;
        for set in self.sets {
            let mut done = self.request(DESTROY, *set, |_| {});
            for _ in 0..RELEASE_TRIES {
                if !done.as_ref().is_err_and(is_busy) {
                    break;
                }
                std::thread::sleep(RELEASE_PAUSE);
                done = self.request(DESTROY, *set, |_| {});
            }
            match &done {
                Err(error) if error.errno() == Some(Errno::ENOENT) => {}
                Err(_) | Ok(()) => named(*set, done)?,
            }
        }
        Ok(())
    }

    /// Removes the sets whose names begin with `prefix`. Returns how many there were. No rule may
    /// name them any more.
    pub fn destroy_named(&mut self, prefix: &'static str) -> Result<usize, IptablesError> {
        let failed = |source| IptablesError::Set { set: prefix, source };
        let sequence = self.socket.sequences(1);
        let request = message_of(LIST, libc::NLM_F_DUMP, sequence, Family::V4, |_| {});
        let mut names = BTreeSet::new();
        self.socket
            .dump(&request, sequence, |answer| {
                names.extend(answer.attributes().find_str(SET_NAME).map(str::to_owned));
            })
            .map_err(failed)?;
        names.retain(|name| name.starts_with(prefix));
        for name in &names {
            let sequence = self.socket.sequences(1);
            let request = message_of(DESTROY, libc::NLM_F_ACK, sequence, Family::V4, |writer| {
                writer.put_str(SET_NAME, name);
            });
            self.socket.send(&request).map_err(failed)?;
            self.socket.outcome(sequence).map_err(failed)?;
        }
        Ok(names.len())
    }

    fn add(&mut self, set: Set, element: &Element, comment: &str) -> Result<(), NetlinkError> {
        self.request(ADD, set, |message| {
            let data = message.begin(DATA);
            put_element(message, element);
            message.put_str(COMMENT, comment);
            message.end(data);
        })
    }

    fn delete(&mut self, set: Set, element: &Element) -> Result<(), NetlinkError> {
        self.request(DELETE, set, |message| {
            let data = message.begin(DATA);
            put_element(message, element);
            message.end(data);
        })
    }

    fn request(
        &mut self,
        what: u16,
        set: Set,
        fill: impl FnOnce(&mut Writer),
    ) -> Result<(), NetlinkError> {
        let sequence = self.socket.sequences(1);
        let request = message(what, libc::NLM_F_ACK, sequence, set, fill);
        self.socket.send(&request)?;
        self.socket.outcome(sequence)
    }

    fn held(&mut self, set: Set) -> Result<BTreeSet<Element>, NetlinkError> {
        let sequence = self.socket.sequences(1);
        let request = message(LIST, libc::NLM_F_DUMP, sequence, set, |_| {});
        let mut held = BTreeSet::new();
        self.socket.dump(&request, sequence, |answer| held.extend(keys(set.family, &answer)))?;
        Ok(held)
    }
}

fn inet(family: Family) -> u8 {
    match family {
        Family::V4 => libc::AF_INET as u8,
        Family::V6 => libc::AF_INET6 as u8,
    }
}

fn named<T>(set: Set, done: Result<T, NetlinkError>) -> Result<T, IptablesError> {
    done.map_err(|source| IptablesError::Set { set: set.name, source })
}

/// A message about one of the client's sets.
fn message(
    what: u16,
    flags: i32,
    sequence: u32,
    set: Set,
    fill: impl FnOnce(&mut Writer),
) -> Vec<u8> {
    message_of(what, flags, sequence, set.family, |writer| {
        writer.put_str(SET_NAME, set.name);
        fill(writer);
    })
}

fn message_of(
    what: u16,
    flags: i32,
    sequence: u32,
    family: Family,
    fill: impl FnOnce(&mut Writer),
) -> Vec<u8> {
    let mut writer = Writer::default();
    let kind = SUBSYSTEM << 8 | what;
    let open = writer.begin_message(kind, flags as u16, sequence, inet(family), 0);
    writer.put(PROTOCOL, &[PROTOCOL_VERSION]);
    fill(&mut writer);
    writer.end_message(open);
    writer.into_bytes()
}

/// IPSET_ATTR_IPADDR_IPV4 and …_IPV6.
fn address_kind(family: Family) -> u16 {
    match family {
        Family::V4 => 1,
        Family::V6 => 2,
    }
}

fn put_element(message: &mut Writer, element: &Element) {
    let address = message.begin(ADDRESS);
    match element.address {
        IpAddr::V4(ip) => message.put(address_kind(Family::V4) | NET_BYTE_ORDER, &ip.octets()),
        IpAddr::V6(ip) => message.put(address_kind(Family::V6) | NET_BYTE_ORDER, &ip.octets()),
    }
    message.end(address);
    message.put_str(INTERFACE, &element.interface);
}

/// The elements in one piece of a listing. Elements other than an address with an interface are
/// skipped.
fn keys<'a>(family: Family, answer: &Message<'a>) -> impl Iterator<Item = Element> + use<'a> {
    let elements = answer.attributes().nested(ELEMENTS);
    elements.filter_map(move |(_, element)| {
        let element = Attributes::new(element);
        let bytes = element.nested(ADDRESS).find(address_kind(family))?;
        let address = match family {
            Family::V4 => IpAddr::from(Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?)),
            Family::V6 => IpAddr::from(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?)),
        };
        let interface = element.find_str(INTERFACE)?.into();
        Some(Element { address, interface })
    })
}
