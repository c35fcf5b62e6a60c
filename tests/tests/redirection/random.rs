//! Random configurations: linkerd-init's rules of iptables and those of nf_tables do the same to
//! the same connections.

use std::fmt;
use std::time::Duration;

use anyhow::{Result, ensure};
use denizen_tests::peers::sidecar::{CLIENT_UID, PROXY_UID};
use denizen_tests::random::{self, Draw};
use denizen_tests::test_length::times;
use proptest::collection::vec;
use proptest::prelude::{Strategy, any};
use serde_json::{Value, json};

use super::context::Mesh;
use super::iptables::{Connection, PORTS, outcomes, with_iptables};

const USERS: [u32; 4] = [CLIENT_UID, 0, PROXY_UID, 1000];

/// Most hold one of these ports, some lie beside. They do not overlap, which would be refused.
const RANGES: [&str; 8] =
    ["1-4190", "4191", "4567", "4568-8079", "8080", "8081-8999", "9000-9001", "65535"];

/// Each holds the node's address, the pod's, both, or neither.
const CIDRS: [&str; 6] = [
    "10.85.0.0/24",
    "10.85.0.1/32",
    "10.85.0.2/31",
    "fd00:85::/64",
    "fd00:85::1/128",
    "192.0.2.0/24",
];

const CONNECTIONS: usize = 12;

/// A configuration, and who connects where.
#[derive(Debug)]
struct World {
    redirect: Value,
    connections: Vec<Connection>,
}

impl fmt::Display for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {:?}", self.redirect, self.connections)
    }
}

impl World {
    fn drawn(numbers: &[u16]) -> Self {
        let draw = &mut Draw::new(numbers);
        let mut redirect = json!({});
        for key in ["skipInboundPorts", "onlyInboundPorts", "skipOutboundPorts"] {
            if draw.percent(40) {
                redirect[key] = draw.subset(&RANGES, 25).into();
            }
        }
        for key in ["skipInboundCidrs", "skipOutboundCidrs"] {
            if draw.percent(40) {
                redirect[key] = draw.subset(&CIDRS, 25).into();
            }
        }
        if draw.percent(40) {
            redirect["skipOutboundUids"] = draw.subset(&[CLIENT_UID, 1000], 50).into();
        }
        if draw.percent(30) {
            redirect["ipv6"] = "bypass".into();
        }
        let connections = (0..CONNECTIONS).map(|_| {
            let user = draw.percent(70).then(|| draw.one(&USERS));
            (user, user.is_some() && draw.percent(60), draw.one(&PORTS))
        });
        Self { connections: connections.collect(), redirect }
    }
}

fn is_the_same_with_both(world: &World) -> Result<()> {
    let mut nftables = world.redirect.clone();
    nftables["profile"] = "linkerd".into();
    let [nftables, iptables] = [nftables, with_iptables(world.redirect.clone())].map(|redirect| {
        let mesh = Mesh::bridged(&redirect, &[]);
        let result = mesh.add().unwrap();
        outcomes(&mesh, &Mesh::addresses(&result), &world.connections)
    });
    ensure!(nftables == iptables, "nftables: {nftables:?}\niptables: {iptables:?}");
    Ok(())
}

#[test]
fn both_backends_do_the_same() {
    let worlds = vec(any::<u16>(), 100).prop_map(|numbers| World::drawn(&numbers));
    let (count, shrinking) = (times(60, 6) as u32, Duration::from_secs(20));
    random::run(count, random::seed().unwrap(), shrinking, worlds, is_the_same_with_both).unwrap();
}
