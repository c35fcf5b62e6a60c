//! A kernel without a module that many services need: the others are served, and all of them once it is loaded.

#![allow(
    clippy::disallowed_methods,
    reason = "tests read clocks and files; denizen does not"
)]

use std::fs::{self, Permissions};
use std::net::SocketAddr;
use std::ops::Range;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};
use denizen_tests::cast::{Cast, PORT, Who, service_ips};
use denizen_tests::contained::Contained;
use denizen_tests::http::{fetch, url};
use denizen_tests::iptables::Variant;
use denizen_tests::manifest::Port;
use denizen_tests::probe::Protocol;
use denizen_tests::world::ip;
use serde_json::{Value, json};

const HTTP: [Port; 1] = [Port::tcp("http", 80, PORT)];
const PLAIN: Range<u8> = 10..16;
const STICKY: Range<u8> = 20..34;
const MEMBERS: [Who; 2] = [Who::Routed, Who::Remote];

/// The kernels of these machines have `recent` and lack `ipvs`: while there is a file `missing` beside this program, the
/// rules that ask for the one ask for the other, and the kernel's answer is its own.
const AS_WITHOUT_RECENT: &str = r#"#!/bin/sh
program=/usr/sbin/${0##*/}
[ -e "${0%/*}/missing" ] || exec "$program" "$@"
sed 's/-m recent .* --rsource/-m ipvs --ipvs/' | "$program" "$@"
"#;

fn put_programs(folder: &Path) -> Result<()> {
    fs::write(folder.join("missing"), "")?;
    for family in ["iptables", "ip6tables"] {
        for variant in ["legacy", "nft"] {
            let program = folder.join(format!("{family}-{variant}-restore"));
            fs::write(&program, AS_WITHOUT_RECENT)?;
            fs::set_permissions(&program, Permissions::from_mode(0o755))?;
        }
    }
    Ok(())
}

/// Who answers at the service of `number`, family by family.
fn answers(cast: &Cast, number: u8) -> Result<Vec<Option<SocketAddr>>> {
    let ask = |ip| {
        let outcome = cast.ask(Who::Bridged, SocketAddr::new(ip, 80), Protocol::Tcp)?;
        Ok(outcome.endpoint())
    };
    service_ips(number).into_iter().map(ask).collect()
}

fn are_served(cast: &Cast, numbers: Range<u8>) -> Result<bool> {
    let all = numbers
        .map(|number| answers(cast, number))
        .collect::<Result<Vec<_>>>()?;
    Ok(all.iter().flatten().all(Option::is_some))
}

fn is_refused(status: &Value) -> bool {
    let errors = status["errors"].to_string();
    let all_named = errors.contains("Extension ipvs") && errors.contains("more rules are refused");
    all_named
        && PLAIN
            .chain(40..41)
            .all(|n| !errors.contains(&format!("default/plain{n}:")))
}

fn the_others_are_served_until_it_is_loaded(label: &str, variant: Variant) -> Result<()> {
    let (cast, _servers) = Cast::new(label)?;
    let manifests = &cast.cluster.manifests;
    for number in PLAIN {
        let name = format!("plain{number}");
        manifests.put(&name, &cast.service(&name, number, &HTTP, &MEMBERS)?)?;
    }
    for number in STICKY {
        let name = format!("sticky{number}");
        let mut objects = cast.service(&name, number, &HTTP, &MEMBERS)?;
        objects[0]["spec"]["sessionAffinity"] = json!("ClientIP");
        manifests.put(&name, &objects)?;
    }
    let folder = denizen_tests::netns::folder()?;
    put_programs(folder.path())?;
    let mut program = Command::new("env");
    program.arg(format!(
        "PATH={}:/usr/sbin:/usr/bin:/sbin:/bin",
        folder.path().display()
    ));
    let agent = Contained::start_with(&cast.cluster, program, &variant.flags())?;
    agent.until("synced, and told", |status| {
        status["synced"] == true && is_refused(status)
    })?;
    ensure!(are_served(&cast, PLAIN)?, "{}", agent.status()?);
    let health = || {
        fetch(
            &cast.cluster.world.node,
            &url(ip("127.0.0.1"), 10256, "/healthz"),
            &[],
        )
    };
    // Load balancers had better send elsewhere.
    let (reply, body) = (health()?, health()?.json()?);
    ensure!(reply.status == 503, "{body}");
    ensure!(
        body["reason"]
            .as_str()
            .is_some_and(|why| why.contains("most services")),
        "{body}"
    );
    // Nobody waits for them.
    manifests.put("plain40", &cast.service("plain40", 40, &HTTP, &MEMBERS)?)?;
    agent.until("one more", |status| {
        is_refused(status) && are_served(&cast, 40..41).unwrap_or(false)
    })?;
    fs::remove_file(folder.path().join("missing"))?;
    let status = agent.until("all are taken", |status| status["errors"] == json!([]))?;
    ensure!(status["driftRepaired"] == 0, "{status}");
    ensure!(
        are_served(&cast, PLAIN)? && are_served(&cast, 40..41)?,
        "the others"
    );
    for number in STICKY {
        let first = answers(&cast, number)?;
        ensure!(first.iter().all(Option::is_some), "{number}: {first:?}");
        for _ in 0..4 {
            ensure!(answers(&cast, number)? == first, "{number} sticks to {first:?}");
        }
    }
    let (reply, body) = (health()?, health()?.json()?);
    ensure!(reply.status == 200 && body["reason"] == Value::Null, "{body}");
    let rules = variant.dump(&cast.cluster.world.node)?;
    let recent = rules.lines().filter(|line| line.contains("-m recent"));
    // In each family and for each of two endpoints, one that recalls and one that remembers.
    let expected = STICKY.len() * 2 * 2 * 2;
    ensure!(recent.count() == expected, "{rules}");
    Ok(())
}

#[test]
fn the_others_are_served_until_it_is_loaded_legacy() -> Result<()> {
    the_others_are_served_until_it_is_loaded("mod-l", Variant::Legacy)
}

#[test]
fn the_others_are_served_until_it_is_loaded_nft() -> Result<()> {
    the_others_are_served_until_it_is_loaded("mod-n", Variant::Nft)
}
