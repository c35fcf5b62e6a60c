//! A packet's way through chains, with all random outcomes.
//!
//! A packet is all that rules can see and change. Equal packets are merged, and their probabilities
//! added, so that a cascade of random draws does not multiply them.

use std::collections::BTreeMap;
use std::net::IpAddr;

use anyhow::{Context, Result, bail, ensure};

use super::packet::ReadPacket;
use super::syntax::{Datum, Expr, Field, RightSide, Set, Statement, Table, Verdict, Version};
use super::value::{
    Atom, CONFIRMED, DST_NAT, ESTABLISHED, ETHER_IPV4, ETHER_IPV6, ICMPV6, Key, LOCAL, NEW,
    SEEN_REPLY, TCP_ACK, TCP_SYN, UNICAST,
};

/// The length of every packet here, and the destination MAC address of every frame.
const SHORT: u128 = 60;
const SOMEBODY: u128 = 0x0200_0000_0001;

/// `NFT_JUMP_STACK_SIZE` of the kernel.
const DEEPEST: usize = 16;

/// Packets, and how likely each is.
pub type Spread = BTreeMap<ReadPacket, f64>;

pub fn add(to: &mut Spread, packet: ReadPacket, weight: f64) {
    *to.entry(packet).or_default() += weight;
}

/// The possible values of an expression, each with its probability; `None`: a lookup found nothing.
type Values = Vec<(Option<Key>, f64)>;

/// The packets for which a base chain has reached a final verdict.
#[derive(Debug, Default)]
pub struct Decided {
    pub accepted: Spread,
    pub dropped: Spread,
    pub rejected: Spread,
}

/// A table's chains, as packets at one hook meet them.
pub struct Walk<'a> {
    pub table: &'a Table,
    pub hook: &'a str,
    /// Whether the base chain is of type nat, so that addresses may be translated.
    pub nat: bool,
    /// The node's own addresses.
    pub own: &'a [IpAddr],
}

