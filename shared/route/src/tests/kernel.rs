//! The driver and the kernel, in network namespaces of their own; `ip` must say the same.

use std::process::Command as Process;
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::libc;
use nix::sched::{CloneFlags, unshare};
use serde_json::Value;

use super::*;

/// Runs `test` on a thread in a new network namespace.
fn in_namespace(test: impl FnOnce() + Send + 'static) {
    let inside = move || {
        unshare(CloneFlags::CLONE_NEWNET).expect("a network namespace; the tests run as root");
        test();
    };
    thread::spawn(inside).join().expect("the test holds");
}

fn ip(arguments: &str) -> String {
    #[expect(clippy::disallowed_methods, reason = "the judge is a program")]
    let output = Process::new("ip").args(arguments.split(' ')).output().expect("ip");
    let (stdout, stderr) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "ip {arguments}: {stderr}");
    stdout.into_owned()
}

/// The links 2 and 3 are up, and this node is 192.0.2.1 and 2001:db8::1 on link 2.
fn make_links() -> u32 {
    ip("link set lo up");
    ip("link add out type veth peer name there");
    for command in [
        "addr add 192.0.2.1/24 dev out",
        "addr add 2001:db8::1/64 dev out nodad",
        "link set out up",
        "link set there up",
    ] {
        ip(command);
    }
    // The kernel makes an IPv6 address this node's own a little later.
    let waits = |_: &i32| {
        thread::sleep(Duration::from_millis(10));
        !ip("-6 route show table local").contains("2001:db8::1 ")
    };
    assert!((0..500).take_while(waits).count() < 500, "2001:db8::1 is not this node's");
    let links: Value = serde_json::from_str(&ip("-j link show out")).expect("JSON");
    links[0]["ifindex"].as_u64().expect("an index") as u32
}

/// What `ip` says of the routes with our protocol, a line each, sorted.
fn listed() -> Vec<String> {
    let mut lines = Vec::new();
    for family in ["-4", "-6"] {
        let shown = ip(&format!("{family} -N -j route show table all proto {OURS}"));
        let routes: Vec<Value> = serde_json::from_str(&shown).expect("JSON");
        for route in routes {
            let fields = ["type", "dst", "gateway", "dev", "table", "metric", "prefsrc"];
            let field = |field: &str| {
                let value = route.get(field)?;
                let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                Some(format!("{field} {text}"))
            };
            lines.push(fields.iter().filter_map(|name| field(name)).collect::<Vec<_>>().join(" "));
        }
    }
    lines.sort_unstable();
    lines
}

fn unicast(to: &str, gateway: &str, link: u32, source: Option<&str>) -> Route {
    Route {
        key: key(to, 1190, MAIN),
        target: RouteTarget::Unicast { gateway: Some(address(gateway)), link },
        source: source.map(address),
        window: None,
    }
}

fn wanted(link: u32) -> Vec<Route> {
    let to = |to, metric, table, target| Route {
        key: key(to, metric, table),
        target,
        source: None,
        window: None,
    };
    let local = RouteTarget::Local { link: 1 };
    let source = |address_of: &str, route| Route { source: Some(address(address_of)), ..route };
    let windowed = |route| Route { window: NonZeroU32::new(0x8000_0001), ..route };
    vec![
        unicast("10.1.2.0/24", "192.0.2.7", link, None),
        unicast("2001:db8:1::/64", "2001:db8::7", link, Some("2001:db8::1")),
        to("10.9.0.0/16", 7, MAIN, RouteTarget::Unicast { gateway: None, link }),
        windowed(to("203.0.113.7/32", 105, 219, RouteTarget::Blackhole)),
        windowed(to("2001:db8:5::7/128", 105, 1000, RouteTarget::Blackhole)),
        to("10.1.0.0/24", 20_000, MAIN, RouteTarget::Unreachable),
        to("2001:db8:2::/64", 20_000, MAIN, RouteTarget::Unreachable),
        source("192.0.2.1", to("10.96.0.10/32", 1, 255, local)),
        source("2001:db8::1", to("fd96::10/128", 1, 255, local)),
    ]
}

/// Does these, and all are done.
fn done(routes: &mut Routes, commands: &[RouteCommand]) {
    assert_eq!(routes.apply(commands).expect("an answer"), []);
}

