//! The loop: only it knows every layer and the clock.

#![expect(clippy::disallowed_methods, reason = "the loop has the clock")]

mod alone;
mod bridges;
mod flush;
mod foreign;
mod history;
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
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::bail;
use tokio::io::unix::AsyncFd;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::{MissedTickBehavior, interval, sleep};
use tracing::{debug, error, info, warn};

pub(crate) use self::alone::named as process_named;
pub use self::alone::{AloneError, alone_here};
use self::bridges::Bridges;
use self::flush::Flush;
use self::foreign::foreign_change;
use self::network_policy::Enforcer;
use self::plan_notices::PlanNotices;
use self::plugin_waits::PluginWaits;
use self::pod_watch::PodWatch;
use self::portmap::PortmapRules;
use self::publish::Publisher;
use self::sampling::Sampling;
use self::sources::Sources;
pub use self::start::{Startup, run};
use self::stop::Stop;
pub use self::stop::pause;
use self::turn::{Next, StopWatch};
use crate::control::Question;
use crate::engine::Engine;
use crate::log::LogFilter;
use crate::memory::trim;
use denizen_backend::BackendName;
use denizen_backend::forward::Findings;
use denizen_backend::sysctl::Reconciler;
use denizen_backend::takeover::Predecessor;
use denizen_model::{Event, PodName};
use denizen_nft::Watch;
use denizen_observe::status::LastSync;
use denizen_observe::status::metrics::SyncExtent;
use denizen_plan::{FirewallPlan, PlanChanges};
use denizen_routing::{Routing, SendNotice, pollable};
use denizen_text::describe;

/// A failed attempt is repeated after this, then after twice this, up to [`LONGEST_RETRY`].
const SHORTEST_RETRY: Duration = Duration::from_millis(50);
const LONGEST_RETRY: Duration = Duration::from_secs(30);
/// How often the loop reports that it runs: often enough for [`denizen_observe::status::health::LATE`].
const HEARTBEAT: Duration = Duration::from_secs(10);
/// How often the backend looks for what nobody tells it ([`Engine::is_disturbed`]).
const GLANCE: Duration = Duration::from_secs(5);
/// The pause after a success: no retry.
const NEVER: Duration = Duration::from_secs(365 * 24 * 3600);
/// Batches of events that may queue before a source waits.
const QUEUE: usize = 64;

struct Agent {
    engine: Engine,
    /// The name of its backend.
    backend: BackendName,
    /// Why the backend was chosen.
    backend_why: String,
    /// Who enforces NetworkPolicies.
    enforcer: Enforcer,
    settings: Reconciler,
    bridges: Bridges,
    /// Notified of changes in tables that are not ours.
    elsewhere: Arc<Notify>,
    /// Findings in other firewalls' chains.
    found: watch::Receiver<Findings>,
    sources: Sources,
    /// Whether only a restart restores the run directory.
    run_dir_lost: watch::Receiver<bool>,
    plugin_waits: PluginWaits,
    /// Which pods of other nodes are followed.
    pod_watch: PodWatch,
    /// Removes what portmap left; `None` if host ports are off.
    portmap: Option<PortmapRules>,
    /// Watches for foreign changes, once everything is programmed.
    watch: Option<AsyncFd<Watch>>,
    /// Since when a change has been waiting to be programmed.
    begun: Option<Instant>,
    /// Removes the rules of a previous backend.
    predecessor: Predecessor,
    publisher: Publisher,
    /// Deletes stale conntrack entries.
    flush: Flush,
    /// Shows dropped packets.
    sampling: Sampling,
    routing: Routing,
    plan_notices: PlanNotices,
    send_notice: SendNotice,
    log: LogFilter,
}

