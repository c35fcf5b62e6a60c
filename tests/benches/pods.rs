//! What the pods of a large cluster cost: `cargo bench -p denizen-tests --bench pods`.
//!
//! A process that follows 10,000 and 150,000 pods, as the agent does for the pod firewall: its
//! memory once they are listed, the time that takes, and the processor time of a change of a pod's
//! status, which decides nothing. The server is in the parent process, and makes the pods as it
//! sends them.
//!
//! It prints, and asserts nothing. Numbers behind `--` choose other sizes.

#![expect(clippy::disallowed_methods, reason = "a bench reads the clock, and its own memory")]

use std::io::{BufRead, BufReader, BufWriter, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use denizen_agent::model::{Change, Event, Listing, Model};
use denizen_agent::source::Features;
use denizen_agent::source::kube::access::{Access, Credentials};
use denizen_agent::source::kube::{self, Config, PolicyReads};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};

/// Pods of clusters: a usual one, and the largest that Kubernetes documents.
const SIZES: [usize; 2] = [10_000, 150_000];

/// Changes of pods' statuses.
const UPDATES: usize = 20_000;

/// Pods of one Deployment.
const REPLICAS: usize = 20;

/// The pod whose deletion ends the measurement.
const LAST: usize = 0;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let done = match words.first().map(String::as_str) {
        Some("follow") => follow(Path::new(&words[1])),
        _ if words.iter().any(|word| word == "--bench") => {
            let named: Vec<usize> = words.iter().filter_map(|word| word.parse().ok()).collect();
            let sizes = if named.is_empty() { SIZES.to_vec() } else { named };
            sizes.into_iter().try_for_each(measure)
        }
        _ => {
            println!("not run: this is a bench, and `cargo test` builds it only");
            return ExitCode::SUCCESS;
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

/// A pod as a cluster has them: 4 kB, of which few bytes are used.
fn pod(number: usize, ready: usize) -> Value {
    let app = number / REPLICAS;
    let env: Vec<Value> = (0..12)
        .map(|n| json!({ "name": format!("SETTING_{n}"), "value": "x".repeat(60) }))
        .collect();
    let fields: serde_json::Map<String, Value> =
        (0..30).map(|n| (format!("f:field{n}"), json!({ ".": {}, "f:name": {} }))).collect();
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": format!("app-{app}-7d4b9c6f5d-{number:05}"), "namespace": format!("team-{}", app % 200),
            "uid": format!("0f9cbb8e-0000-4000-8000-{number:012}"), "resourceVersion": (number + ready + 1).to_string(),
            "creationTimestamp": "2026-11-20T12:00:00Z",
            "labels": {
                "app.kubernetes.io/name": format!("app-{app}"), "app.kubernetes.io/instance": format!("app-{app}-prod"),
                "app.kubernetes.io/component": "server", "app.kubernetes.io/part-of": "shop",
                "tier": format!("tier-{}", app % 5), "pod-template-hash": format!("7d4b9c{app}"),
            },
            "managedFields": [{ "manager": "kubelet", "fieldsV1": fields }],
        },
        "spec": {
            "nodeName": format!("node-{}", number % 5000),
            "containers": [{
                "name": "server", "image": "registry.example/shop/server:1.2.3", "env": env,
                "ports": [{ "name": "http", "containerPort": 8080, "protocol": "TCP" }],
            }],
        },
        "status": {
            "phase": "Running", "podIP": ip(number), "podIPs": [{ "ip": ip(number) }],
            "conditions": [{ "type": "Ready", "status": "True", "lastTransitionTime": ready.to_string() }],
        },
    })
}

fn ip(number: usize) -> String {
    format!("10.{}.{}.{}", number >> 16, number >> 8 & 255, number & 255)
}

/// Serves `size` pods to a process that follows them.
fn measure(size: usize) -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let folder = tempfile::tempdir()?;
    let kubeconfig = folder.path().join("kubeconfig");
    let server = format!("http://{}", listener.local_addr()?);
    let text = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{ "name": "c", "cluster": { "server": server } }],
        "users": [{ "name": "c", "user": {} }],
        "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "c" } }],
    });
    std::fs::write(&kubeconfig, text.to_string())?;
    println!("\n## {size} pods of {} bytes each\n", pod(size / 2, 0).to_string().len());
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || serve(stream, size));
        }
    });
    let mut child = Command::new(std::env::current_exe()?);
    child.arg("follow").arg(&kubeconfig).env("RUST_LOG", "warn");
    let status = child.status()?;
    anyhow::ensure!(status.success(), "the process that follows them failed: {status}");
    Ok(())
}

