//! A table of every kind of set and statement, and the kernel.

use denizen_packet::Family;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::thread;

use nix::sched::{CloneFlags, unshare};

use super::*;
use crate::part::commit_parts;

mod both_versions;
mod counted;
mod keeper;

const NAMES: SetId = SetId(0);
const PREFIXES: SetId = SetId(1);
const WHERE: SetId = SetId(2);
const TO: SetId = SetId(3);
const SEEN: SetId = SetId(4);
const PORTS: SetId = SetId(5);
const PLAIN: SetId = SetId(7);
const COUNTED: SetId = SetId(8);

fn set(id: SetId, name: &'static str, key: &[Field], data: DataType) -> Set {
    Set {
        id,
        name,
        comment: "a set",
        key: key.into(),
        is_ranged: false,
        data,
        max_dynamic_elements: None,
    }
}

fn schema(family: TableFamily) -> Schema {
    use Field::{
        Destination, DestinationPort, InputInterface, Mark, Priority, Protocol, Random, Source,
    };
    let version = if family == TableFamily::Ip { Family::V4 } else { Family::V6 };
    let address = Destination(version);
    let to = DataType::Fields(vec![address, DestinationPort]);
    let prefixes = set(PREFIXES, "prefixes", &[Mark, Source(version)], DataType::None);
    let number = DataType::Fields(vec![Priority]);
    let seen = set(SEEN, "seen", &[Priority, Source(version)], number.clone());
    let ports =
        set(PORTS, "ports", &[address, Protocol, DestinationPort, Priority], DataType::None);
    let plain = set(PLAIN, "plain", &[Source(version)], number);
    let sets = vec![
        set(NAMES, "names", &[InputInterface, Source(version)], DataType::None),
        prefixes,
        set(WHERE, "where", &[address, Protocol, DestinationPort], DataType::Verdict),
        set(TO, "to", &[DestinationPort, Random(16)], to),
        Set { max_dynamic_elements: Some(1024), ..seen },
        ports,
        Set { is_ranged: true, ..plain },
        Set {
            max_dynamic_elements: Some(2),
            ..set(COUNTED, "counted", &flow(version), DataType::None)
        },
    ];
    Schema { family, name: "some", comment: "for a test", sets }
}

/// What packets are counted by.
fn flow(version: Family) -> [Field; 4] {
    let addresses = [Field::Source(version), Field::Destination(version)];
    [Field::Protocol, Field::DestinationPort, addresses[0], addresses[1]]
}

/// Counts packets by [`flow`], with the port or without.
fn count(version: Family, with_port: bool) -> Statement {
    let bits = |field| (field == Field::DestinationPort && !with_port).then_some(0);
    let key = flow(version).map(|field| (field, bits(field)));
    Statement::Update(Update {
        set: "counted",
        key: key.into(),
        operation: Operation::Count { seconds: 900, is_renewed: false },
        data: None,
    })
}

fn rule(statements: impl Into<Vec<Statement>>) -> Rule {
    Rule { statements: statements.into(), why: "it is there for a test" }
}

