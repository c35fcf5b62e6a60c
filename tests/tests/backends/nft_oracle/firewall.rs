//! What a firewall's tables are made of: sets and rules that none of the features has, straight
//! from the driver.

use std::net::IpAddr;

use anyhow::{Result, ensure};
use denizen_model::Family;
use denizen_nft::{
    Assigned, BaseChain, Chain, ChainKind, Data, DataType, Element, Field, Hook, Kernel, Key,
    Lookup, Rendering, Rule, Schema, Set, SetId, Statement, TableFamily, Value, Variable, Verdict,
};
use denizen_tests::node::netns::Netns;

use super::{have_the_same, is_read_back};

const IDENTITIES: SetId = SetId(0);
const NETWORKS: SetId = SetId(1);
const PORTS: SetId = SetId(2);
const ANY_PEER: SetId = SetId(3);
const PEERS: SetId = SetId(4);
const OUT: SetId = SetId(5);
const MACS: SetId = SetId(6);
const TARGETS: SetId = SetId(7);

struct SmallTable {
    schema: Schema,
    chains: Vec<Chain>,
    elements: Vec<Element>,
}

fn set(id: SetId, name: &'static str, key: &[Field]) -> Set {
    let (key, comment) = (key.into(), "a set");
    Set {
        id,
        name,
        comment,
        key,
        is_ranged: false,
        data: DataType::None,
        max_dynamic_elements: None,
    }
}

/// The sets: a map of addresses, one of ranges of them, and permissions of every kind.
fn sets(version: Family) -> Vec<Set> {
    use Field::{DestinationPort, Priority, Protocol};
    let (source, destination) = (Field::Source(version), Field::Destination(version));
    let data = DataType::Fields(vec![Priority]);
    let identities = set(IDENTITIES, "identities", &[source]);
    let networks = set(NETWORKS, "networks", &[source]);
    let ports = set(PORTS, "ports", &[destination, Protocol, DestinationPort, Priority]);
    let any_peer = set(ANY_PEER, "any-peer", &[destination, Protocol, DestinationPort]);
    vec![
        Set { data: data.clone(), ..identities },
        Set { data, is_ranged: true, ..networks },
        ports,
        any_peer,
        set(PEERS, "peers", &[destination, Priority]),
        set(OUT, "out", &[Field::OutputInterface, destination]),
    ]
}

fn rule<const N: usize>(statements: [Statement; N]) -> Rule {
    Rule { statements: statements.into(), why: "it is there for a test" }
}

fn chain(name: &str, base: Option<BaseChain>, rules: Vec<Rule>) -> Chain {
    Chain { name: name.into(), base, why: "a chain", rules }
}

fn accept<const N: usize>(asked: [Statement; N]) -> Rule {
    let statements = asked.into_iter().chain([Statement::Verdict(Verdict::Accept)]).collect();
    Rule { statements, why: "it is there for a test" }
}

fn routed(version: Family) -> SmallTable {
    let sets = sets(version);
    let schema = Schema { family: version.into(), name: "some", comment: "for a test", sets };
    let lookup = |id| schema.set(id).lookup();
    let other = |id, fields: &[Field]| schema.set(id).lookup_of(fields.into());
    let (source, destination) = (Field::Source(version), Field::Destination(version));
    let find =
        |lookup: Lookup| rule([Statement::Assign(Variable::Priority, Assigned::Found(lookup))]);
    let port = [Field::Protocol, Field::DestinationPort, Field::Priority];
    let base = BaseChain { kind: ChainKind::Filter, hook: Hook::Forward, priority: -5 };
    let mut rules = vec![
        find(lookup(IDENTITIES)),
        find(other(IDENTITIES, &[destination])),
        find(lookup(NETWORKS)),
        find(other(NETWORKS, &[destination])),
        accept([Statement::In(lookup(PORTS))]),
        accept([Statement::In(other(PORTS, &[&[source], &port[..]].concat()))]),
        accept([Statement::NotIn(lookup(PORTS))]),
        accept([Statement::In(lookup(ANY_PEER))]),
        accept([Statement::In(lookup(ANY_PEER).prefix(destination, 12))]),
        accept([Statement::In(lookup(PEERS).prefix(destination, 32))]),
        accept([Statement::In(lookup(PEERS))]),
        accept([Statement::In(lookup(OUT))]),
        accept([Statement::BeginsWith(Field::OutputInterface, "veth".into())]),
        accept([Statement::Equals(Field::OutputInterface, Key::EMPTY.interface("veth1"))]),
        accept([Statement::NotEquals(Field::OutputInterface, Key::EMPTY.interface("veth1"))]),
        accept([Statement::NotEquals(Field::Protocol, Key::EMPTY.byte(132))]),
        accept([Statement::Between(
            Field::DestinationPort,
            Key::EMPTY.port(1),
            Key::EMPTY.port(9),
        )]),
    ];
    for length in 1..16 {
        let ports = [PORTS, ANY_PEER].map(lookup).map(|lookup| {
            accept([Statement::In(lookup.marked_prefix(Field::DestinationPort, length))])
        });
        rules.extend(ports);
    }
    rules.extend(frames());
    if version == Family::V6 {
        rules.extend(icmpv6());
    }
    let chains = vec![chain("forward", Some(base), rules)];
    let elements = elements(version);
    SmallTable { schema, chains, elements }
}

