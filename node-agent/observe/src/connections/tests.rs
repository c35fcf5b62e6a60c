//! Entries made by hand, and what is said of them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use denizen_netlink::{Open, Writer, parse_messages};

use super::{ConnectionFilter, NamedConnection, SummaryBuilder, Totals, Tracked};
use crate::names::Names;
use crate::status::DrainingSince;
use denizen_backend::Draining;
use denizen_fixture::*;
use denizen_model::{Event, Listing, Protocol, Service};
use denizen_plan::fixture::*;
use denizen_plan::{Capabilities, FrontendAddress, FrontendKey, Planner};

const CLIENT: &str = "10.1.0.9:4000";
const FRONTEND: &str = "10.96.0.10:53";
const ENDPOINT: &str = "10.1.0.2:5353";
const NODE: &str = "192.168.0.1:4000";

/// What an entry has besides its tuples.
type Rest = Box<dyn FnOnce(&mut Writer)>;

fn at(text: &str) -> SocketAddr {
    text.parse().expect(text)
}

/// An entry as the kernel writes it: both tuples, and `rest`.
fn entry(protocol: Protocol, ends: [&str; 4], rest: impl FnOnce(&mut Writer)) -> Option<Tracked> {
    let mut writer = Writer::default();
    let message = writer.begin_message(0x100, 0, 1, 2, 0);
    let [source, destination, reply_source, reply_destination] = ends.map(at);
    for (kind, from, to) in [(1, source, destination), (2, reply_source, reply_destination)] {
        let tuple = writer.begin(kind);
        nested(&mut writer, 1, |writer| {
            for (kind, end) in [(1, from), (2, to)] {
                if let std::net::IpAddr::V4(ip) = end.ip() {
                    writer.put(kind, &ip.octets());
                }
            }
        });
        nested(&mut writer, 2, |writer| {
            writer.put(1, &[protocol.number()]);
            writer.put(2, &from.port().to_be_bytes());
            writer.put(3, &to.port().to_be_bytes());
        });
        writer.end(tuple);
    }
    writer.put_u32(12, 7);
    rest(&mut writer);
    writer.end_message(message);
    parse_messages(writer.bytes()).next().and_then(|message| Tracked::parse(&message))
}

fn nested(writer: &mut Writer, kind: u16, fill: impl FnOnce(&mut Writer)) {
    let open: Open = writer.begin(kind);
    fill(writer);
    writer.end(open);
}

/// The number of a state, in the information about this protocol.
fn state(info: u16, number: u8) -> impl FnOnce(&mut Writer) {
    move |writer| {
        nested(writer, 4, |writer| nested(writer, info, |writer| writer.put(1, &[number])))
    }
}

#[test]
fn states_have_the_kernels_names() {
    let plain = [CLIENT, ENDPOINT, ENDPOINT, CLIENT];
    let state_of = |protocol, rest: Rest| entry(protocol, plain, rest).expect("an entry").state;
    let status = |status: u32| -> Rest { Box::new(move |writer| writer.put_u32(3, status)) };
    let cases = [
        (Protocol::Tcp, Box::new(state(1, 1)) as Rest, Some("syn_sent")),
        (Protocol::Tcp, Box::new(state(1, 3)), Some("established")),
        (Protocol::Tcp, Box::new(state(1, 7)), Some("time_wait")),
        (Protocol::Tcp, Box::new(state(1, 77)), None),
        (Protocol::Sctp, Box::new(state(3, 4)), Some("established")),
        (Protocol::Udp, status(0), Some("unanswered")),
        (Protocol::Udp, status(0b010), Some("answered")),
        (Protocol::Udp, status(0b110), Some("assured")),
        (Protocol::Udp, Box::new(|_: &mut Writer| {}), None),
    ];
    for (protocol, rest, expected) in cases {
        assert_eq!(state_of(protocol, rest), expected, "{protocol}");
    }
}

#[test]
fn an_age_is_known_where_the_kernel_knows_it() {
    let plain = [CLIENT, ENDPOINT, ENDPOINT, CLIENT];
    let now = Duration::from_secs(100);
    let nanoseconds = |seconds: u64| (seconds * 1_000_000_000).to_be_bytes();
    let cases: [(Rest, Option<u64>); 4] = [
        (Box::new(|_| {}), None),
        (Box::new(move |w| nested(w, 20, |w| w.put(1, &nanoseconds(58)))), Some(42)),
        (
            Box::new(move |w| {
                nested(w, 20, |w| {
                    w.put(1, &nanoseconds(58));
                    w.put(2, &nanoseconds(60));
                });
            }),
            Some(2),
        ),
        // The clock was set back.
        (Box::new(move |w| nested(w, 20, |w| w.put(1, &nanoseconds(200)))), Some(0)),
    ];
    for (rest, expected) in cases {
        let tracked = entry(Protocol::Tcp, plain, rest).expect("an entry");
        assert_eq!(tracked.age(now).map(|age| age.as_secs()), expected);
    }
}

/// A service `default/dns` with ports, also at a node port, and two pods.
fn names() -> Names {
    let mut planner = Planner::new(policy(), CAPABLE);
    let dns = Service {
        ports: vec![service_port("udp", Protocol::Udp, 53, Some(30053))],
        ..service("dns", &["10.96.0.10"])
    };
    let pods = pods(1, &[("10.1.0.9", "veth0"), ("10.1.0.2", "veth1")]);
    planner.apply(Listing::SERVICES.map(Event::Listed).into());
    planner.apply(vec![Event::Service(dns.name.clone(), Some(dns)), Event::Pods(pods)]);
    planner.update();
    Names::of(planner.plan(), planner.model(), &BTreeMap::new())
}