impl Walk<'_> {
    /// Walks packets through a chain; returns those that come out at its end.
    pub fn chain(
        &self,
        name: &str,
        entering: Spread,
        decided: &mut Decided,
        depth: usize,
    ) -> Result<Spread> {
        ensure!(depth <= DEEPEST, "{name} is jumped to from too deep");
        let chain = self.table.chains.get(name).with_context(|| format!("no chain {name}"))?;
        let (mut here, mut back) = (entering, Spread::new());
        for rule in &chain.rules {
            let mut next = Spread::new();
            for (packet, weight) in here {
                let mut passing = Passing { next: &mut next, back: &mut back, decided, depth };
                self.rule(rule, packet, weight, &mut passing)
                    .with_context(|| format!("in chain {name}, rule {rule:?}"))?;
            }
            here = next;
        }
        here.into_iter().for_each(|(packet, weight)| add(&mut back, packet, weight));
        Ok(back)
    }

    fn rule(
        &self,
        rule: &[Statement],
        packet: ReadPacket,
        weight: f64,
        passing: &mut Passing<'_>,
    ) -> Result<()> {
        let Some((statement, rest)) = rule.split_first() else {
            add(passing.next, packet, weight);
            return Ok(());
        };
        if let Statement::Verdict(verdict) = statement {
            return self.verdict(verdict, packet, weight, passing);
        }
        for (then, share) in self.statement(statement, &packet)? {
            let weight = weight * share;
            match then {
                Then::Next(packet) => self.rule(rest, packet, weight, passing)?,
                Then::Verdict(verdict) => {
                    self.verdict(&verdict, packet.clone(), weight, passing)?
                }
                Then::Accepted(packet) => add(&mut passing.decided.accepted, packet, weight),
                Then::NoMatch => add(passing.next, packet.clone(), weight),
            }
        }
        Ok(())
    }

    fn verdict(
        &self,
        verdict: &Verdict,
        packet: ReadPacket,
        weight: f64,
        passing: &mut Passing<'_>,
    ) -> Result<()> {
        let to = match verdict {
            Verdict::Accept => &mut passing.decided.accepted,
            Verdict::Drop => &mut passing.decided.dropped,
            Verdict::Reject => &mut passing.decided.rejected,
            Verdict::Return => &mut *passing.back,
            Verdict::Jump(chain) | Verdict::Goto(chain) => {
                let entering = Spread::from([(packet, weight)]);
                let returning = self.chain(chain, entering, passing.decided, passing.depth + 1)?;
                let jumped = matches!(verdict, Verdict::Jump(_));
                let to = if jumped { &mut *passing.next } else { &mut *passing.back };
                returning.into_iter().for_each(|(packet, weight)| add(to, packet, weight));
                return Ok(());
            }
        };
        add(to, packet, weight);
        Ok(())
    }

    fn statement(&self, statement: &Statement, packet: &ReadPacket) -> Result<Vec<(Then, f64)>> {
        let one = |then| Ok(vec![(then, 1.0)]);
        match statement {
            Statement::Counter => one(Then::Next(packet.clone())),
            Statement::Verdict(verdict) => one(Then::Verdict(verdict.clone())),
            Statement::Match { left, negated, right } => self.each(left, packet, |key| {
                Ok(if self.fits(right, &key)? == *negated {
                    Then::NoMatch
                } else {
                    Then::Next(packet.clone())
                })
            }),
            Statement::VerdictMap { key, map } => self.each(key, packet, |key| {
                Ok(match lookup(self.set(map)?, &key) {
                    Some(Some(Datum::Verdict(verdict))) => Then::Verdict(verdict.clone()),
                    Some(other) => bail!("{map} has {other:?}"),
                    None => Then::NoMatch,
                })
            }),
            Statement::Set { field, value } => self.each(value, packet, |key| {
                let number = u32::try_from(single(key)?.number()?)?;
                Ok(Then::Next(packet.with(*field, number)?))
            }),
            Statement::Update { map, key, data } => self.each(key, packet, |key| {
                let [(Some(data), _)] = &self.values(data, packet)?[..] else {
                    bail!("what is remembered is drawn");
                };
                let mut packet = packet.clone();
                packet.memory.insert((map.clone(), key), data.clone());
                Ok(Then::Next(packet))
            }),
            // The few packets of a test stay within every limit.
            Statement::Limit { key, .. } | Statement::Count { key, .. } => {
                self.each(key, packet, |_| Ok(Then::Next(packet.clone())))
            }
            Statement::Delete { map, key } => self.each(key, packet, |key| {
                let mut packet = packet.clone();
                packet.memory.remove(&(map.clone(), key));
                Ok(Then::Next(packet))
            }),
            Statement::Dnat { to } => {
                ensure!(
                    self.nat && ["prerouting", "output"].contains(&self.hook),
                    "dnat at {}",
                    self.hook
                );
                self.each(to, packet, |to| Ok(Then::Accepted(packet.sent_to(&to)?)))
            }
            Statement::Masquerade => {
                ensure!(self.nat && self.hook == "postrouting", "masquerade at {}", self.hook);
                one(Then::Accepted(ReadPacket { masqueraded: true, ..packet.clone() }))
            }
        }
    }

    /// Calls `then` for every possible value of an expression; without a value, the rule does not
    /// match.
    fn each(
        &self,
        expr: &Expr,
        packet: &ReadPacket,
        then: impl Fn(Key) -> Result<Then>,
    ) -> Result<Vec<(Then, f64)>> {
        let follow =
            |(key, share): (Option<Key>, f64)| Ok((key.map_or(Ok(Then::NoMatch), &then)?, share));
        self.values(expr, packet)?.into_iter().map(follow).collect()
    }

    fn values(&self, expr: &Expr, packet: &ReadPacket) -> Result<Values> {
        let bits = |of: &Expr, change: &dyn Fn(u128) -> u128| {
            let changed = |key: Key| -> Result<Key> {
                Ok(vec![Atom::Number(change(single(key)?.number()?))])
            };
            let values = self.values(of, packet)?.into_iter();
            values
                .map(|(key, share)| Ok((key.map(changed).transpose()?, share)))
                .collect::<Result<Values>>()
        };
        Ok(match expr {
            Expr::Field(field) => {
                vec![(self.field(*field, packet)?.map(|atom| vec![atom]), 1.0)]
            }
            Expr::Constant(atom) => vec![(Some(vec![atom.clone()]), 1.0)],
            Expr::Random(below) => {
                let share = 1.0 / *below as f64;
                (0..*below).map(|number| (Some(vec![Atom::Number(number)]), share)).collect()
            }
            Expr::And(of, mask) => bits(of, &|number| number & mask)?,
            Expr::Or(of, more) => bits(of, &|number| number | more)?,
            Expr::Concat(parts) => {
                let mut all = vec![(Some(Key::new()), 1.0)];
                for part in parts {
                    all = together(&all, &self.values(part, packet)?);
                }
                all
            }
            Expr::Map(key, map) => {
                let set = self.set(map)?;
                let keys = self.values(key, packet)?.into_iter();
                keys.map(|(key, share)| Ok((self.mapped(set, map, key, packet)?, share)))
                    .collect::<Result<Values>>()?
            }
        })
    }

    fn mapped(
        &self,
        set: &Set,
        map: &str,
        key: Option<Key>,
        packet: &ReadPacket,
    ) -> Result<Option<Key>> {
        let Some(key) = key else { return Ok(None) };
        if set.dynamic {
            return Ok(packet.memory.get(&(map.to_owned(), key)).cloned());
        }
        match lookup(set, &key) {
            Some(Some(Datum::Atoms(atoms))) => Ok(Some(atoms.clone())),
            Some(other) => bail!("{map} has {other:?}"),
            None => Ok(None),
        }
    }

    fn fits(&self, right: &RightSide, key: &Key) -> Result<bool> {
        Ok(match right {
            RightSide::Set(name) => lookup(self.set(name)?, key).is_some(),
            RightSide::Pattern(pattern) => pattern.fits(&single(key.clone())?),
            RightSide::Bits(bits) => single(key.clone())?.number()? & bits != 0,
        })
    }

    /// `None` if the packet has no such field: then the rule does not match.
    fn field(&self, field: Field, packet: &ReadPacket) -> Result<Option<Atom>> {
        let of_version = |address: IpAddr, version: Version| {
            (address.is_ipv6() == (version == Version::V6)).then(|| Atom::of(address))
        };
        Ok(Some(match field {
            Field::Source(version) => return Ok(of_version(packet.source, version)),
            Field::Destination(version) => return Ok(of_version(packet.destination, version)),
            Field::Icmpv6Type if packet.protocol != ICMPV6 => return Ok(None),
            // Packets here are IP, and not neighbour advertisements.
            Field::ArpSender | Field::ArpSenderEther | Field::NeighbourTarget => return Ok(None),
            Field::HopLimit if packet.source.is_ipv4() => return Ok(None),
            Field::HopLimit => Atom::Number(packet.hop_limit.into()),
            Field::Length => Atom::Number(SHORT),
            Field::EtherSource => {
                let ether = packet.ether.context("from where the frame comes is not known here")?;
                Atom::Number(ether.iter().fold(0, |whole, byte| whole << 8 | u128::from(*byte)))
            }
            Field::EtherDestination => Atom::Number(SOMEBODY),
            Field::CtOriginalSource(_) | Field::CtReplySource(_) => {
                bail!("whose connection it is about is not known here")
            }
            Field::Icmpv6Type => {
                Atom::Number(packet.icmpv6_type.context("an ICMPv6 message has a type")?.into())
            }
            Field::Protocol => Atom::Number(packet.protocol.into()),
            Field::Port => Atom::Number(packet.port.into()),
            // No packet here closes a connection.
            Field::TcpFlags => Atom::Number(if packet.established { TCP_ACK } else { TCP_SYN }),
            Field::InputInterface => {
                ensure!(
                    self.hook != "postrouting",
                    "which input interface postrouting sees is not known"
                );
                Atom::Name(packet.interface.clone())
            }
            Field::OutputInterface => {
                Atom::Name(packet.output.clone().context("where it leaves is not known here")?)
            }
            Field::EtherType | Field::FrameType => Atom::Number(match packet.destination {
                IpAddr::V4(_) => ETHER_IPV4,
                IpAddr::V6(_) => ETHER_IPV6,
            }),
            Field::PacketType => {
                let kind = packet.packet_type.context("whom the frame is for is not known here")?;
                Atom::Number(kind as u128)
            }
            Field::ConntrackState => {
                Atom::Number(if packet.established { ESTABLISHED } else { NEW })
            }
            Field::Mark => Atom::Number(packet.mark.into()),
            Field::Priority => Atom::Number(packet.priority.into()),
            Field::ConntrackMark => Atom::Number(packet.connection_mark.into()),
            Field::ConntrackStatus => {
                let translated = if packet.translated { DST_NAT } else { 0 };
                let known = if packet.established { CONFIRMED | SEEN_REPLY } else { 0 };
                Atom::Number(translated | known)
            }
            Field::DestinationType => {
                let own = self.own.contains(&packet.destination);
                Atom::Number(if own { LOCAL } else { UNICAST })
            }
        }))
    }

    fn set(&self, name: &str) -> Result<&Set> {
        self.table.sets.get(name).with_context(|| format!("no set {name}"))
    }
}

