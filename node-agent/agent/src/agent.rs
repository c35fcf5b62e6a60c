//! The agent's loop. It waits for events, requests and timers, and runs the passes. Only it knows
//! every layer and the clock.

#![expect(clippy::disallowed_methods, reason = "the loop has the clock")]

mod bridges;
mod foreign;
mod history;
mod namespace_lock;
mod network_policy;
mod open_files;
mod plan_notices;
mod plugin_waits;
mod pod_scope;
mod pod_watch;
mod portmap;
mod publish;
mod requests;
mod run_dir;
mod sampling;
mod settings;
mod sources;
mod start;
mod stop;
mod turn;
mod view;

use std::collections::{BTreeSet, HashSet};
use std::future::pending;
use std::mem::replace;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::bail;
use tokio::io::unix::AsyncFd;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::yield_now;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tracing::{debug, error, info, warn};

use self::bridges::Bridges;
pub(crate) use self::namespace_lock::named as process_named;
pub use self::namespace_lock::{NamespaceLockError, lock_namespace};
use self::network_policy::Enforcer;
use self::plan_notices::PlanNotices;
use self::plugin_waits::PluginWaits;
use self::pod_scope::PodScopeChooser;
use self::portmap::PortmapRules;
use self::publish::Publisher;
use self::sampling::Sampling;
use self::sources::Sources;
pub use self::start::{Startup, run};
use self::stop::Stop;
pub use self::stop::pause;
use self::turn::{Next, StopWatch};
use crate::control::AgentRequest;
use crate::engine::{Engine, EngineError, Pass, Progress};
use crate::flush::Flush;
use crate::log::LogFilter;
use crate::memory::trim;
use denizen_backend::BackendName;
use denizen_backend::chosen::ChosenError;
use denizen_backend::forward::Findings;
use denizen_backend::sysctl::{CheckScope, Reconciler};
use denizen_backend::takeover::Predecessor;
use denizen_model::{Event, PodName};
use denizen_nft::Watch;
use denizen_observe::status::LastSync;
use denizen_observe::status::metrics::SyncExtent;
use denizen_plan::{FirewallPlan, PlanChanges};
use denizen_routing::{ProgrammedPlan as _, Routing, pollable};
use denizen_text::describe;

/// A failed attempt is repeated after this, then after twice this, up to [`LONGEST_RETRY`].
const SHORTEST_RETRY: Duration = Duration::from_millis(50);
const LONGEST_RETRY: Duration = Duration::from_secs(30);
/// How often the loop reports that it runs. The health checks call it hung after
/// [`denizen_observe::status::health::LATE`] without a report.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// How often the backend checks for changes of which the kernel sends no notification
/// ([`Engine::has_foreign_change`]).
const DRIFT_CHECK: Duration = Duration::from_secs(5);
/// The pause after a success: no retry.
const NEVER: Duration = Duration::from_secs(365 * 24 * 3600);
/// Batches of events that may queue before a source waits.
const QUEUE: usize = 64;
/// Requests of HTTP clients that may queue. The loop answers one in a turn: anybody may ask for
/// metrics, and each answer costs more the more services there are.
const HTTP_QUEUE: usize = 1;

struct Agent {
    engine: Engine,
    backend: BackendName,
    backend_why: String,
    enforcer: Enforcer,
    settings: Reconciler,
    bridges: Bridges,
    /// Notified of changes in tables that are not ours.
    foreign_change: Arc<Notify>,
    /// Findings in other firewalls' chains.
    forward_findings: watch::Receiver<Findings>,
    sources: Sources,
    /// Whether only a restart restores the run directory.
    run_dir_lost: watch::Receiver<bool>,
    plugin_waits: PluginWaits,
    /// Removes rules that the CNI plugin portmap left; `None` if host ports are off.
    portmap: Option<PortmapRules>,
    /// The kernel's notifications of foreign changes; `None` until everything is programmed.
    watch: Option<AsyncFd<Watch>>,
    /// Since when a change has been waiting to be programmed.
    pending_since: Option<Instant>,
    /// Removes the rules of a previous backend.
    predecessor: Predecessor,
    publisher: Publisher,
    /// Deletes stale conntrack entries.
    flush: Flush,
    /// Shows dropped packets.
    sampling: Sampling,
    routing: Routing,
    plan_notices: PlanNotices,
    log: LogFilter,
}

