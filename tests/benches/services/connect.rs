//! How long a connection takes: a client in one network namespace, a node that serves in another, a
//! veth between them.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use denizen_tests::node::cni::Namespace;

use crate::clock::{Samples, text, timed};
use crate::manifests::{self, ENDPOINTS, endpoint_ip, service_ip};
use crate::programmed::started;

const CONNECTIONS: usize = 4_000;
const SIZES: [usize; 2] = [1, 10_000];
/// How many source ranges a load balancer IP admits; the client is in the last.
const RANGES: [usize; 3] = [1, 100, 4_000];
const LOAD_BALANCER_IP: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);
const NODE_SIDE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

/// What the client connects to.
#[derive(Clone, Copy)]
enum ConnectTarget {
    /// The endpoint, where there is no service.
    Endpoint,
    /// The cluster IP of the last of this many services.
    Last(usize),
    /// A load balancer IP that admits this many source ranges.
    Restricted(usize),
}

impl ConnectTarget {
    fn what(self) -> String {
        match self {
            Self::Endpoint => "without rules".to_owned(),
            Self::Last(services) => format!("{services} services"),
            Self::Restricted(ranges) => format!("{ranges} source ranges"),
        }
    }

    /// How many services there are.
    fn services(self) -> usize {
        match self {
            Self::Endpoint => 0,
            Self::Last(services) => services,
            Self::Restricted(_) => 1,
        }
    }

    fn address(self) -> SocketAddr {
        match self {
            Self::Endpoint => SocketAddr::from((endpoint_ip(0, 0), 8080)),
            Self::Last(services) => SocketAddr::from((service_ip(services - 1), 80)),
            Self::Restricted(_) => SocketAddr::from((LOAD_BALANCER_IP, 80)),
        }
    }
}

/// Measures and prints it.
pub fn report() {
    println!("\n## One connection, TCP over a veth: to the last of so many services,");
    println!("## and to a load balancer IP that so many ranges may ask\n");
    let plain = measured(ConnectTarget::Endpoint);
    let asked =
        SIZES.map(ConnectTarget::Last).into_iter().chain(RANGES.map(ConnectTarget::Restricted));
    for asked in asked {
        let there = measured(asked);
        let times = |a: Duration, b: Duration| a.as_secs_f64() / b.as_secs_f64();
        println!(
            "{}: {:.2} times as long as without rules (least {:.2} times)",
            asked.what(),
            times(there.median(), plain.median()),
            times(there.quantile(0), plain.quantile(0))
        );
    }
}

fn measured(asked: ConnectTarget) -> Samples {
    let (node, client) = (Namespace::new(), Namespace::new());
    wire(&node, &client);
    let services = asked.services();
    for endpoint in 0..ENDPOINTS {
        let ip = endpoint_ip(services.saturating_sub(1), endpoint);
        node.ip(&format!("address add {ip}/32 dev lo"));
    }
    let engine = (services > 0).then(|| {
        let folder = manifests::folder(services);
        if let ConnectTarget::Restricted(ranges) = asked {
            manifests::restrict(folder.path(), LOAD_BALANCER_IP, &sources(ranges));
        }
        let facts = manifests::facts(folder.path());
        node.run(move || started(facts).0)
    });
    let listener = node.run(|| TcpListener::bind((Ipv4Addr::UNSPECIFIED, 8080)).expect("a port"));
    let to = asked.address();
    let samples: Samples =
        client.run(move || (0..CONNECTIONS).map(|_| connection(to, &listener)).collect());
    println!(
        "{:>18}: least {}  p50 {}  p99 {}",
        asked.what(),
        text(samples.quantile(0)),
        text(samples.median()),
        text(samples.quantile(99))
    );
    drop(engine);
    samples
}

/// This many source ranges. The client is in the last.
fn sources(ranges: usize) -> Vec<String> {
    let others = (1..ranges).map(|n| format!("11.{}.{}.0/25", n / 256, n % 256));
    others.chain(["192.0.2.0/24".to_owned()]).collect()
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