impl Agent {
    async fn run_loop(
        &mut self,
        mut stop: Stop,
        mut events: mpsc::Receiver<Vec<Event>>,
        mut requests: mpsc::Receiver<Question>,
    ) -> anyhow::Result<()> {
        let mut resync = interval(self.engine.look_every());
        resync.set_missed_tick_behavior(MissedTickBehavior::Delay);
        resync.reset();
        let mut heartbeat = interval(HEARTBEAT);
        let mut glance = interval(GLANCE);
        glance.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut retry = pin!(sleep(NEVER));
        let mut delay = SHORTEST_RETRY;
        loop {
            let next = tokio::select! {
                () = stop.signalled() => break,
                batch = events.recv() => match batch {
                    Some(batch) => Next::Events(batch),
                    None => bail!("every source has ended"),
                },
                is_ours = foreign_change(&mut self.watch, &self.elsewhere) => {
                    Next::ForeignChange(is_ours)
                }
                step = self.flush.next() => Next::Flush(step),
                () = self.engine.wait() => Next::Continue,
                Some(asked) = requests.recv() => Next::Request(asked),
                () = portmap_changed(&mut self.portmap) => Next::Portmap,
                () = self.sampling.expired() => Next::EndSampling,
                () = self.routing.due() => Next::Announce,
                () = pod_scope::due(&self.pod_watch) => Next::PodWatch,
                Some(ticket) = self.sources.policies_read.recv() => Next::PoliciesRead(ticket),
                _ = heartbeat.tick() => Next::Heartbeat,
                Ok(()) = self.run_dir_lost.changed() => Next::RunDir,
                () = &mut retry => Next::Retry,
                _ = glance.tick() => Next::Glance,
                _ = resync.tick() => Next::Resync,
            };
            let is_resync = matches!(next, Next::Resync);
            let tried = self.turn(next, &mut events, &mut requests);
            if is_resync {
                resync.reset_after(self.engine.look_every());
            }
            let Some(programmed) = tried else { continue };
            let pause = if programmed { NEVER } else { delay };
            delay = match programmed {
                false => (delay * 2).min(LONGEST_RETRY),
                true if self.engine.is_settled() => SHORTEST_RETRY,
                // Programming continues, and may fail again.
                true => delay,
            };
            retry.as_mut().reset(tokio::time::Instant::now() + pause);
        }
        if self.sampling.end(&mut self.engine) {
            self.program(false);
        }
        info!("stopping; the rules stay in the kernel");
        self.predecessor.wait();
        Ok(())
    }

