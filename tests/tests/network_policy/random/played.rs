//! Random policies for the nine pods, with packets of every kind between all of them.

use std::cell::{Cell, RefCell};
use std::ops::RangeInclusive;
use std::time::Duration;

use anyhow::Result;
use denizen_tests::policy::PolicyWorld;
use denizen_tests::random::{self, Draw};
use denizen_tests::test_length;
use proptest::collection::vec;
use proptest::prelude::any;
use proptest::strategy::Strategy;

use super::{A_POLICY, Cluster, addresses, container, labels, policies};
use crate::across;
use crate::packets::half;
use crate::play::{Play, Via};

/// What decides about the labels of three namespaces and the labels and ports of nine pods.
const ALL_LABELS: usize = 150;

/// The pods and namespaces that there are, with random labels, ports and so many policies.
pub fn worlds(there: PolicyWorld, count: RangeInclusive<usize>) -> impl Strategy<Value = Cluster> {
    let policies = vec(vec(any::<u16>(), A_POLICY), count);
    (vec(any::<u16>(), ALL_LABELS), policies).prop_map(move |(numbers, policies)| {
        let mut world = there.clone();
        let draw = &mut Draw::new(&numbers);
        for namespace in &mut world.namespaces {
            namespace.metadata.labels = labels(draw);
        }
        for pod in &mut world.pods {
            pod.metadata.labels = labels(draw);
            pod.spec.containers = vec![container(draw, None)];
        }
        let addresses = addresses(&world);
        for (number, numbers) in policies.iter().enumerate() {
            world.policies.push(policies::policy(&mut Draw::new(numbers), number, &addresses));
        }
        Cluster(world)
    })
}

/// Worlds that are the same in every run, and as many that are not.
#[test]
fn packets_and_explain_do_what_the_oracle_says() -> Result<()> {
    let (play, world) = Play::new("random", half)?;
    let workstation = across::real(&play, &world)?;
    let (play, number) = (RefCell::new(play), Cell::new(0));
    let count = u32::try_from(test_length::times(50, 6))?;
    for seed in [1, random::seed()?] {
        // Each try of a plainer world would take as long as a world.
        random::run(
            count,
            seed,
            Duration::ZERO,
            worlds(world.clone(), 1..=6),
            |Cluster(world)| {
                play.borrow_mut().verify(world, &[Via::PodIp, Via::ClusterIp])?;
                number.set(number.get() + 1);
                across::agrees(&workstation, world, number.get())
            },
        )?;
    }
    Ok(())
}
