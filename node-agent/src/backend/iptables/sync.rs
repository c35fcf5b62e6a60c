//! Brings sets and rules into the kernel, and keeps them there.

use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tracing::{error, info, warn};

use super::contender::contender;
use super::family_writer::FamilyWriter;
use super::ipset::Sets;
use super::told::Wanted;
use super::tools::{IptablesError, Tools, Variant};
use super::worker::{self, Done, Outcome};
use crate::backend::Repair;
use crate::backend::nftables::{Kernel, Nftables, NftablesError};
use crate::model::Family;

/// The rules are looked at this often, or so seldom that looking takes a hundredth of the time.
/// (ip_tables notifies nobody of a change.)
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// … but never more seldom than this, however long a look takes on a busy machine.
const LOOK_AT_LEAST: Duration = Duration::from_secs(60);

/// The iptables backend: what is wanted, and the ways into the kernel. Pods go by netlink, at once;
/// rules by programs that a thread of each family executes.
#[derive(Debug)]
pub struct Iptables {
    variant: Variant,
    pub(super) wanted: Wanted<Kernel>,
    pub(super) sets: Sets,
    pub(super) writers: [FamilyWriter; 2],
    /// What the threads are done with.
    pub(super) news: UnboundedReceiver<Done>,
    pub(super) heard: Vec<Done>,
    pub(super) look_every: Duration,
    pub(super) repaired: Repair,
    /// The sets were as wanted once: what differs at a look is somebody else's doing.
    sets_settled: bool,
    /// Who else goes on writing the rules.
    pub(super) contended: Option<String>,
}

impl Iptables {
    /// Opens the backend in this thread's network namespace. Nothing is written yet.
    ///
    /// # Errors
    /// When there is no iptables, or no netlink to be had.
    pub fn open(forced: Option<Variant>) -> Result<Self, IptablesError> {
        let tools = match forced {
            Some(variant) => Tools::installed(variant)?,
            None => Tools::find()?,
        };
        info!(variant = ?tools.variant, forced = forced.is_some(), "iptables");
        let sets = Sets::open()
            .map_err(|source| IptablesError::Set { set: "of this node's pods", source })?;
        let (done, news) = unbounded_channel();
        let writers = Family::BOTH
            .map(|family| FamilyWriter::new(worker::start(tools, family, done.clone())));
        Ok(Self {
            variant: tools.variant,
            wanted: Wanted::new(!is_liberal(), Nftables::open_bridge()?),
            sets,
            writers,
            news,
            heard: Vec::new(),
            look_every: LOOK_EVERY,
            repaired: Repair::default(),
            sets_settled: false,
            contended: None,
        })
    }

    /// Whose tables it writes to.
    pub fn variant(&self) -> Variant {
        self.variant
    }

    /// The portid by which nf_tables' notifications name this backend's own changes, where it has a
    /// table there.
    pub fn portid(&self) -> Option<u32> {
        let bridge = &self.wanted.bridge;
        bridge.is_wanted().then(|| bridge.portid())
    }

    /// Removes the tables of nf_tables that the nftables backend, or another way of telling local
    /// traffic apart, left behind; how many there were.
    ///
    /// # Errors
    /// The kernel's.
    pub fn remove_tables(&mut self) -> Result<usize, IptablesError> {
        Ok(self.wanted.bridge.remove_others()?)
    }

    /// Programs pods, as `tell` does in the bridge's table, and sets rules on their way. Without
    /// the bridge's table services are served all the same: pods behind bridges are masqueraded.
    pub(super) fn program(
        &mut self,
        tell: impl FnOnce(&mut Nftables) -> Result<Repair, NftablesError>,
    ) -> Result<Repair, IptablesError> {
        let bridge = &mut self.wanted.bridge;
        let told = if bridge.is_wanted() { tell(bridge) } else { Ok(Repair::default()) };
        self.program_pods()?;
        self.hear()?;
        if self.wanted.services_known {
            let writers = self.writers.iter_mut().zip(&mut self.wanted.rules);
            writers.for_each(|(writer, rules)| writer.go_on(rules));
        }
        if self.contended.is_none() && self.writers.iter().any(FamilyWriter::is_contended) {
            let contender = contender();
            error!(error = contender, "these rules are somebody else's too");
            self.contended = Some(contender);
        }
        Ok(told?)
    }

    fn program_pods(&mut self) -> Result<(), IptablesError> {
        let Wanted { pods, pods_known, services_known, .. } = &self.wanted;
        if !self.wanted.pods_changed && self.sets.are_programmed() {
            return Ok(());
        }
        match (pods_known, services_known) {
            (true, _) => {
                let written = self.sets.program(pods)?;
                if std::mem::replace(&mut self.sets_settled, true)
                    && !self.wanted.pods_changed
                    && written > 0
                {
                    warn!(elements = written, "somebody changed the sets of pods; repaired");
                    self.repaired.elements += written;
                }
            }
            // Rules name the sets, whatever is in them.
            (false, true) => self.sets.create()?,
            (false, false) => {}
        }
        self.wanted.pods_changed = false;
        Ok(())
    }

    fn hear(&mut self) -> Result<(), IptablesError> {
        while let Ok(done) = self.news.try_recv() {
            self.heard.push(done);
        }
        let mut result = Ok(());
        for done in std::mem::take(&mut self.heard) {
            let at = done.family as usize;
            if let Ok(Outcome::Seen(_)) = done.result {
                self.look_every = (done.took * 100).clamp(LOOK_EVERY, LOOK_AT_LEAST);
            }
            match self.writers[at].take(done, &mut self.wanted.rules[at]) {
                Ok(repair) => {
                    self.repaired.chains += repair.chains;
                    self.repaired.elements += repair.elements;
                }
                Err(error) => result = result.and(Err(error)),
            }
        }
        result
    }
}

/// Connection tracking that lets packets outside a connection's window pass has fewer that it
/// cannot place, and whoever set it so wants these to pass.
fn is_liberal() -> bool {
    const SETTING: &str = "/proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal";
    #[expect(clippy::disallowed_methods, reason = "a setting of the kernel that rules depend on")]
    let text = std::fs::read_to_string(SETTING);
    text.is_ok_and(|text| text.trim() == "1")
}
