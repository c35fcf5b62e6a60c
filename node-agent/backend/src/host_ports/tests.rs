//! The tables in a kernel. What they do to packets, `tests/tests/services/host_ports/` shows.

#![expect(clippy::disallowed_methods, reason = "the judge is a program")]

use std::process::Command;

use nix::sched::{CloneFlags, unshare};

use super::*;
use denizen_fixture::{address, ip, pods, port, service};
use denizen_model::{Event, HostPort, HostPortAddress, Listing, Protocol};
use denizen_plan::fixture::{CAPABLE, policy};
use denizen_plan::{HostPortSettings, Planner, Policy};

fn nft(arguments: &str) -> String {
    let output = Command::new("nft").args(arguments.split(' ')).output().expect("nft");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "nft {arguments}: {error}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn in_namespace(test: impl FnOnce() + Send + 'static) {
    let inside = move || {
        unshare(CloneFlags::CLONE_NEWNET).expect("a network namespace; the tests run as root");
        test();
    };
    std::thread::spawn(inside).join().expect("the test holds");
}

fn opened() -> HostPorts {
    HostPorts::new(Kernel::open().expect("netlink"))
}

/// A node with one pod that asks for these host ports at every address, with services that are
/// not known yet.
fn planner(services: bool, ports: &[u16]) -> Planner {
    let host_ports = Some(HostPortSettings { localhost: true });
    let mut planner = Planner::new(Policy { services, host_ports, ..policy() }, CAPABLE);
    planner.apply(vec![Event::Addresses(vec![
        address("192.168.0.2", "eth0"),
        address("2001:db8::2", "eth0"),
    ])]);
    planner.apply(vec![Event::Listed(Listing::Addresses)]);
    ask(&mut planner, ports);
    planner
}

fn ask(planner: &mut Planner, ports: &[u16]) -> PlanChanges {
    let mut set = pods(1, &[("10.1.0.5", "veth1")]);
    set.pods[0].ips.push(ip("fd00:1::5"));
    let host_port = |number: &u16| HostPort {
        at: HostPortAddress::Any,
        protocol: Protocol::Tcp,
        port: port(*number),
        pod_port: port(80),
    };
    set.pods[0].host_ports = ports.iter().map(host_port).collect();
    planner.apply(vec![Event::Pods(set)]);
    planner.update()
}

/// Programs all that is decided, as a fresh start does.
fn program(host_ports: &mut HostPorts, planner: &Planner) {
    change(host_ports, planner, &PlanChanges::default());
}

fn change(host_ports: &mut HostPorts, planner: &Planner, changes: &PlanChanges) {
    host_ports.update(planner.plan(), changes);
    host_ports.sync().expect("taken");
}

/// All that is decided is in the kernel, and nothing else.
fn is_as_decided(host_ports: &mut HostPorts) {
    host_ports.note_foreign_change();
    assert!(host_ports.resync().expect("taken").is_none());
}

/// The node's first lists, with a service that has these node ports and no endpoints.
fn list_services(planner: &mut Planner, node_ports: &[u16]) -> PlanChanges {
    let mut web = service("web", &["10.96.0.10"]);
    let numbered = |number: &u16| {
        denizen_fixture::service_port(&format!("p{number}"), Protocol::Tcp, *number, Some(*number))
    };
    web.ports = node_ports.iter().map(numbered).collect();
    let node = denizen_fixture::node(None, &["192.168.0.2"], &[]);
    let facts = [Event::Node(Some(node)), Event::Service(web.name.clone(), Some(web))];
    let lists = Listing::SERVICES.into_iter().map(Event::Listed);
    planner.apply(facts.into_iter().chain(lists).collect());
    planner.update()
}

