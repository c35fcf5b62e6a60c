//! What the agents of both nodes make of a packet: by their plans, and by their rules as they are
//! read.

mod interpreted;
mod planned;

use anyhow::{Result, ensure};
use denizen_model::Event;
use denizen_tests::policy::{PolicyPacket, PolicyWorld, allowed};
use tempfile::TempDir;

pub use self::interpreted::Interpreted;

pub use self::planned::{Planned, at_once};

/// Both nodes of a world.
#[derive(Debug)]
pub struct EvaluatedWorld<'a> {
    world: &'a PolicyWorld,
    nodes: Vec<(Planned, Interpreted)>,
    _folder: TempDir,
}

impl<'a> EvaluatedWorld<'a> {
    pub fn new(world: &'a PolicyWorld) -> Result<Self> {
        Self::in_order(world, at_once)
    }

    /// The same, where each node's facts come in this order, and are decided about after each part.
    pub fn in_order(
        world: &'a PolicyWorld,
        order: impl Fn(Vec<Event>) -> Vec<Vec<Event>>,
    ) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let node = |name: &str| {
            let planned = Planned::new(world, name, folder.path(), &order)?;
            let rules = Interpreted::new(world, name, &planned.rules())?;
            Ok((planned, rules))
        };
        let nodes = world.nodes.iter().map(|own| node(&own.name)).collect::<Result<_>>()?;
        Ok(Self { world, nodes, _folder: folder })
    }

    /// Whether a packet passes both nodes, about which all must agree: the oracle, the plans, and
    /// their rules. What is permitted once passes in any case.
    pub fn passes(&self, packet: PolicyPacket) -> Result<bool> {
        let mut passes = true;
        for (planned, rules) in &self.nodes {
            let (output, this) = (planned.passes(packet)?, rules.passes(packet)?);
            let agree = output.is_none_or(|output| output == this);
            ensure!(agree, "{packet:?}: the plan says {output:?}, its rules do {this}");
            ensure!(this || rules.passes_established(packet)?, "{packet:?}, established");
            passes &= this;
        }
        let allowed = allowed(self.world, packet);
        ensure!(passes == allowed, "{packet:?}: the oracle says {allowed}");
        Ok(passes)
    }

    /// No pod's packets come in with another's address.
    pub fn drop_forged(&self) -> Result<()> {
        self.nodes.iter().try_for_each(|(_, rules)| rules.drops_forged(self.world))
    }

    /// What both nodes render.
    pub fn rules(&self) -> impl Iterator<Item = String> {
        self.nodes.iter().map(|(planned, _)| planned.rules())
    }
}
