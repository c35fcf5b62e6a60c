//! A packet's way through the hooks, as in the kernel: what arrives passes prerouting, is routed,
//! and passes input, or forward and postrouting; what the node sends passes output and postrouting.
//! For bridges, the caller says which hooks a frame passes.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, Result, bail, ensure};

use super::check::check;
use super::packet::{FOREIGN_MARK, ReadPacket};
use super::parse::ruleset;
use super::syntax::{Ruleset, Table};
use super::walk::{Decided, Spread, Walk, add};

/// Rules that were read.
#[derive(Debug)]
pub struct Reader {
    ruleset: Ruleset,
    own: Vec<IpAddr>,
}

/// The first packet of a connection, as it comes to the node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Arrival {
    /// The source address.
    pub source: IpAddr,
    /// The interface through which the IP stack sees it come in; `None`: the node itself sends.
    pub interface: Option<String>,
    /// The bridge's port that it came in through before that.
    pub port: Option<String>,
    /// The destination.
    pub destination: SocketAddr,
    /// IANA's protocol number.
    pub protocol: u8,
}

/// What became of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReadFate {
    /// Its destination was translated to this.
    Forward(SocketAddr),
    /// It goes on as it came.
    Untouched,
    /// It is answered with an error.
    Reject,
    /// It is dropped.
    Drop,
}

/// Which rules are called at a hook.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HookFamily {
    /// Those for frames on a bridge.
    Bridge,
    /// Those for IP packets.
    Inet,
}

/// A hook that a packet meets, and the interfaces that rules see there.
#[derive(Debug, Clone)]
pub struct HookVisit {
    /// The family whose rules are called.
    pub family: HookFamily,
    /// The hook's name.
    pub hook: &'static str,
    /// Where the packet comes in.
    pub input: String,
    /// Where it leaves, if the hook knows.
    pub output: Option<String>,
}

/// How a packet's way ended.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReadEnd {
    /// What became of it.
    pub fate: ReadFate,
    /// Whether its source will be replaced.
    pub masqueraded: bool,
    /// The packet as the rules leave it, with what they remember.
    pub packet: ReadPacket,
}

impl Reader {
    /// Reads rules, for a node that has these addresses.
    ///
    /// # Errors
    /// Something in them is not known to the reader.
    pub fn new(text: &str, own: &[IpAddr]) -> Result<Self> {
        let ruleset = ruleset(text)?;
        check(&ruleset)?;
        Ok(Self { ruleset, own: own.to_vec() })
    }

    /// Whether the node has this address.
    pub fn is_own(&self, address: IpAddr) -> bool {
        self.own.contains(&address)
    }

    /// All ways that a packet can take, each with its probability.
    ///
    /// # Errors
    /// A rule uses what the reader does not know.
    pub fn walk(&self, arrival: &Arrival) -> Result<BTreeMap<ReadEnd, f64>> {
        self.walk_again(arrival, &ReadPacket::from(arrival))
    }

    /// The same, the dynamic maps being as an earlier packet left them.
    ///
    /// # Errors
    /// A rule uses what the reader does not know.
    pub fn walk_again(
        &self,
        arrival: &Arrival,
        earlier: &ReadPacket,
    ) -> Result<BTreeMap<ReadEnd, f64>> {
        let packet = ReadPacket { memory: earlier.memory.clone(), ..ReadPacket::from(arrival) };
        let mut ends = BTreeMap::new();
        let first = if arrival.interface.is_some() { "prerouting" } else { "output" };
        let spread =
            self.hook(HookFamily::Inet, first, Spread::from([(packet, 1.0)]), &mut ends)?;
        let (mut staying, mut leaving) = (Spread::new(), Spread::new());
        for (packet, weight) in spread {
            let stays = arrival.interface.is_some() && self.is_own(packet.destination);
            add(if stays { &mut staying } else { &mut leaving }, packet, weight);
        }
        let staying = self.hook(HookFamily::Inet, "input", staying, &mut ends)?;
        if arrival.interface.is_some() {
            leaving = self.hook(HookFamily::Inet, "forward", leaving, &mut ends)?;
        }
        let leaving = self.hook(HookFamily::Inet, "postrouting", leaving, &mut ends)?;
        for packet in leaving.keys() {
            ensure!(packet.mark == FOREIGN_MARK, "the mark leaves as {:#x}", packet.mark);
            ensure!(packet.priority == 0, "the priority leaves as {:#x}", packet.priority);
        }
        for (packet, weight) in staying.into_iter().chain(leaving) {
            let to = SocketAddr::new(packet.destination, packet.port);
            let fate = if packet.translated { ReadFate::Forward(to) } else { ReadFate::Untouched };
            end(&mut ends, fate, packet, weight);
        }
        Ok(ends)
    }

