//! Clients of metrics and of the page that ask without a pause.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use denizen_tests::eventually::{eventually, observed};
use denizen_tests::node::cluster::Cluster;
use denizen_tests::node::fixture::{PORT, service_ips};
use denizen_tests::node::manifest::{self, Port};
use denizen_tests::node::pod::Wiring;
use denizen_tests::node::world::ip;
use denizen_tests::packets::probe::Protocol;
use serde_json::json;

/// Where metrics and the page are.
const METRICS: u16 = 10249;

/// So many services make an answer cost something.
const SERVICES: u16 = 2000;

/// Connections to each address, which always have a request.
const CONNECTIONS: usize = 8;

/// What has not taken effect by then never will.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The clients. Dropping them ends them.
struct Clients {
    stop: Arc<AtomicBool>,
    answers: Arc<AtomicUsize>,
    threads: Vec<JoinHandle<Result<()>>>,
}

impl Clients {
    fn start(cluster: &Cluster) -> Result<Self> {
        let mut clients =
            Self { stop: Arc::default(), answers: Arc::default(), threads: Vec::new() };
        for address in cluster.world.addresses().node.clone() {
            for path in ["/metrics", "/"].into_iter().cycle().take(CONNECTIONS) {
                let (stop, answers) = (clients.stop.clone(), clients.answers.clone());
                let ask = move || {
                    while !stop.load(Ordering::Relaxed) {
                        let answer = ask(SocketAddr::new(address, METRICS), path);
                        answers.fetch_add(usize::from(answer.is_ok()), Ordering::Relaxed);
                    }
                };
                clients.threads.push(cluster.world.client.spawn(ask)?);
            }
        }
        let some = clients.threads.len();
        observed("answered", TIMEOUT, || Ok(clients.answers()), |answers| *answers >= some)?;
        Ok(clients)
    }

    fn answers(&self) -> usize {
        self.answers.load(Ordering::Relaxed)
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn ask(to: SocketAddr, path: &str) -> Result<()> {
    let mut stream = TcpStream::connect_timeout(&to, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: {to}\r\n\r\n").as_bytes())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    ensure!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
    Ok(())
}

/// The loop, the reader of the state file, the followers of the API and the socket are tasks of one
/// thread. The HTTP servers have another, and may ask faster than the loop answers.
#[test]
fn pods_start_and_services_change_beside_clients_that_ask_without_a_pause() -> Result<()> {
    let wait = json!({ "timeout": "1s", "onTimeout": "fail" });
    let cluster = Cluster::new("busy-ask", &wait)?;
    let ports = [Port::tcp("http", 80, PORT)];
    let address = |number: u16| ip(&format!("172.31.{}.{}", number >> 8, number & 0xff));
    let many = (0..SERVICES)
        .map(|number| manifest::service(&format!("many-{number}"), &[address(number)], &ports));
    cluster.manifests.put("many", &many.collect::<Vec<_>>())?;
    let flags =
        ["--network-policy=on".to_owned(), format!("--metrics-bind-address=[::]:{METRICS}")];
    let agent = cluster.start_agent_with(flags)?;
    let clients = Clients::start(&cluster)?;
    for number in 0..3 {
        for (wiring, name) in [(Wiring::Bridged, "bridged"), (Wiring::Routed, "routed")] {
            cluster.add_pod(&format!("{name}{number}"), wiring)?.detach(&cluster.world.node)?;
        }
        let ips = service_ips(10 + number);
        let name = format!("new-{number}");
        cluster.manifests.put(&name, &[manifest::service(&name, &ips, &ports)])?;
        eventually(&format!("{name} is programmed"), TIMEOUT, || {
            let known = ips.map(|ip| -> Result<bool> {
                let to = SocketAddr::new(ip, 80);
                let mut all = cluster.world.addresses().client.iter().copied();
                let from = all.find(|client| client.is_ipv4() == ip.is_ipv4());
                let from = from.context("a client of each family")?;
                Ok(agent.explain(from, None, to, Protocol::Tcp)?.service.is_some())
            });
            Ok(known.into_iter().all(|known| known.unwrap_or(false)))
        })?;
    }
    println!("{} answers", clients.answers());
    Ok(())
}