/// Where packets go from a rule.
struct Passing<'a> {
    /// To the next rule.
    next: &'a mut Spread,
    /// Back to the calling chain.
    back: &'a mut Spread,
    decided: &'a mut Decided,
    depth: usize,
}

/// What follows a statement.
enum Then {
    /// The rule's next statement.
    Next(ReadPacket),
    Verdict(Verdict),
    /// Accepted in this base chain, which ends here.
    Accepted(ReadPacket),
    /// The next rule.
    NoMatch,
}

fn single(key: Key) -> Result<Atom> {
    match <[Atom; 1]>::try_from(key) {
        Ok([atom]) => Ok(atom),
        Err(key) => bail!("{key:?} where one value was expected"),
    }
}

fn lookup<'a>(set: &'a Set, key: &Key) -> Option<&'a Option<Datum>> {
    let fits = |patterns: &[_]| {
        patterns
            .iter()
            .zip(key)
            .all(|(pattern, atom): (&super::value::Pattern, _)| pattern.fits(atom))
    };
    let ranged = || set.ranged.iter().find(|(patterns, _)| fits(patterns)).map(|(_, datum)| datum);
    set.exact.get(key).or_else(ranged)
}

/// Every combination of the two, their keys concatenated.
fn together(first: &Values, second: &Values) -> Values {
    let pair = |(a, x): &(Option<Key>, f64), (b, y): &(Option<Key>, f64)| {
        let both = a.as_ref().zip(b.as_ref());
        (both.map(|(a, b)| [a.clone(), b.clone()].concat()), x * y)
    };
    first.iter().flat_map(|a| second.iter().map(move |b| pair(a, b))).collect()
}
