//! The table of announcements, in a kernel.

use denizen_route::RouteWatch;

use super::*;
use crate::routes::tests::{in_namespace, run};
use denizen_fixture::{HERE, endpoint, ip, node, pods, range, service, slice};
use denizen_model::{Event, Listing, Service};
use denizen_plan::fixture::policy;
use denizen_plan::{
    AnnounceInputs, AnnouncePlan, AnnounceSettings, AnnouncedPods, Drain, FrontendKind, Planner,
};

const TABLE: u32 = 219;

/// A node with these podCIDRs, and one service for each of these load balancer IPs.
fn wanted(ranges: &[&str], vips: &[&str], drain: Drain) -> Announcements {
    let mut planner = Planner::new(policy(), denizen_plan::fixture::CAPABLE);
    planner.apply(vec![Event::Node(Some(node(None, &["192.0.2.1"], ranges)))]);
    planner.apply(vec![Event::Pods(pods(1, &[]))]);
    for (number, vip) in vips.iter().enumerate() {
        let name = format!("s{number}");
        let cluster =
            if vip.contains(':') { format!("fd96::{number}") } else { format!("10.96.0.{number}") };
        let service = Service { load_balancer_ips: vec![ip(vip)], ..service(&name, &[&cluster]) };
        let pod = if vip.contains(':') { "fd01:1::5" } else { "10.1.1.5" };
        let slice = slice(&name, &name, vec![endpoint(pod, Some(HERE))]);
        planner.apply(vec![
            Event::Service(service.name.clone(), Some(service)),
            Event::Slice(slice.name.clone(), Some(slice)),
        ]);
    }
    planner.apply(Listing::SERVICES.map(Event::Listed).into());
    planner.update();
    let mut decided = AnnouncePlan::default();
    let by = AnnounceInputs {
        settings: &AnnounceSettings {
            pods: AnnouncedPods::Auto,
            kinds: [FrontendKind::LoadBalancerIp].into(),
            ranges: vec![range("203.0.113.0/24"), range("2001:db8:5::/64")],
            most: 2000,
            most_pods: 512,
            ignores_exclusion: false,
            drain_taints: Vec::new(),
            peers: BTreeSet::new(),
        },
        plan: planner.plan(),
        world: planner.model().snapshot().expect("all is listed"),
        nodes: &planner.model().nodes().expect("all nodes are listed"),
        is_gone: false,
        drain,
        surveyed: &NetworkSurvey::default(),
        recorded: &BTreeMap::new(),
        rejects: false,
        is_rejected: &|_| false,
    };
    decided.update(&by, None);
    decided.decided().expect("it was decided").clone()
}

/// What `ip` says of a table, or of `all`, IPv4 first. (It fails for a table that nobody has used.)
fn listed(table: &str) -> Vec<String> {
    let shown = ["-4", "-6"].map(|family| run(&format!("{family} route show table all proto 213")));
    let lines = shown.iter().flat_map(|shown| shown.lines());
    let lines = lines.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    let of_table = |line: String| match table {
        "all" => Some(line),
        "main" => Some(line).filter(|line| !line.contains(" table ")),
        other => {
            let mark = format!(" table {other} ");
            line.contains(&mark).then(|| line.replace(&mark, " "))
        }
    };
    lines.filter_map(of_table).collect()
}

fn synced(routes: &mut AnnouncedRoutes, wanted: &Announcements) -> RouteSync {
    routes.withdraw(wanted).expect("an answer");
    let published = routes.sync(wanted).expect("an answer");
    assert_eq!(published.errors, Vec::<String>::new());
    published
}

