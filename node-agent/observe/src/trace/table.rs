//! The tables that make the kernel follow packets. They decide nothing.

use std::num::NonZeroU16;

use denizen_nft::{
    BaseChain, Chain, ChainKind, Field, Hook, Key, Limit, Rule, Schema, Statement, TableFamily,
};

use super::Prediction;
use denizen_model::{Family, Protocol, family_of};
use denizen_plan::explain::FirstPacket;

/// How the tables' name begins; each trace has a name of its own.
pub const TABLE_PREFIX: &str = "denizen-trace-";

// The chains, named for what their messages mean.
pub(super) const ARRIVING: &str = "arriving";
pub(super) const SENDING: &str = "sending";
pub(super) const ESTABLISHED_CHAINS: [&str; 2] = ["known-arriving", "known-sending"];
pub(super) const DELIVERED: &str = "delivered";
pub(super) const LEAVING: &str = "leaving";

/// Behind defragmentation (`NF_IP_PRI_CONNTRACK_DEFRAG`, -400), before `raw` (-300).
const FIRST: i32 = -350;
/// Behind connection tracking (-200), before destinations are translated (-100).
const TRACKED: i32 = -150;
/// Behind the translation of sources (100), and the chains of other programs.
const LAST: i32 = 1000;

/// Maximum number of packets that are marked in an hour, whatever the traffic: the kernel writes
/// some messages for each.
const HOURLY: u32 = 10 * 3600;
/// Maximum number of packets that are marked at once.
const BURST: u32 = 10;

/// The tables of this name with their chains, to follow up to `count` packets to this port.
pub(super) fn tables(
    name: &'static str,
    packet: &FirstPacket,
    end: (Protocol, NonZeroU16),
    prediction: &Prediction,
    count: u16,
) -> Vec<(Schema, Vec<Chain>)> {
    let version = family_of(packet.destination);
    let limit = Limit { burst: BURST.min(count.into()), hourly: HOURLY };
    let out = MarkingTable { version, packet, end, limit };
    let ip = match &prediction.bridge {
        Some(bridge) => out.ip(Some(bridge)),
        None => out.ip(packet.interface.as_deref()),
    };
    let mut tables = vec![(schema(name, version.into()), ip)];
    if prediction.is_bridged {
        let port = packet.interface.as_deref().filter(|_| prediction.bridge.is_some());
        tables.push((schema(name, TableFamily::Bridge), out.bridge(port)));
    }
    tables
}

fn schema(name: &'static str, family: TableFamily) -> Schema {
    let comment = "denizen-agent trace; the kernel removes it when the command ends";
    Schema { family, name, comment, sets: Vec::new() }
}

struct MarkingTable<'a> {
    version: Family,
    packet: &'a FirstPacket,
    end: (Protocol, NonZeroU16),
    limit: Limit,
}

impl MarkingTable<'_> {
    fn ip(&self, interface: Option<&str>) -> Vec<Chain> {
        let mut chains = vec![
            base(ARRIVING, Hook::Prerouting, FIRST, vec![self.follow(arriving(interface))]),
            base(ESTABLISHED_CHAINS[0], Hook::Prerouting, TRACKED, vec![established()]),
            base(DELIVERED, Hook::Input, LAST, Vec::new()),
            base(LEAVING, Hook::Postrouting, LAST, Vec::new()),
        ];
        // What this node sends comes in through no interface.
        if interface.is_none() {
            chains.push(base(SENDING, Hook::Output, FIRST, vec![self.follow(Vec::new())]));
            chains.push(base(ESTABLISHED_CHAINS[1], Hook::Output, TRACKED, vec![established()]));
        }
        chains
    }

    fn bridge(&self, port: Option<&str>) -> Vec<Chain> {
        let named = port.map(is_input);
        vec![
            base(ARRIVING, Hook::Prerouting, FIRST, vec![self.follow(Vec::from_iter(named))]),
            base(LEAVING, Hook::Postrouting, LAST, Vec::new()),
        ]
    }

    /// Marks the first packets of connections between source and destination, and all packets of
    /// protocols whose headers do not show which packet is the first.
    fn follow(&self, mut statements: Vec<Statement>) -> Rule {
        let FirstPacket { source, destination, .. } = *self.packet;
        let (protocol, port) = self.end;
        let is = |field, key| Statement::Equals(field, key);
        statements.extend([
            is(Field::Source(self.version), Key::EMPTY.address(source)),
            is(Field::Destination(self.version), Key::EMPTY.address(destination)),
            is(Field::Protocol, Key::EMPTY.byte(protocol.number())),
            is(Field::DestinationPort, Key::EMPTY.port(port.get())),
        ]);
        statements.extend(begins(protocol));
        statements.extend([Statement::Limit(self.limit), Statement::Trace]);
        Rule { statements, why: "the packets that denizen-agent trace was asked for" }
    }
}

/// What this node sends to itself arrives through lo, but was followed when it was sent.
fn arriving(interface: Option<&str>) -> Vec<Statement> {
    vec![match interface {
        Some(name) => is_input(name),
        None => Statement::NotEquals(Field::InputInterface, Key::EMPTY.interface("lo")),
    }]
}

fn is_input(name: &str) -> Statement {
    Statement::Equals(Field::InputInterface, Key::EMPTY.interface(name))
}

fn begins(protocol: Protocol) -> Option<Statement> {
    // Of FIN, SYN, RST and ACK.
    const FLAGS: Field = Field::TransportByte(13);
    const CHUNK: Field = Field::TransportByte(12);
    const INIT: u8 = 1;
    match protocol {
        Protocol::Tcp => Some(Statement::Bits { field: FLAGS, mask: 0x17, equal: true, value: 2 }),
        Protocol::Sctp => Some(Statement::Equals(CHUNK, Key::EMPTY.byte(INIT))),
        Protocol::Udp => None,
    }
}

/// The kernel's message about this rule says that the packet is not the first of its connection.
/// ESTABLISHED and RELATED (`NF_CT_STATE_BIT`).
fn established() -> Rule {
    let field = Field::ConnectionState;
    let asks = Statement::Bits { field, mask: 0b110, equal: false, value: 0 };
    Rule { statements: vec![asks], why: "a packet of a connection that exists already" }
}

fn base(name: &str, hook: Hook, priority: i32, rules: Vec<Rule>) -> Chain {
    let base = BaseChain { kind: ChainKind::Filter, hook, priority };
    let why = "for denizen-agent trace; decides nothing";
    Chain { name: name.into(), base: Some(base), why, rules }
}