impl Agent {
    async fn run_loop(
        &mut self,
        mut stop: Stop,
        mut events: mpsc::Receiver<Vec<Event>>,
        mut requests: mpsc::Receiver<AgentRequest>,
        mut http_requests: mpsc::Receiver<AgentRequest>,
    ) -> anyhow::Result<()> {
        let mut resync = interval(self.engine.report().resync_interval);
        resync.set_missed_tick_behavior(MissedTickBehavior::Delay);
        resync.reset();
        let mut heartbeat = interval(HEARTBEAT);
        let mut drift_check = interval(DRIFT_CHECK);
        drift_check.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut retry = pin!(sleep(NEVER));
        let mut delay = SHORTEST_RETRY;
        loop {
            let next = tokio::select! {
                () = stop.signalled() => break,
                batch = events.recv() => match batch {
                    Some(batch) => Next::Events(batch),
                    None => bail!("every source has ended"),
                },
                is_ours = foreign::due(&mut self.watch, &self.foreign_change) => {
                    Next::ForeignChange(is_ours)
                }
                step = self.flush.due() => Next::Flush(step),
                () = self.engine.wait() => Next::Continue,
                Some(asked) = requests.recv() => Next::Request(asked),
                Some(asked) = http_requests.recv() => Next::HttpRequest(asked),
                () = if_on(self.portmap.as_mut().map(PortmapRules::due)) => Next::Portmap,
                () = self.sampling.due() => Next::EndSampling,
                () = self.routing.due() => Next::Announce,
                () = if_on(self.sources.pod_scope.as_ref().map(PodScopeChooser::due)) => {
                    Next::PodWatch
                }
                Some(ticket) = self.sources.policies_read.recv() => Next::PoliciesRead(ticket),
                _ = heartbeat.tick() => Next::Heartbeat,
                Ok(()) = self.run_dir_lost.changed() => Next::RunDir,
                () = &mut retry => Next::Retry,
                _ = drift_check.tick() => Next::DriftCheck,
                _ = resync.tick() => Next::Resync,
            };
            let is_resync = matches!(next, Next::Resync);
            let tried = self.turn(next, &mut events, &mut requests);
            // The HTTP servers' threads may ask without a pause. Without this, the tasks of this
            // thread, such as the sources and the socket, would never run.
            yield_now().await;
            if is_resync {
                resync.reset_after(self.engine.report().resync_interval);
            }
            let Some(programmed) = tried else { continue };
            let pause = if programmed { NEVER } else { delay };
            delay = self.next_delay(programmed, delay);
            retry.as_mut().reset(tokio::time::Instant::now() + pause);
        }
        if self.sampling.end(&mut self.engine) {
            self.pass(SyncExtent::Partial);
        }
        info!("stopping; the rules stay in the kernel");
        self.predecessor.wait();
        Ok(())
    }

    /// How long to wait after the next failure.
    fn next_delay(&self, programmed: bool, delay: Duration) -> Duration {
        match programmed {
            false => (delay * 2).min(LONGEST_RETRY),
            true if self.engine.report().is_programmed => SHORTEST_RETRY,
            // Programming continues, and may fail again.
            true => delay,
        }
    }

    /// One turn. Returns whether programming succeeded; `None` if the turn programmed nothing.
    fn turn(
        &mut self,
        next: Next,
        events: &mut mpsc::Receiver<Vec<Event>>,
        requests: &mut mpsc::Receiver<AgentRequest>,
    ) -> Option<bool> {
        let watch = StopWatch::start(next.name());
        let tried = match next {
            Next::Events(batch) => self.take(batch, events),
            Next::ForeignChange(is_ours) => self.repair(is_ours),
            Next::Flush(step) => {
                let awaited = self.plugin_waits.awaited(self.engine.plan());
                let departed = self.flush.step(step, self.engine.planner(), &awaited);
                self.engine.departed_are_gone(departed);
                self.release();
                None
            }
            Next::Portmap => {
                self.release();
                None
            }
            Next::Continue | Next::Retry => Some(self.pass(SyncExtent::Partial)),
            Next::Request(asked) => requests::answer_all(self, asked, requests),
            Next::HttpRequest(asked) => requests::answer(self, asked),
            Next::EndSampling => {
                self.sampling.end(&mut self.engine);
                Some(self.pass(SyncExtent::Partial))
            }
            Next::Announce => {
                self.routing.step(&self.engine);
                None
            }
            Next::PodWatch => {
                self.choose_pod_scope();
                None
            }
            Next::PoliciesRead(ticket) => self.policies_read(ticket, events),
            Next::Heartbeat => self.beat().then(|| self.pass(SyncExtent::Partial)),
            Next::RunDir => {
                self.publisher.run_dir_lost(*self.run_dir_lost.borrow_and_update());
                None
            }
            Next::DriftCheck if self.engine.has_foreign_change() => {
                Some(self.pass(SyncExtent::Full))
            }
            Next::DriftCheck => self.engine.retire().then(|| self.pass(SyncExtent::Partial)),
            Next::Resync => {
                trim();
                Some(self.pass(SyncExtent::Full))
            }
        };
        watch.stop(&self.publisher.metrics.own.loop_turn);
        tried
    }