#[test]
fn announcements_are_blackholes_that_nothing_is_looked_up_in() {
    in_namespace(|| {
        let mut routes = AnnouncedRoutes::open(TABLE).expect("netlink");
        let both = ["203.0.113.7", "2001:db8:5::7"];
        let ranges = ["10.1.1.0/24", "fd01:1::/64"];
        let published = synced(&mut routes, &wanted(&ranges, &both, Drain::No));
        let table = [
            "blackhole 10.1.1.0/24 metric 101",
            "blackhole 203.0.113.7 metric 105",
            "blackhole 2001:db8:5::7 dev lo metric 105 pref medium",
            "blackhole fd01:1::/64 dev lo metric 101 pref medium",
        ];
        assert_eq!(listed("219"), table);
        assert_eq!((published.prefixes.len(), published.added, published.repaired), (4, 4, 0));
        // What no pod has of the podCIDRs is refused here, not sent back.
        let unused = [
            "unreachable 10.1.1.0/24 metric 20000",
            "unreachable fd01:1::/64 dev lo metric 20000 pref medium",
        ];
        assert_eq!(listed("main"), unused);
        // A bridge of the pods answers for all of its subnet itself.
        run("link add cni0 type bridge");
        run("addr add 10.1.1.1/24 dev cni0");
        run("link set cni0 up");
        routes.note_foreign_change();
        let again = synced(&mut routes, &wanted(&ranges, &both, Drain::No));
        assert_eq!(listed("main"), unused[1..]);
        assert_eq!(again.added, 0);
        // What comes back by a repair is not new.
        run("route flush table 219");
        routes.note_foreign_change();
        let repaired = synced(&mut routes, &wanted(&ranges, &both, Drain::No));
        assert_eq!((repaired.added, repaired.repaired), (0, 2));
        // Withdrawing alone adds nothing: the rules of what is new are not there yet.
        let other = wanted(&[], &["203.0.113.8"], Drain::No);
        routes.withdraw(&other).expect("an answer");
        assert_eq!(listed("219"), Vec::<String>::new());
        synced(&mut routes, &other);
        assert_eq!(listed("219"), ["blackhole 203.0.113.8 metric 105"]);
        assert_eq!(listed("main"), Vec::<String>::new());
    });
}

/// A restarted agent remembers nothing, and may have another table.
#[test]
fn what_an_earlier_run_has_left_is_compared_and_removed() {
    in_namespace(|| {
        run("route add blackhole 203.0.113.7 proto 213 metric 105 table 219");
        run("route add blackhole 203.0.113.6 proto 213 metric 105 table 219");
        run("route add blackhole 203.0.113.7 proto 213 metric 105 table 77");
        run("route add 10.9.0.0/24 dev eth0 proto 213 metric 1190 table 77");
        let mut routes = AnnouncedRoutes::open(TABLE).expect("netlink");
        synced(&mut routes, &wanted(&[], &["203.0.113.7"], Drain::No));
        assert_eq!(listed("219"), ["blackhole 203.0.113.7 metric 105"]);
        assert_eq!(listed("77"), ["10.9.0.0/24 dev eth0 scope link metric 1190"]);
        assert_eq!(AnnouncedRoutes::remove_all().expect("an answer"), 1);
        assert_eq!(listed("all"), ["10.9.0.0/24 dev eth0 table 77 scope link metric 1190"]);
    });
}

/// When the class changes, routers hear of an update, and never of a withdrawal.
#[test]
fn a_change_of_class_is_never_a_withdrawal() {
    in_namespace(|| {
        let mut routes = AnnouncedRoutes::open(TABLE).expect("netlink");
        // Nobody's changes are left out here.
        let mut watch = RouteWatch::open(Vec::new()).expect("netlink");
        synced(&mut routes, &wanted(&[], &["203.0.113.7"], Drain::No));
        synced(&mut routes, &wanted(&[], &["203.0.113.7"], Drain::Begun));
        let (mut notified, mut held) = (Vec::new(), 0);
        watch
            .changes(|change| match change {
                RouteChange::Added(route) if route.key.table == TABLE => {
                    held += 1;
                    notified.push((route.key.metric, held));
                }
                RouteChange::Removed(route) if route.key.table == TABLE => {
                    held -= 1;
                    notified.push((route.key.metric, held));
                }
                RouteChange::Added(_)
                | RouteChange::Removed(_)
                | RouteChange::Link { .. }
                | RouteChange::Lost => {}
            })
            .expect("changes");
        assert_eq!(notified, [(105, 1), (205, 2), (105, 1)]);
        assert_eq!(listed("219"), ["blackhole 203.0.113.7 metric 205"]);
    });
}

