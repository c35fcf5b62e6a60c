//! The routes in a kernel, in network namespaces of their own.

use std::process::Command as Process;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use denizen_route::RouteWatch;
use nix::sched::{CloneFlags, unshare};

use super::*;
use denizen_fixture::{ip, node, range};
use denizen_model::OtherNode;

/// Runs `test` on a thread in a new network namespace, in which this node is 192.0.2.1 and
/// 2001:db8::1.
pub(super) fn in_namespace(test: impl FnOnce() + Send + 'static) {
    let inside = move || {
        unshare(CloneFlags::CLONE_NEWNET).expect("a network namespace; the tests run as root");
        run("link set lo up");
        run("link add eth0 type veth peer name there");
        run("addr add 192.0.2.1/24 dev eth0");
        run("addr add 2001:db8::1/64 dev eth0 nodad");
        run("link set there up");
        run("link set eth0 up");
        // The kernel reports a moment later that the link is up; tests must not see that as a
        // change.
        let works = (0..5000).any(|_| {
            thread::sleep(Duration::from_millis(1));
            run("link show eth0").contains("state UP")
        });
        assert!(works, "{}", run("link show eth0"));
        test();
    };
    thread::spawn(inside).join().expect("the test holds");
}

/// Runs `ip`, and returns what it printed.
pub(super) fn run(arguments: &str) -> String {
    #[expect(clippy::disallowed_methods, reason = "the judge is a program")]
    let output = Process::new("ip").args(arguments.split(' ')).output().expect("ip");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ip {arguments}: {error}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The routes with our protocol, as `ip` shows them.
fn listed() -> Vec<String> {
    let shown = ["-4", "-6"].map(|family| run(&format!("{family} -N route show proto 213")));
    let lines = shown.iter().flat_map(|shown| shown.lines());
    lines.map(|line| line.trim_end().to_owned()).collect()
}

/// Nodes that are each the last part of their addresses and ranges.
fn nodes(others: &[u8]) -> Nodes {
    let other = |number: &u8| {
        let node = OtherNode {
            created: "".into(),
            internal: vec![ip(&format!("192.0.2.{number}")), ip(&format!("2001:db8::{number}"))],
            external: Vec::new(),
            pod_cidrs: vec![
                range(&format!("10.1.{number}.0/24")),
                range(&format!("fd01:{number}::/64")),
            ],
            labels: denizen_model::Labels::default(),
        };
        (format!("n{number}").into(), node)
    };
    let own = node(None, &["192.0.2.1", "2001:db8::1"], &["10.1.1.0/24", "fd01:1::/64"]);
    Nodes { own: Some(own), others: Arc::new(others.iter().map(other).collect()) }
}

/// What `ip` says of the routes to these nodes.
fn routes_to(others: &[u8]) -> Vec<String> {
    let v4 = others
        .iter()
        .map(|number| format!("10.1.{number}.0/24 via 192.0.2.{number} dev eth0 metric 1190"));
    let v6 = others.iter().map(|number| {
        format!("fd01:{number}::/64 via 2001:db8::{number} dev eth0 metric 1190 pref medium")
    });
    v4.chain(v6).collect()
}

#[test]
fn routes_follow_the_nodes_and_others_are_never_touched() {
    in_namespace(|| {
        let theirs = [
            // An older agent's, of a node that is gone; the same without our metric, or table.
            ("10.1.9.0/24 via 192.0.2.9 proto 213 metric 1190", false),
            ("10.1.9.0/24 via 192.0.2.9 proto 213 metric 7", true),
            ("10.1.9.0/24 via 192.0.2.9 proto 213 metric 1190 table 7", true),
            // Somebody else's, with our metric, and beside a route of ours.
            ("10.1.8.0/24 via 192.0.2.9 proto static metric 1190", true),
            ("10.1.2.0/24 via 192.0.2.9 proto static metric 5000", true),
            ("fd01:2::/64 via 2001:db8::9 proto static metric 5000", true),
        ];
        theirs.iter().for_each(|(route, _)| drop(run(&format!("route add {route}"))));
        let mut routes = PodRoutes::open().expect("netlink");
        let is_there = |route: &str| {
            let (to, rest) = route.split_once(' ').expect("a gateway");
            let family = if to.contains(':') { "-6" } else { "-4" };
            let metric = rest.split_once("metric ").expect("a metric").1;
            let found = run(&format!("{family} route show {to} metric {metric}"));
            !found.is_empty()
        };
        for others in [&[2, 3][..], &[2, 3], &[3, 4], &[2], &[]] {
            let synced = routes.sync(&nodes(others)).expect("an answer");
            assert_eq!((synced.refused, synced.repaired), (Vec::new(), 0), "{others:?}");
            assert_eq!(synced.routes, 2 * others.len());
            let mut wanted = routes_to(others);
            wanted.insert(others.len(), "10.1.9.0/24 via 192.0.2.9 dev eth0 metric 7".into());
            assert_eq!(listed(), wanted, "{others:?}");
        }
        for (route, stays) in theirs {
            assert_eq!(is_there(route), stays, "{route}");
        }
        routes.sync(&nodes(&[2])).expect("an answer");
        assert_eq!(routes.remove().expect("an answer"), 2);
        assert_eq!(listed(), ["10.1.9.0/24 via 192.0.2.9 dev eth0 metric 7"]);
    });
}

#[test]
fn a_route_in_our_place_is_named_and_left() {
    in_namespace(|| {
        let theirs = "10.1.2.0/24 via 192.0.2.9 dev eth0 proto static metric 1190";
        run(&format!("route add {theirs}"));
        let mut routes = PodRoutes::open().expect("netlink");
        let synced = routes.sync(&nodes(&[2])).expect("an answer");
        let refused = "cannot make the route to 10.1.2.0/24 metric 1190 table 254: another program \
                       has a route in its place";
        assert_eq!(synced.refused, [refused]);
        assert_eq!(synced.routes, 1);
        assert_eq!(run("route show 10.1.2.0/24").trim(), theirs);
        run("route del 10.1.2.0/24");
        let synced = routes.sync(&nodes(&[2])).expect("an answer");
        assert_eq!((synced.refused, synced.repaired), (Vec::new(), 0));
        assert_eq!(listed(), routes_to(&[2]));
    });
}

#[test]
fn what_another_program_or_the_kernel_takes_away_is_heard_and_repaired() {
    in_namespace(|| {
        let mut routes = PodRoutes::open().expect("netlink");
        let mut watch = RouteWatch::open(vec![routes.portid()]).expect("netlink");
        routes.sync(&nodes(&[2, 3])).expect("an answer");
        let mut is_notified = |routes: &PodRoutes| {
            let mut is_relevant = false;
            watch.changes(|change| is_relevant |= routes.depend_on(&change)).expect("changes");
            is_relevant
        };
        is_notified(&routes);
        let cases = [
            // What is done, whether the routes may depend on it, and how many are repaired.
            ("route flush proto 213", true, 2),
            ("-6 route flush proto 213", true, 2),
            ("route replace 10.1.2.0/24 via 192.0.2.7 metric 1190 proto 213", true, 1),
            ("route change 10.1.2.0/24 via 192.0.2.7 metric 1190 proto 213", true, 1),
            ("route add 10.77.0.0/16 via 192.0.2.7", false, 0),
            ("link add other type veth peer name side", false, 0),
            ("link set other up", false, 0),
        ];
        for (done, is_relevant, repaired) in cases {
            run(done);
            assert_eq!(is_notified(&routes), is_relevant, "{done}");
            let synced = routes.sync(&nodes(&[2, 3])).expect("an answer");
            assert_eq!((synced.refused, synced.repaired), (Vec::new(), repaired), "{done}");
            assert_eq!(listed(), routes_to(&[2, 3]), "{done}");
            assert!(!is_notified(&routes), "own changes, after {done}");
        }
        // A node's address is behind a gateway from now on, and again is not.
        run("route add 192.0.2.3/32 via 192.0.2.254");
        assert!(is_notified(&routes));
        let synced = routes.sync(&nodes(&[2, 3])).expect("an answer");
        let rejected: Vec<_> = synced.plan.rejected.iter().map(ToString::to_string).collect();
        let reason = "no route to 10.1.3.0/24, the podCIDR of Node n3: its InternalIP 192.0.2.3 is \
                      behind the gateway 192.0.2.254";
        assert_eq!(rejected, [reason]);
        run("route del 192.0.2.3/32");
        assert!(is_notified(&routes));
        // The link goes down and comes back. IPv6 forgets the address of a link that is down.
        run("link set eth0 down");
        assert!(is_notified(&routes));
        assert_eq!(routes.sync(&nodes(&[2, 3])).expect("an answer").routes, 0);
        run("link set eth0 up");
        run("addr add 2001:db8::1/64 dev eth0 nodad");
        assert!(is_notified(&routes));
        assert_eq!(routes.sync(&nodes(&[2, 3])).expect("an answer").routes, 4);
        assert_eq!(listed(), routes_to(&[2, 3]));
    });
}
