//! Which endpoint is chosen, and at what cost: exactly evenly for every number of endpoints, by a
//! number of rules that does not depend on how many services there are.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use anyhow::Result;
use denizen_tests::kernel::ruleset;
use denizen_tests::node::cluster::{Cluster, OTHER_NODE, serve};
use denizen_tests::node::fixture::{Fixture, Host, PORT};
use denizen_tests::node::manifest::{Port, service, slice};
use denizen_tests::node::world::ip;
use denizen_tests::packets::probe::{Outcome, Probe, Protocol};
use denizen_tests::test_length;

const HTTP: [Port; 1] = [Port::tcp("http", 80, PORT)];
const MOST: u8 = 20;

#[test]
fn the_choice_is_even_for_one_to_twenty_endpoints() -> Result<()> {
    let fixture = Fixture::new("even")?;
    let world = &fixture.cluster.world;
    let all: Vec<_> = (1..=MOST).map(|last| ip(&format!("192.168.79.{last}"))).collect();
    all.iter().try_for_each(|address| world.add_remote(*address))?;
    let _server = serve(&world.remote, &all, &[(Protocol::Tcp, PORT)])?;
    let mut objects = Vec::new();
    for count in 1..=MOST {
        let name = format!("of-{count}");
        let members: Vec<_> =
            all[..usize::from(count)].iter().map(|address| (*address, OTHER_NODE)).collect();
        objects.push(service(&name, &[ip(&format!("172.30.2.{count}"))], &HTTP));
        objects.push(slice(&name, &HTTP, &members));
    }
    fixture.cluster.manifests.put("even", &objects)?;
    let _agent = fixture.cluster.start_agent()?;
    for count in 1..=MOST {
        let to = SocketAddr::new(ip(&format!("172.30.2.{count}")), 80);
        let connections = usize::from(count) * test_length::times(400, 100);
        let ask = || (0..connections).map(|_| Probe::tcp(to).send()).collect::<Vec<_>>();
        let outcomes = fixture.place(Host::Routed).0.run(ask)?;
        let mut counts = BTreeMap::new();
        for endpoint in outcomes.iter().filter_map(Outcome::endpoint) {
            *counts.entry(endpoint).or_insert(0_usize) += 1;
        }
        assert_eq!(counts.values().sum::<usize>(), connections, "all answered, of {count}");
        assert_eq!(
            counts.len(),
            usize::from(count),
            "all endpoints chosen, of {count}: {counts:?}"
        );
        let expected = connections as f64 / f64::from(count);
        let squares = counts.values().map(|seen| (*seen as f64 - expected).powi(2) / expected);
        let deviation = squares.sum::<f64>();
        let bound = bound(f64::from(count) - 1.0);
        assert!(
            deviation <= bound,
            "of {count}: chi square {deviation:.1} above {bound:.1}: {counts:?}"
        );
    }
    Ok(())
}

/// What chi square of so many degrees of freedom exceeds once in a million tests (Wilson and
/// Hilferty).
fn bound(freedom: f64) -> f64 {
    const DEVIATIONS: f64 = 4.75;
    if freedom < 1.0 {
        return 0.0;
    }
    let spread = 2.0 / (9.0 * freedom);
    freedom * (1.0 - spread + DEVIATIONS * spread.sqrt()).powi(3)
}

#[test]
fn ten_thousand_services_take_as_many_rules_as_ten() -> Result<()> {
    let many = u16::try_from(test_length::times(10_000, 2_000))?;
    let few = size_with("rules-few", 10)?;
    assert_eq!(
        size_with("rules-many", many)?,
        few,
        "chains and rules for 10 and for {many} services"
    );
    Ok(())
}

fn size_with(label: &str, services: u16) -> Result<(usize, usize)> {
    let cluster = Cluster::new(label, &serde_json::Value::Null)?;
    let mut objects = Vec::new();
    for number in 0..services {
        let [high, low] = number.to_be_bytes();
        let name = format!("many-{number}");
        objects.push(service(&name, &[ip(&format!("172.31.{high}.{low}"))], &HTTP));
        let members = [1, 2, 3, 4].map(|last| (ip(&format!("10.{last}.{high}.{low}")), OTHER_NODE));
        objects.push(slice(&name, &HTTP, &members));
    }
    cluster.manifests.put("many", &objects)?;
    let agent = cluster.start_agent()?;
    let status = agent.status()?;
    assert_eq!(status["services"].as_u64(), Some(u64::from(services)), "{status}");
    ruleset::size(&cluster.world.node)
}
