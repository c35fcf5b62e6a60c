//! Random worlds and random packets in them. Three tell what becomes of each packet, and must
//! agree: `explain`; a naive reader of the rules that `render` prints, which knows nothing of who
//! made them; and a short account of what kube-proxy's nftables mode does, with denizen's
//! differences listed.
//!
//! A failure prints the shrunken world and a seed; `PROPTEST_RNG_SEED=… cargo nextest run -p
//! denizen-tests --test model` plays the same worlds again.

#![allow(clippy::disallowed_methods, reason = "tests read clocks and files; denizen does not")]

mod agent;
mod cluster;
mod compare;
mod expected;
mod found;
mod place;
mod real;
mod sender;
mod services;
mod world;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use denizen_tests::random::{run, seed};
use denizen_tests::test_length;

use self::agent::Agent;
use self::compare::{compare, fates, remembers};
use self::expected::expected;
use self::services::Wildness;
use self::world::{World, worlds};
use denizen_tests::oracle::reader::Reader;

/// Worlds that are played at a time, and however little time there is.
const WORLDS: u32 = 200;

/// Rounds of worlds at most, if there is little time: a rare verdict may be missing in one.
const MOST_ROUNDS: u64 = 5;

/// All that there are, masqueraded or not, for a local pod or another sender.
const VERDICTS: usize = 12;

/// How long a world that fails is made plainer.
const SHRINKING: Duration = Duration::from_secs(60);

#[test]
fn explain_the_rules_and_kube_proxy_agree() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let met = RefCell::new(BTreeMap::new());
    let (started, first) = (Instant::now(), seed()?);
    for round in 0.. {
        let is_over = round > 0 && started.elapsed() >= test_length::duration();
        if is_over && (is_enough(&met.borrow()) || round >= MOST_ROUNDS) {
            eprintln!("{} worlds in {:?}", round * u64::from(WORLDS), started.elapsed());
            break;
        }
        run(WORLDS, first.wrapping_add(round), SHRINKING, worlds(Wildness::Any), |world| {
            check(world, &Agent::new(world, folder.path())?, &met)
        })?;
    }
    let met = met.into_inner();
    assert!(is_enough(&met), "{met:#?}");
    eprintln!("{} packets: {met:#?}", met.values().sum::<u64>());
    Ok(())
}

/// Whether every verdict was met that there is, often enough to mean something.
fn is_enough(met: &Verdicts) -> bool {
    let packets: u64 = met.values().sum();
    met.len() == VERDICTS && met.values().all(|count| count * 2000 > packets)
}

/// The three agree about a world.
fn agree(world: &World) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let agent = Agent::new(world, folder.path())?;
    check(world, &agent, &Met::default())
}

/// How often each verdict was met, masqueraded or not, for a local pod or another sender.
type Verdicts = BTreeMap<(String, bool, bool), u64>;
type Met = RefCell<Verdicts>;

fn check(world: &World, agent: &Agent, met: &Met) -> Result<()> {
    let own: Vec<_> = world.addresses.iter().map(|(address, _)| *address).collect();
    let reader = Reader::new(&agent.rules, &own)?;
    for arrival in &world.packets {
        let output = agent.explain(arrival)?;
        let check = || {
            let found = fates(&compare(&reader, arrival, &output)?);
            let (wanted, local) = expected(world, arrival);
            ensure!(output.local == local, "kube-proxy would say: from a local pod: {local}");
            ensure!(found == wanted, "the rules do {found:?}, kube-proxy would do {wanted:?}");
            Ok(())
        };
        check().with_context(|| format!("{arrival:?}\nexplain:\n{output}"))?;
        let key = (format!("{:?}", output.verdict), output.masquerade, output.local);
        *met.borrow_mut().entry(key).or_default() += 1;
    }
    let first = &world.packets[0];
    remembers(world, agent, &reader, first).with_context(|| format!("{first:?}"))
}
