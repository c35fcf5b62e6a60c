//! Implements `Backend` for nf_tables.

use std::collections::BTreeSet;
use std::future::pending;
use std::net::IpAddr;

use super::carried::carried;
use super::client::{clients, counted};
use super::error::NftablesError;
use super::name::{Facts, ServiceTable};
use super::sync::{Nftables, Programmed};
use crate::why::Why;
use crate::{Backend, Figures, Repair, Report, SetSize};
use denizen_nft::Rendering;
use denizen_plan::{Frontend, FrontendAddress, FrontendKey, Plan, PlanChanges};
use denizen_text::describe;

/// Renders a plan, as if its virtual servers were in the kernel. Needs no kernel.
pub fn render(plan: &Plan) -> Rendering {
    let mut backend = Nftables::offline();
    let servers = plan.ipvs().into_iter().flat_map(|ipvs| ipvs.servers().keys());
    let addresses = servers.filter_map(|server| match server.address {
        FrontendAddress::Ip(ip) => Some(ip),
        FrontendAddress::Node(_) => None,
    });
    backend.hold_cluster_ips(&addresses.collect());
    backend.update_carried(plan, &PlanChanges::from_nothing(plan), &|_| true);
    backend.rendering()
}

impl<K> Nftables<K> {
    /// Takes a new plan. Rules choose all endpoints.
    pub fn update(&mut self, plan: &Plan, changes: &PlanChanges) {
        self.update_carried(plan, changes, &|_| false);
    }

    /// As [`Self::update`], with virtual servers. `ready` says whether the one at a cluster IP is
    /// in the kernel: what it carries is translated to that cluster IP; until then, rules choose an
    /// endpoint. The frontends of a server that is ready from now on, or no longer, must be among
    /// the changed ones.
    pub fn update_carried(
        &mut self,
        plan: &Plan,
        changes: &PlanChanges,
        ready: &dyn Fn(&FrontendKey) -> bool,
    ) {
        if changes.node {
            self.configure(plan.node());
        }
        for table in &mut self.tables {
            table.update(plan, changes, ready);
        }
    }

    /// Takes the addresses that are routed to this node for virtual servers. Their unused ports are
    /// refused even if no service has the address any more: the node's own ports would answer.
    pub fn hold_cluster_ips(&mut self, addresses: &BTreeSet<IpAddr>) {
        for Programmed { wanted, pending, .. } in &mut self.tables {
            wanted.hold_cluster_ips(addresses, pending);
        }
    }

    /// The number of desired elements of each set.
    pub fn sizes(&self) -> Vec<SetSize> {
        let of = |table: &Programmed| {
            let table_family = table.wanted.table_family;
            let sizes = table.wanted.sizes().into_iter();
            let sizes = sizes.filter(|(set, _)| set.filled_by() != Facts::Traffic);
            sizes.map(move |(set, elements)| SetSize {
                family: set.family(table_family),
                set: set.to_string(),
                elements,
            })
        };
        self.tables.iter().flat_map(of).collect()
    }

    /// Whether the plan's pods are in the kernel.
    pub fn has_pods(&self) -> bool {
        let mut wanted = self.tables.iter().filter(|table| table.is_wanted());
        wanted.all(|table| table.known.pods && !table.unknown && table.pending.is_empty())
    }
}

impl Programmed {
    fn update(&mut self, plan: &Plan, changes: &PlanChanges, ready: &dyn Fn(&FrontendKey) -> bool) {
        if let Some(pods) = plan.pods().filter(|_| changes.pods) {
            self.unknown |= !std::mem::replace(&mut self.known.pods, true);
            self.wanted.change_pods(pods, &mut self.pending);
        }
        if plan.services().is_some() {
            self.unknown |= !std::mem::replace(&mut self.known.services, true);
        }
        match self.wanted.table_family {
            ServiceTable::Ip(_) => self.update_services(plan, changes, ready),
            // It sees no addresses of services.
            ServiceTable::Arp | ServiceTable::Bridge => {}
        }
    }

