//! BIRD itself reads every configuration that is rendered, whatever is configured.

use std::cell::Cell;
use std::net::IpAddr;
use std::process::Stdio;

use anyhow::{Result, ensure};
use denizen_routing::bird::{BirdConfig, RenderInputs, password, render};
use denizen_tests::node::netns;
use denizen_tests::peers::bird::program;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use serde_json::{Value, json};

/// Each starts a process.
const CASES: u32 = 60;

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        3 => "[a-zA-Z0-9.-]{1,40}",
        1 => "[ -~]{0,12}",
        1 => "[^\u{0}]{0,90}",
        1 => select(vec!["bgp", "x\"; protocol static {}", "a\nb", "'", "\\", "#", "/*"]).prop_map(Into::into),
    ]
}

fn prefix() -> impl Strategy<Value = String> {
    let v4 =
        (any::<[u8; 4]>(), 0u8..=32).prop_map(|(ip, len)| format!("{}/{len}", IpAddr::from(ip)));
    let v6 =
        (any::<[u8; 16]>(), 0u8..=128).prop_map(|(ip, len)| format!("{}/{len}", IpAddr::from(ip)));
    prop_oneof![v4, v6]
}

fn peer() -> impl Strategy<Value = (Value, String)> {
    let addresses = [
        "192.0.2.9",
        "10.0.0.1",
        "2001:db8::9",
        "fd00::1",
        "198.51.100.77",
        "fe80::9%eth0",
        "fe80::9%bgp.5-'x",
    ];
    let families = select(vec![
        Value::Null,
        Value::Null,
        json!(["ipv4"]),
        json!(["ipv6"]),
        json!(["ipv4", "ipv6"]),
    ]);
    let import = prop_oneof![
        Just(json!("none")),
        Just(json!("default")),
        prop::collection::vec(prefix(), 0..3).prop_map(|list| json!(list)),
        Just(json!(["default", "10.0.0.0/8"])),
    ];
    let switches = subsequence(vec!["bfd", "ttlSecurity", "rrClient"], 0..=3);
    let asn = select(vec![1u32, 64512, 4_294_967_295]);
    let multihop = prop_oneof![Just(0u8), any::<u8>()];
    let numbers = (asn, multihop, 1u16.., 0u8..=10, any::<u32>());
    let community = select(vec!["64512:100", "0:0", "65535:65281", "4294967295:1:2"]);
    let classes = ["pod-cidr", "pod", "fresh-pod", "cluster-ip", "external-ip", "load-balancer-ip"];
    let communities = prop::collection::btree_map(
        select(classes.to_vec()),
        prop::collection::vec(community, 0..3),
        0..4,
    );
    let local = select(vec![
        Value::Null,
        Value::Null,
        json!("192.0.2.1"),
        json!("2001:db8::1"),
        json!("fe80::1"),
    ]);
    let place = (select(addresses.to_vec()), families, local);
    (text(), place, import, switches, numbers, communities, text()).prop_map(
        |(name, (address, families, local), import, switches, numbers, communities, password)| {
            let (asn, multihop, port, allow, limit) = numbers;
            let mut peer = json!({
                "name": name, "address": address, "asn": asn, "multihop": multihop, "port": port,
                "allowLocalAs": allow, "importLimit": limit, "import": import,
                "communities": communities, "localAddress": local, "families": families,
            });
            switches.into_iter().for_each(|switch| peer[switch] = true.into());
            (peer, password)
        },
    )
}

fn around() -> impl Strategy<Value = RenderInputs> {
    let ranges = || prop::collection::btree_set(prefix(), 0..4);
    let own = subsequence(vec!["192.0.2.1", "2001:db8::1", "192.0.2.7"], 0..=3);
    let nodes = subsequence(vec!["192.0.2.2", "10.0.0.1", "2001:db8::2"], 0..=3);
    (1u32..=252, text(), own, ranges(), nodes).prop_map(|(table, node, own, ranges, nodes)| {
        let parsed = |text: &str| text.parse::<IpAddr>().expect("an address");
        let of_family = |at: &IpAddr| if at.is_ipv4() { "10.1.2.3/24" } else { "fd01:2::9/64" };
        RenderInputs {
            table,
            node: node.into(),
            addresses: own.into_iter().map(parsed).collect(),
            protected: ranges.iter().map(|range| range.parse().expect("a prefix")).collect(),
            neighbours: nodes
                .into_iter()
                .map(parsed)
                .map(|at| (at, [of_family(&at).parse().expect("a prefix")].into()))
                .collect(),
        }
    })
}

/// `bird -p` of it.
fn accepted(configuration: &str) -> Result<()> {
    let folder = netns::folder()?;
    let file = folder.path().join("bird.conf");
    std::fs::write(&file, configuration)?;
    let output = program("bird")?.arg("-p").arg("-c").arg(&file).stdin(Stdio::null()).output()?;
    ensure!(output.status.success(), "{output:?}\n{configuration}");
    Ok(())
}

/// What the agent accepts, BIRD accepts. The same cases each time: `PROPTEST_CASES` makes more.
#[test]
fn bird_accepts_every_rendered_configuration() -> Result<()> {
    ensure!(accepted("protocol nonsense;").is_err(), "BIRD accepts anything");
    let config = (
        select(vec![1u32, 64512, 4_294_967_295]),
        select(vec![Value::Null, json!("192.0.2.200")]),
        select(vec!["3s", "30s", "65535s"]),
        select(vec!["0s", "60s", "4095s"]),
        (any::<bool>(), 0u8..=10),
        prop::collection::vec(peer(), 0..4),
    );
    let cases =
        std::env::var("PROPTEST_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(CASES);
    let runs = Config { cases, failure_persistence: None, ..Config::default() };
    let mut runner =
        TestRunner::new_with_rng(runs, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let sessions = Cell::new(0);
    let found = runner.run(
        &(config, around()),
        |((asn, id, hold, restart, (mesh, prepend), peers), around)| {
            // Those that the agent refuses stay out, by name.
            let mut chosen: Vec<(Value, Option<String>)> = Vec::new();
            let document = |peers: &[(Value, Option<String>)]| {
                let peers: Vec<&Value> = peers.iter().map(|(peer, _)| peer).collect();
                json!({ "asn": asn, "routerId": id, "holdTime": hold, "gracefulRestart": restart,
                    "mesh": mesh, "drainPrepend": prepend, "peers": peers })
            };
            for (peer, word) in peers {
                let word = password(&word).ok().map(str::to_owned);
                chosen.push((peer, word));
                if BirdConfig::parse(&document(&chosen).to_string()).is_err() {
                    chosen.pop();
                }
            }
            let config = BirdConfig::parse(&document(&chosen).to_string()).expect("it is checked");
            let words = chosen.iter().map(|(_, word)| word.clone());
            let peers: Vec<_> = config.peers.iter().zip(words).collect();
            let rendered = render(&config, &peers, &around);
            let again = render(&config, &peers, &around);
            prop_assert_eq!(&rendered.text, &again.text);
            sessions.set(sessions.get() + rendered.text.matches("protocol bgp").count());
            accepted(&rendered.text).map_err(|error| TestCaseError::fail(format!("{error:#}")))
        },
    );
    found?;
    ensure!(sessions.get() > CASES as usize, "only {} sessions were rendered", sessions.get());
    Ok(())
}
