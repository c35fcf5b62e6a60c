//! Starts all parts, in the necessary order, and runs the loop.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use jiff::Timestamp;
use tokio::sync::mpsc;
use tracing::warn;

use super::bridges::Bridges;
use super::foreign::watch_forward;
use super::namespace_lock::lock_namespace;
use super::plan_notices::PlanNotices;
use super::plugin_waits::PluginWaits;
use super::portmap::PortmapRules;
use super::publish::Publisher;
use super::sampling::Sampling;
use super::sources::Sources;
use super::stop::Stop;
use super::{
    Agent, HTTP_QUEUE, QUEUE, network_policy, now, open_files, run_dir, settings, sources, view,
};
use crate::config::Config;
use crate::config::file::FlagsInForce;
use crate::control::AgentRequest;
use crate::engine::Engine;
use crate::flush::Flush;
use crate::http::{self, StartFacts};
use crate::log::LogFilter;
use denizen_backend::chosen::BackendConfig;
use denizen_backend::takeover::Predecessor;
use denizen_model::Event;
use denizen_plan::Policy;
use denizen_routing::{Routing, SendNotice};
use denizen_source::attachments;
use denizen_source::events::Notices;

/// What the agent needs in addition to its configuration.
#[derive(Debug)]
pub struct Startup {
    pub backend_why: String,
    /// The flags, for `/configz` and `/flagz`.
    pub flags: FlagsInForce,
    pub log: LogFilter,
}

/// Runs until a signal stops it. The rules stay in the kernel, so that services work during an
/// upgrade.
///
/// # Errors
/// When it cannot start: another agent runs here, the run directory cannot be used, or netlink
/// cannot be opened.
pub async fn run(mut config: Config, startup: Startup) -> anyhow::Result<()> {
    let Some(settings) = settings::set_up(&config)? else {
        return Ok(());
    };
    open_files::raise_limit();
    let _lock = lock_namespace()?;
    let (to_loop, requests) = mpsc::channel(QUEUE);
    let run_dir = run_dir::start(&config.run_dir, to_loop).await?;
    let enforcer = network_policy::choose(&mut config);
    let egress = sources::egress_at_start(&config);
    // Signals are handled before anything that may wait for long: without a handler, process 1 of a
    // container ignores SIGTERM.
    let mut stop = Stop::listen()?;
    let records = config.records();
    tokio::select! {
        () = stop.signalled() => return Ok(()),
        () = attachments::adopt_at_start(&records) => {}
    }
    let Inputs { mut sources, events, notices } = start_sources(&config).await?;
    let (http_to_loop, http_requests) = mpsc::channel(HTTP_QUEUE);
    let publisher = start_http(&config, &startup, http_to_loop, notices.clone(), &mut sources)?;
    sources.problems.push(run_dir.problems);
    let (foreign_change, forward_findings) = watch_forward(&config);
    let portmap = start_portmap(&config, &mut sources);
    let bridges = Bridges::new(&config);
    let engine = open_engine(config.policy, config.backend, &config.run_dir, egress)?;
    let send_notice: SendNotice = Arc::new(move |notice| notices.send(notice));
    let (run_dir_path, kernel) = (&config.run_dir, engine.sibling_connection()?);
    let routing = Routing::start(&config.routing, run_dir_path, send_notice.clone(), kernel)?;
    let flush = Flush::open(publisher.metrics.like_kube_proxy.clone())?;
    let mut agent = Agent {
        engine,
        backend: config.backend.name,
        backend_why: startup.backend_why,
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
        log: startup.log,
    };
    if let Some(warning) = view::without_effect(&agent) {
        warn!(warning, "a flag has no effect");
    }
    let result = agent.run_loop(stop, events, requests, http_requests).await;
    let _ = std::fs::remove_file(config.run_dir.join(denizen_state::run_dir::SOCKET));
    result
}

/// The sources, what they send to the loop, and the writer of events.
struct Inputs {
    sources: Sources,
    events: mpsc::Receiver<Vec<Event>>,
    notices: Notices,
}

async fn start_sources(config: &Config) -> anyhow::Result<Inputs> {
    let (event_sender, events) = mpsc::channel(QUEUE);
    let (wrong, wrong_policies) = mpsc::channel(QUEUE);
    let (sources, client) = sources::start(config, &wrong, &event_sender).await?;
    let notices = sources::notices(config, client, wrong_policies);
    Ok(Inputs { sources, events, notices })
}

/// Starts the HTTP servers. Their problems are shown with those of the sources.
fn start_http(
    config: &Config,
    startup: &Startup,
    to_loop: mpsc::Sender<AgentRequest>,
    notices: Notices,
    sources: &mut Sources,
) -> anyhow::Result<Publisher> {
    let start = StartFacts {
        flags: startup.flags.clone(),
        log: startup.log.clone(),
        backend: config.backend.name.to_string(),
        at: Timestamp::now(),
        instant: now(),
    };
    let (publisher, published) = Publisher::new(config, to_loop, start);
    let problems = http::start(config.listen, published, notices);
    sources.problems.extend(problems.context("cannot start the HTTP servers")?);
    Ok(publisher)
}

/// Starts the removal of what portmap left; `None` if host ports are off.
fn start_portmap(config: &Config, sources: &mut Sources) -> Option<PortmapRules> {
    config.policy.host_ports?;
    let (portmap, problems) = PortmapRules::start(config.records().cni_cache);
    sources.problems.push(problems);
    Some(portmap)
}

/// Opens the engine and applies the egress configuration before any other event.
fn open_engine(
    policy: Policy,
    backend: BackendConfig,
    run_dir: &Path,
    egress: Option<Event>,
) -> anyhow::Result<Engine> {
    let engine = Engine::open(policy, backend).context("cannot start the backend")?;
    let mut engine = engine.with_records(sources::records(run_dir));
    engine.apply(Vec::from_iter(egress));
    Ok(engine)
}
