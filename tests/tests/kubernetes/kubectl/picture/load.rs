//! A cluster in which everything happens at once and never stops: 3,000 pods, 20,000 new
//! connections a second, and rules that drop.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use denizen_tests::bench::processor_time;
use denizen_tests::eventually::observed;
use denizen_tests::peers::api::Api;
use denizen_tests::peers::api::exec::Execution;
use denizen_tests::test_length;
use denizen_tests::workstation::Workstation;
use serde_json::{Value, json};

use super::ask::Picture;
use super::browser::Browser;
use super::shop::{pod_object, service};
use super::{TIMEOUT, pictures};

const NODES: usize = 50;
const NAMESPACES: usize = 30;
const WORKLOADS: usize = 600;
/// Of each workload.
const PODS: usize = 5;

/// New connections a second, on all nodes together.
const RATE: u64 = 20_000;

/// How long the kernels track one, in seconds: TCP after its end.
const TRACKED: u64 = 120;

/// The most memory of the program, in kilobytes.
const KILOBYTES: u64 = 200_000;

/// How many seconds it is looked at: ten minutes in full length.
fn seconds() -> u64 {
    test_length::times(600, 5) as u64
}

/// The most of a processor that the first picture takes, in full length alone: it is to be there in
/// 3 seconds, and here the nodes that answer have the same processors.
const FIRST: Duration = Duration::from_secs(3);

/// Between two questions of a page.
const PAUSE: Duration = Duration::from_millis(500);

/// A pod that comes late. Its name is in no other.
const LATE: &str = "newcomer";

/// What all agents have in common.
struct BusyCluster {
    began: Instant,
    /// The late pod is there, and has a connection.
    has_newcomer: AtomicBool,
}

fn own(workload: usize) -> (String, String) {
    (format!("ns-{:02}", workload % NAMESPACES), format!("app-{:02}", workload / NAMESPACES))
}

fn pod_ip(workload: usize, pod: usize) -> String {
    format!("10.{pod}.{}.{}", workload / 250, workload % 250 + 1)
}

fn cluster_ip(workload: usize) -> String {
    format!("10.96.{}.{}", workload / 250, workload % 250 + 1)
}

