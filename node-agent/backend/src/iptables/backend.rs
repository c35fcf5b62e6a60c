//! iptables as the agent sees it: a plan comes in, and a report goes out.

use std::collections::BTreeSet;
use std::future::pending;

use tokio::time::sleep_until;

use super::IptablesError;
use super::desired_rules::DesiredRules;
use super::sync::{Iptables, serves};
use super::text::IptablesRendering;
use crate::nftables::Nftables;
use crate::{Backend, Figures, Repair, Report};
use denizen_iptables::{Variant, Writer};
use denizen_plan::{Frontend, Plan, PlanChanges};
use denizen_text::describe;

/// Renders a plan. Needs no kernel.
pub fn render(plan: &Plan) -> IptablesRendering {
    let mut wanted = DesiredRules::offline();
    wanted.update(plan, &PlanChanges::from_nothing(plan));
    wanted.rendering()
}

impl Backend for Iptables {
    type Error = IptablesError;

    fn update(&mut self, plan: &Plan, changes: &PlanChanges) {
        self.wanted.update(plan, changes);
    }

    /// Pods are programmed when it returns; rules are still being written.
    fn sync(&mut self) -> Result<Repair, IptablesError> {
        self.program(Nftables::sync).map(|_| Repair::default())
    }

    fn resync(&mut self) -> Result<Repair, IptablesError> {
        self.sets.forget();
        self.writers.iter_mut().for_each(|writer| writer.unknown = true);
        self.program(Nftables::resync)
    }

    fn report(&mut self) -> Report {
        let mut writers = self.writers.iter().zip(&self.wanted.rules);
        Report {
            is_programmed: self.is_programmed(),
            has_pods: self.has_pods(),
            serves: writers.all(|(writer, rules)| serves(writer, rules)),
            rejected: self.rejected_texts(),
            contended: self.contended.clone(),
            repaired: std::mem::take(&mut self.repaired),
            left_frontends: std::mem::take(&mut self.left_frontends),
            resync_interval: self.resync_interval,
            draining: BTreeSet::new(),
        }
    }

    /// No lookup can miss, since every chain ends in an existing endpoint. The number of clients is
    /// not known, nor what legacy iptables has counted.
    fn figures(&mut self) -> Figures {
        let mut figures = Figures {
            sizes: self.wanted.sizes(),
            restore_failures: [0, 1].map(|at| self.writers[at].restore_failures()),
            ..Figures::default()
        };
        match self.variant() {
            Variant::Legacy => {}
            Variant::Nft => match self.drop_counters.read() {
                Ok(drops) => figures.drops = Some(drops),
                Err(error) => figures.errors.push(describe(&error)),
            },
        }
        figures
    }

    fn sample_drops(&mut self, _on: bool) -> bool {
        false
    }

    fn rejected(&self, frontend: &Frontend) -> Vec<String> {
        let at = frontend.key.family() as usize;
        let own = self.wanted.rules[at].of_frontend(frontend);
        self.writers[at].rejected.about(&own)
    }

    #[expect(clippy::disallowed_methods, reason = "rejected rules are tried again after a while")]
    async fn wait(&mut self) {
        let next = self.writers.iter().filter_map(Writer::next_try).min();
        let again = async {
            match next {
                Some(at) => {
                    sleep_until(at.into()).await;
                    at
                }
                None => pending().await,
            }
        };
        tokio::select! {
            done = self.results.recv() => match done {
                Some(done) => self.received.push(done),
                None => pending().await,
            },
            at = again => self.writers.iter_mut().for_each(|writer| writer.try_again(at)),
        }
    }
}