/// Answers one watch: everything there is, then changes of statuses, then one deletion.
fn serve(stream: TcpStream, size: usize) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let request = lines.next().transpose()?.unwrap_or_default();
    while lines.next().transpose()?.is_some_and(|line| !line.is_empty()) {}
    let mut to = BufWriter::with_capacity(1 << 16, stream);
    write!(to, "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n")?;
    // `type` comes first, as a real server writes it.
    let mut send =
        |kind: &str, object: Value| writeln!(to, r#"{{"type":"{kind}","object":{object}}}"#);
    let is_pods = request.contains("/pods?");
    for number in 0..if is_pods { size } else { 0 } {
        send("ADDED", pod(number, 0))?;
    }
    let annotations = json!({ "k8s.io/initial-events-end": "true" });
    let metadata = json!({ "resourceVersion": "1", "annotations": annotations });
    send("BOOKMARK", json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata }))?;
    if is_pods {
        for update in 1..=UPDATES {
            send("MODIFIED", pod(update % size, update))?;
        }
        send("DELETED", pod(LAST, UPDATES))?;
    }
    to.flush()?;
    std::thread::sleep(Duration::from_secs(3600));
    Ok(())
}

/// Follows the pods, and prints what that costs.
fn follow(kubeconfig: &Path) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let before = memory("VmRSS:")?;
        let (send, mut events) = mpsc::channel(64);
        let (_unknown, names) = watch::channel(Default::default());
        let (report, _wrong) = mpsc::channel(64);
        let ((_read, asked), (done, _done)) = (mpsc::channel(1), mpsc::channel(1));
        let reads = PolicyReads { asked, done };
        let credentials = Credentials::Kubeconfig(kubeconfig.to_owned());
        let config = Config {
            access: Access { credentials, server: None },
            node_name: "node-1".into(),
            since: "2026-01-01T00:00:00Z".parse()?,
            features: Features { services: false, network_policy: true },
        };
        let (begun, used) = (Instant::now(), processor_time()?);
        let _problems = kube::start(&config, &names, reads, &report, &send);
        let mut model = Model::default();
        let mut listed = None;
        let mut sent = 0;
        while let Some(batch) = events.recv().await {
            let mut change = Change::default();
            for event in batch {
                sent += usize::from(listed.is_some());
                let is_last = listed.is_some() && matches!(event, Event::ClusterPod(_, None));
                model.apply(event, &mut change);
                if let (true, Some(since)) = (is_last, listed) {
                    let each = (processor_time()? - since) / u32::try_from(UPDATES)?;
                    println!("{UPDATES} changes of a status: {each:?} each, {sent} event(s)");
                    return Ok(());
                }
            }
            if listed.is_none() && model.owed([Listing::Pods]).next().is_none() {
                println!(
                    "listed after {:?} ({:?} of the processor); resident: {:.1} MB before, {:.1} MB \
                     now, {:.1} MB at most",
                    begun.elapsed(),
                    processor_time()? - used,
                    before,
                    memory("VmRSS:")?,
                    memory("VmHWM:")?
                );
                listed = Some(processor_time()?);
            }
        }
        anyhow::bail!("the source has ended")
    })
}

/// A line of this process's /proc/self/status, in megabytes.
fn memory(name: &str) -> Result<f64> {
    let text = std::fs::read_to_string("/proc/self/status")?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)).context("no such line")?;
    let kibibytes: f64 = line.split_whitespace().next().context("no number")?.parse()?;
    Ok(kibibytes * 1024.0 / 1e6)
}

/// The processor time of this process, in steps of the kernel's clock.
fn processor_time() -> Result<Duration> {
    let usage = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_SELF)?;
    let of = |time: nix::sys::time::TimeVal| -> Result<Duration> {
        let (seconds, micros) = (u64::try_from(time.tv_sec())?, u64::try_from(time.tv_usec())?);
        Ok(Duration::from_secs(seconds) + Duration::from_micros(micros))
    };
    Ok(of(usage.user_time())? + of(usage.system_time())?)
}
