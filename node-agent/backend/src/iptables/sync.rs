//! Programs sets and rules, and keeps them in the kernel.

use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tracing::{error, info, warn};

use super::contender::contender;
use super::desired_rules::DesiredRules;
use super::drop_counters::DropCounters;
use super::name::{SETS, ServiceChain};
use super::ruleset::Ruleset;
use super::schema::SCHEMA;
use super::{IptablesError, egress, observed};
use crate::Repair;
use crate::nftables::Nftables;
use denizen_iptables::{
    self as iptables, Desired, FinishedJob, JobOutcome, Programs, Sets, Variant, Writer,
};
use denizen_model::Family;
use denizen_netlink::NetlinkError;
use denizen_nft::{Kernel, NftError};
use denizen_plan::FrontendKey;

/// The minimum interval between two reads of the rules, since ip_tables does not notify of changes.
/// It is longer if a read is slow: reads take at most a hundredth of the time.
const SHORTEST_READ_INTERVAL: Duration = Duration::from_secs(10);

/// The maximum interval, however slow a read is.
const LONGEST_READ_INTERVAL: Duration = Duration::from_secs(60);

/// The iptables backend: the desired rules, and what programs them. Pods are written by netlink, at
/// once; rules by programs, which a thread for each family executes.
#[derive(Debug)]
pub struct Iptables {
    variant: Variant,
    pub(super) wanted: DesiredRules<Kernel>,
    pub(super) sets: Sets,
    pub(super) writers: [Writer; 2],
    /// Frontends of an earlier run or of kube-proxy that no longer exist.
    pub(super) left_frontends: Vec<FrontendKey>,
    /// The writer threads' results.
    pub(super) results: UnboundedReceiver<FinishedJob>,
    pub(super) received: Vec<FinishedJob>,
    pub(super) resync_interval: Duration,
    pub(super) repaired: Repair,
    /// The sets were right once, so a later difference is another program's change.
    sets_were_programmed: bool,
    /// The other program that keeps rewriting the rules.
    pub(super) contended: Option<String>,
    pub(super) drop_counters: DropCounters,
}

impl Iptables {
    /// Opens the backend in this thread's network namespace. Nothing is written yet.
    ///
    /// # Errors
    /// If there is no iptables, or netlink cannot be opened.
    pub fn open(forced: Option<Variant>) -> Result<Self, IptablesError> {
        let programs = match forced {
            Some(variant) => Programs::installed(variant)?,
            None => Programs::find()?,
        };
        info!(variant = ?programs.variant, forced = forced.is_some(), "iptables");
        let sets = Sets::open(&SETS).map_err(|source| iptables::IptablesError::Set {
            set: "of this node's pods",
            source,
        })?;
        let (done, results) = unbounded_channel();
        let writers =
            Family::BOTH.map(|family| Writer::start(programs, &SCHEMA, family, done.clone()));
        Ok(Self {
            variant: programs.variant,
            wanted: DesiredRules::new(!is_liberal(), Nftables::open_bridge()?),
            sets,
            writers,
            left_frontends: Vec::new(),
            results,
            received: Vec::new(),
            resync_interval: SHORTEST_READ_INTERVAL,
            repaired: Repair::default(),
            sets_were_programmed: false,
            contended: None,
            drop_counters: DropCounters::default(),
        })
    }

    pub(super) fn is_programmed(&self) -> bool {
        let mut writers = self.writers.iter().zip(&self.wanted.rules);
        self.wanted.services_known && writers.all(|(writer, rules)| writer.is_programmed(rules))
    }

    pub(super) fn has_pods(&self) -> bool {
        let DesiredRules { bridge, .. } = &self.wanted;
        let in_bridge = !bridge.is_wanted() || bridge.has_pods();
        in_bridge
            && self.wanted.pods_known
            && !self.wanted.pods_changed
            && self.sets.are_programmed()
    }

    /// The variant that it writes to.
    pub fn variant(&self) -> Variant {
        self.variant
    }

    /// The portid by which nf_tables' notifications name this backend's own changes, where it has a
    /// table there.
    pub fn portid(&self) -> Option<u32> {
        let bridge = &self.wanted.bridge;
        bridge.is_wanted().then(|| bridge.portid())
    }

