//! A kernel without a module that many services need: the others are served, and all of them once
//! it is loaded.

use std::fs::{self, Permissions};
use std::net::SocketAddr;
use std::ops::Range;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};
use denizen_tests::agent::wrapped::WrappedAgent;
use denizen_tests::for_each_variant;
use denizen_tests::kernel::iptables::Variant;
use denizen_tests::node::fixture::{Fixture, Host, PORT, service_ips};
use denizen_tests::node::manifest::Port;
use denizen_tests::node::netns;
use denizen_tests::node::world::ip;
use denizen_tests::packets::http::{fetch, url};
use denizen_tests::packets::probe::{Outcome, Protocol};
use serde_json::{Value, json};

const HTTP: [Port; 1] = [Port::tcp("http", 80, PORT)];
const PLAIN: Range<u8> = 10..16;
const STICKY: Range<u8> = 20..34;
const MEMBERS: [Host; 2] = [Host::Routed, Host::Remote];

/// The kernels of these machines lack `ipvs`: while there is a file `missing` beside this program,
/// rules ask for it by what sed makes of them, and the kernel's answer is its own.
const AS_WITHOUT: &str = r#"#!/bin/sh
program=/usr/sbin/${0##*/}
[ -e "${0%/*}/missing" ] || exec "$program" "$@"
sed -f "${0%/*}/missing" | "$program" "$@"
"#;
const RECENT: &str = "s/-m recent .* --rsource/-m ipvs --ipvs/";
const REJECT_OF_UDP: &str = "/-p udp/s/-j REJECT .*/-m ipvs --ipvs -j DROP/";

fn put_programs(folder: &Path, missing: &str) -> Result<()> {
    fs::write(folder.join("missing"), missing)?;
    for family in ["iptables", "ip6tables"] {
        for variant in ["legacy", "nft"] {
            let program = folder.join(format!("{family}-{variant}-restore"));
            fs::write(&program, AS_WITHOUT)?;
            fs::set_permissions(&program, Permissions::from_mode(0o755))?;
        }
    }
    Ok(())
}

/// An agent on a kernel without what `missing` makes of rules.
fn start(
    fixture: &Fixture,
    folder: &Path,
    missing: &str,
    variant: Variant,
) -> Result<WrappedAgent> {
    put_programs(folder, missing)?;
    let mut program = Command::new("env");
    program.arg(format!("PATH={}:/usr/sbin:/usr/bin:/sbin:/bin", folder.display()));
    WrappedAgent::start_with(&fixture.cluster, program, &variant.flags())
}

/// Who answers at the service of `number`, family by family.
fn answers(fixture: &Fixture, number: u8) -> Result<Vec<Option<SocketAddr>>> {
    let ask = |ip| {
        let outcome = fixture.probe(Host::Bridged, SocketAddr::new(ip, 80), Protocol::Tcp)?;
        Ok(outcome.endpoint())
    };
    service_ips(number).into_iter().map(ask).collect()
}

fn are_served(fixture: &Fixture, numbers: Range<u8>) -> Result<bool> {
    let all = numbers.map(|number| answers(fixture, number)).collect::<Result<Vec<_>>>()?;
    Ok(all.iter().flatten().all(Option::is_some))
}

fn is_refused(status: &Value) -> bool {
    let errors = status["errors"].to_string();
    let all_named = errors.contains("Extension ipvs") && errors.contains("more rules are rejected");
    all_named && PLAIN.chain(40..41).all(|n| !errors.contains(&format!("default/plain{n}:")))
}

fn the_others_are_served_until_it_is_loaded(label: &str, variant: Variant) -> Result<()> {
    let fixture = Fixture::new(label)?;
    let manifests = &fixture.cluster.manifests;
    for number in PLAIN {
        let name = format!("plain{number}");
        manifests.put(&name, &fixture.service(&name, number, &HTTP, &MEMBERS)?)?;
    }
    for number in STICKY {
        let name = format!("sticky{number}");
        let mut objects = fixture.service(&name, number, &HTTP, &MEMBERS)?;
        objects[0]["spec"]["sessionAffinity"] = json!("ClientIP");
        manifests.put(&name, &objects)?;
    }
    let folder = netns::folder()?;
    let agent = start(&fixture, folder.path(), RECENT, variant)?;
    agent.until("synced, and reported", |status| status["synced"] == true && is_refused(status))?;
    ensure!(are_served(&fixture, PLAIN)?, "{}", agent.status()?);
    let health =
        || fetch(&fixture.cluster.world.node, &url(ip("127.0.0.1"), 10256, "/healthz"), &[]);
    // Load balancers had better send elsewhere.
    let (reply, body) = (health()?, health()?.json()?);
    ensure!(reply.status == 503, "{body}");
    ensure!(body["reason"].as_str().is_some_and(|why| why.contains("most services")), "{body}");
    // Nobody waits for them.
    manifests.put("plain40", &fixture.service("plain40", 40, &HTTP, &MEMBERS)?)?;
    agent.until("one more", |status| {
        is_refused(status) && are_served(&fixture, 40..41).unwrap_or(false)
    })?;
    fs::remove_file(folder.path().join("missing"))?;
    let status = agent.until("all are taken", |status| status["errors"] == json!([]))?;
    ensure!(status["driftRepaired"] == 0, "{status}");
    ensure!(are_served(&fixture, PLAIN)? && are_served(&fixture, 40..41)?, "the others");
    for number in STICKY {
        let first = answers(&fixture, number)?;
        ensure!(first.iter().all(Option::is_some), "{number}: {first:?}");
        for _ in 0..4 {
            ensure!(answers(&fixture, number)? == first, "{number} sticks to {first:?}");
        }
    }
    let (reply, body) = (health()?, health()?.json()?);
    ensure!(reply.status == 200 && body["reason"] == Value::Null, "{body}");
    let rules = variant.dump(&fixture.cluster.world.node)?;
    let recent = rules.lines().filter(|line| line.contains("-m recent"));
    // In each family and for each of two endpoints, one that recalls and one that remembers.
    let expected = STICKY.len() * 2 * 2 * 2;
    ensure!(recent.count() == expected, "{rules}");
    Ok(())
}

for_each_variant!(the_others_are_served_until_it_is_loaded, "mod");

/// Lines of one chain that all services share: some are refused, others come, and none of those
/// goes for a moment.
fn a_shared_chain_loses_lines_alone(label: &str, variant: Variant) -> Result<()> {
    let fixture = Fixture::new(label)?;
    let manifests = &fixture.cluster.manifests;
    let idle = |number: u8, port: Port| {
        let name = format!("idle{number}");
        manifests.put(&name, &fixture.service(&name, number, &[port], &[])?)
    };
    let is_refused = |number: u8, protocol| {
        let mut ways = service_ips(number).into_iter();
        ways.all(|ip| {
            let outcome = fixture.probe(Host::Bridged, SocketAddr::new(ip, 80), protocol);
            matches!(outcome, Ok(Outcome::Refused))
        })
    };
    let udp = Port::tcp("dns", 80, PORT).over(Protocol::Udp);
    idle(40, HTTP[0])?;
    idle(41, udp)?;
    let folder = netns::folder()?;
    let agent = start(&fixture, folder.path(), REJECT_OF_UDP, variant)?;
    let are_named = |status: &Value, numbers: &[u8]| {
        let errors = status["errors"].to_string();
        let is_named =
            |n: &u8| errors.matches(&format!("default/idle{n}:dns has no endpoints")).count() == 2;
        numbers.iter().all(is_named) && !errors.contains(":http")
    };
    agent.until("named", |status| status["synced"] == true && are_named(status, &[41]))?;
    ensure!(is_refused(40, Protocol::Tcp) && !is_refused(41, Protocol::Udp));
    idle(42, HTTP[0])?;
    idle(43, udp)?;
    agent.until("more of both", |status| {
        assert!(is_refused(40, Protocol::Tcp), "it was there all the time");
        is_refused(42, Protocol::Tcp) && are_named(status, &[41, 43])
    })?;
    fs::remove_file(folder.path().join("missing"))?;
    agent.until("taken", |status| {
        assert!(is_refused(40, Protocol::Tcp), "it was there all the time");
        status["errors"] == json!([])
            && is_refused(41, Protocol::Udp)
            && is_refused(43, Protocol::Udp)
    })?;
    Ok(())
}

for_each_variant!(a_shared_chain_loses_lines_alone, "mod-lines");