#[test]
fn routes_of_every_kind_are_made_listed_and_removed() {
    in_namespace(|| {
        let link = make_links();
        let mut routes = Routes::open(OURS).expect("netlink");
        let wanted = wanted(link);
        let add: Vec<_> = wanted.iter().copied().map(RouteCommand::Add).collect();
        done(&mut routes, &add);
        let mut lines = vec![
            "dst 10.1.2.0/24 gateway 192.0.2.7 dev out metric 1190",
            "dst 10.9.0.0/16 dev out metric 7",
            "dst 2001:db8:1::/64 gateway 2001:db8::7 dev out metric 1190 \
             prefsrc 2001:db8::1",
            "type 2 dst 10.96.0.10 dev lo table 255 metric 1 prefsrc 192.0.2.1",
            "type 2 dst fd96::10 dev lo table 255 metric 1 prefsrc 2001:db8::1",
            "type 6 dst 2001:db8:5::7 dev lo table 1000 metric 105",
            "type 6 dst 203.0.113.7 table 219 metric 105",
            "type 7 dst 10.1.0.0/24 metric 20000",
            "type 7 dst 2001:db8:2::/64 dev lo metric 20000",
        ];
        lines.sort_unstable();
        assert_eq!(listed(), lines);

        let own = routes.own().expect("a list");
        assert_eq!(own.len(), wanted.len(), "{own:?}");
        for route in &wanted {
            assert!(own.iter().any(|own| own.is(route) && own.protocol == OURS), "{route:?}");
        }
        let all = routes.of(libc::RTPROT_KERNEL).expect("a list");
        let connected = |route: &&ObservedRoute| route.key == key("192.0.2.0/24", 0, MAIN);
        assert!(all.iter().any(|route| connected(&route)), "{all:?}");

        let remove: Vec<_> = wanted.iter().map(|route| RouteCommand::Remove(route.key)).collect();
        done(&mut routes, &remove);
        assert_eq!(listed(), Vec::<String>::new());
    });
}

#[test]
fn each_refusal_names_its_command_and_all_others_are_done() {
    in_namespace(|| {
        let link = make_links();
        // Somebody else's, at the place where ours would be, and beside it.
        ip("route add 10.1.3.0/24 via 192.0.2.9 proto static metric 1190");
        ip("-6 route add 2001:db8:3::/64 via 2001:db8::9 proto static metric 1190");
        let mut routes = Routes::open(OURS).expect("netlink");
        let ours = unicast("10.1.2.0/24", "192.0.2.7", link, None);
        let mut commands = vec![
            RouteCommand::Add(ours),
            RouteCommand::Add(unicast("10.1.3.0/24", "192.0.2.7", link, None)),
            RouteCommand::Add(unicast("10.1.4.0/24", "198.51.100.7", link, None)),
            RouteCommand::Remove(key("10.1.3.0/24", 1190, MAIN)),
            RouteCommand::Remove(key("2001:db8:3::/64", 1190, MAIN)),
            RouteCommand::Add(unicast("10.1.5.0/24", "192.0.2.7", link, Some("192.0.2.77"))),
        ];
        // More than are sent at once.
        let table = |index: u32| Route {
            key: key("203.0.113.7/32", index, 219),
            target: RouteTarget::Blackhole,
            source: None,
            window: None,
        };
        commands.extend((1..=1500).map(|index| RouteCommand::Add(table(index))));
        commands.push(RouteCommand::Add(ours));
        let refused = routes.apply(&commands).expect("an answer");
        let of = |refused: &RejectedRoute| (refused.command, refused.errno);
        let wanted = [
            (1, Errno::EEXIST),
            (2, Errno::ENETUNREACH),
            (3, Errno::ESRCH),
            (4, Errno::ESRCH),
            (5, Errno::EINVAL),
            (1506, Errno::EEXIST),
        ];
        assert_eq!(refused.iter().map(of).collect::<Vec<_>>(), wanted);
        let words = refused[1].message.as_deref();
        assert_eq!(words, Some("Nexthop has invalid gateway"), "{refused:?}");
        assert_eq!(routes.own().expect("a list").len(), 1501);
        assert!(ip("route show 10.1.3.0/24").contains("192.0.2.9"), "somebody else's is gone");
        assert!(ip("-6 route show 2001:db8:3::/64").contains("2001:db8::9"), "as well");
    });
}

#[test]
fn a_route_is_replaced_in_its_place() {
    in_namespace(|| {
        let link = make_links();
        let mut routes = Routes::open(OURS).expect("netlink");
        for (to, [before, after]) in [
            ("10.1.2.0/24", ["192.0.2.7", "192.0.2.8"]),
            ("2001:db8:1::/64", ["2001:db8::7", "2001:db8::8"]),
        ] {
            done(&mut routes, &[RouteCommand::Add(unicast(to, before, link, None))]);
            done(&mut routes, &[RouteCommand::Replace(unicast(to, after, link, None))]);
        }
        let lines = [
            "dst 10.1.2.0/24 gateway 192.0.2.8 dev out metric 1190",
            "dst 2001:db8:1::/64 gateway 2001:db8::8 dev out metric 1190",
        ];
        assert_eq!(listed(), lines);
    });
}

