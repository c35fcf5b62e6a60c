//! The plugin's ADDs and DELs that wait for their pods.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use denizen_state::socket::{WaitAnswer, WaitFor};
use nix::time::{ClockId, clock_gettime};
use tokio::sync::mpsc;

use super::now;
use super::portmap::PortmapRules;
use crate::control::Reply;
use crate::engine::Engine;
use crate::flush::Flush;
use denizen_model::LocalPod;
use denizen_observe::status::metrics::Metrics;
use denizen_plan::Plan;
use denizen_plan::conntrack::StaleCandidates;
use denizen_source::kube::PolicyRead;

/// The waiting ADDs and DELs.
#[derive(Default)]
pub(super) struct PluginWaits {
    waiting: Vec<PluginWait>,
    /// The last ticket of a read of policies.
    last_ticket: u64,
}

/// A plugin's ADD or DEL that waits for its pod.
struct PluginWait {
    request: WaitFor,
    reply: Reply<WaitAnswer>,
    since: Instant,
    policies: PolicyFreshness,
    /// Whether the connections that began before the pod are being deleted, or are gone.
    is_cleared: bool,
}

/// Whether the known policies of a new pod's namespace are at least as recent as the pod's ADD.
#[derive(Clone, Copy, PartialEq)]
enum PolicyFreshness {
    /// The policies are still to be requested.
    Due,
    /// The policies are requested, with this ticket.
    Requested(u64),
    /// The policies are as recent, or could not be read in time.
    Done,
}

impl PluginWaits {
    /// Takes in a request. `reply` is sent by [`Self::release`].
    pub(super) fn push(&mut self, request: WaitFor, reply: Reply<WaitAnswer>, metrics: &Metrics) {
        let since = requested_at(&request, metrics);
        let policies = PolicyFreshness::Due;
        self.waiting.push(PluginWait { request, reply, since, policies, is_cleared: false });
    }

    /// The addresses of pods whose ADDs wait.
    pub(super) fn awaited(&self, plan: &Plan) -> HashSet<IpAddr> {
        let adds = self.waiting.iter().filter(|wait| !wait.request.removed);
        let pods = adds.filter(|wait| !wait.reply.is_closed());
        let pods = pods.filter_map(|wait| plan.attachment(&wait.request.wait_for));
        pods.flat_map(|pod| pod.ips.iter().copied()).collect()
    }

    /// Answers every ADD whose pod is programmed, once earlier connections at its addresses are
    /// gone, and every DEL whose pod left nothing; drops requests whose client gave up. Policies of
    /// new pods' namespaces are read through `read_policies`.
    pub(super) fn release(
        &mut self,
        engine: &Engine,
        flush: &mut Flush,
        portmap: Option<&PortmapRules>,
        metrics: &Metrics,
        read_policies: &mpsc::Sender<PolicyRead>,
    ) {
        self.read_policies(engine.plan(), read_policies);
        self.clear(engine, flush);
        let is_clean = !flush.unsearched().any(StaleCandidates::has_departed);
        let has_left_nothing =
            is_clean && !flush.unsearched().any(StaleCandidates::has_former_host_ports);
        // If the conntrack table cannot be read, pods start all the same.
        let is_own = |pod: &LocalPod| {
            is_clean
                || flush.report().problem.is_some()
                || !flush.unsearched().any(|candidates| candidates.has_departed_of(&pod.ips))
        };
        let is_done = |wait: &PluginWait| {
            engine.has_programmed(&wait.request)
                && match engine.plan().attachment(&wait.request.wait_for) {
                    Some(pod) => wait.policies == PolicyFreshness::Done && is_own(pod),
                    None => {
                        let id = &wait.request.wait_for;
                        has_left_nothing && !portmap.is_some_and(|portmap| portmap.has_left(id))
                    }
                }
        };
        let done = self.waiting.extract_if(.., |wait| wait.reply.is_closed() || is_done(wait));
        for wait in done {
            let answered = wait.reply.send(Ok(WaitAnswer { programmed: true, reason: None }));
            let outcome = if answered.is_ok() { "programmed" } else { "gave_up" };
            let (own, took) = (&metrics.own, wait.since.elapsed().as_secs_f64());
            if wait.request.removed {
                own.plugin_removal_wait.observe(took);
            } else {
                own.plugin_waits.get_or_create(&[("outcome", outcome)]).inc();
                own.plugin_wait.observe(took);
            }
        }
    }

    /// Has the connections deleted that began before their pods, as soon as no more of them can
    /// begin: the pods' policies are programmed. To a pod that no policy selects any connection may
    /// begin.
    fn clear(&mut self, engine: &Engine, flush: &mut Flush) {
        let plan = engine.plan();
        let Some(firewall) = plan.firewall().filter(|firewall| firewall.is_enforced()) else {
            return;
        };
        let mut addresses = BTreeSet::new();
        for wait in self.waiting.iter_mut().filter(|wait| !wait.request.removed) {
            let is_due = wait.policies == PolicyFreshness::Done
                && !wait.is_cleared
                && engine.has_programmed(&wait.request);
            if is_due && let Some(pod) = plan.attachment(&wait.request.wait_for) {
                wait.is_cleared = true;
                if firewall.is_restricted(pod) {
                    addresses.extend(&pod.ips);
                }
            }
        }
        flush.clear_for(addresses);
    }

    /// Asks for the policies of new pods' namespaces: the watch may deliver a policy after the pod
    /// even if the policy was stored first.
    fn read_policies(&mut self, plan: &Plan, reader: &mpsc::Sender<PolicyRead>) {
        // ADDs of the same namespace that wait at the same time share a read.
        let mut requested: HashMap<Arc<str>, PolicyFreshness> = HashMap::new();
        let due = self.waiting.iter_mut().filter(|wait| wait.policies == PolicyFreshness::Due);
        for wait in due {
            let Some(recorded) = plan.attachment(&wait.request.wait_for) else { continue };
            let Some(pod) = &recorded.pod else {
                wait.policies = PolicyFreshness::Done;
                continue;
            };
            let freshness =
                requested.entry(pod.namespace.clone()).or_insert_with_key(|namespace| {
                    self.last_ticket += 1;
                    let (namespace, ticket) = (namespace.clone(), self.last_ticket);
                    // There is no reader if policies are not enforced, or come from manifests.
                    match reader.try_send(PolicyRead { namespace, ticket }) {
                        Ok(()) => PolicyFreshness::Requested(ticket),
                        Err(_) => PolicyFreshness::Done,
                    }
                });
            wait.policies = *freshness;
        }
    }

    /// Notes which reads of policies are done.
    pub(super) fn policies_read(&mut self, done: &HashSet<u64>) {
        for wait in &mut self.waiting {
            if matches!(wait.policies, PolicyFreshness::Requested(ticket) if done.contains(&ticket))
            {
                wait.policies = PolicyFreshness::Done;
            }
        }
    }
}

/// When the plugin sent the request; now if the request does not say. Records how long the request
/// waited for the loop.
fn requested_at(request: &WaitFor, metrics: &Metrics) -> Instant {
    let now = now();
    let Some(delay) = request.asked_at.and_then(since) else { return now };
    metrics.own.plugin_request_delay.observe(delay.as_secs_f64());
    now.checked_sub(delay).unwrap_or(now)
}

/// How long ago this was, in nanoseconds of `CLOCK_MONOTONIC`; `None` if it is yet to come.
fn since(nanoseconds: u64) -> Option<Duration> {
    let now = Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC).ok()?);
    now.checked_sub(Duration::from_nanos(nanoseconds))
}
