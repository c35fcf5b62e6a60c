//! The suite between real pods, bridged and routed ones, on two nodes.

use anyhow::Result;
use denizen_tests::policy::{PolicyPacket, PolicyWorld, allowed};

use super::houses::{container, labels_of, namespaces};
use super::{HOUSES, Judge, TESTS};
use crate::play::{Play, Way};

/// Every pod asks every other one at both ports of each protocol, and `explain` is asked too. The
/// oracle says what is expected: of what the suite asks, it says what the suite says.
struct Packets {
    play: Play,
    world: PolicyWorld,
}

impl Packets {
    /// Pod 0 of each house is on the first node. G and H are bridged, S and R are routed.
    fn new() -> Result<Self> {
        let names = ["g", "s", "h", "r"].map(|house| [(house, "pod-0"), (house, "pod-1")]);
        let (play, mut world) = Play::few("cnp-suite", &names.concat())?;
        world.namespaces = namespaces();
        let houses = HOUSES.into_iter().flat_map(|house| [house, house]);
        for (pod, house) in world.pods.iter_mut().zip(houses) {
            pod.metadata.labels = labels_of(house);
            pod.spec.containers = vec![container()];
        }
        Ok(Self { play, world })
    }
}

impl Judge for Packets {
    fn world(&self) -> PolicyWorld {
        self.world.clone()
    }

    fn judge(
        &mut self,
        world: &PolicyWorld,
        expected: &[(PolicyPacket, bool)],
    ) -> Result<Vec<String>> {
        self.play.judge(world, &[Way::PodIp])?;
        let wrong = expected.iter().filter(|(packet, passes)| allowed(world, *packet) != *passes);
        Ok(wrong.map(|(packet, passes)| format!("{packet:?} passes: {}", !passes)).collect())
    }
}

#[test]
fn twenty_two_tests_with_packets() -> Result<()> {
    let mut packets = Packets::new()?;
    TESTS.into_iter().try_for_each(|test| test(&mut packets))
}