    /// Whether a packet passes these hooks. No hook may translate it or leave the decision to
    /// chance.
    ///
    /// # Errors
    /// A rule uses what the reader does not know, or changes the packet.
    pub fn passes(&self, packet: &ReadPacket, way: &[HookVisit]) -> Result<bool> {
        for HookVisit { family, hook, input, output } in way {
            let (interface, output) = (input.clone(), output.clone());
            let here = ReadPacket { interface, output, ..packet.clone() };
            let entering = Spread::from([(here.clone(), 1.0)]);
            let left = self.hook(*family, hook, entering, &mut BTreeMap::new())?;
            match left.keys().collect::<Vec<_>>()[..] {
                [] => return Ok(false),
                [one] => ensure!(*one == here, "{family:?} {hook} leaves {one:?}"),
                _ => bail!("{family:?} {hook} leaves {left:?}"),
            }
        }
        Ok(true)
    }

    /// The packets that pass a hook: its base chains are walked in the order of their priorities.
    fn hook(
        &self,
        family: HookFamily,
        hook: &str,
        spread: Spread,
        ends: &mut BTreeMap<ReadEnd, f64>,
    ) -> Result<Spread> {
        let mut bases: Vec<(i32, &Table, &str, bool)> = Vec::new();
        for table in &self.ruleset.tables {
            for (name, chain) in &table.chains {
                if let Some(base) = chain.base.as_ref().filter(|base| base.hook == hook) {
                    bases.push((base.priority, table, name, base.nat));
                }
            }
        }
        bases.sort_by_key(|(priority, ..)| *priority);
        let mut here = spread;
        for (_, table, name, nat) in bases {
            let (passing, past): (Spread, Spread) =
                here.into_iter().partition(|(packet, _)| meets(packet, family, table, hook, nat));
            let walk = Walk { table, hook, nat, own: &self.own };
            let mut decided = Decided::default();
            let through =
                walk.chain(name, passing, &mut decided, 0).with_context(|| hook.to_owned())?;
            for (packet, weight) in decided.dropped {
                end(ends, ReadFate::Drop, packet, weight);
            }
            for (packet, weight) in decided.rejected {
                end(ends, ReadFate::Reject, packet, weight);
            }
            here = past;
            for (packet, weight) in through.into_iter().chain(decided.accepted) {
                add(&mut here, packet, weight);
            }
        }
        Ok(here)
    }
}

/// Whether a packet meets a base chain: the table is of the hook's or the packet's family, and a
/// nat chain is skipped if an address was already translated at this hook.
fn meets(packet: &ReadPacket, family: HookFamily, table: &Table, hook: &str, nat: bool) -> bool {
    let families = match (family, packet.destination) {
        (HookFamily::Bridge, _) => ["bridge", "bridge"],
        (HookFamily::Inet, IpAddr::V4(_)) => ["ip", "inet"],
        (HookFamily::Inet, IpAddr::V6(_)) => ["ip6", "inet"],
    };
    let settled = if hook == "postrouting" { packet.masqueraded } else { packet.translated };
    families.contains(&&*table.family) && !(nat && settled)
}

fn end(ends: &mut BTreeMap<ReadEnd, f64>, fate: ReadFate, packet: ReadPacket, weight: f64) {
    let masqueraded = packet.masqueraded;
    *ends.entry(ReadEnd { fate, masqueraded, packet }).or_default() += weight;
}