/// Every kind of statement.
fn chains(schema: &Schema) -> Vec<Chain> {
    let version = if schema.family == TableFamily::Ip { Family::V4 } else { Family::V6 };
    let network: IpAddr = match version {
        Family::V4 => Ipv4Addr::new(10, 96, 0, 0).into(),
        Family::V6 => Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 0).into(),
    };
    let lookup = |id| schema.set(id).lookup();
    let bits = |field, equal, value| Statement::Bits { field, mask: 6, equal, value };
    let update = |operation, data| {
        let key = vec![(Field::Priority, Some(0xffff)), (Field::Source(version), None)];
        Statement::Update(Update { set: "seen", key, operation, data })
    };
    let renew = Operation::Update { seconds: 60, limit: None };
    let filter = vec![
        rule([
            Statement::Equals(Field::Protocol, Key::EMPTY.byte(6)),
            Statement::Equals(Field::InputInterface, Key::EMPTY.interface("lo")),
            Statement::carries(version),
            Statement::Verdict(Verdict::Accept),
        ]),
        rule([
            Statement::BeginsWith(Field::InputInterface, "veth".into()),
            Statement::Within(Field::Source(version), network, 13),
            Statement::Within(Field::Destination(version), network, 16),
            Statement::Verdict(Verdict::Return),
        ]),
        rule([
            Statement::Equals(Field::DestinationType, Key::EMPTY.number(Field::LOCAL)),
            bits(Field::ConnectionState, false, 0),
            bits(Field::Mark, true, 4),
            Statement::In(lookup(NAMES)),
            Statement::NotIn(lookup(PREFIXES)),
            Statement::Bits { field: Field::TransportByte(13), mask: 0x17, equal: true, value: 2 },
            Statement::Limit(Limit { burst: 5, hourly: 36_000 }),
            Statement::Trace,
            Statement::Counter,
            Statement::Verdict(Verdict::Drop),
        ]),
        rule([
            Statement::Assign(Variable::Mark, Assigned::Or(8)),
            Statement::Assign(Variable::ConnectionMark, Assigned::And(!8)),
            Statement::Assign(Variable::Priority, Assigned::Found(lookup(SEEN))),
            update(renew, Some(Field::Priority)),
            update(Operation::Delete, Some(Field::Priority)),
            Statement::Assign(Variable::Priority, Assigned::Zero),
            Statement::Verdict(Verdict::Goto("refuse".into())),
        ]),
        rule([count(version, true)]),
        rule([count(version, false)]),
        rule([Statement::VerdictMap(lookup(WHERE))]),
    ];
    let of_destination = schema.set(PLAIN).lookup_of(vec![Field::Destination(version)]);
    let prefixes = lookup(PREFIXES).prefix(Field::Source(version), 9);
    let forwarded = vec![
        rule([
            Statement::NotEquals(Field::PacketType, Key::EMPTY.byte(Field::UNICAST)),
            Statement::BeginsWith(Field::OutputInterface, "veth".into()),
            Statement::Between(Field::Icmpv6Type, Key::EMPTY.byte(130), Key::EMPTY.byte(137)),
            Statement::Verdict(Verdict::Accept),
        ]),
        rule([Statement::Assign(Variable::Priority, Assigned::Found(lookup(PLAIN)))]),
        rule([
            Statement::Assign(Variable::Priority, Assigned::Found(of_destination)),
            Statement::Equals(Field::OutputInterface, Key::EMPTY.interface("veth1")),
            Statement::In(lookup(PORTS)),
            Statement::In(lookup(PORTS).marked_prefix(Field::DestinationPort, 10)),
            Statement::NotIn(prefixes),
            Statement::Verdict(Verdict::Return),
        ]),
    ];
    let translate = Statement::Dnat(version, schema.set(TO).draw(4));
    let tcp = Statement::Equals(Field::Protocol, Key::EMPTY.byte(6));
    let base = |kind, hook| Some(BaseChain { kind, hook, priority: -10 });
    let chain = |name: &str, base, rules| Chain { name: name.into(), base, why: "a chain", rules };
    vec![
        chain(
            "refuse",
            None,
            vec![
                rule([tcp.clone(), Statement::Reject(Reject::TcpReset)]),
                rule([Statement::Reject(Reject::PortUnreachable)]),
            ],
        ),
        chain("filter", base(ChainKind::Filter, Hook::Prerouting), filter),
        chain("forwarded", base(ChainKind::Filter, Hook::Forward), forwarded),
        chain("arriving", base(ChainKind::Nat, Hook::Prerouting), vec![rule([tcp, translate])]),
        chain(
            "leaving",
            base(ChainKind::Nat, Hook::Postrouting),
            vec![rule([Statement::Masquerade])],
        ),
    ]
}

