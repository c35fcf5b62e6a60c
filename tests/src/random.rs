//! Random worlds: made of decisions that are drawn from a list of proptest's numbers, and played.
//!
//! The decision for 0 is always the plainest, so that proptest, which shrinks numbers towards 0,
//! makes worlds plainer.

use std::fmt::{Debug, Display};
use std::time::{Duration, SystemTime};

use anyhow::{Result, bail};
use proptest::strategy::Strategy;
use proptest::test_runner::{Config, RngSeed, TestCaseError, TestError, TestRunner};

/// Random numbers, used one by one.
#[derive(Debug)]
pub struct Draw<'a> {
    numbers: &'a [u16],
}

impl<'a> Draw<'a> {
    /// From the first of these numbers on.
    pub fn new(numbers: &'a [u16]) -> Self {
        Self { numbers }
    }

    /// A number below `count`.
    pub fn below(&mut self, count: usize) -> usize {
        let (first, rest) = self.numbers.split_first().unwrap_or((&0, &[]));
        self.numbers = rest;
        usize::from(*first) % count
    }

    /// Yes, with this probability in per cent.
    pub fn percent(&mut self, chance: usize) -> bool {
        self.below(100) >= 100 - chance
    }

    /// One element of `of`.
    pub fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    /// At most `most` elements of `of`, in any order, perhaps with repetitions.
    pub fn some<T: Copy>(&mut self, of: &[T], most: usize) -> Vec<T> {
        let count = self.below(most + 1);
        (0..count).map(|_| self.one(of)).collect()
    }

    /// Some elements of `of`, each with this probability in per cent, in order.
    pub fn subset<T: Copy>(&mut self, of: &[T], chance: usize) -> Vec<T> {
        of.iter().filter(|_| self.percent(chance)).copied().collect()
    }
}

/// The seed in `PROPTEST_RNG_SEED`, or a new one.
pub fn seed() -> Result<u64> {
    match Config::default().rng_seed {
        RngSeed::Fixed(seed) => Ok(seed),
        RngSeed::Random => {
            Ok(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_nanos() as u64)
        }
    }
}

/// Runs `count` worlds of a seed. A failure names the seed, and shows a world that was shrunk for
/// at most `shrinking`.
pub fn run<W: Debug + Display>(
    count: u32,
    seed: u64,
    shrinking: Duration,
    worlds: impl Strategy<Value = W>,
    test: impl Fn(&W) -> Result<()>,
) -> Result<()> {
    let config = Config {
        cases: count,
        rng_seed: RngSeed::Fixed(seed),
        max_shrink_time: u32::try_from(shrinking.as_millis())?,
        max_shrink_iters: if shrinking.is_zero() { 0 } else { u32::MAX },
        failure_persistence: None,
        ..Config::default()
    };
    let outcome = TestRunner::new(config).run(&worlds, |world| {
        test(&world).map_err(|error| TestCaseError::fail(format!("{error:#}")))
    });
    match outcome {
        Ok(()) => Ok(()),
        Err(TestError::Fail(why, world)) => bail!("PROPTEST_RNG_SEED={seed}: {why}\n{world}"),
        Err(TestError::Abort(why)) => bail!("PROPTEST_RNG_SEED={seed}: {why}"),
    }
}
