//! The order of changes, what is ours, and what may be used when.

use std::collections::BTreeSet;
use std::net::IpAddr;

use denizen_ipvs::{ServerKey, VirtualServer};

use super::super::host::ServersError;
use super::super::servers::{ChangeScope, Servers};
use super::super::state::{RealState, ServerState};
use super::fake::Fake;

const NODE: &str = "192.168.0.2";

pub(super) fn key(at: &str) -> ServerKey {
    ServerKey { at: at.parse().expect("an address"), protocol: 6 }
}

pub(super) fn server(at: &str, scheduler: &str, reals: &[(&str, u32)]) -> ServerState {
    let server = VirtualServer { key: key(at), scheduler: scheduler.into(), flags: 0 };
    let real =
        |(at, weight): &(&str, u32)| (at.parse().expect("an address"), RealState::wanted(*weight));
    ServerState { server, reals: reals.iter().map(real).collect() }
}

pub(super) fn address(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

/// An agent that has just started, with these services.
pub(super) fn started(fake: &Fake, wanted: &[ServerState]) -> Servers<Fake> {
    let mut servers = Servers::open(fake.clone()).expect("a kernel");
    servers.set_sources(vec![address(NODE)]);
    servers.complete();
    for state in wanted {
        servers.want(state.server.key, Some(state.clone()));
    }
    servers
}

pub(super) fn synced(servers: &mut Servers<Fake>) -> usize {
    servers.sync(ChangeScope::Everything).expect("the kernel does it")
}

#[test]
fn a_server_comes_after_its_route_and_goes_before_it() {
    let fake = Fake::default();
    let web = server("10.96.0.10:80", "rr", &[("10.1.0.2:80", 1), ("10.1.0.3:80", 1)]);
    let mut servers = started(&fake, &[web]);
    assert!(!servers.is_ready(&key("10.96.0.10:80")));
    synced(&mut servers);
    assert!(servers.is_ready(&key("10.96.0.10:80")));
    let come = [
        "local 10.96.0.10 from 192.168.0.2",
        "add 10.96.0.10:80/6 rr",
        "add 10.96.0.10:80/6 10.1.0.2:80 1",
        "add 10.96.0.10:80/6 10.1.0.3:80 1",
    ];
    assert_eq!(fake.log(), come);
    assert_eq!(synced(&mut servers), 0);
    servers.want(key("10.96.0.10:80"), None);
    assert!(!servers.is_ready(&key("10.96.0.10:80")));
    synced(&mut servers);
    assert_eq!(fake.log(), ["remove 10.96.0.10:80/6"]);
    let refused = servers.take_addresses();
    assert_eq!(refused, Some([address("10.96.0.10")].into()), "clients still send there");
    servers.request_resync();
    synced(&mut servers);
    assert_eq!(fake.log(), ["not local 10.96.0.10"]);
}

/// The route stays as long as any port needs it.
#[test]
fn an_address_is_local_until_its_last_server_goes() {
    let fake = Fake::default();
    let one = server("10.96.0.10:80", "rr", &[("10.1.0.2:80", 1)]);
    let other = server("10.96.0.10:443", "rr", &[("10.1.0.2:443", 1)]);
    let mut servers = started(&fake, &[one, other]);
    synced(&mut servers);
    fake.log();
    servers.want(key("10.96.0.10:80"), None);
    synced(&mut servers);
    assert_eq!(fake.log(), ["remove 10.96.0.10:80/6"]);
    assert!(servers.is_ready(&key("10.96.0.10:443")));
}

/// There is an endpoint at every instant, and nothing is touched that stays.
#[test]
fn an_endpoint_is_added_before_another_one_goes() {
    let fake = Fake::default();
    let at = "10.96.0.10:80";
    let mut servers = started(
        &fake,
        &[server(at, "rr", &[("10.1.0.2:80", 1), ("10.1.0.3:80", 1), ("10.1.0.4:80", 1)])],
    );
    synced(&mut servers);
    fake.log();
    let now = server(at, "rr", &[("10.1.0.3:80", 0), ("10.1.0.4:80", 1), ("10.1.0.5:80", 1)]);
    servers.want(key(at), Some(now));
    assert!(servers.is_ready(&key(at)), "an endpoint stays");
    synced(&mut servers);
    let changes = [
        "add 10.96.0.10:80/6 10.1.0.5:80 1",
        "change 10.96.0.10:80/6 10.1.0.3:80 0",
        "remove 10.96.0.10:80/6 10.1.0.2:80",
    ];
    assert_eq!(fake.log(), changes);
}

#[test]
fn an_endpoint_that_drains_is_kept_and_not_made() {
    let fake = Fake::default();
    let at = "10.96.0.10:80";
    let state = server(at, "rr", &[("10.1.0.2:80", 1), ("10.1.0.3:80", 0)]);
    let mut servers = started(&fake, &[state]);
    synced(&mut servers);
    assert!(!fake.log().iter().any(|line| line.contains("10.1.0.3")));
    assert_eq!(synced(&mut servers), 0);
}

/// What drains is known with what it still has, over a restart too, until it is back or gone.
#[test]
fn what_drains_is_counted() {
    let fake = Fake::default();
    let at = "10.96.0.10:80";
    let web = |two: u32| server(at, "rr", &[("10.1.0.2:80", two), ("10.1.0.3:80", 1)]);
    let mut servers = started(&fake, &[web(1)]);
    synced(&mut servers);
    let draining = |servers: &mut Servers<Fake>| -> Vec<(String, u32)> {
        let named: Vec<_> = servers.draining().collect();
        let read = servers.read_draining().expect("the kernel tells");
        let pairs: Vec<_> = read.iter().map(|(key, server)| (*key, server.real.at)).collect();
        assert_eq!(pairs, named);
        read.iter().map(|(_, server)| (server.real.at.to_string(), server.active)).collect()
    };
    assert_eq!(draining(&mut servers), []);
    fake.0.borrow_mut().active.insert("10.1.0.2:80".parse().expect("an address"), 7);
    let seven = [("10.1.0.2:80".to_owned(), 7)];
    servers.want(key(at), Some(web(0)));
    synced(&mut servers);
    assert_eq!(draining(&mut servers), seven);
    assert_eq!(draining(&mut Servers::open(fake.clone()).expect("a kernel")), seven);
    servers.want(key(at), Some(web(1)));
    synced(&mut servers);
    assert_eq!(draining(&mut servers), []);
    servers.want(key(at), Some(web(0)));
    synced(&mut servers);
    fake.0.borrow_mut().active.clear();
    servers.want(key(at), None);
    synced(&mut servers);
    assert_eq!(draining(&mut servers), []);
}

/// While the scheduler changes, new connections would be refused.
#[test]
fn a_scheduler_changes_while_nobody_is_sent_there() {
    let fake = Fake::default();
    let at = "10.96.0.10:80";
    let mut servers = started(&fake, &[server(at, "rr", &[("10.1.0.2:80", 1)])]);
    synced(&mut servers);
    fake.log();
    servers.readiness_changed();
    servers.want(key(at), Some(server(at, "lc", &[("10.1.0.2:80", 1), ("10.1.0.3:80", 1)])));
    assert!(!servers.is_ready(&key(at)));
    servers.sync(ChangeScope::WhatIsSafe).expect("the kernel does it");
    assert_eq!(fake.log(), [""; 0], "others' rules may still send there");
    synced(&mut servers);
    let changes = ["change 10.96.0.10:80/6 lc", "add 10.96.0.10:80/6 10.1.0.3:80 1"];
    assert_eq!(fake.log(), changes);
    assert!(servers.is_ready(&key(at)));
    assert!(servers.readiness_changed().contains(&key(at)));
}

#[test]
fn nothing_is_removed_while_rules_may_still_send_there() {
    let fake = Fake::default();
    let at = "10.96.0.10:80";
    let mut servers = started(&fake, &[server(at, "rr", &[("10.1.0.2:80", 1)])]);
    synced(&mut servers);
    fake.log();
    servers.want(key(at), None);
    servers.sync(ChangeScope::WhatIsSafe).expect("the kernel does it");
    assert_eq!(fake.log(), [""; 0]);
    synced(&mut servers);
    assert_eq!(fake.log(), ["remove 10.96.0.10:80/6"]);
}

/// A restarted agent adopts what is there, compares every weight, and removes nothing before it
/// knows all services.
#[test]
fn a_restart_adopts_what_is_there() {
    let fake = Fake::default();
    let web = server("10.96.0.10:80", "rr", &[("10.1.0.2:80", 1), ("10.1.0.3:80", 1)]);
    let gone = server("10.96.0.11:80", "rr", &[("10.1.0.4:80", 1)]);
    synced(&mut started(&fake, &[web.clone(), gone]));
    fake.log();
    let reals = |it: &mut ServerState| {
        it.reals.insert("10.1.0.3:80".parse().expect("an address"), RealState::wanted(0));
    };
    reals(fake.0.borrow_mut().servers.get_mut(&key("10.96.0.10:80")).expect("it is there"));

    let mut servers = Servers::open(fake.clone()).expect("a kernel");
    servers.set_sources(vec![address(NODE)]);
    synced(&mut servers);
    assert_eq!(fake.log(), [""; 0], "services are not known yet");
    assert!(!servers.has_more(&BTreeSet::new()), "there is nothing to do until they are");
    assert_eq!(servers.take_addresses(), None, "another backend may serve there");
    servers.want(key("10.96.0.10:80"), Some(web));
    assert!(servers.is_ready(&key("10.96.0.10:80")), "it may be used as it is");
    servers.complete();
    synced(&mut servers);
    let changes = ["change 10.96.0.10:80/6 10.1.0.3:80 1", "remove 10.96.0.11:80/6"];
    assert_eq!(fake.log(), changes);
    let refused = ["10.96.0.10", "10.96.0.11"].map(address);
    assert_eq!(servers.take_addresses(), Some(refused.into()));
}

#[test]
fn foreign_virtual_servers_stay() {
    let fake = Fake::default();
    let theirs = [
        server("10.96.0.10:80", "wlc", &[("10.9.0.1:80", 7)]),
        server("203.0.113.7:80", "rr", &[]),
    ];
    fake.0.borrow_mut().servers = theirs.clone().map(|it| (it.server.key, it)).into();
    let ours = server("10.96.0.10:80", "rr", &[("10.1.0.2:80", 1)]);
    let mut servers = started(&fake, &[ours]);
    synced(&mut servers);
    assert_eq!(fake.log(), [""; 0]);
    assert!(!servers.is_ready(&key("10.96.0.10:80")));
    let said = "virtual server 10.96.0.10:80/6: another program has made one";
    assert_eq!(servers.problems(), [said]);
    // The other program goes.
    fake.0.borrow_mut().servers.remove(&key("10.96.0.10:80"));
    servers.request_resync();
    synced(&mut servers);
    assert!(servers.is_ready(&key("10.96.0.10:80")));
    assert!(servers.problems().is_empty());
}

/// Kube-proxy, for example, that comes back.
#[test]
fn what_others_add_at_our_address_is_theirs_unless_it_is_wanted() {
    let fake = Fake::default();
    let ours = server("10.96.0.10:80", "rr", &[("10.1.0.2:80", 1)]);
    let mut servers = started(&fake, &[ours]);
    synced(&mut servers);
    fake.log();
    let theirs = server("10.96.0.10:443", "rr", &[("10.1.0.2:443", 1), ("10.1.0.9:443", 1)]);
    fake.0.borrow_mut().servers.insert(theirs.server.key, theirs.clone());
    servers.request_resync();
    synced(&mut servers);
    assert_eq!(fake.log(), [""; 0], "it stays");
    let wanted = server("10.96.0.10:443", "lc", &[("10.1.0.2:443", 1), ("10.1.0.3:443", 1)]);
    servers.want(theirs.server.key, Some(wanted));
    servers.request_resync();
    synced(&mut servers);
    let changes = [
        "change 10.96.0.10:443/6 lc",
        "add 10.96.0.10:443/6 10.1.0.3:443 1",
        "remove 10.96.0.10:443/6 10.1.0.9:443",
    ];
    assert_eq!(fake.log(), changes);
    servers.want(theirs.server.key, None);
    synced(&mut servers);
    assert_eq!(fake.log(), ["remove 10.96.0.10:443/6"], "now it is ours");
}

/// Others' changes are repaired, whether a look finds them or a refusal tells.
#[test]
fn what_others_removed_comes_back() {
    let fake = Fake::default();
    let at = "10.96.0.10:80";
    let mut servers = started(&fake, &[server(at, "rr", &[("10.1.0.2:80", 1)])]);
    synced(&mut servers);
    fake.0.borrow_mut().servers.clear();
    assert!(servers.misses_next().expect("the kernel tells"));
    servers.request_resync();
    synced(&mut servers);
    assert!(servers.is_ready(&key(at)));
    assert!(!servers.misses_next().expect("the kernel tells"));
    fake.0.borrow_mut().servers.clear();
    fake.log();
    let now = server(at, "rr", &[("10.1.0.2:80", 1), ("10.1.0.3:80", 1)]);
    servers.want(key(at), Some(now));
    synced(&mut servers);
    let changes = [
        "add 10.96.0.10:80/6 rr",
        "add 10.96.0.10:80/6 10.1.0.2:80 1",
        "add 10.96.0.10:80/6 10.1.0.3:80 1",
    ];
    assert_eq!(fake.log(), changes);
}

#[test]
fn a_scheduler_that_the_kernel_lacks_is_named_and_replaced() {
    let fake = Fake::default();
    fake.0.borrow_mut().without.insert("twos");
    let at = "10.96.0.10:80";
    let mut servers = started(&fake, &[server(at, "twos", &[("10.1.0.2:80", 1)])]);
    synced(&mut servers);
    assert!(servers.is_ready(&key(at)));
    assert!(fake.log().contains(&"add 10.96.0.10:80/6 rr".to_owned()));
    let said = "scheduler twos: the kernel has none, rr is used instead";
    assert_eq!(servers.problems(), [said]);
    // Its module is loaded.
    fake.0.borrow_mut().without.clear();
    servers.request_resync();
    synced(&mut servers);
    assert_eq!(fake.log(), ["change 10.96.0.10:80/6 twos"]);
    assert!(servers.problems().is_empty());
}

#[test]
fn a_refused_server_is_named_and_the_others_are_programmed() {
    let fake = Fake::default();
    fake.0.borrow_mut().refuses.insert(key("10.96.0.10:80"));
    let bad = server("10.96.0.10:80", "rr", &[("10.1.0.2:80", 1)]);
    let good = server("10.96.0.11:80", "rr", &[("10.1.0.3:80", 1)]);
    let mut servers = started(&fake, &[bad, good]);
    synced(&mut servers);
    assert!(!servers.is_ready(&key("10.96.0.10:80")));
    assert!(servers.is_ready(&key("10.96.0.11:80")));
    let said = format!("virtual server 10.96.0.10:80/6: {}", nix::errno::Errno::EINVAL);
    assert_eq!(servers.problems(), [said]);
}

/// The kernel removes a route with its source. A new address of the node is the new source.
#[test]
fn routes_follow_the_nodes_address() {
    let fake = Fake::default();
    let at = "10.96.0.10:80";
    let mut servers = started(&fake, &[server(at, "rr", &[("10.1.0.2:80", 1)])]);
    synced(&mut servers);
    fake.log();
    fake.0.borrow_mut().routes.clear();
    servers.set_sources(vec![address("192.168.0.3")]);
    assert!(!servers.is_ready(&key(at)));
    synced(&mut servers);
    assert!(servers.is_ready(&key(at)));
    assert_eq!(fake.log(), ["local 10.96.0.10 from 192.168.0.3"]);
}

/// Stopped before any message, the next attempt ends where an undisturbed one does.
#[test]
fn a_failure_at_any_point_is_made_good() {
    let before = [
        server("10.96.0.10:80", "rr", &[("10.1.0.2:80", 1), ("10.1.0.3:80", 1)]),
        server("10.96.0.11:80", "rr", &[("10.1.0.4:80", 1)]),
    ];
    let after = [
        server("10.96.0.10:80", "mh", &[("10.1.0.3:80", 1), ("10.1.0.5:80", 1)]),
        server("10.96.0.12:80", "rr", &[("10.1.0.6:80", 1)]),
    ];
    let want = |servers: &mut Servers<Fake>| {
        servers.want(key("10.96.0.11:80"), None);
        after.iter().for_each(|it| servers.want(it.server.key, Some(it.clone())));
    };
    let undisturbed = Fake::default();
    let mut servers = started(&undisturbed, &before);
    synced(&mut servers);
    undisturbed.log();
    want(&mut servers);
    synced(&mut servers);
    let messages = undisturbed.log().len();
    assert!(messages > 6);
    for point in 0..messages {
        let fake = Fake::default();
        let mut servers = started(&fake, &before);
        synced(&mut servers);
        want(&mut servers);
        fake.0.borrow_mut().fails_after = Some(point);
        let failed = servers.sync(ChangeScope::Everything);
        assert!(matches!(failed, Err(ServersError::Ipvs(_))), "{point}: {failed:?}");
        fake.0.borrow_mut().fails_after = None;
        synced(&mut servers);
        assert_eq!(fake.0.borrow().servers, undisturbed.0.borrow().servers, "{point}");
        assert_eq!(fake.0.borrow().routes, undisturbed.0.borrow().routes, "{point}");
        // So does another agent that knows nothing of this one.
        let mut restarted = started(&fake, &after);
        assert_eq!(synced(&mut restarted), 0, "{point}");
    }
}
