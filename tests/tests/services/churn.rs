//! Endpoints change two hundred times a second while clients connect without pause: every lookup
//! must find somebody, also one that races with a commit.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use denizen_tests::kernel::ruleset;
use denizen_tests::node::cluster::{OTHER_NODE, serve};
use denizen_tests::node::fixture::{Fixture, Host, PORT};
use denizen_tests::node::manifest::{Port, service, slice};
use denizen_tests::node::world::ip;
use denizen_tests::packets::load::Load;
use denizen_tests::packets::probe::Protocol;
use denizen_tests::test_length;

const PORTS: [Port; 2] =
    [Port::tcp("tcp", 80, PORT), Port::tcp("udp", 80, PORT).over(Protocol::Udp)];

/// Services that change, and endpoints to choose theirs from. All live: none may ever fail to
/// answer.
const SERVICES: u8 = 8;
const ENDPOINTS: u8 = 24;

/// Between two changes: two hundred a second.
const PACE: Duration = Duration::from_millis(5);

/// The size of the service that changes as change number `step`: grows and shrinks through the size
/// classes, the services out of step with each other.
fn size(step: usize) -> usize {
    const SIZES: [usize; 12] = [1, 2, 3, 5, 8, 9, 12, 17, 9, 4, 2, 1];
    SIZES[(step / usize::from(SERVICES) + step) % SIZES.len()]
}

fn endpoints(step: usize) -> Vec<(IpAddr, &'static str)> {
    let number = |index: usize| {
        u8::try_from((step * 7 + index) % usize::from(ENDPOINTS)).expect("below ENDPOINTS")
    };
    let endpoint = |index| (IpAddr::V4(Ipv4Addr::new(192, 168, 78, 1 + number(index))), OTHER_NODE);
    (0..size(step)).map(endpoint).collect()
}

#[test]
fn no_lookup_misses_across_a_commit() -> Result<()> {
    let fixture = Fixture::new("churn")?;
    let world = &fixture.cluster.world;
    let all: Vec<IpAddr> = (1..=ENDPOINTS).map(|last| ip(&format!("192.168.78.{last}"))).collect();
    all.iter().try_for_each(|address| world.add_remote(*address))?;
    let _server = serve(&world.remote, &all, &[(Protocol::Tcp, PORT), (Protocol::Udp, PORT)])?;
    let address = |number: u8| ip(&format!("172.30.1.{}", number + 1));
    for number in 0..SERVICES {
        let name = format!("churn-{number}");
        fixture.cluster.manifests.put(&name, &[service(&name, &[address(number)], &PORTS)])?;
        let slices = [slice(&name, &PORTS, &endpoints(usize::from(number)))];
        fixture.cluster.manifests.put(&format!("{name}-slice"), &slices)?;
    }
    let agent = fixture.cluster.start_agent()?;
    world.forget_quickly()?;
    let [mut over_tcp, mut over_udp] = [(); 2].map(|()| Load::with_pause(Duration::ZERO));
    for who in [Host::Bridged, Host::Routed, Host::Outside, Host::ThisNode] {
        for (load, protocol) in [(&mut over_tcp, Protocol::Tcp), (&mut over_udp, Protocol::Udp)] {
            let at = |number| (SocketAddr::new(address(number), 80), protocol);
            load.client(fixture.place(who).0, (0..SERVICES).map(at).collect(), |outcome| {
                outcome.endpoint().is_some()
            })?;
        }
    }
    let (started, mut steps) = (Instant::now(), 0);
    while started.elapsed() < test_length::duration() {
        let name = format!("churn-{}", steps % usize::from(SERVICES));
        let slices = [slice(&name, &PORTS, &endpoints(steps))];
        fixture.cluster.manifests.put(&format!("{name}-slice"), &slices)?;
        steps += 1;
        let next = PACE * u32::try_from(steps).context("fewer changes than that")?;
        std::thread::sleep(next.saturating_sub(started.elapsed()));
    }
    let (tally, udp) = (over_tcp.stop()?, over_udp.stop()?);
    let rate = steps as f64 / started.elapsed().as_secs_f64();
    eprintln!(
        "{steps} changes, {rate:.0} a second, {tally:?}, over UDP {udp:?}\n{}",
        agent.status()?
    );
    assert!(rate > 150.0, "the test itself is too slow: {rate:.0} changes a second");
    assert_eq!(tally.failed, 0, "{tally:?}");
    assert_eq!(udp.failed, 0, "{udp:?}");
    assert_eq!(ruleset::missed(&world.node)?, 0, "lookups that missed");
    assert_eq!(tally.lost_once, 0, "a packet was lost and sent again");
    Ok(())
}