fn pod_end(workload: usize, pod: usize, port: u16) -> String {
    let (ip, (namespace, name)) = (pod_ip(workload, pod), own(workload));
    format!(r#"{{"address":"{ip}:{port}","name":"{namespace}/{name}-{pod}"}}"#)
}

/// Numbers that look random, and are the same for the same connection (splitmix64).
fn mixed(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

fn below(random: u64, most: usize) -> usize {
    (random % most as u64) as usize
}

/// A workload on this node, and which of its pods is.
fn pod_on(node: usize, random: u64) -> (usize, usize) {
    let pod = node + NODES * below(random, WORKLOADS * PODS / NODES);
    (pod / PODS, pod % PODS)
}

impl BusyCluster {
    /// How many connections of this node there were so far.
    fn count(&self) -> u64 {
        let since = self.began.elapsed() + Duration::from_secs(TRACKED);
        since.as_millis() as u64 * RATE / NODES as u64 / 1000
    }

    /// The newest connections of a node, and how many it tracks.
    fn connections(&self, node: usize, limit: usize) -> String {
        let (count, tracked) = (self.count(), TRACKED * RATE / NODES as u64);
        let newest = (0..limit as u64).map(|back| connection(node, count - back));
        let mut all: Vec<String> = newest.collect();
        if node == 0 && self.has_newcomer.load(Ordering::Relaxed) {
            let client = json!({ "address": "10.77.0.1:4000", "name": format!("ns-00/{LATE}-0") });
            all[0] = format!(
                r#"{{"protocol":"tcp","state":"established","client":{client},"destination":{}}}"#,
                pod_end(7, 0, 8080)
            );
        }
        format!(r#"{{"total":{tracked},"connections":[{}]}}"#, all.join(","))
    }

    /// As text: the nodes together answer with 30 MB, on the processors of the program under test.
    fn answer(&self, node: usize, request: &Value) -> String {
        let limit =
            |key: &str, most| request[key]["limit"].as_u64().unwrap_or_default().min(most) as usize;
        let key = request.as_object().and_then(|request| request.keys().next());
        let flows = |numbers: Range<u64>| {
            let flows: Vec<String> = numbers.map(|number| dropped(node, number)).collect();
            flows.join(",")
        };
        match key.map(String::as_str) {
            Some("connections") => self.connections(node, limit("connections", 2_000)),
            Some("drops") => json!({ "drops": [{ "table": "ip denizen-firewall",
                "verdict": "dropped", "reason": NOT_PERMITTED, "packets": self.count() / 10 }] })
            .to_string(),
            Some("dropped") => {
                let now = self.count();
                format!(r#"{{"dropped":[{}],"hasMore":true}}"#, flows(now..now + 25))
            }
            Some("refused") => {
                let flows = flows(0..limit("refused", 1_000) as u64);
                format!(r#"{{"flows":[{flows}],"moreFlows":3000}}"#)
            }
            _ => r#"{"verdict":"untouched"}"#.to_owned(),
        }
    }
}

const NOT_PERMITTED: &str = "no policy permits this to reach the pod";

/// Most ask the few that they always ask. Some ask anybody, or somebody outside, at a port that
/// nobody has asked before.
fn connection(node: usize, number: u64) -> String {
    let random = mixed(number * NODES as u64 + node as u64);
    let (client, pod) = pod_on(node, random);
    let (other, kind) = (mixed(random), random >> 32);
    let port = 1024 + below(other, 60_000) as u16;
    let state = if other.is_multiple_of(50) { "syn_sent" } else { "time_wait" };
    let outside = |network| format!(r#"{{"address":"{network}.{}:{port}"}}"#, other % 250);
    let of = |protocol: &str, state: &str, from: String, to: String| {
        let ends = format!(r#""client":{from},"destination":{to}"#);
        format!(r#"{{"protocol":"{protocol}","state":"{state}",{ends}"#)
    };
    let to = match kind % 20 {
        0 => return of("tcp", state, outside("203.0.113"), pod_end(client, pod, 8080)) + "}",
        1 => return of("udp", "answered", pod_end(client, pod, 5000), outside("198.51.100")) + "}",
        2 => below(other, WORKLOADS),
        step => (client + step as usize / 2) % WORKLOADS,
    };
    let destination = format!(r#"{{"address":"{}:80"}}"#, cluster_ip(to));
    let connection = of("tcp", state, pod_end(client, pod, port), destination);
    let ((namespace, name), endpoint) = (own(to), pod_end(to, below(other, PODS), 8080));
    let service = format!(r#""service":"{namespace}/{name}:http","endpoint":{endpoint}"#);
    format!(r#"{connection},{service},"seconds":{TRACKED}}}"#)
}

/// A flow, and how long ago it began.
fn dropped(node: usize, number: u64) -> String {
    let random = mixed(number * NODES as u64 + node as u64);
    let (to, pod) = pod_on(node, random);
    let (from, policy) = (below(mixed(random), WORKLOADS), format!("{}/closed", own(to).0));
    let why = format!(r#""verdict":"dropped","reason":"{NOT_PERMITTED}","policy":"{policy}""#);
    let [source, destination] = [pod_end(from, 0, 40_000), pod_end(to, pod, 5432)];
    let ends = format!(r#""source":{source},"destination":{destination}"#);
    let numbers = format!(r#""packets":{},"seconds":{}"#, 1 + random % 9, number % 900);
    format!(r#"{{{why},"table":"ip denizen-firewall","protocol":"tcp",{ends},{numbers}}}"#)
}

fn put(workstation: &Workstation) -> Result<Arc<BusyCluster>> {
    (0..NODES).try_for_each(|node| workstation.node_with_agent(&format!("n{node}")))?;
    for workload in 0..WORKLOADS {
        let (namespace, name) = own(workload);
        let ips: Vec<String> = (0..PODS).map(|pod| pod_ip(workload, pod)).collect();
        for (pod, ip) in ips.iter().enumerate() {
            let node = (workload * PODS + pod) % NODES;
            workstation.api.put(&pod_object(&namespace, "Deployment", &name, pod, ip, node))?;
        }
        service(workstation, &namespace, &name, &cluster_ip(workload), ("http", 80), &ips, true)?;
    }
    let load = Arc::new(BusyCluster { began: Instant::now(), has_newcomer: false.into() });
    let of = load.clone();
    workstation.execute(move |node, _| {
        let node: usize = node.trim_start_matches('n').parse().unwrap_or_default();
        let load = of.clone();
        let answer =
            move |request: &Value| format!(r#"{{"answer":{}}}"#, load.answer(node, request));
        Execution::relays(answer)
    });
    Ok(load)
}

/// No more than somebody can look at.
fn is_bounded(page: &str) -> Result<()> {
    let [boxes, edges] =
        ["<g class=\"box ", "<g class=\"edge "].map(|mark| page.matches(mark).count());
    ensure!((20..=200).contains(&boxes), "{boxes} boxes");
    ensure!((100..=500).contains(&edges), "{edges} edges");
    Ok(())
}

/// Who does this is a person with a page open, who searches and opens namespaces now and then.
fn looked_at(picture: &Picture<'_>, browser: &mut Browser) -> Result<()> {
    let (began, length) = (Instant::now(), Duration::from_secs(seconds()));
    let (mut pages, mut half) = (0_usize, 0);
    while pages < 5 || began.elapsed() < length {
        let paths =
            ["/picture".to_owned(), format!("/picture?namespace=ns-{:02}", pages % NAMESPACES)];
        for path in paths {
            is_bounded(&picture.body(&path)?)?;
            pages += 1;
        }
        // More than are remembered: nobody ends by typing.
        picture.body(&format!("/picture?search=app-{pages}"))?;
        browser.evaluate("document.title")?;
        if half == 0 && began.elapsed() > length / 2 {
            half = picture.kilobytes("VmRSS:")?;
        }
        std::thread::sleep(PAUSE);
    }
    let [most, now] = ["VmHWM:", "VmRSS:"].map(|of| picture.kilobytes(of));
    let (most, now) = (most?, now?);
    eprintln!(
        "{pages} pages in {:?}: {half} KB half way, {now} KB now, {most} KB at most",
        began.elapsed()
    );
    ensure!(most < KILOBYTES, "{most} KB");
    Ok(())
}

/// With more edges than are remembered, and a page that shows what happens now.
#[test]
fn a_busy_cluster_is_shown_for_as_long_as_somebody_looks() -> Result<()> {
    let workstation = Workstation::new("ui-load")?;
    let load = put(&workstation)?;
    let is_full = test_length::is_full();
    let words: &[&str] = if is_full { &[] } else { &["--every", "1s"] };
    let (started, before) = (Instant::now(), processor_time()?);
    let picture = Picture::of(&workstation, words)?;
    // A client has its own timeout, and the machine may have other things to do.
    let first = || Ok(picture.body("/picture").ok());
    let page = observed("the first picture", TIMEOUT, first, Option::is_some)?;
    is_bounded(&page.context("no picture")?)?;
    let first = started.elapsed();
    let (used, memory) = (picture.processor_time()?, picture.kilobytes("VmRSS:")?);
    let answering = processor_time()? - before;
    eprintln!(
        "the first picture after {first:?}: {used:?} of a processor, {memory} KB; \
         the nodes and the API server: {answering:?}"
    );

    let mut browser = Browser::open(workstation.netns(), &picture.address(), "1500,1300")?;
    looked_at(&picture, &mut browser)?;
    picture.until(TIMEOUT, |page| page.contains("edges were forgotten early"))?;
    browser.until("document.querySelectorAll('#map .edge').length > 100")?;

    workstation.api.put(&pod_object("ns-00", "Deployment", LATE, 0, "10.77.0.1", 0))?;
    load.has_newcomer.store(true, Ordering::Relaxed);
    let search = format!("/picture?search={LATE}");
    let edge = format!("ns-00/{LATE} to ns-07/app-00, 8080/tcp: connected");
    let page = picture.until_at(&search, TIMEOUT, |page| page.contains(&edge))?;
    let (_, row) = page.split_once("data-row=\"").context("no row")?;
    let id = row.split_once('"').context("no id")?.0;
    let explained = picture.body(&format!("/explain?edge={id}"))?;
    ensure!(explained.starts_with(&format!("ns-00/{LATE}-0 to 10.0.0.8:8080/tcp")), "{explained}");

    // The page asks by itself, and still does.
    let script = "performance.getEntriesByType('resource') \
                 .filter(of => of.name.includes('/picture')).length";
    let before = browser.evaluate(script)?.as_u64().context("no number")?;
    browser.until(&format!("{script} > {before}"))?;
    ensure!(browser.evaluate("document.getElementById('live').textContent")? == "live");
    let bytes = browser.evaluate("performance.memory.usedJSHeapSize")?;
    eprintln!("the page asked {before} times, and has {bytes} bytes");
    browser.photograph(&pictures(&workstation).join("ui-load.png"))?;
    ensure!(!is_full || used <= FIRST, "the first picture took {used:?} of a processor");
    Ok(())
}