    /// Applies all queued batches, so that a burst is one change.
    fn take(&mut self, batch: Vec<Event>, events: &mut mpsc::Receiver<Vec<Event>>) -> Option<bool> {
        self.accept(batch);
        // Bounded, so that a flood of events does not delay other work.
        for _ in 0..QUEUE {
            let Ok(batch) = events.try_recv() else { break };
            self.accept(batch);
        }
        if self.engine.is_idle() {
            self.routing.update(&self.engine, &PlanChanges::default());
            self.routing.follow_nodes(&self.engine);
            self.publisher.unchanged();
            return None;
        }
        Some(self.pass(SyncExtent::Partial))
    }

    fn accept(&mut self, batch: Vec<Event>) {
        self.publisher.taken(&batch, now());
        self.engine.apply(batch);
    }

    /// One pass: each phase needs the one before. An announcement is withdrawn before its rules go,
    /// and made after they are there. Returns whether programming succeeded.
    fn pass(&mut self, extent: SyncExtent) -> bool {
        let since = *self.pending_since.get_or_insert_with(now);
        let check = match extent {
            SyncExtent::Full => CheckScope::All,
            SyncExtent::Partial => CheckScope::Changed,
        };
        let changes = self.engine.decide();
        self.update(&changes);
        self.publisher.queued(&self.engine, extent, since);
        self.settings.keep(self.engine.settings(), check);
        self.set_up_bridges(check);
        self.routing.withdraw(&self.engine, extent == SyncExtent::Full);
        let Pass { result, drift, stale_frontends } = self.engine.program(extent, &timestamp());
        self.flush.add_frontends(stale_frontends);
        // Before the announcements: an ADD that waits for its pod need not wait for them.
        self.release();
        if matches!(result, Ok(Progress::Complete)) && self.routing.announce(&self.engine) {
            let latency = &self.publisher.metrics.own.announce_latency;
            latency.observe(since.elapsed().as_secs_f64());
        }
        self.publisher.history.repaired(drift, since.elapsed());
        self.publish(result, since)
    }

    /// Passes the plan's changes to the features that act on them later.
    fn update(&mut self, changes: &PlanChanges) {
        let plan = self.engine.plan();
        self.flush.update(plan, changes);
        self.routing.update(&self.engine, changes);
        self.publisher.update(changes);
        self.plan_notices.update(plan, changes);
        if let Some(portmap) = self.portmap.as_mut().filter(|_| changes.pods) {
            portmap.update(plan);
        }
    }

    /// Publishes the result of a pass. Returns whether it succeeded.
    fn publish(
        &mut self,
        result: Result<Progress, EngineError<ChosenError>>,
        since: Instant,
    ) -> bool {
        if self.engine.has_firewall() {
            self.publisher.firewall_programmed(now());
        }
        let firewall = self.engine.plan().firewall();
        let unknown: BTreeSet<PodName> =
            firewall.into_iter().flat_map(FirewallPlan::lacking_labels).cloned().collect();
        let sources = &self.sources.unknown_pods;
        sources.send_if_modified(|before| replace(before, unknown.clone()) != unknown);
        self.choose_pod_scope();
        match result {
            Ok(Progress::Complete) => self.complete(since),
            Ok(Progress::Contended) => self.publisher.contended(now()),
            Ok(Progress::Continues) => {}
            Err(error) => {
                let families = error.families_in_nftables();
                let error = describe(&error);
                self.publisher.failed(since, now(), &error, families);
                error!(error, "cannot program the kernel; will retry");
                return false;
            }
        }
        true
    }