/// Asks about whom a frame is for.
fn frames() -> Vec<Rule> {
    let kinds = [Field::UNICAST, Field::BROADCAST, Field::MULTICAST, 3];
    let kinds = kinds.map(|kind| Key::EMPTY.byte(kind));
    let is = kinds.map(|kind| accept([Statement::Equals(Field::PacketType, kind)]));
    let is_not = kinds.map(|kind| accept([Statement::NotEquals(Field::PacketType, kind)]));
    is.into_iter().chain(is_not).collect()
}

fn icmpv6() -> Vec<Rule> {
    let kind = |number| Key::EMPTY.byte(number);
    vec![
        accept([Statement::Between(Field::Icmpv6Type, kind(130), kind(137))]),
        accept([Statement::Equals(Field::Icmpv6Type, kind(135))]),
        accept([Statement::NotEquals(Field::Icmpv6Type, kind(250))]),
    ]
}

fn elements(version: Family) -> Vec<Element> {
    let pod: IpAddr = match version {
        Family::V4 => [10, 0, 0, 1].into(),
        Family::V6 => [0xfd00, 0, 0, 0, 0, 0, 0, 1].into(),
    };
    let (first, last): (IpAddr, IpAddr) = match version {
        Family::V4 => ([10, 128, 0, 0].into(), [10, 255, 255, 255].into()),
        Family::V6 => ([0xfd00, 0, 0, 0, 0, 0, 0, 0].into(), [0xfd00, 0, 0, 0, 0, 0, 0, 9].into()),
    };
    let identity = 0x4000_0005;
    let number = |value| Value::Data(Data::EMPTY.number(value));
    let element = |set, key, value| Element { set, key, value, comment: None };
    let key = Key::EMPTY.address(pod);
    let range = Key::EMPTY.address(first).up_to_address(last);
    vec![
        element(IDENTITIES, key, number(identity)),
        element(NETWORKS, range, number(identity)),
        element(PORTS, key.byte(6).port(80).number(identity), Value::Member),
        element(PORTS, key.byte(6).port(91).number(identity), Value::Member),
        element(PORTS, key.byte(17).port(53).number(7), Value::Member),
        element(ANY_PEER, key.byte(132).port(0), Value::Member),
        element(PEERS, key.number(identity), Value::Member),
        element(OUT, Key::EMPTY.interface("veth1").address(pod), Value::Member),
    ]
}

