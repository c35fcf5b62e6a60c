//! Services that get in each other's way, and sessions.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use anyhow::{Context, Result};
use denizen_tests::cast::{Cast, PORT, PROTOCOLS, Who, every_protocol, service_ips};
use denizen_tests::manifest::Port;
use denizen_tests::probe::Protocol::{self, Tcp};
use serde_json::{Value, json};

use super::{Fate, HTTP, Trap, at, by};

const ALL: [Who; 3] = [Who::Bridged, Who::Routed, Who::Remote];

/// Which of them comes first in the folder, or changed last, is no reason.
#[test]
fn trap_10_one_of_two_services_with_one_address_wins_and_stays() -> Result<()> {
    const SHARED: u8 = 200;
    let rivals = |cast: &Cast, round: usize| {
        let one = |name: &str, number: u8, member: Who, created: &str| {
            let mut objects = cast.service(name, number, &HTTP, &[member])?;
            objects[0]["metadata"]["creationTimestamp"] = created.into();
            objects[0]["metadata"]["annotations"] = json!({ "round": round.to_string() });
            objects[0]["spec"]["externalIPs"] = json!(service_ips(SHARED));
            anyhow::Ok(objects)
        };
        let mut both = [
            one("a-younger", 10, Who::Remote, "2026-02-01T00:00:00Z")?,
            one("b-older", 11, Who::Bridged, "2026-01-01T00:00:00Z")?,
        ];
        both.rotate_left(round % 2);
        anyhow::Ok(both.concat())
    };
    let trap = Trap::set("10", &[], |cast| rivals(cast, 0))?;
    for round in 1..=8 {
        for to in at(SHARED, 80) {
            assert_eq!(trap.fate(Who::Outside, to, Tcp)?, by([Who::Bridged]), "round {round}");
        }
        let mut changed = rivals(&trap.cast, round)?;
        // Something to program each time.
        changed.extend(trap.cast.service(&format!("other-{round}"), 12, &HTTP, &[Who::Routed])?);
        trap.becomes(&changed)?;
    }
    let log = trap.agent.log();
    let mut warned = log.lines().filter(|line| line.contains("two services claim"));
    assert!(warned.any(|line| line.contains("loser=default/a-younger")), "{log}");
    Ok(())
}

#[test]
fn trap_11_protocols_of_one_port_number_are_apart() -> Result<()> {
    let trap = Trap::set("11", &[], |cast| {
        let all = every_protocol().into_iter().zip(ALL);
        let mut objects = Vec::new();
        for ((port, member), name) in all.zip(["tcp", "udp", "sctp"]) {
            let mut one = cast.service(name, 10, &[port], &[member])?;
            one[0]["metadata"]["name"] = name.into();
            objects.extend(one);
        }
        Ok(objects)
    })?;
    for to in at(10, 80) {
        for (protocol, member) in PROTOCOLS.into_iter().zip(ALL) {
            assert_eq!(trap.fate(Who::Outside, to, protocol)?, by([member]), "{protocol}");
        }
    }
    Ok(())
}

const TWO: [Port; 2] = [HTTP[0], Port::tcp("more", 81, PORT)];

fn sticky(cast: &Cast, members: &[Who]) -> Result<Vec<Value>> {
    let mut objects = cast.service("web", 10, &TWO, members)?;
    objects[0]["spec"]["sessionAffinity"] = "ClientIP".into();
    Ok(objects)
}

/// The one that all connections of a client go to.
fn chosen(trap: &Trap, to: SocketAddr) -> Result<Who> {
    let mut answered = BTreeSet::new();
    for _ in 0..12 {
        let outcome = trap.cast.ask(Who::Outside, to, Tcp)?;
        let endpoint = outcome.endpoint().with_context(|| format!("{to}: {outcome:?}"))?;
        answered.extend(trap.cast.owner(endpoint.ip()));
    }
    let only = answered.pop_first().context("nobody answered")?;
    assert_eq!(answered, BTreeSet::new(), "{to}: besides {only:?}");
    Ok(only)
}

#[test]
fn trap_12_affinity_is_per_port_and_forgets_who_is_removed() -> Result<()> {
    let trap = Trap::set("12", &[], |cast| sticky(cast, &ALL))?;
    let [first, second] = [80, 81].map(|port| at(10, port));
    for (first, second) in first.into_iter().zip(second) {
        // A service port each: where the one's choice goes, the other's need not.
        let (gone, kept) = (chosen(&trap, first)?, chosen(&trap, second)?);
        let rest: Vec<Who> = ALL.into_iter().filter(|who| *who != gone).collect();
        trap.becomes(&sticky(&trap.cast, &rest)?)?;
        let next = chosen(&trap, first)?;
        assert_ne!(next, gone, "it is no endpoint any more");
        if kept != gone {
            assert_eq!(chosen(&trap, second)?, kept, "nothing of its own changed");
        }
        trap.becomes(&sticky(&trap.cast, &ALL)?)?;
        assert_eq!(chosen(&trap, first)?, next, "who came back has no claim");
    }
    Ok(())
}

#[test]
fn trap_16_udp_clients_learn_that_no_endpoint_is_left() -> Result<()> {
    let udp = [Port::tcp("dns", 53, PORT).over(Protocol::Udp)];
    let trap = Trap::set("16", &[], |cast| cast.service("dns", 10, &udp, &[Who::Remote]))?;
    let client = &trap.cast.cluster.world.client;
    for to in at(10, 53) {
        trap.becomes(&trap.cast.service("dns", 10, &udp, &[Who::Remote])?)
            .or_else(|error| if to.is_ipv4() { Ok(()) } else { Err(error) })?;
        let from = SocketAddr::new(trap.cast.address(Who::Outside, to.ip())?, 0);
        let socket = client.run(|| UdpSocket::bind(from))??;
        socket.set_read_timeout(Some(Duration::from_secs(4)))?;
        socket.connect(to)?;
        let mut buffer = [0; 256];
        socket.send(b"who?")?;
        socket.recv(&mut buffer).context("an answer while there is an endpoint")?;
        trap.becomes(&trap.cast.service("dns", 10, &udp, &[])?)?;
        socket.send(b"who?")?;
        let told = socket.recv(&mut buffer).map_err(|error| error.kind());
        assert_eq!(told, Err(ErrorKind::ConnectionRefused), "the old flow goes to nobody");
        assert_eq!(trap.fate(Who::Outside, to, Protocol::Udp)?, Fate::Refused);
    }
    Ok(())
}
