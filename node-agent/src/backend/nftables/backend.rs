//! nf_tables as the agent sees it: what is wanted comes in, and what came of it goes out.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::num::NonZeroU16;

use ipnetwork::IpNetwork;

use super::client::{clients, counted};
use super::error::NftablesError;
use super::name::{Facts, TableFamily};
use super::sync::{Nftables, Programmed};
use crate::backend::why::Why;
use crate::backend::{Affinity, Backend, Repair, SetSize, Told};
use crate::model::{Egress, PodSet};
use crate::plan::{Detector, Frontend, FrontendKey, NodePortAddresses, NodeSide, Plan};

impl<K> Told for Nftables<K> {
    fn set_pods(&mut self, pods: &PodSet) {
        for table in &mut self.tables {
            table.unknown |= !std::mem::replace(&mut table.known.pods, true);
            table.wanted.change_pods(pods, &mut table.pending);
        }
    }

    fn set_hairpins(&mut self, addresses: &BTreeSet<IpAddr>) {
        for table in &mut self.tables {
            table.wanted.change_hairpins(addresses.iter().copied(), &mut table.pending);
        }
    }

    fn set_health_ports(&mut self, _ports: &BTreeSet<NonZeroU16>) {}

    fn set_node_port_addresses(&mut self, _wanted: &NodePortAddresses, addresses: &[IpAddr]) {
        for table in &mut self.tables {
            table.wanted.change_node_port_addresses(addresses, &mut table.pending);
        }
    }

    fn set_frontends(&mut self, plan: &Plan, keys: &BTreeSet<FrontendKey>) {
        for table in &mut self.tables {
            for key in keys {
                let decided = (*key, plan.frontend(key));
                table.wanted.change_frontends(std::iter::once(decided), &mut table.pending);
                if table.unknown {
                    // What differs will be seen in the kernel. At the start this would hold
                    // everything.
                    table.pending.clear();
                }
            }
        }
    }

    fn set_complete(&mut self) {
        for table in &mut self.tables {
            table.unknown |= !std::mem::replace(&mut table.known.services, true);
        }
    }

    fn set_detector(&mut self, detector: &Detector, ranges: &[IpNetwork]) {
        self.reshape(|table_family, shape| {
            shape.detector = detector.clone();
            shape.ranges = table_family.own(ranges);
        });
    }

    fn set_egress(&mut self, egress: Option<&Egress>) {
        self.reshape(|table_family, shape| {
            shape.egress = match table_family {
                TableFamily::Ip(family) => egress
                    .filter(|egress| egress.covers(family))
                    .map(|egress| egress.kept(family).collect()),
                TableFamily::Bridge => None,
            };
        });
    }

    fn set_node_side(&mut self, node_side: &NodeSide) {
        self.reshape(|_, shape| shape.node_side = *node_side);
    }

    fn set_service_ranges(&mut self, ranges: &[IpNetwork]) {
        self.reshape(|table_family, shape| shape.service_ranges = table_family.own(ranges));
    }
}

impl Backend for Nftables {
    type Error = NftablesError;

    /// As the trait says; of several tables with errors the first one's is returned.
    fn sync(&mut self) -> Result<Repair, NftablesError> {
        let mut repairs = Repair::default();
        let mut result = Ok(());
        for table in &mut self.tables {
            let done = if table.is_wanted() {
                table.program(&mut self.kernel)
            } else if result.is_ok() {
                table.remove(&mut self.kernel)
            } else {
                // Those that read what it tells are still there.
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
            // Reading is dear: the kernel counts from the first element for every piece that it
            // hands out.
            let is_right = table.looked.is_some_and(|mark| kernel.is_undisturbed(mark));
            table.unknown |= !is_right;
        }
        self.sync()
    }

    fn sizes(&self) -> Vec<SetSize> {
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

    fn left_frontends(&mut self) -> Vec<FrontendKey> {
        let tables = self.tables.iter_mut();
        tables.flat_map(|table| std::mem::take(&mut table.left_frontends)).collect()
    }

    fn rejected(&self, frontend: &Frontend) -> Vec<String> {
        let tables = self.tables.iter();
        tables.flat_map(|table| table.rejected_at(&frontend.key)).collect()
    }

    fn has_pods(&self) -> bool {
        let mut wanted = self.tables.iter().filter(|table| table.is_wanted());
        wanted.all(|table| table.known.pods && !table.unknown && table.pending.is_empty())
    }

    fn missed_lookups(&mut self) -> Result<u64, NftablesError> {
        let looked = self.tables.iter().map(|table| {
            let [missed] = counted(&mut self.kernel, &table.wanted, [Why::NeverUndone])?;
            Ok(missed)
        });
        looked.sum()
    }

    fn affinity(&mut self) -> Result<Affinity, NftablesError> {
        clients(&mut self.kernel, self.tables.iter().map(|table| &table.wanted))
    }
}