    fn update_services(
        &mut self,
        plan: &Plan,
        changes: &PlanChanges,
        ready: &dyn Fn(&FrontendKey) -> bool,
    ) {
        let Self { wanted, pending, unknown, .. } = self;
        if changes.node {
            wanted.change_node_port_addresses(&plan.node().node_ports.addresses, pending);
        }
        let Some(services) = plan.services() else {
            return;
        };
        for key in &changes.frontends {
            let decided = services.frontend(key).map(|it| carried(it, plan.ipvs(), ready));
            let decided = (*key, decided.as_deref());
            wanted.change_frontends(std::iter::once(decided), pending);
            if *unknown {
                // The difference will be computed from the kernel's state. At the start this would
                // hold everything.
                pending.clear();
            }
        }
        if changes.hairpins {
            wanted.change_hairpins(services.hairpins().iter().copied(), pending);
        }
    }
}

impl Backend for Nftables {
    type Error = NftablesError;

    fn update(&mut self, plan: &Plan, changes: &PlanChanges) {
        Self::update(self, plan, changes);
    }

    /// If several tables fail, the first error is returned.
    fn sync(&mut self) -> Result<Repair, NftablesError> {
        let mut repairs = Repair::default();
        let mut result = Ok(());
        for table in &mut self.tables {
            let done = if table.is_wanted() {
                table.program(&mut self.kernel)
            } else if table.wanted.table_family == ServiceTable::Arp {
                // An earlier run's goes with that run's virtual servers: see `Self::remove_arp`.
                continue;
            } else if result.is_ok() {
                table.remove(&mut self.kernel)
            } else {
                // The tables that read its mark are still there.
                continue;
            };
            match done {
                Ok(repair) => {
                    table.rejected.clear();
                    repairs.rebuilt |= repair.rebuilt;
                    repairs.chains += repair.chains;
                    repairs.elements += repair.elements;
                }
                Err(error) => {
                    table.unknown = true;
                    result = result.and(Err(error));
                }
            }
        }
        result.map(|()| repairs)
    }

    fn resync(&mut self) -> Result<Repair, NftablesError> {
        let Self { kernel, tables } = self;
        for table in tables {
            // Reading is expensive: for every piece of a dump the kernel counts from the first
            // element.
            let is_right = table.looked.is_some_and(|mark| kernel.is_undisturbed(mark));
            table.unknown |= !is_right;
        }
        self.sync()
    }

    fn report(&mut self) -> Report {
        let tables = self.tables.iter_mut();
        let left = tables.flat_map(|table| std::mem::take(&mut table.left_frontends)).collect();
        Report { has_pods: self.has_pods(), left_frontends: left, ..Report::default() }
    }

    fn figures(&mut self) -> Figures {
        let mut figures = Figures { sizes: self.sizes(), ..Figures::default() };
        let missed = self.tables.iter().map(|table| {
            let [missed] = counted(&mut self.kernel, &table.wanted, [Why::NeverUndone])?;
            Ok::<u64, NftablesError>(missed)
        });
        match missed.sum() {
            Ok(missed) => figures.missed_lookups = missed,
            Err(error) => figures.errors.push(describe(&error)),
        }
        match clients(&mut self.kernel, self.tables.iter().map(|table| &table.wanted)) {
            Ok(affinity) => figures.affinity = affinity,
            Err(error) => figures.errors.push(describe(&error)),
        }
        figures
    }

    fn sample_drops(&mut self, on: bool) -> bool {
        for table in &mut self.tables {
            table.unknown |= table.wanted.sample_drops(on);
        }
        true
    }

    fn rejected(&self, frontend: &Frontend) -> Vec<String> {
        let tables = self.tables.iter();
        tables.flat_map(|table| table.rejected_at(&frontend.key)).collect()
    }

    /// Everything is programmed at once.
    async fn wait(&mut self) {
        pending().await
    }
}
