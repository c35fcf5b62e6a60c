//! The same services as kube-proxy renders them, loaded by `nft -f` as kube-proxy does: a chain for
//! each service and for each endpoint, and an anonymous map for each service.

use std::fmt::Write as _;
use std::io::Write as _;
use std::net::Ipv4Addr;
use std::process::{Command, Stdio};
use std::time::Duration;

use denizen_tests::node::cni::Namespace;

use crate::clock::{Samples, text, timed};
use crate::manifests::{ENDPOINTS, endpoint_ip, service_ip, spare_ip};

/// Larger sizes take too long: the kernel's work grows with the square of the number of sets.
const MOST: usize = 10_000;
const CHANGES: usize = 10;

/// What kube-proxy's rules cost.
pub struct Other {
    pub services: usize,
    pub load: Duration,
    pub change: Samples,
}

/// Measures the sizes that do not take too long, and prints the results.
pub fn all(sizes: &[usize]) -> Vec<Other> {
    println!("\n## nft -f in kube-proxy's shape, the same services\n");
    let (small, large): (Vec<usize>, Vec<usize>) = sizes.iter().partition(|size| **size <= MOST);
    let measured: Vec<Other> = small
        .into_iter()
        .map(|services| Namespace::new().run(move || measured(services)))
        .collect();
    for size in large {
        println!(
            "{size} services: skipped, the time grows with the square of their number{}",
            guess(&measured, size)
        );
    }
    measured
}

fn guess(measured: &[Other], services: usize) -> String {
    let guess = |last: &Other| {
        let times = (services as f64 / last.services as f64).powi(2);
        format!(": {times:.0} times {}", text(last.load))
    };
    measured.last().map(guess).unwrap_or_default()
}

fn measured(services: usize) -> Other {
    let rules = ruleset(services);
    let ((), load) = timed(|| nft(&rules));
    let change = |n: usize| timed(|| nft(&replaced(n * 7919 % services, n))).1;
    let change: Samples = (0..CHANGES).map(change).collect();
    println!(
        "{services} services: loaded in {}; one endpoint replaced p50 {}",
        text(load),
        text(change.median())
    );
    Other { services, load, change }
}

fn nft(rules: &str) {
    let mut nft = Command::new("nft")
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .spawn()
        .expect("nft is installed");
    let mut input = nft.stdin.take().expect("it was piped");
    input.write_all(rules.as_bytes()).expect("nft reads");
    drop(input);
    assert!(nft.wait().expect("nft ends").success(), "nft refused the rules");
}

const BASE: &str = "add table ip kube-proxy
add set ip kube-proxy cluster-ips { type ipv4_addr ; }
add map ip kube-proxy service-ips { type ipv4_addr . inet_proto . inet_service : verdict ; }
add chain ip kube-proxy mark-for-masquerade
add rule ip kube-proxy mark-for-masquerade meta mark set meta mark or 0x4000
add chain ip kube-proxy services
add rule ip kube-proxy services ip daddr . meta l4proto . th dport vmap @service-ips
add chain ip kube-proxy nat-prerouting { type nat hook prerouting priority -100 ; }
add rule ip kube-proxy nat-prerouting jump services
add chain ip kube-proxy nat-output { type nat hook output priority -100 ; }
add rule ip kube-proxy nat-output jump services
";

fn ruleset(services: usize) -> String {
    let mut text = BASE.to_owned();
    for service in 0..services {
        let endpoints: Vec<Ipv4Addr> = (0..ENDPOINTS).map(|n| endpoint_ip(service, n)).collect();
        for endpoint in &endpoints {
            add_endpoint(&mut text, service, *endpoint);
        }
        let ip = service_ip(service);
        let chain = service_chain(service);
        let written = writeln!(text, "add chain ip kube-proxy {chain}");
        written.expect("text has room");
        service_rules(&mut text, service, &endpoints);
        let written = writeln!(
            text,
            "add element ip kube-proxy cluster-ips {{ {ip} }}\n\
             add element ip kube-proxy service-ips {{ {ip} . tcp . 80 : goto {chain} }}"
        );
        written.expect("text has room");
    }
    text
}

/// Replaces one endpoint as kube-proxy does: the removed endpoint's chain is emptied now, and
/// deleted a second later in another transaction.
fn replaced(service: usize, number: usize) -> String {
    let mut text = String::new();
    let mut endpoints: Vec<Ipv4Addr> = (0..ENDPOINTS).map(|n| endpoint_ip(service, n)).collect();
    let gone = std::mem::replace(&mut endpoints[0], spare_ip(number));
    add_endpoint(&mut text, service, endpoints[0]);
    let written = writeln!(text, "flush chain ip kube-proxy {}", service_chain(service));
    written.expect("text has room");
    service_rules(&mut text, service, &endpoints);
    let written = writeln!(text, "flush chain ip kube-proxy {}", endpoint_chain(service, gone));
    written.expect("text has room");
    text
}

fn service_chain(service: usize) -> String {
    let namespace = service % 50;
    format!("service-{service:08X}-team-{namespace}/service-{service}/tcp/http")
}

fn endpoint_chain(service: usize, endpoint: Ipv4Addr) -> String {
    let (namespace, hash) = (service % 50, u32::from(endpoint));
    format!("endpoint-{hash:08X}-team-{namespace}/service-{service}/tcp/http__{endpoint}/8080")
}

fn add_endpoint(text: &mut String, service: usize, endpoint: Ipv4Addr) {
    let chain = endpoint_chain(service, endpoint);
    let written = writeln!(
        text,
        "add chain ip kube-proxy {chain}\n\
         add rule ip kube-proxy {chain} ip saddr {endpoint} jump mark-for-masquerade\n\
         add rule ip kube-proxy {chain} meta l4proto tcp dnat to {endpoint}:8080"
    );
    written.expect("text has room");
}

fn service_rules(text: &mut String, service: usize, endpoints: &[Ipv4Addr]) {
    let (chain, ip) = (service_chain(service), service_ip(service));
    let choices: Vec<String> = endpoints
        .iter()
        .enumerate()
        .map(|(n, endpoint)| format!("{n} : goto {}", endpoint_chain(service, *endpoint)))
        .collect();
    let written = writeln!(
        text,
        "add rule ip kube-proxy {chain} ip daddr {ip} tcp dport 80 ip saddr != 10.128.0.0/9 \
         jump mark-for-masquerade\n\
         add rule ip kube-proxy {chain} numgen random mod {} vmap {{ {} }}",
        endpoints.len(),
        choices.join(", ")
    );
    written.expect("text has room");
}