fn elements(schema: &Schema) -> Vec<Element> {
    let address: IpAddr = match schema.family {
        TableFamily::Ip | TableFamily::Arp => Ipv4Addr::new(10, 0, 0, 0).into(),
        TableFamily::Ip6 | TableFamily::Inet | TableFamily::Bridge => Ipv6Addr::UNSPECIFIED.into(),
    };
    let element = |set, key, value| Element { set, key, value, comment: Some("words".into()) };
    let ports = Key::EMPTY.address(address).byte(6).port(80);
    vec![
        element(NAMES, Key::EMPTY.interface("veth1").address(address), Value::Member),
        element(PREFIXES, Key::EMPTY.number(7).address(address), Value::Member),
        element(PREFIXES, Key::EMPTY.number(8).address(address), Value::Member),
        element(WHERE, Key::EMPTY.address(address).byte(17).port(53), Value::Goto("refuse".into())),
        element(PORTS, ports.number(7), Value::Member),
        element(TO, Key::EMPTY.port(80).number(3), Value::Data(endpoint(address, 8080))),
    ]
    .into_iter()
    .chain(neighbours(address))
    .collect()
}

/// Ranges of one field that touch each other, the first and the last address among them.
fn neighbours(address: IpAddr) -> impl Iterator<Item = Element> {
    let at = |top: u8, last: u8| ip_within(address, [top, 0, last]);
    let greatest = ip_within(address, [255, 255, 255]);
    let ranges = [
        (at(0, 0), ip_within(address, [31, 255, 255])),
        (at(32, 0), at(32, 0)),
        (at(32, 1), at(32, 8)),
        (at(64, 0), at(64, 7)),
        (ip_within(address, [128, 0, 0]), greatest),
    ];
    ranges.into_iter().zip(7..).map(|((first, last), number)| Element {
        set: PLAIN,
        key: Key::EMPTY.address(first).up_to_address(last),
        value: Value::Data(Data::EMPTY.number(number)),
        comment: None,
    })
}

/// An address of the same family: its first byte, those between, and its last.
fn ip_within(address: IpAddr, [first, between, last]: [u8; 3]) -> IpAddr {
    match address {
        IpAddr::V4(_) => Ipv4Addr::new(first, between, between, last).into(),
        IpAddr::V6(_) => {
            let mut bytes = [between; 16];
            (bytes[0], bytes[15]) = (first, last);
            Ipv6Addr::from(bytes).into()
        }
    }
}

fn alone(test: impl FnOnce(&mut Kernel) + Send + 'static) {
    let thread = thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNET).expect("the kernel tests need root");
        test(&mut Kernel::open().unwrap());
    });
    thread.join().unwrap();
}

/// Else every look would find a difference, and repair what is right.
#[test]
fn the_kernel_gives_everything_back_as_it_was_sent() {
    alone(|kernel| {
        for family in [TableFamily::Ip, TableFamily::Ip6] {
            let schema = schema(family);
            let (chains, elements) = (chains(&schema), elements(&schema));
            Keeper::probe(kernel, &schema, &chains).unwrap();
            assert!(!kernel.observe(&schema).unwrap().is_there(), "it was only tried");
            let mut batch = kernel.batch(TableFamily::Bridge, None);
            batch.about(family);
            batch.replace_table(false, &schema, &chains);
            batch.add_elements(&schema, &elements);
            kernel.commit(batch).unwrap();
            let seen = kernel.observe(&schema).unwrap();
            assert_eq!(seen.structure(&schema, &chains), Some(Structure::default()));
            let delta = seen.difference(elements.into_iter(), |_| true);
            assert_eq!(delta, Delta::default(), "{family}: {seen:?}");
        }
    });
}

