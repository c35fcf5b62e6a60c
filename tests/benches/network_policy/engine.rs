//! The agent's own plan and firewall, without the agent around them.

use std::time::{Duration, Instant};

use denizen_backend::firewall::Firewall;
use denizen_model::Event;
use denizen_nft::Kernel;
use denizen_plan::{
    Capabilities, Detector, FirewallSettings, NodePortAddresses, NodeSide, PermittedRanges,
    Planner, Policy, Scheduler, Settings,
};

/// What a change took.
#[derive(Debug, Clone, Copy)]
pub struct Cost {
    /// From the fact to the kernel's acknowledgement.
    pub whole: Duration,
    /// The part of it that was spent writing to the kernel.
    pub written: Duration,
}

/// A plan, and the tables in this thread's network namespace.
pub struct Engine {
    pub planner: Planner,
    pub firewall: Firewall,
}

impl Engine {
    /// Without any facts.
    pub fn new() -> Self {
        let policy = Policy {
            settings: Settings {
                node_name: "node-1".into(),
                masquerade_all: false,
                node_hints: true,
                permitted: PermittedRanges::default(),
            },
            detector: Detector::default(),
            node_ports: NodePortAddresses::Primary,
            node_side: NodeSide::default(),
            services: true,
            pod_ranges: Vec::new(),
            firewall: Some(FirewallSettings::default()),
            host_ports: None,
            scheduler: Scheduler::default(),
        };
        let able = Capabilities {
            unused_addresses: true,
            guards_loopback_first: true,
            restricts_first: true,
            balances_by_ipvs: false,
        };
        Self { planner: Planner::new(policy, able), firewall: firewall() }
    }

    /// Takes facts in, decides, and programs.
    pub fn change(&mut self, events: Vec<Event>) -> Cost {
        let begun = Instant::now();
        self.planner.apply(events);
        let changes = self.planner.update();
        self.firewall.update(self.planner.plan(), &changes);
        let decided = Instant::now();
        self.firewall.sync(self.planner.plan()).expect("the kernel takes it");
        Cost { whole: begun.elapsed(), written: decided.elapsed() }
    }

    /// A resync: reads what the kernel holds if another program may have changed it.
    pub fn resync(&mut self, is_disturbed: bool) -> Duration {
        if is_disturbed {
            self.firewall.note_foreign_change();
        }
        let begun = Instant::now();
        self.firewall.resync(self.planner.plan()).expect("the kernel answers");
        begun.elapsed()
    }
}

/// The firewall for this thread's network namespace. No table is written yet.
pub fn firewall() -> Firewall {
    Firewall::new(Kernel::open().expect("netlink, as root"))
}
