//! How long a connection takes: a client in one namespace, a node that serves in another, a veth
//! between.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use denizen_tests::node::cni::Namespace;

use crate::clock::{Samples, text, timed};
use crate::manifests::{self, ENDPOINTS, endpoint_ip, service_ip};
use crate::programmed::started;

const CONNECTIONS: usize = 4_000;
const SIZES: [usize; 2] = [1, 10_000];
const NODE_SIDE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

/// Measures and prints it.
pub fn report() {
    println!("\n## One connection to the last of so many services, TCP over a veth\n");
    let plain = measured(0);
    for services in SIZES {
        let there = measured(services);
        let times = |a: Duration, b: Duration| a.as_secs_f64() / b.as_secs_f64();
        println!(
            "{services} services: {:.2} times as long as without rules (least {:.2} times)",
            times(there.median(), plain.median()),
            times(there.quantile(0), plain.quantile(0))
        );
    }
}

/// Connections to the last service, or straight to the endpoint where there is none.
fn measured(services: usize) -> Samples {
    let (node, client) = (Namespace::new(), Namespace::new());
    wire(&node, &client);
    let last = services.saturating_sub(1);
    for endpoint in 0..ENDPOINTS {
        node.ip(&format!("address add {}/32 dev lo", endpoint_ip(last, endpoint)));
    }
    let engine = (services > 0).then(|| {
        let folder = manifests::folder(services);
        let facts = manifests::facts(folder.path());
        node.run(move || started(facts).0)
    });
    let listener = node.run(|| TcpListener::bind((Ipv4Addr::UNSPECIFIED, 8080)).expect("a port"));
    let to = match services {
        0 => SocketAddr::from((endpoint_ip(0, 0), 8080)),
        _ => SocketAddr::from((service_ip(last), 80)),
    };
    let samples: Samples =
        client.run(move || (0..CONNECTIONS).map(|_| connection(to, &listener)).collect());
    println!(
        "{services:>6} services: least {}  p50 {}  p99 {}",
        text(samples.quantile(0)),
        text(samples.median()),
        text(samples.quantile(99))
    );
    drop(engine);
    samples
}

fn connection(to: SocketAddr, listener: &TcpListener) -> Duration {
    let (stream, took) = timed(|| TcpStream::connect(to));
    let (ours, (theirs, _)) =
        (stream.expect("the service answers"), listener.accept().expect("it connected"));
    // The client closes last, so that no port of its own waits.
    drop(theirs);
    drop(ours);
    took
}

fn wire(node: &Namespace, client: &Namespace) {
    let other = client.path().display().to_string();
    node.ip(&format!("link add node type veth peer name client netns {other}"));
    node.ip(&format!("address add {NODE_SIDE}/24 dev node"));
    node.ip("link set node up");
    client.ip("address add 192.0.2.2/24 dev client");
    client.ip("link set client up");
    client.ip(&format!("route add default via {NODE_SIDE}"));
}
