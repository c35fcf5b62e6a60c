//! Starts everything, in the order that it needs, and runs the loop.

use std::sync::Arc;

use anyhow::Context;
use jiff::Timestamp;
use tokio::sync::mpsc;
use tracing::warn;

use super::alone::alone_here;
use super::bridges::Bridges;
use super::foreign::watch_forward;
use super::plan_notices::PlanNotices;
use super::plugin_waits::PluginWaits;
use super::portmap::PortmapRules;
use super::publish::Publisher;
use super::sampling::Sampling;
use super::stop::Stop;
use super::{Agent, QUEUE, network_policy, now, open_files, run_dir, settings, sources, view};
use crate::config::Config;
use crate::config::file::FlagsInForce;
use crate::engine::Engine;
use crate::flush::Flush;
use crate::http::{self, StartFacts};
use crate::log::LogFilter;
use denizen_backend::takeover::Predecessor;
use denizen_routing::{Routing, SendNotice};
use denizen_source::attachments;

/// What the agent has beside its configuration.
#[derive(Debug)]
pub struct Startup {
    pub backend_why: String,
    /// The flags, for `/configz` and `/flagz`.
    pub flags: FlagsInForce,
    pub log: LogFilter,
}

/// Runs until a signal stops it. The rules stay: that is how an upgrade works.
///
/// # Errors
/// When it cannot start: another agent runs here, the run directory cannot be used, or netlink
/// cannot be opened.
pub async fn run(mut config: Config, startup: Startup) -> anyhow::Result<()> {
    let Startup { backend_why, flags, log } = startup;
    let Some(settings) = settings::set_up(&config)? else {
        return Ok(());
    };
    open_files::raise_limit();
    let _alone = alone_here()?;
    let (asked, requests) = mpsc::channel(QUEUE);
    let run_dir = run_dir::start(&config.run_dir, asked.clone()).await?;
    let enforcer = network_policy::choose(&mut config);
    let (event_sender, events) = mpsc::channel(QUEUE);
    let egress = sources::egress_at_start(&config);
    // Signals are handled before anything that may wait for long: without a handler, process 1 of a
    // container ignores SIGTERM.
    let mut stop = Stop::listen()?;
    let records = config.records();
    tokio::select! {
        () = stop.signalled() => return Ok(()),
        () = attachments::adopt_at_start(&records) => {}
    }
    let (wrong, wrong_policies) = mpsc::channel(QUEUE);
    let mut sources = sources::start(&config, &wrong, &event_sender).await?;
    drop(wrong);
    drop(event_sender);
    let start = StartFacts {
        flags,
        log: log.clone(),
        backend: config.backend.name.to_string(),
        at: Timestamp::now(),
        instant: now(),
    };
    let (publisher, published) = Publisher::new(&config, asked, start);
    let notices = sources::notices(&config, wrong_policies);
    let send_notice: SendNotice = {
        let notices = notices.clone();
        Arc::new(move |notice| notices.send(notice))
    };
    sources.problems.extend(
        http::start(config.listen, published, notices).context("cannot start the HTTP servers")?,
    );
    sources.problems.push(run_dir.problems);
    let (foreign_change, forward_findings) = watch_forward(&config);
    let portmap = config.policy.host_ports.map(|_| PortmapRules::start(records.cni_cache.clone()));
    let (portmap, problems) = portmap.unzip();
    sources.problems.extend(problems);
    let bridges = Bridges::new(&config);
    let engine = Engine::open(config.policy, config.backend).context("cannot start the backend")?;
    let engine = engine.with_records(sources::records(&config.run_dir));
    let (run_dir_path, kernel) = (&config.run_dir, engine.sibling_connection()?);
    let routing = Routing::start(&config.routing, run_dir_path, send_notice.clone(), kernel)?;
    let flush = Flush::open(publisher.metrics.like_kube_proxy.clone())?;
    let mut agent = Agent {
        engine: sources::with_egress(engine, egress),
        backend: config.backend.name,
        backend_why,
        enforcer,
        settings,
        bridges,
        foreign_change,
        forward_findings,
        sources,
        run_dir_lost: run_dir.is_lost,
        plugin_waits: PluginWaits::default(),
        portmap,
        watch: None,
        pending_since: None,
        predecessor: Predecessor::of(config.backend.name),
        publisher,
        flush,
        sampling: Sampling::default(),
        routing,
        plan_notices: PlanNotices::new(send_notice),
        log,
    };
    if let Some(warning) = view::without_effect(&agent) {
        warn!(warning, "a flag has no effect");
    }
    let result = agent.run_loop(stop, events, requests).await;
    let _ = std::fs::remove_file(config.run_dir.join(denizen_state::run_dir::SOCKET));
    result
}