#[test]
fn what_others_do_to_the_table_is_heard_named_and_repaired() {
    in_namespace(|| {
        let mut routes = AnnouncedRoutes::open(TABLE).expect("netlink");
        let mut watch = RouteWatch::open(vec![routes.portid()]).expect("netlink");
        let mut is_notified = || {
            let mut is_relevant = false;
            let note = |change| is_relevant |= AnnouncedRoutes::depend_on(&change, TABLE);
            watch.changes(note).expect("changes");
            is_relevant
        };
        let wanted = wanted(&["10.1.1.0/24"], &["203.0.113.7", "203.0.113.8"], Drain::No);
        synced(&mut routes, &wanted);
        is_notified();
        let all = listed("all");
        let cases = [
            ("route flush table 219", true, 3),
            ("route del unreachable 10.1.1.0/24 metric 20000", true, 1),
            ("route add 10.77.0.0/16 via 192.0.2.7 proto 12", false, 0),
            ("route add 10.78.0.0/16 via 192.0.2.7 table 77", false, 0),
        ];
        for (done, is_relevant, repaired) in cases {
            run(done);
            assert_eq!(is_notified(), is_relevant, "{done}");
            routes.note_foreign_change();
            assert_eq!(synced(&mut routes, &wanted).repaired, repaired, "{done}");
            assert_eq!(listed("all"), all, "{done}");
            assert!(!is_notified(), "own changes, after {done}");
        }
        // Somebody else's route stays, and is named; also where ours should be.
        run("route add blackhole 198.51.100.0/24 proto static table 219");
        run("route del blackhole 203.0.113.8 metric 105 table 219");
        run("route add blackhole 203.0.113.8 proto static metric 105 table 219");
        routes.note_foreign_change();
        let published = routes.sync(&wanted).expect("an answer");
        let text = published.errors.join("\n");
        for part in [
            "(protocol 4) has the route to 198.51.100.0/24 metric 0 table 219",
            "(protocol 4) has the route to 203.0.113.8/32 metric 105 table 219",
            "cannot make the route to 203.0.113.8/32 metric 105 table 219: another program",
        ] {
            assert!(text.contains(part), "no {part:?} in {text}");
        }
        assert!(!published.prefixes.contains(&range("203.0.113.8/32")), "{published:?}");
        assert!(run("route show table 219 proto static").contains("203.0.113.8"));
    });
}

/// A rule that leads there would make this node drop all packets to what it announces.
#[test]
fn a_table_that_packets_are_looked_up_in_stays_empty() {
    in_namespace(|| {
        let mut routes = AnnouncedRoutes::open(TABLE).expect("netlink");
        let wanted = wanted(&["10.1.1.0/24"], &["203.0.113.7"], Drain::No);
        synced(&mut routes, &wanted);
        for family in ["-4", "-6"] {
            run(&format!("{family} rule add from all lookup 219 priority 999"));
            routes.note_foreign_change();
            let published = routes.sync(&wanted).expect("an answer");
            let [error] = &published.errors[..] else { panic!("{published:?}") };
            assert!(error.starts_with("nothing is announced: routing rule 999"), "{error}");
            assert_eq!(listed("all"), Vec::<String>::new());
            run(&format!("{family} rule del priority 999"));
            routes.note_foreign_change();
            synced(&mut routes, &wanted);
            assert_eq!(listed("219").len(), 2);
        }
    });
}

#[test]
fn the_kernel_is_asked_what_it_delivers_and_who_its_gateways_are() {
    in_namespace(|| {
        run("link add pod1 type veth peer name end1");
        run("link set pod1 up");
        run("link set end1 up");
        run("route add 10.9.0.5/32 dev pod1");
        run("route add 10.9.0.6/32 dev eth0");
        run("route add 10.9.0.7/32 via 192.0.2.7");
        run("route add default nexthop via 192.0.2.252 nexthop via 192.0.2.253");
        run("-6 route add default via 2001:db8::fe");
        let mut routes = AnnouncedRoutes::open(TABLE).expect("netlink");
        let set = pods(1, &["10.9.0.5", "10.9.0.6", "10.9.0.7", "10.9.0.8"].map(|ip| (ip, "pod1")));
        let pods: Vec<_> = set.pods.iter().map(|pod| (pod, pod.ips[0])).collect();
        let surveyed = routes.survey(&pods).expect("an answer");
        assert_eq!(surveyed.undelivered, ["10.9.0.6", "10.9.0.7", "10.9.0.8"].map(ip).into());
        let gateways = ["192.0.2.7", "192.0.2.252", "192.0.2.253", "2001:db8::fe"].map(ip);
        assert_eq!(surveyed.gateways, gateways.into());
    });
}