    /// Does the work that must wait until everything is in the kernel.
    fn complete(&mut self, since: Instant) {
        self.pending_since = None;
        let sync = LastSync::new(timestamp(), since.elapsed());
        self.flush.synced(sync, self.engine.plan());
        self.release();
        self.publisher.programmed(&self.engine, since, now());
        // Some settings are only safe once the first full set of rules is in the kernel.
        self.settings.keep(self.engine.settings(), CheckScope::Changed);
        self.remove_predecessor();
        self.listen();
    }

    fn choose_pod_scope(&mut self) {
        let planner = self.engine.planner();
        self.sources.pod_scope.iter_mut().for_each(|chooser| chooser.step(planner));
    }

    /// Answers the plugin's ADDs and DELs whose pods are ready.
    fn release(&mut self) {
        let (flush, metrics) = (&mut self.flush, &self.publisher.metrics);
        let reader = &self.sources.read_policies;
        let portmap = self.portmap.as_ref();
        self.plugin_waits.release(&self.engine, flush, portmap, metrics, reader);
    }

    /// The read of policies with this `ticket` is done. Applies all events that were sent before
    /// it, or before another read that is done by now: from then on, the ADDs that asked for these
    /// reads wait only until the events are programmed.
    fn policies_read(
        &mut self,
        ticket: u64,
        events: &mut mpsc::Receiver<Vec<Event>>,
    ) -> Option<bool> {
        let mut done = HashSet::from([ticket]);
        while let Ok(ticket) = self.sources.policies_read.try_recv() {
            done.insert(ticket);
        }
        self.plugin_waits.policies_read(&done);
        let programmed = self.take(Vec::new(), events);
        self.release();
        programmed
    }

    /// Sets up the bridges of recorded pods. Returns whether the rules must change because the set
    /// of bridges whose frames cannot be passed to IP rules has changed.
    fn set_up_bridges(&mut self, check: CheckScope) -> bool {
        let unfiltered_bridges = self.bridges.keep(self.engine.plan(), check);
        self.engine.set_unfiltered_bridges(unfiltered_bridges)
    }

    fn remove_predecessor(&mut self) {
        let engine = &mut self.engine;
        let is_synced = engine.is_synced();
        self.predecessor.remove(is_synced, || engine.remove_other_tables(), now());
    }

    /// Reports that the loop runs, and continues work that depends on no change. Returns whether
    /// rules must be programmed.
    fn beat(&mut self) -> bool {
        self.remove_predecessor();
        let left = self.predecessor.problem(now());
        self.publisher.alive(now(), left.is_some());
        self.set_up_bridges(CheckScope::All)
    }

    /// Repairs our tables after a foreign change. `is_ours`: the change was in one of our tables;
    /// otherwise there is nothing to repair.
    fn repair(&mut self, is_ours: bool) -> Option<bool> {
        is_ours.then(|| {
            debug!("another program changed our tables");
            self.engine.note_foreign_change();
            self.pass(SyncExtent::Full)
        })
    }

    /// Watches for foreign changes as soon as everything is programmed: from then on our own
    /// batches, about which the kernel notifies too, are small.
    fn listen(&mut self) {
        if self.watch.is_some() || !self.engine.is_synced() {
            return;
        }
        match self
            .engine
            .watch(self.routing.portid())
            .map_err(anyhow::Error::from)
            .and_then(pollable)
        {
            Ok(watch) => {
                self.watch = Some(watch);
                // Earlier changes were not reported: check once.
                self.foreign_change.notify_one();
            }
            Err(error) => warn!(error = format!("{error:#}"), "cannot watch for foreign changes"),
        }
        trim();
    }
}

/// Waits for a feature; never returns if it is off.
async fn if_on<F: Future>(feature: Option<F>) -> F::Output {
    match feature {
        Some(due) => due.await,
        None => pending().await,
    }
}

#[expect(clippy::disallowed_methods, reason = "the loop alone reads the clock")]
fn now() -> Instant {
    Instant::now()
}

fn timestamp() -> String {
    jiff::Timestamp::now().strftime("%FT%TZ").to_string()
}
