//! Random worlds and random packets in them. Three tell what becomes of each packet, and must
//! agree: `explain`; a naive reader of the rules that `render` prints, which knows nothing of who
//! made them; and a short account of what kube-proxy's nftables mode does, with denizen's
//! differences listed.
//!
//! A failure prints the shrunken world and its seed; `DENIZEN_TEST_SEED=… cargo nextest run -p
//! denizen-tests --test model` plays that world again.

#![allow(clippy::disallowed_methods, reason = "tests read clocks and files; denizen does not")]

mod agent;
mod cluster;
mod compare;
mod draw;
mod expected;
mod found;
mod place;
mod reader;
mod real;
mod sender;
mod services;
mod world;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::{Instant, SystemTime};

use anyhow::{Context, Result, ensure};
use denizen_tests::effort;

use self::agent::Agent;
use self::compare::{compare, fates, remembers};
use self::draw::{numbers, shrunk};
use self::expected::expected;
use self::reader::Reader;
use self::services::Wildness;
use self::world::{NUMBERS, World};

/// Names the only world to play.
const SEED: &str = "DENIZEN_TEST_SEED";

/// Worlds that are played however little time there is.
const WORLDS: u32 = 1000;

#[test]
fn explain_the_rules_and_kube_proxy_agree() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let met = RefCell::new(BTreeMap::new());
    play(|numbers| {
        let world = World::drawn(numbers, Wildness::Any);
        let agent = Agent::new(&world, folder.path())?;
        check(&world, &agent, &met).with_context(|| world.to_string())
    })?;
    let met = met.into_inner();
    let packets: u64 = met.values().sum();
    eprintln!("{packets} packets: {met:#?}");
    // Verdict, masqueraded, from a local pod: all that there are, often enough to mean something.
    assert_eq!(met.len(), 10, "{met:#?}");
    assert!(met.values().all(|count| count * 200 > packets), "{met:#?}");
    Ok(())
}

/// The three agree about a world.
fn agree(world: &World) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let agent = Agent::new(world, folder.path())?;
    check(world, &agent, &Met::default())
}

/// How often each verdict was met, masqueraded or not, for a local pod or another sender.
type Met = RefCell<BTreeMap<(String, bool, bool), u64>>;

fn check(world: &World, agent: &Agent, met: &Met) -> Result<()> {
    let own: Vec<_> = world.addresses.iter().map(|(address, _)| *address).collect();
    let reader = Reader::new(&agent.rules, &own)?;
    for arrival in &world.packets {
        let said = agent.explain(arrival)?;
        let check = || {
            let found = fates(&compare(&reader, arrival, &said)?);
            let (wanted, local) = expected(world, arrival);
            ensure!(said.local == local, "kube-proxy would say: from a local pod: {local}");
            ensure!(found == wanted, "the rules do {found:?}, kube-proxy would do {wanted:?}");
            Ok(())
        };
        check().with_context(|| format!("{arrival:?}\nexplain:\n{said}"))?;
        let key = (format!("{:?}", said.verdict), said.masquerade, said.local);
        *met.borrow_mut().entry(key).or_default() += 1;
    }
    let first = &world.packets[0];
    remembers(world, agent, &reader, first).with_context(|| format!("{first:?}"))
}

/// Plays worlds for as long as tests may take, each of a seed of its own; a failure names the seed,
/// and shows the world shrunk.
fn play(test: impl Fn(&[u16]) -> Result<()>) -> Result<()> {
    let given = std::env::var(SEED).ok();
    let mut seed = match &given {
        Some(seed) => seed.parse().context(SEED)?,
        None => fresh_seed()?,
    };
    let (started, mut played) = (Instant::now(), 0);
    loop {
        let numbers = numbers(seed, NUMBERS);
        if test(&numbers).is_err() {
            let numbers = shrunk(numbers, |numbers| test(numbers).is_err());
            return test(&numbers).with_context(|| format!("{SEED}={seed}"));
        }
        played += 1;
        if given.is_some() || (played >= WORLDS && started.elapsed() >= effort::duration()) {
            eprintln!("{played} worlds in {:?}", started.elapsed());
            return Ok(());
        }
        seed = seed.wrapping_add(1);
    }
}

fn fresh_seed() -> Result<u64> {
    Ok(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_nanos() as u64)
}
