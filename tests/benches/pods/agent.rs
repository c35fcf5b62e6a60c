//! The whole agent as a process, without the pod firewall and with it.

use std::fmt::Write as _;
use std::net::TcpListener;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Result;
use denizen_state::{Attachment, HostInterface, PodRef, RunDir};
use denizen_tests::bench::objects::{LOCAL, NODE, ip, name, uid};
use denizen_tests::bench::{MeasuredAgent, Memory, megabytes};
use denizen_tests::node::cni::Namespace;

use crate::server::{self, ServedCluster, namespace_of};

/// How long it may take until all is programmed.
const TIMEOUT: Duration = Duration::from_secs(120);
/// How long to wait after the first load, so that memory taken right after it is counted too.
const AFTER: Duration = Duration::from_secs(2);

/// Measures and prints it.
pub fn measure(cluster: ServedCluster) -> Result<()> {
    let ServedCluster { pods, policies, .. } = cluster;
    println!("\n## The whole agent, {LOCAL} local of {pods} pods, {policies} policies\n");
    let [off, on] = ["off", "on"].map(|mode| measured(cluster, mode));
    println!(
        "more with --network-policy on: {:.1} MB",
        megabytes(on?.resident) - megabytes(off?.resident)
    );
    Ok(())
}

fn measured(cluster: ServedCluster, mode: &str) -> Result<Memory> {
    let [node, local] = [(); 2].map(|()| Namespace::new());
    let folder = tempfile::tempdir()?;
    let listener = node.run(|| TcpListener::bind("127.0.0.1:0"))?;
    let kubeconfig = server::start(cluster, listener, folder.path())?;
    let run_dir = folder.path().join("run");
    record(cluster, [&node, &local], folder.path(), &run_dir)?;
    let (program, objects) = (std::env::current_exe()?, ("--kubeconfig", &*kubeconfig));
    let flags = ["--node-name", NODE, "--network-policy", mode];
    let start = |start: &str| {
        let mut agent = MeasuredAgent::start(&node, &program, &run_dir, objects, &flags)?;
        let begun = Instant::now();
        let status = agent.programmed(TIMEOUT, |status| status["pods"] == LOCAL)?;
        let took = begun.elapsed();
        sleep(AFTER);
        let memory = Memory::of(agent.pid())?;
        let of_policy = |field: &str| status["networkPolicy"][field].as_u64().unwrap_or_default();
        println!(
            "--network-policy {mode:<3}, {start:<9}: {memory}; programmed after {took:.1?}; {} \
             policies in force, {} identities, {} elements",
            of_policy("policies"),
            of_policy("identities"),
            of_policy("elements")
        );
        Ok(memory)
    };
    let memory = start("started");
    // Now the agent finds its tables in the kernel.
    start("restarted")?;
    memory
}

/// Records the local pods as the plugin does. All of them share one network namespace.
fn record(
    cluster: ServedCluster,
    [node, pods]: [&Namespace; 2],
    folder: &Path,
    run_dir: &Path,
) -> Result<()> {
    let mut links = String::new();
    let records = (0..LOCAL).map(|number| {
        let link = HostInterface {
            name: format!("veth{number}"),
            index: 1000 + u32::try_from(number).expect("a few hundred"),
            mac: format!("02:00:00:00:{:02x}:{:02x}", number >> 8, number & 255),
            unknown: Default::default(),
        };
        let HostInterface { name: interface, index, mac, .. } = &link;
        let _ = writeln!(
            links,
            "link add {interface} index {index} address {mac} type veth peer name {interface} \
             netns {}",
            pods.path().display()
        );
        Attachment {
            container_id: format!("{number:064x}"),
            if_name: "eth0".to_owned(),
            network: "pods".to_owned(),
            pod: Some(PodRef {
                namespace: namespace_of(cluster, number),
                name: name(number),
                uid: Some(uid(number)),
                unknown: Default::default(),
            }),
            netns: None,
            host_interface: Some(link),
            l3_interface: None,
            bridge: None,
            ips: vec![ip(number).parse().expect("an address")],
            added_at: "2026-11-20T12:00:00Z".to_owned(),
            adopted: false,
            redirect: None,
            mac: None,
            further_interfaces: Vec::new(),
            obsolete_redirects: Vec::new(),
            host_ports_adopted: false,
            host_ports: Vec::new(),
            unknown: Default::default(),
        }
    });
    let records: Vec<Attachment> = records.collect();
    let batch = folder.join("links");
    std::fs::write(&batch, links)?;
    node.ip(&format!("-batch {}", batch.display()));
    RunDir::create(run_dir)?.update(TIMEOUT, |state| {
        state.attachments.extend(records.into_iter().map(|record| (record.id(), record)));
    })?;
    Ok(())
}
