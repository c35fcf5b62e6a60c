//! Which sources there are, and what each wants; and where it is told what happens here.

use std::sync::Arc;

use anyhow::Context;
use tokio::sync::{mpsc, watch};

use crate::attachments;
use crate::config::{Config, Objects};
use crate::events::{About, Notice, Notices, Reason};
use crate::model::Event;
use crate::source::{Outlet, egress, kube, manifests, node, state_file};

/// What is wrong with each source right now.
pub(super) type Problems = Vec<watch::Receiver<Vec<String>>>;

/// What runs beside the loop.
pub(super) struct Sources {
    pub(super) problems: Problems,
    /// What looks like a pod and has no record.
    pub(super) unrecorded: watch::Receiver<attachments::Unrecorded>,
}

/// Starts them all.
pub(super) async fn start(
    config: &Config,
    told: &mpsc::Sender<Vec<Event>>,
) -> anyhow::Result<Sources> {
    let mut problems = follow_objects(config, told).await?;
    let mut outlet = || {
        let (outlet, found) = Outlet::new(told.clone());
        problems.push(found);
        outlet
    };
    let (told_file, known_file) = watch::channel(state_file::Seen::default());
    tokio::spawn(state_file::run(
        state_file::Config { run_dir: config.run_dir.clone() },
        told_file,
        outlet(),
    ));
    let (told_links, known_links) = watch::channel(Arc::default());
    tokio::spawn(node::run(outlet(), told_links));
    let shown = attachments::Shown { links: known_links, state_file: known_file };
    let (show, unrecorded) = watch::channel(attachments::Unrecorded::default());
    tokio::spawn(attachments::keep(config.records(), shown.clone(), outlet()));
    tokio::spawn(attachments::follow(config.run_dir.clone(), shown.clone(), outlet()));
    tokio::spawn(attachments::find(config.records(), shown, show, outlet()));
    if let Some(file) = &config.egress {
        tokio::spawn(egress::run(file.clone(), outlet()));
    }
    Ok(Sources { problems, unrecorded })
}

/// Starts the source of the cluster's objects.
async fn follow_objects(
    config: &Config,
    told: &mpsc::Sender<Vec<Event>>,
) -> anyhow::Result<Problems> {
    let node_name = &config.policy.settings.node_name;
    match &config.objects {
        Objects::Manifests(folder) => {
            let (objects, problems) = Outlet::new(told.clone());
            let folder =
                manifests::Config { folder: folder.clone(), node_name: node_name.to_string() };
            tokio::spawn(manifests::run(folder, objects));
            Ok(vec![problems])
        }
        Objects::Api(access) => {
            // Credentials that cannot be used at the start are a mistake for somebody to see at
            // once.
            access.client().await.context("cannot use the Kubernetes API")?;
            Ok(kube::start(access, node_name, jiff::Timestamp::now(), told))
        }
    }
}

/// Events are written where the objects come from. The first says that this agent has started.
pub(super) fn notices(config: &Config) -> Notices {
    let Objects::Api(access) = &config.objects else {
        return Notices::nowhere();
    };
    let notices = Notices::to_api(access.clone(), config.policy.settings.node_name.clone());
    notices.send(Notice { about: About::Node, reason: Reason::Starting, text: String::new() });
    notices
}