    /// One turn. Returns whether programming succeeded, if the turn led to it.
    fn turn(
        &mut self,
        next: Next,
        events: &mut mpsc::Receiver<Vec<Event>>,
        requests: &mut mpsc::Receiver<Question>,
    ) -> Option<bool> {
        let watch = StopWatch::start(next.name());
        let tried = match next {
            Next::Events(batch) => self.take(batch, events),
            Next::ForeignChange(is_ours) => self.repair(is_ours),
            Next::Flush(step) => {
                let awaited = self.plugin_waits.awaited(self.engine.plan());
                self.flush.take(step, &mut self.engine, &awaited);
                self.release();
                None
            }
            Next::Portmap => {
                self.release();
                None
            }
            Next::Continue | Next::Retry => Some(self.program(false)),
            Next::Request(asked) => requests::answer_all(self, asked, requests),
            Next::EndSampling => {
                self.sampling.end(&mut self.engine);
                Some(self.program(false))
            }
            Next::Announce => {
                self.routing.step(&self.engine);
                None
            }
            Next::PodWatch => {
                pod_scope::choose(self);
                None
            }
            Next::PoliciesRead(ticket) => self.policies_read(ticket, events),
            Next::Heartbeat => self.beat().then(|| self.program(false)),
            Next::RunDir => {
                self.publisher.run_dir_lost(*self.run_dir_lost.borrow_and_update());
                None
            }
            Next::Glance => self.engine.is_disturbed().then(|| self.program(true)),
            Next::Resync => {
                trim();
                Some(self.program(true))
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
            self.publisher.firewall_programmed(now(), false);
            return None;
        }
        Some(self.program(false))
    }

    fn accept(&mut self, batch: Vec<Event>) {
        self.publisher.taken(&batch, now());
        self.engine.apply(batch);
    }

    /// One pass: plans, prepares the node, withdraws announcements, programs what is due (or
    /// resyncs everything if `look`), and then announces and publishes. Returns whether that
    /// succeeded.
    fn program(&mut self, look: bool) -> bool {
        let begun = *self.begun.get_or_insert_with(now);
        let changes = self.engine.decide();
        self.routing.update(&self.engine, &changes);
        let notices = self.plan_notices.update(self.engine.plan(), &changes);
        notices.into_iter().for_each(|notice| (self.send_notice)(notice));
        if let Some(portmap) = self.portmap.as_mut().filter(|_| changes.pods) {
            portmap.update(self.engine.plan());
        }
        let extent = if look { SyncExtent::Full } else { SyncExtent::Partial };
        self.publisher.queued(&self.engine, extent, begun);
        self.settings.keep(self.engine.settings(), look);
        self.set_up_bridges(look);
        self.routing.withdraw(&self.engine, look);
        let result = if look {
            self.engine.resync().map(|repair| {
                if !repair.is_none() {
                    self.engine.activity_mut().repaired(begun.elapsed());
                    warn!(elements = repair.elements, rebuilt = repair.rebuilt, "drift repaired");
                }
            })
        } else {
            self.engine.sync()
        };
        self.note_firewall();
        pod_scope::choose(self);
        let Err(error) = result else {
            self.follow_rules(begun);
            return true;
        };
        let families = error.families_in_nftables();
        let error = describe(&error);
        self.publisher.failed(begun, now(), &error, families);
        self.release();
        error!(error, "cannot program the kernel; will retry");
        false
    }

    /// Does what waits until the kernel has the rules: announces, serves, and tells what was done.
    fn follow_rules(&mut self, begun: Instant) {
        self.engine.note_draining(&timestamp());
        self.release();
        if self.engine.is_contended() {
            return self.publisher.contended(now());
        }
        if !self.engine.is_settled() {
            return;
        }
        self.begun = None;
        if self.routing.announce(&self.engine) {
            let latency = &self.publisher.metrics.own.announce_latency;
            latency.observe(begun.elapsed().as_secs_f64());
        }
        let sync = LastSync::new(timestamp(), begun.elapsed());
        self.flush.after(sync, &mut self.engine);
        self.release();
        self.publisher.programmed(&mut self.engine, begun, now());
        self.settings.keep(self.engine.settings(), false);
        self.remove_predecessor();
        self.listen();
    }

    /// Notes what the attempt to program came to for policies, and which pods' labels are lacking.
    fn note_firewall(&mut self) {
        if self.engine.has_firewall() {
            let is_changed = self.engine.take_policies_changed();
            self.publisher.firewall_programmed(now(), is_changed);
        }
        self.sources.unknown_pods.send_if_modified(|unknown| {
            let firewall = self.engine.plan().firewall();
            let now: BTreeSet<PodName> =
                firewall.into_iter().flat_map(FirewallPlan::lacking_labels).cloned().collect();
            let differs = *unknown != now;
            *unknown = now;
            differs
        });
    }

    /// Answers the plugin's ADDs and DELs that need not wait any more.
    fn release(&mut self) {
        let (flush, metrics) = (&self.flush, &self.publisher.metrics);
        let reader = &self.sources.read_policies;
        let portmap = self.portmap.as_ref();
        self.plugin_waits.release(&self.engine, flush, portmap, metrics, reader);
    }

    /// Takes the events that were sent before a read of policies was done, and those of the other
    /// reads that are done. Then their ADDs wait only until the events are programmed.
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

    /// Returns whether what bridges cannot do changes the rules.
    fn set_up_bridges(&mut self, check: bool) -> bool {
        let without_netfilter = self.bridges.keep(self.engine.plan(), check);
        self.engine.set_without_netfilter(without_netfilter)
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
        self.set_up_bridges(true)
    }

    /// Repairs our tables after a foreign change.
    fn repair(&mut self, changed: bool) -> Option<bool> {
        changed.then(|| {
            debug!("another program changed our tables");
            self.engine.disturbed();
            self.program(true)
        })
    }

    /// Watches for foreign changes as soon as everything is programmed: from then on batches are
    /// small.
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
                self.elsewhere.notify_one();
            }
            Err(error) => warn!(error = format!("{error:#}"), "cannot watch for foreign changes"),
        }
        trim();
    }
}

/// Waits until portmap's rules are others.
async fn portmap_changed(portmap: &mut Option<PortmapRules>) {
    match portmap {
        Some(portmap) => portmap.changed().await,
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