#[test]
fn connections_are_named_and_counted() {
    let names = names();
    let mut totals = Totals::default();
    let mut show = |ends| {
        let tracked = entry(Protocol::Udp, ends, |_| {}).expect("an entry");
        let connection = NamedConnection::of(&tracked, &names, Duration::ZERO);
        totals.add(&connection);
        connection.to_string()
    };
    let cases = [
        (
            [CLIENT, FRONTEND, ENDPOINT, CLIENT],
            "udp: 10.1.0.9:4000 (default/pod-0) to 10.96.0.10:53 (default/dns:udp), \
             endpoint 10.1.0.2:5353 (default/pod-1)",
        ),
        (
            [CLIENT, FRONTEND, ENDPOINT, NODE],
            "udp: 10.1.0.9:4000 (default/pod-0) to 10.96.0.10:53 (default/dns:udp), \
             endpoint 10.1.0.2:5353 (default/pod-1), masqueraded as 192.168.0.1:4000",
        ),
        (
            [CLIENT, ENDPOINT, ENDPOINT, CLIENT],
            "udp: 10.1.0.9:4000 (default/pod-0) to 10.1.0.2:5353 (default/pod-1)",
        ),
    ];
    for (ends, expected) in cases {
        assert_eq!(show(ends), expected);
    }
    assert_eq!(totals.to_string(), "connections: 3\n  default/dns:udp: 2, 1 of them masqueraded\n");
}

/// The endpoint drains for one of its services, and not for the other.
#[test]
fn connections_to_a_draining_endpoint_are_shown() {
    let able = Capabilities { balances_by_ipvs: true, ..CAPABLE };
    let mut planner = Planner::new(policy(), able);
    let node = Event::Addresses(vec![address("192.168.0.1", "eth0")]);
    planner.apply([node].into_iter().chain(Listing::SERVICES.map(Event::Listed)).collect());
    for (name, ip) in [("dns", "10.96.0.10"), ("other", "10.96.0.11")] {
        let ports = vec![service_port("http", Protocol::Tcp, 53, None)];
        let service = Service { ports, ..service(name, &[ip]) };
        // One of its own.
        let own = format!("10.1.0.{}", name.len());
        let slice = slice(name, name, vec![endpoint(&own, None)]);
        planner.apply(vec![
            Event::Service(service.name.clone(), Some(service)),
            Event::Slice(slice.name.clone(), Some(slice)),
        ]);
    }
    planner.update();
    let server = |at: &str| FrontendKey {
        address: FrontendAddress::Ip(at.parse().expect(at)),
        protocol: Protocol::Tcp,
        port: port(53),
    };
    let shown = |since: DrainingSince| {
        let draining = Draining { frontend: server("10.96.0.10"), endpoint: at(ENDPOINT) };
        let draining = BTreeMap::from([(draining, since)]);
        let names = Names::of(planner.plan(), planner.model(), &draining);
        ["10.96.0.10:53", "10.96.0.11:53"].map(|to| {
            let entry = entry(Protocol::Tcp, [CLIENT, to, ENDPOINT, CLIENT], |_| {});
            let connection = NamedConnection::of(&entry.expect("an entry"), &names, Duration::ZERO);
            connection.to_string().split(", ").skip(2).collect::<String>()
        })
    };
    assert_eq!(shown(DrainingSince::default()), ["draining since before the agent started", ""]);
    let at = "2026-11-23T20:00:00Z".to_owned();
    assert_eq!(shown(DrainingSince(Some(at))), ["draining since 2026-11-23T20:00:00Z", ""]);
}

#[test]
fn names_select_connections() {
    let names = names();
    let filter = |pod: &str, service: &str| ConnectionFilter {
        pod: (!pod.is_empty()).then(|| pod.to_owned()),
        service: (!service.is_empty()).then(|| service.to_owned()),
    };
    let tracked = entry(Protocol::Udp, [CLIENT, FRONTEND, ENDPOINT, CLIENT], |_| {});
    let connection = NamedConnection::of(&tracked.expect("an entry"), &names, Duration::ZERO);
    let cases = [
        ("", "", true, true),
        ("default/pod-0", "", true, true),
        ("10.1.0.2", "default/dns", true, true),
        ("10.1.0.3", "", true, false),
        ("default/pod-1", "default/dns:udp", true, true),
        ("default/dns", "", false, false),
        ("", "default/dn", false, false),
        ("", "default/dns:tcp", false, false),
    ];
    for (pod, service, exists, selects) in cases {
        let filter = filter(pod, service);
        assert_eq!(filter.check(&names).is_ok(), exists, "{filter:?}");
        assert_eq!(filter.selects(&connection), selects, "{filter:?}");
    }
}

#[test]
fn a_summary_has_the_newest_connections_of_a_large_table() {
    let names = names();
    let mut builder = SummaryBuilder::new(&names, Duration::from_secs(5000));
    // Each second once, in no order.
    for second in (0..1000_u64).map(|n| n * 7 % 1000) {
        let began = (second * 1_000_000_000).to_be_bytes();
        let rest = |writer: &mut Writer| nested(writer, 20, |writer| writer.put(1, &began));
        let tracked = entry(Protocol::Udp, [CLIENT, FRONTEND, ENDPOINT, CLIENT], rest);
        builder.add(&tracked.expect("an entry"));
    }
    let summary = builder.summary();
    assert_eq!(summary.totals.total, 1000);
    assert_eq!(summary.totals.services["default/dns:udp"].connections, 1000);
    let seconds: Vec<u64> =
        summary.newest.iter().filter_map(|connection| connection.seconds).collect();
    assert_eq!(seconds, (4001..=4020).collect::<Vec<_>>());
}