fn bridged() -> SmallTable {
    let sets = vec![
        set(OUT, "out", &[Field::OutputInterface]),
        set(MACS, "macs", &[Field::EtherSource]),
        set(TARGETS, "targets", &[Field::InputInterface, Field::NeighbourTarget]),
    ];
    let schema = Schema { family: TableFamily::Bridge, name: "some", comment: "for a test", sets };
    let base = BaseChain { kind: ChainKind::Filter, hook: Hook::Forward, priority: -5 };
    let leaves = Statement::In(schema.set(OUT).lookup());
    let carries = Statement::carries;
    let multicast = Statement::NotEquals(Field::PacketType, Key::EMPTY.byte(Field::UNICAST));
    let listener = [130, 137].map(|number| Key::EMPTY.byte(number));
    let listener = Statement::Between(Field::Icmpv6Type, listener[0], listener[1]);
    let mut rules = vec![
        accept([leaves.clone(), multicast.clone(), carries(Family::V6), listener]),
        accept([leaves.clone(), carries(Family::V4), multicast.clone()]),
        accept([carries(Family::V6), leaves, multicast]),
    ];
    let sender = Key::EMPTY.address([10, 0, 0, 1].into());
    rules.extend([
        accept([Statement::carries_arp()]),
        accept([Statement::Equals(Field::ArpSender, sender)]),
        accept([Statement::Between(
            Field::PacketType,
            Key::EMPTY.byte(Field::BROADCAST),
            Key::EMPTY.byte(Field::MULTICAST),
        )]),
    ]);
    rules.extend(frames());
    rules.extend(ethernet(&schema));
    let chains = vec![chain("forward", Some(base), rules)];
    let key = Key::EMPTY.interface("veth1");
    let target = key.address([0xfd00, 0, 0, 0, 0, 0, 0, 1].into());
    let elements = [(OUT, key), (MACS, Key::EMPTY.ether([2; 6])), (TARGETS, target)];
    let element = |(set, key)| Element { set, key, value: Value::Member, comment: None };
    SmallTable { schema, chains, elements: elements.map(element).into() }
}

/// Asks about frames, and about messages that only they carry.
fn ethernet(schema: &Schema) -> Vec<Rule> {
    let frame = |kind| Statement::Equals(Field::FrameType, Key::EMPTY.port(kind));
    let macs = schema.set(MACS);
    let kind = |number| Statement::Equals(Field::Icmpv6Type, Key::EMPTY.byte(number));
    let short = |equal| Statement::Bits { field: Field::Length, mask: !127, equal, value: 0 };
    vec![
        accept([frame(0x0800), Statement::In(macs.lookup())]),
        accept([frame(0x8100)]),
        accept([frame(0x88a8)]),
        accept([Statement::NotEquals(Field::FrameType, Key::EMPTY.port(0x0806))]),
        accept([Statement::In(macs.lookup_of(vec![Field::ArpSenderEther]))]),
        accept([Statement::In(macs.lookup_of(vec![Field::EtherDestination]))]),
        accept([
            Statement::carries(Family::V6),
            kind(136),
            Statement::In(schema.set(TARGETS).lookup()),
        ]),
        accept([frame(0x86dd), kind(135), short(true)]),
        accept([frame(0x0806), short(false)]),
        accept([frame(0x86dd), Statement::Equals(Field::Protocol, Key::EMPTY.byte(58))]),
    ]
}

#[test]
fn nft_lists_and_reads_back_what_a_firewall_needs() -> Result<()> {
    let [v4, v6] = Family::BOTH.map(routed);
    let tables = [v4, v6, bridged()];
    let (by_driver, by_nft) = (Netns::new("driver")?, Netns::new("nft")?);
    by_driver.run(|| -> Result<()> {
        let mut kernel = Kernel::open()?;
        let mut batch = kernel.batch(TableFamily::Ip, None);
        for SmallTable { schema, chains, elements } in &tables {
            batch.about(schema.family);
            batch.replace_table(false, schema, chains);
            batch.add_elements(schema, elements);
        }
        Ok(kernel.commit(batch)?)
    })??;
    let text = tables.iter().fold(Rendering::empty(), |all, table| {
        all.with(&table.schema, &table.chains, &table.elements)
    });
    by_nft.nft(&text.to_string())?;
    have_the_same(&by_driver, &by_nft)?;
    // Bytes too: what is printed alike need not be what a packet is compared with.
    by_nft.run(|| -> Result<()> {
        for SmallTable { schema, elements, .. } in &tables {
            let seen = Kernel::open()?.observe(schema)?;
            let delta = seen.difference(elements.iter().cloned(), |_| true);
            ensure!(delta.is_empty(), "{}: {delta:#?}", schema.family);
        }
        Ok(())
    })??;
    is_read_back(&by_driver)
}
