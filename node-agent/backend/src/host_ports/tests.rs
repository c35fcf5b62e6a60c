//! The tables in a kernel. What they do to packets, `tests/tests/services/host_ports/` shows.

#![expect(clippy::disallowed_methods, reason = "the judge is a program")]

use std::process::Command;

use nix::sched::{CloneFlags, unshare};

use super::*;
use denizen_fixture::{address, ip, pods, port};
use denizen_model::{Event, HostPort, HostPortAddress, Protocol};
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

/// A node with one pod that asks for these host ports at every address.
fn planner(services: bool, ports: &[u16]) -> Planner {
    let host_ports = Some(HostPortSettings { localhost: true });
    let mut planner = Planner::new(Policy { services, host_ports, ..policy() }, CAPABLE);
    planner.apply(vec![Event::Addresses(vec![
        address("192.168.0.2", "eth0"),
        address("2001:db8::2", "eth0"),
    ])]);
    ask(&mut planner, ports);
    planner
}

fn ask(planner: &mut Planner, ports: &[u16]) {
    let mut set = pods(1, &[("10.1.0.5", "veth1")]);
    set.pods[0].ips.push(ip("fd00:1::5"));
    let asked = |number: &u16| HostPort {
        at: HostPortAddress::Any,
        protocol: Protocol::Tcp,
        port: port(*number),
        pod_port: port(80),
    };
    set.pods[0].host_ports = ports.iter().map(asked).collect();
    planner.apply(vec![Event::Pods(set)]);
    planner.update();
}

fn program(host_ports: &mut HostPorts, planner: &Planner) {
    host_ports.update(planner.plan());
    host_ports.sync().expect("taken");
}

#[test]
fn a_host_port_is_an_element_and_none_is_no_table() {
    in_namespace(|| {
        let mut host_ports = opened();
        let mut planner = planner(true, &[]);
        program(&mut host_ports, &planner);
        assert_eq!(nft("list ruleset"), "");
        ask(&mut planner, &[8080]);
        program(&mut host_ports, &planner);
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
        ask(&mut planner, &[8080, 8081]);
        program(&mut host_ports, &planner);
        let two = nft("-a list ruleset");
        assert_eq!(rules(&two), rules(&one), "{two}");
        assert!(two.contains("8081"), "{two}");
        ask(&mut planner, &[]);
        program(&mut host_ports, &planner);
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