    /// A connection to nf_tables whose commits count as this backend's own there.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn sibling_connection(&self) -> Result<Kernel, NetlinkError> {
        self.wanted.bridge.sibling_connection()
    }

    /// Removes the nf_tables tables that the nftables backend or another detector left. Returns how
    /// many there were.
    ///
    /// # Errors
    /// The kernel's.
    pub fn remove_tables(&mut self) -> Result<usize, IptablesError> {
        Ok(self.wanted.bridge.remove_others()?)
    }

    /// Programs pods, calls `program_bridge` for the bridge's table, and starts to write rules.
    /// Without the bridge's table services still work, but bridged pods are masqueraded.
    pub(super) fn program(
        &mut self,
        program_bridge: impl FnOnce(&mut Nftables) -> Result<Repair, NftError>,
    ) -> Result<Repair, IptablesError> {
        let bridge = &mut self.wanted.bridge;
        let bridge_repair =
            if bridge.is_wanted() { program_bridge(bridge) } else { Ok(Repair::default()) };
        self.program_pods()?;
        self.take_results()?;
        if self.wanted.services_known {
            let writers = self.writers.iter_mut().zip(&mut self.wanted.rules);
            writers.for_each(|(writer, rules)| writer.start_next_job(rules));
        }
        if self.contended.is_none() && self.writers.iter().any(Writer::is_contended) {
            let contender = contender();
            error!(error = contender, "another program rewrites these rules, too");
            self.contended = Some(contender);
        }
        Ok(bridge_repair?)
    }

    fn program_pods(&mut self) -> Result<(), IptablesError> {
        let DesiredRules { pods, pods_known, services_known, .. } = &self.wanted;
        if !self.wanted.pods_changed && self.sets.are_programmed() {
            return Ok(());
        }
        match (pods_known, services_known) {
            (true, _) => {
                let written = self.sets.program(|set| pods.of_set(set))?;
                if std::mem::replace(&mut self.sets_were_programmed, true)
                    && !self.wanted.pods_changed
                    && written > 0
                {
                    warn!(elements = written, "somebody changed the sets of pods; repaired");
                    self.repaired.elements += written;
                }
            }
            // Rules refer to the sets, so they must exist.
            (false, true) => self.sets.create()?,
            (false, false) => {}
        }
        self.wanted.pods_changed = false;
        Ok(())
    }

    /// The rejected rules of services and of egress masquerade, as text.
    pub(super) fn rejected_texts(&self) -> Vec<String> {
        let of_family = |(writer, family): (&Writer, Family)| {
            let egress = writer.optional_failure().map(|error| egress::failure_text(family, error));
            writer.rejected.texts().into_iter().chain(egress)
        };
        self.writers.iter().zip(Family::BOTH).flat_map(of_family).collect()
    }

    fn take_results(&mut self) -> Result<(), IptablesError> {
        while let Ok(done) = self.results.try_recv() {
            self.received.push(done);
        }
        let mut result = Ok(());
        for done in std::mem::take(&mut self.received) {
            let at = done.family as usize;
            if let Ok(JobOutcome::Seen(_)) = done.result {
                self.resync_interval =
                    (done.took * 100).clamp(SHORTEST_READ_INTERVAL, LONGEST_READ_INTERVAL);
            }
            let (writer, rules) = (&mut self.writers[at], &mut self.wanted.rules[at]);
            match writer.take(done, rules) {
                Ok(repaired) => {
                    self.repaired.chains += repaired.chains;
                    self.repaired.elements += repaired.jumps;
                }
                Err(error) => result = result.and(Err(error.into())),
            }
            if let Some(seen) = writer.take_first_seen() {
                let left = observed::frontends(&seen, rules.family());
                self.left_frontends.extend(left.filter(|key| !rules.has_frontend(key)));
                if !seen.is_empty() && !observed::is_ours(&seen) {
                    info!(family = %rules.family(), "rules of kube-proxy are taken over");
                }
            }
        }
        result
    }
}

/// Whether most services are served: no more than half of the chains that choose endpoints have
/// rejected rules, and no more than half of the chains that translate to an endpoint.
pub(super) fn serves(writer: &Writer, rules: &Ruleset) -> bool {
    let needed: [&[ServiceChain]; 2] =
        [&[ServiceChain::Service, ServiceChain::Local], &[ServiceChain::Endpoint]];
    needed.into_iter().all(|kinds| {
        let of_kinds =
            |count: &dyn Fn(ServiceChain) -> usize| kinds.iter().copied().map(count).sum();
        let rejected: usize = of_kinds(&|kind| writer.rejected.chains_of(kind.prefix()));
        let all: usize = of_kinds(&|kind| rules.chains_of(kind));
        rejected == 0 || rejected * 2 <= all
    })
}

/// Whether tcp_be_liberal is set. Then packets outside a connection's window are not invalid, and
/// the operator wants other invalid packets to pass, too.
fn is_liberal() -> bool {
    const SETTING: &str = "/proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal";
    #[expect(clippy::disallowed_methods, reason = "a setting of the kernel that rules depend on")]
    let text = std::fs::read_to_string(SETTING);
    text.is_ok_and(|text| text.trim() == "1")
}