/// One of them ends where the next one begins.
#[test]
fn ranges_of_one_field_are_replaced_and_removed_one_by_one() {
    alone(|kernel| {
        for family in [TableFamily::Ip, TableFamily::Ip6] {
            let schema = schema(family);
            let all: Vec<Element> =
                elements(&schema).into_iter().filter(|element| element.set == PLAIN).collect();
            kernel
                .write(family, |batch| batch.replace_table(false, &schema, &chains(&schema)))
                .unwrap();
            kernel.write(family, |batch| batch.add_elements(&schema, &all)).unwrap();
            for n in 0..all.len() {
                let mut other = all.clone();
                other[n].value = Value::Data(Data::EMPTY.number(99));
                let without = [&all[..n], &all[n + 1..]].concat();
                for wanted in [other, without, all.clone()] {
                    let seen = kernel.observe(&schema).unwrap();
                    let delta = seen.difference(wanted.iter().cloned(), |set| set == PLAIN);
                    assert_eq!(delta.count(), 1);
                    kernel.write(family, |batch| delta.write(batch, &schema)).unwrap();
                    let seen = kernel.observe(&schema).unwrap();
                    let delta = seen.difference(wanted.into_iter(), |set| set == PLAIN);
                    assert!(delta.is_empty(), "{family}, {n}: {delta:?}");
                }
            }
            let whole = element_of_all(&schema);
            let seen = kernel.observe(&schema).unwrap();
            let delta = seen.difference([whole.clone()].into_iter(), |set| set == PLAIN);
            kernel.write(family, |batch| delta.write(batch, &schema)).unwrap();
            let seen = kernel.observe(&schema).unwrap();
            assert!(seen.difference([whole].into_iter(), |set| set == PLAIN).is_empty());
        }
    });
}

fn loopback(family: TableFamily) -> IpAddr {
    match family {
        TableFamily::Ip6 => Ipv6Addr::LOCALHOST.into(),
        TableFamily::Ip | TableFamily::Arp | TableFamily::Inet | TableFamily::Bridge => {
            Ipv4Addr::LOCALHOST.into()
        }
    }
}

/// A range that holds every address has no end.
fn element_of_all(schema: &Schema) -> Element {
    let [first, last] = [0, 255].map(|byte| ip_within(loopback(schema.family), [byte; 3]));
    let (value, key) = (Value::Data(Data::EMPTY.number(1)), Key::EMPTY.address(first));
    Element { set: PLAIN, key: key.up_to_address(last), value, comment: None }
}

/// Reasons are worded anew in another release. What is recognised by its id stays untouched.
#[test]
fn other_words_are_no_difference() {
    alone(|kernel| {
        let before = schema(TableFamily::Ip);
        kernel
            .write(TableFamily::Ip, |batch| batch.replace_table(false, &before, &chains(&before)))
            .unwrap();
        let mut after = before.clone();
        after.comment = "other words";
        after.sets.iter_mut().for_each(|set| set.comment = "other words");
        let mut same = chains(&after);
        for chain in &mut same {
            chain.why = "other words";
            chain.rules.iter_mut().for_each(|rule| rule.why = "other words");
        }
        let seen = kernel.observe(&after).unwrap();
        assert_eq!(seen.structure(&after, &same), Some(Structure::default()));
        same[0].rules.pop();
        let differs = seen.structure(&after, &same).unwrap();
        assert_eq!((differs.count(), differs.is_additive()), (1, false));
    });
}

#[test]
fn all_but_what_the_kernel_refuses_is_taken() {
    alone(|kernel| {
        let schema = schema(TableFamily::Ip);
        let chains = chains(&schema);
        kernel
            .write(TableFamily::Ip, |batch| batch.replace_table(false, &schema, &chains))
            .unwrap();
        let mut wanted = elements(&schema);
        wanted[3].value = Value::Goto("not-there".into());
        let delta = Delta { add: wanted.clone(), ..Delta::default() };
        let rejected = commit_parts(kernel, &schema, &delta);
        let rejected: Vec<_> = rejected.iter().map(|element| (element.set, element.key)).collect();
        assert_eq!(rejected, [(wanted[3].set, wanted[3].key)]);
        let seen = kernel.observe(&schema).unwrap();
        wanted.remove(3);
        assert!(seen.difference(wanted.into_iter(), |_| true).is_empty());
    });
}

