//! A table of every kind of set and statement, and the kernel.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::thread;

use nix::sched::{CloneFlags, unshare};
use proptest::prelude::*;

use super::*;

const NAMES: SetId = SetId(0);
const RANGES: SetId = SetId(1);
const WHERE: SetId = SetId(2);
const TO: SetId = SetId(3);
const SEEN: SetId = SetId(4);

fn set(id: SetId, name: &'static str, key: &[Field], data: DataType) -> Set {
    Set { id, name, comment: "a set", key: key.into(), is_ranged: false, data, room: None }
}

fn schema(family: Family) -> Schema {
    use Field::{Destination, DestinationPort, InputInterface, Mark, Priority, Random, Source};
    let version = if family == Family::Ip { IpVersion::V4 } else { IpVersion::V6 };
    let address = Destination(version);
    let to = DataType::Fields(vec![address, DestinationPort]);
    let ranges = set(RANGES, "ranges", &[Mark, Source(version)], DataType::None);
    let seen =
        set(SEEN, "seen", &[Priority, Source(version)], DataType::Fields(vec![Field::Priority]));
    let sets = vec![
        set(NAMES, "names", &[InputInterface, Source(version)], DataType::None),
        Set { is_ranged: true, ..ranges },
        set(WHERE, "where", &[address, Field::Protocol, DestinationPort], DataType::Verdict),
        set(TO, "to", &[DestinationPort, Random(16)], to),
        Set { room: Some(1024), ..seen },
    ];
    Schema { family, name: "some", comment: "for a test", sets }
}

fn rule(statements: impl Into<Vec<Statement>>) -> Rule {
    Rule { statements: statements.into(), why: "it is there for a test" }
}

/// Every kind of statement.
fn chains(schema: &Schema) -> Vec<Chain> {
    let version = if schema.family == Family::Ip { IpVersion::V4 } else { IpVersion::V6 };
    let network: IpAddr = match version {
        IpVersion::V4 => Ipv4Addr::new(10, 96, 0, 0).into(),
        IpVersion::V6 => Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 0).into(),
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
            bits(Field::ConnectionState, false, 0),
            bits(Field::Mark, true, 4),
            Statement::In(lookup(NAMES)),
            Statement::NotIn(lookup(RANGES)),
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
        rule([Statement::GoWhere(lookup(WHERE))]),
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
        chain("filter", base(Kind::Filter, Hook::Prerouting), filter),
        chain("arriving", base(Kind::Nat, Hook::Prerouting), vec![rule([tcp, translate])]),
        chain("leaving", base(Kind::Nat, Hook::Postrouting), vec![rule([Statement::Masquerade])]),
    ]
}

fn elements(schema: &Schema) -> Vec<Element> {
    let address: IpAddr = match schema.family {
        Family::Ip => Ipv4Addr::new(10, 0, 0, 0).into(),
        Family::Ip6 | Family::Inet | Family::Bridge => Ipv6Addr::UNSPECIFIED.into(),
    };
    let element = |set, key, value| Element { set, key, value, comment: Some("words".into()) };
    vec![
        element(NAMES, Key::EMPTY.interface("veth1").address(address), Value::Member),
        element(RANGES, Key::EMPTY.number(7).range(address, 9), Value::Member),
        element(
            RANGES,
            Key::EMPTY.number(8).range(address, 128.min(address_bits(address))),
            Value::Member,
        ),
        element(WHERE, Key::EMPTY.address(address).byte(17).port(53), Value::Goto("refuse".into())),
        element(TO, Key::EMPTY.port(80).number(3), Value::Data(endpoint(address, 8080))),
    ]
}

fn address_bits(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
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
        for family in [Family::Ip, Family::Ip6] {
            let schema = schema(family);
            let (chains, elements) = (chains(&schema), elements(&schema));
            kernel.try_table(&schema, &chains).unwrap();
            assert!(!kernel.observe(&schema).unwrap().is_there(), "it was only tried");
            let mut batch = kernel.batch(family, None);
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

/// Reasons are worded anew in another release. What is recognised by its id stays untouched.
#[test]
fn other_words_are_no_difference() {
    alone(|kernel| {
        let before = schema(Family::Ip);
        kernel
            .write(Family::Ip, |batch| batch.replace_table(false, &before, &chains(&before)))
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
        let schema = schema(Family::Ip);
        let chains = chains(&schema);
        kernel.write(Family::Ip, |batch| batch.replace_table(false, &schema, &chains)).unwrap();
        let mut wanted = elements(&schema);
        wanted[3].value = Value::Goto("not-there".into());
        let delta = Delta { delete: Vec::new(), add: wanted.clone() };
        let rejected = kernel.commit_parts(&schema, &delta);
        let rejected: Vec<_> = rejected.iter().map(|it| it.change).collect();
        assert_eq!(rejected, [Change::Addition(&wanted[3])]);
        let seen = kernel.observe(&schema).unwrap();
        wanted.remove(3);
        assert!(seen.difference(wanted.into_iter(), |_| true).is_empty());
    });
}

proptest! {
    #[test]
    fn a_range_is_found_by_its_bounds(address: u128, number: u32, bits in 0_u8..=128) {
        let mask = |width: u32| u128::MAX.checked_shl(width - u32::from(bits).min(width)).unwrap_or(0);
        let v6 = IpAddr::from(Ipv6Addr::from(address & mask(128)));
        let v4 = IpAddr::from(Ipv4Addr::from((address & mask(32)) as u32));
        for (ip, bits) in [(v6, bits), (v4, bits.min(32))] {
            let key = Key::EMPTY.number(number).range(ip, bits);
            let (first, last) = key.bounds(IpVersion::of(ip));
            let found = Key::from_bounds(IpVersion::of(ip), first.as_bytes(), last.as_bytes());
            prop_assert_eq!(found, Some(key));
        }
    }
}
