//! The source and the model alone: memory, the time of the list, and the processor time of a pod's
//! status change that affects no decision.

use std::net::TcpListener;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Result, bail, ensure};
use denizen_model::{Event, Listing, Model, ModelChange};
use denizen_source::Features;
use denizen_source::kube::access::{Access, Credentials};
use denizen_source::kube::{self, KubeConfig, PodScope, PodScopes, PolicyReads, SharedClient};
use denizen_tests::bench::objects::NODE;
use denizen_tests::bench::{Memory, megabytes, own_program, processor_time};
use tokio::sync::{mpsc, watch};

use crate::server::{self, ServedCluster, pod};

/// Changes of pods' statuses.
const UPDATES: usize = 20_000;

/// The encodings of lists: whether the server has only JSON, and whether it compresses.
const ENCODINGS: [(bool, bool); 3] = [(true, false), (false, false), (false, true)];

/// Serves the pods to a process that follows them.
pub fn measure(cluster: ServedCluster) -> Result<()> {
    let cluster = ServedCluster { updates: UPDATES, policies: 0, ..cluster };
    let size = pod(cluster, cluster.pods / 2, 0).to_string().len();
    println!("\n## The source alone, {} pods of {size} bytes each\n", cluster.pods);
    for (only_json, gzip) in ENCODINGS {
        follow_in_a_process(ServedCluster { only_json, gzip, ..cluster }, "pods")?;
    }
    Ok(())
}

/// The same for Services and their EndpointSlices.
pub fn measure_services(cluster: ServedCluster) -> Result<()> {
    let services = cluster.pods.min(10_000);
    println!("\n## The source alone, {services} Services and EndpointSlices\n");
    let cluster = ServedCluster { services, pods: 0, policies: 0, ..cluster };
    for (only_json, gzip) in ENCODINGS {
        follow_in_a_process(ServedCluster { only_json, gzip, ..cluster }, "services")?;
    }
    Ok(())
}

fn follow_in_a_process(cluster: ServedCluster, objects: &str) -> Result<()> {
    let encoding = if cluster.only_json { "JSON" } else { "protobuf" };
    println!("{encoding}{}:", if cluster.gzip { ", compressed" } else { "" });
    let folder = tempfile::tempdir()?;
    let kubeconfig = server::start(cluster, TcpListener::bind("127.0.0.1:0")?, folder.path())?;
    let status = own_program("follow")?.arg(&kubeconfig).arg(objects).status()?;
    ensure!(status.success(), "the process that follows them failed: {status}");
    Ok(())
}

/// Follows the pods, or the Services, and prints what that costs.
pub fn follow(kubeconfig: &Path, services: bool) -> Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let before = megabytes(Memory::own()?.resident);
        let (send, mut events) = mpsc::channel(64);
        let (_unknown, names) = watch::channel(Default::default());
        let (report, _wrong) = mpsc::channel(64);
        let ((_read, requests), (done, _done)) = (mpsc::channel(1), mpsc::channel(1));
        let reads = PolicyReads { requests, done };
        let (_scope, wanted) = watch::channel(Some(PodScope::All));
        let credentials = Credentials::Kubeconfig(kubeconfig.to_owned());
        let config = KubeConfig {
            client: SharedClient::new(Access { credentials, server: None }),
            node_name: NODE.into(),
            since: "2026-01-01T00:00:00Z".parse()?,
            features: Features { services, network_policy: !services, other_nodes: false },
            pods: Some(PodScopes { wanted, nodes: None }),
        };
        let (begun, used) = (Instant::now(), processor_time()?);
        let followed = kube::start(&config, &names, reads, &report, &send);
        let mut model = Model::default();
        let mut listed = None;
        let mut sent = 0;
        while let Some(batch) = events.recv().await {
            let mut change = ModelChange::default();
            for event in batch {
                sent += usize::from(listed.is_some());
                let is_last = listed.is_some() && matches!(event, Event::ClusterPod(_, None));
                model.apply(event, &mut change);
                if let (true, Some(since)) = (is_last, listed) {
                    let each = (processor_time()? - since) / u32::try_from(UPDATES)?;
                    println!("{UPDATES} changes of a status: {each:?} each, {sent} event(s)");
                    return Ok(ExitCode::SUCCESS);
                }
            }
            let missing = match services {
                true => model.owed([Listing::Services, Listing::Slices]).next(),
                false => model.owed([Listing::Pods]).next(),
            };
            if listed.is_none() && missing.is_none() {
                println!(
                    "listed after {:?} ({:?} of the processor); before: {before:.1} MB; now: {}",
                    begun.elapsed(),
                    processor_time()? - used,
                    Memory::own()?
                );
                for kind in &followed {
                    println!(
                        "  {}: {:.1} MB",
                        kind.kind.plural(),
                        kind.traffic.bytes() as f64 / 1e6
                    );
                }
                if services {
                    return Ok(ExitCode::SUCCESS);
                }
                listed = Some(processor_time()?);
            }
        }
        bail!("the source has ended")
    })
}