#[test]
fn a_host_port_is_an_element_and_none_is_no_table() {
    in_namespace(|| {
        let mut host_ports = opened();
        let mut planner = planner(true, &[]);
        program(&mut host_ports, &planner);
        assert_eq!(nft("list ruleset"), "");
        let changes = ask(&mut planner, &[8080]);
        change(&mut host_ports, &planner, &changes);
        let one = nft("-a list ruleset");
        for part in [
            "tcp . 8080 comment \"default/pod-0\" : 10.1.0.5 . 80",
            "tcp . 8080 comment \"default/pod-0\" : fd00:1::5 . 80",
            "type nat hook prerouting priority dstnat + 1",
            "type nat hook output priority -99",
        ] {
            assert!(one.contains(part), "{part}: {one}");
        }
        let rules = |shown: &str| shown.lines().filter(|line| line.contains("# handle")).count();
        let changes = ask(&mut planner, &[8080, 8081]);
        change(&mut host_ports, &planner, &changes);
        is_as_decided(&mut host_ports);
        let two = nft("-a list ruleset");
        assert_eq!(rules(&two), rules(&one), "{two}");
        assert!(two.contains("8081"), "{two}");
        // The next pod finds the rules there, until nobody has come for a while.
        let changes = ask(&mut planner, &[]);
        change(&mut host_ports, &planner, &changes);
        is_as_decided(&mut host_ports);
        let none = nft("-a list ruleset");
        assert!(!none.contains("808") && rules(&none) == rules(&one), "{none}");
        let changes = ask(&mut planner, &[8080]);
        change(&mut host_ports, &planner, &changes);
        assert!(!host_ports.retire(), "they are used");
        is_as_decided(&mut host_ports);
        let changes = ask(&mut planner, &[]);
        change(&mut host_ports, &planner, &changes);
        assert!(host_ports.retire() && !host_ports.retire());
        change(&mut host_ports, &planner, &PlanChanges::default());
        assert_eq!(nft("list ruleset"), "");
    });
}

#[test]
fn what_others_change_is_repaired_and_a_restart_changes_nothing() {
    in_namespace(|| {
        let mut host_ports = opened();
        let planner = planner(true, &[8080]);
        program(&mut host_ports, &planner);
        let wanted = nft("list ruleset");
        assert!(host_ports.resync().expect("taken").is_none());
        nft("add element ip denizen-host-ports at-any { tcp . 9 : 10.1.0.9 . 9 }");
        nft("flush chain ip denizen-host-ports output");
        nft("delete table ip6 denizen-host-ports");
        assert!(!host_ports.resync().expect("taken").is_none());
        assert_eq!(nft("list ruleset"), wanted);
        let handles = nft("-a list ruleset");
        program(&mut opened(), &planner);
        assert_eq!(nft("-a list ruleset"), handles);
        let mut kernel = Kernel::open().expect("netlink");
        assert_eq!(HostPorts::remove(&mut kernel).expect("taken"), 2);
        assert_eq!(nft("list ruleset"), "");
    });
}

#[test]
fn loopback_is_guarded_where_no_backend_does_it() {
    in_namespace(|| {
        let mut host_ports = opened();
        program(&mut host_ports, &planner(false, &[]));
        let guarded = nft("list ruleset");
        assert!(guarded.contains("ip daddr 127.0.0.0/8") && !guarded.contains("nat"), "{guarded}");
        program(&mut host_ports, &planner(true, &[]));
        assert_eq!(nft("list ruleset"), "");
    });
}

/// While pods are not known, what an earlier run programmed stays; if host ports are off, it goes.
#[test]
fn what_an_earlier_run_left_stays_until_pods_are_known() {
    in_namespace(|| {
        program(&mut opened(), &planner(true, &[8080]));
        let left = nft("list ruleset");
        let host_ports = Some(HostPortSettings { localhost: true });
        let unknown = Planner::new(Policy { host_ports, ..policy() }, CAPABLE);
        program(&mut opened(), &unknown);
        assert_eq!(nft("list ruleset"), left);
        program(&mut opened(), &Planner::new(policy(), CAPABLE));
        assert_eq!(nft("list ruleset"), "");
    });
}

/// A service without endpoints translates nothing, so only the element keeps its port from the pod.
/// A restarted agent does not know services at first.
#[test]
fn what_services_have_stays_taken_while_a_restarted_agent_reads_them() {
    in_namespace(|| {
        let mut before = planner(true, &[8080, 30080]);
        list_services(&mut before, &[30080]);
        program(&mut opened(), &before);
        let wanted = nft("list ruleset");
        assert!(wanted.contains("192.168.0.2 . tcp . 30080"), "{wanted}");

        let (mut host_ports, mut restarted) = (opened(), planner(true, &[8080, 30080]));
        program(&mut host_ports, &restarted);
        assert_eq!(nft("list ruleset"), wanted);
        let changes = ask(&mut restarted, &[8080, 30080, 9090]);
        change(&mut host_ports, &restarted, &changes);
        let listing = nft("list ruleset");
        assert!(listing.contains("9090") && listing.contains("tcp . 30080 }"), "{listing}");
        let changes = list_services(&mut restarted, &[9090]);
        change(&mut host_ports, &restarted, &changes);
        let known = nft("list ruleset");
        assert!(known.contains("192.168.0.2 . tcp . 9090"), "{known}");
        assert!(!known.contains("192.168.0.2 . tcp . 30080"), "{known}");
        is_as_decided(&mut host_ports);
    });
}