/// Half of a change would be a state that nobody asked for.
#[test]
fn a_batch_about_several_families_is_taken_whole_or_not_at_all() {
    alone(|kernel| {
        let (v4, v6) = (schema(TableFamily::Ip), schema(TableFamily::Ip6));
        let mut both = |last: &Element| {
            let mut batch = kernel.batch(TableFamily::Ip, None);
            batch.replace_table(false, &v4, &chains(&v4));
            batch.about(TableFamily::Ip6);
            batch.replace_table(false, &v6, &chains(&v6));
            batch.add_elements(&v6, std::slice::from_ref(last));
            let sent = kernel.commit(batch);
            let there = [&v4, &v6].map(|schema| kernel.observe(schema).unwrap().is_there());
            (sent, there)
        };
        let element = &mut elements(&v6)[3];
        element.value = Value::Goto("not-there".into());
        let (sent, there) = both(element);
        let Err(NftError::Refused { family: TableFamily::Ip6, what: Some(what), .. }) = sent else {
            panic!("{sent:?}");
        };
        assert_eq!((what, there), (MessageSubject::Elements("where"), [false, false]));
        element.value = Value::Goto("refuse".into());
        let (sent, there) = both(element);
        sent.unwrap();
        assert_eq!(there, [true, true]);
    });
}

/// What is there for one process only must not stay when it is killed.
#[test]
fn a_table_goes_with_the_socket_that_owns_it() {
    alone(|kernel| {
        let schema = Schema { sets: Vec::new(), ..schema(TableFamily::Ip) };
        let mut owner = Kernel::open().unwrap();
        owner.write(TableFamily::Ip, |batch| batch.add_owned_table(&schema, &[])).unwrap();
        assert_eq!(kernel.observe(&schema).unwrap().owner(), Some(owner.portid()));
        kernel.write(TableFamily::Ip, |batch| batch.delete_table(schema.name)).unwrap_err();
        drop(owner);
        assert!(!kernel.observe(&schema).unwrap().is_there());
    });
}

/// Rules of other programs are read by people.
#[test]
fn rules_are_listed_as_far_as_they_are_understood() {
    alone(|kernel| {
        let schema = schema(TableFamily::Ip);
        let chains = chains(&schema);
        kernel
            .write(TableFamily::Ip, |batch| batch.replace_table(false, &schema, &chains))
            .unwrap();
        let listed =
            kernel.rules(TableFamily::Ip, schema.name, Some("filter"), |rule| Some(rule.text()));
        let listed = listed.unwrap();
        for part in ["ip daddr 10.96.0.0/16", "return"] {
            assert!(listed[1].contains(part), "{}", listed[1]);
        }
        assert_eq!(listed[4], "add @counted");
        for part in ["@names", "!= @prefixes", "@th,104,8 & 0x17 0x02", "limit", "drop"] {
            assert!(listed[2].contains(part), "{}", listed[2]);
        }
        let forwarded =
            kernel.rules(TableFamily::Ip, schema.name, Some("forwarded"), |rule| Some(rule.text()));
        let first = &forwarded.unwrap()[0];
        for part in ["meta pkttype != host", "oifname \"veth*\"", "meta l4proto 58", "accept"] {
            assert!(first.contains(part), "{first}");
        }
    });
}

#[test]
fn ranges_are_written_as_nft_writes_them() {
    let schema = schema(TableFamily::Ip);
    let text = |element: &Element| schema.set(element.set).key_text(&element.key).to_string();
    let ranges = elements(&schema).into_iter().filter(|element| element.set == PLAIN);
    let texts: Vec<_> = ranges.map(|element| text(&element)).collect();
    assert_eq!(
        texts,
        ["0.0.0.0/3", "32.0.0.0", "32.0.0.1-32.0.0.8", "64.0.0.0/29", "128.0.0.0/1",]
    );
}