#[test]
fn the_path_to_an_address_is_what_the_kernel_would_do() {
    in_namespace(|| {
        let link = make_links();
        ip("route add 10.1.2.0/24 via 192.0.2.7");
        ip("route add 10.1.3.0/24 via inet6 2001:db8::7 dev out");
        ip("route add blackhole 10.1.4.0/24");
        ip("route add unreachable 10.1.5.0/24");
        ip("-6 route add blackhole 2001:db8:4::/64");
        ip("-6 route add unreachable 2001:db8:5::/64");
        let mut routes = Routes::open(OURS).expect("netlink");
        let [v4, v6] = ["192.0.2.1", "2001:db8::1"].map(|own| Some(address(own)));
        let by = |gateway: Option<&str>, source| {
            let gateway = gateway.map(address);
            Some(Path { link, gateway, source, is_local: false })
        };
        let cases = [
            ("192.0.2.7", by(None, v4)),
            ("2001:db8::7", by(None, v6)),
            ("10.1.2.9", by(Some("192.0.2.7"), v4)),
            ("10.1.3.9", by(Some("2001:db8::7"), v4)),
            ("10.1.4.9", None),
            ("10.1.5.9", None),
            ("2001:db8:4::9", None),
            ("2001:db8:5::9", None),
            ("198.51.100.1", None),
            ("2001:db8:ffff::1", None),
        ];
        for (to, wanted) in cases {
            assert_eq!(routes.path(address(to)).expect(to), wanted, "{to}");
        }
        for own in ["192.0.2.1", "2001:db8::1", "127.0.0.1", "::1"] {
            let path = routes.path(address(own)).expect(own).expect("a path");
            assert!(path.is_local, "{own}: {path:?}");
        }
    });
}

/// A next hop may be of the other family, and one of several (RTA_VIA).
#[test]
fn gateways_are_those_of_all_next_hops_of_a_table() {
    in_namespace(|| {
        make_links();
        ip("route add 10.1.2.0/24 via 192.0.2.7");
        ip(&format!("route add 10.1.3.0/24 via inet6 fe80::7 dev out metric 9 proto {OURS}"));
        ip("route add 10.1.4.0/24 nexthop via 192.0.2.8 nexthop via inet6 fe80::9 dev out");
        ip("-6 route add 2001:db8:1::/64 via 2001:db8::8");
        ip("route add 10.1.5.0/24 via 192.0.2.9 table 77");
        let mut routes = Routes::open(OURS).expect("netlink");
        let wanted = ["192.0.2.7", "192.0.2.8", "2001:db8::8", "fe80::7", "fe80::9"].map(address);
        assert_eq!(Vec::from_iter(routes.gateways(MAIN).expect("gateways")), wanted);
        let own = routes.own().expect("routes");
        assert_eq!(
            own.iter().map(|route| (route.key, route.target)).collect::<Vec<_>>(),
            [(key("10.1.3.0/24", 9, MAIN), None)]
        );
        done(&mut routes, &[RouteCommand::Remove(own[0].key)]);
        assert_eq!(listed(), [""; 0]);
    });
}

#[test]
fn changes_by_others_are_heard_and_own_ones_are_not() {
    in_namespace(|| {
        let link = make_links();
        let mut routes = Routes::open(OURS).expect("netlink");
        let mut watch = RouteWatch::open(vec![routes.portid()]).expect("netlink");
        // The kernel's own routes and the link's state come and go by themselves meanwhile.
        let mut heard = |is_meant: fn(&RouteChange) -> bool| {
            let mut changes = Vec::new();
            watch.changes(|change| changes.push(change)).expect("changes");
            changes.retain(is_meant);
            changes
        };
        let routed = |change: &RouteChange| match change {
            RouteChange::Added(route) | RouteChange::Removed(route) => {
                route.protocol != libc::RTPROT_KERNEL
            }
            RouteChange::Link { .. } => false,
            RouteChange::Lost => true,
        };
        let linked = |change: &RouteChange| matches!(change, RouteChange::Link { .. });
        let both = [
            unicast("10.1.2.0/24", "192.0.2.7", link, None),
            unicast("2001:db8:1::/64", "2001:db8::7", link, None),
        ];
        done(&mut routes, &both.map(RouteCommand::Add));
        assert_eq!(heard(routed), []);
        for (family, route) in ["-4", "-6"].into_iter().zip(&both) {
            let Route { key, .. } = route;
            ip(&format!("{family} route del {} metric {}", key.destination, key.metric));
            let gone = heard(routed);
            let [RouteChange::Removed(observed)] = &gone[..] else { panic!("{gone:?}") };
            assert!(observed.is(route) && observed.protocol == OURS, "{observed:?}");
            ip(&format!("{family} route add blackhole {} metric 5 proto static", key.destination));
            let added = heard(routed);
            let [RouteChange::Added(observed)] = &added[..] else { panic!("{added:?}") };
            assert_eq!((observed.key.metric, observed.target), (5, Some(RouteTarget::Blackhole)));
        }
        ip("link set out down");
        assert!(heard(linked).contains(&RouteChange::Link { index: link, is_up: false }));
        ip("link set out up");
        assert!(heard(linked).contains(&RouteChange::Link { index: link, is_up: true }));
    });
}
