//! The flow table and the detection matrix, which hold for ipvs as they do for nftables.

use std::cmp::Reverse;

use anyhow::{Result, ensure};
use denizen_tests::effort::times;
use denizen_tests::flows::play;
use denizen_tests::flows::table::{self, Backend, Case};
use denizen_tests::matrix::{MATRIX, Played, play_egress, play_rows};
use denizen_tests::pod::Wiring;

/// How many cases are played at least. What a case costs is its node and its agent, a second of the
/// guest's time; a packet costs a fourteenth of that. So those with the most packets come first.
const CASES: usize = 4;

/// How many rows of the matrix are played at least. A row takes five seconds of the guest's time.
const ROWS: usize = 1;

/// Every case with one wiring, those with the most packets first; then each with the other one.
fn in_turn(mut cases: Vec<Case>) -> Vec<(Case, Wiring)> {
    cases.sort_by_key(|case| Reverse(case.flows.len()));
    let turns = [[Wiring::Bridged, Wiring::Routed], [Wiring::Routed, Wiring::Bridged]];
    let wired = |turn: [Wiring; 2]| cases.iter().cloned().zip(turn.into_iter().cycle());
    turns.into_iter().flat_map(wired).collect()
}

pub(crate) fn flows() -> Result<()> {
    let all = in_turn(table::cases(Backend::Ipvs)?);
    let packets =
        |of: &[(Case, Wiring)]| of.iter().map(|(case, _)| case.flows.len()).sum::<usize>();
    let chosen = &all[..times(all.len(), CASES)];
    let mut by_ipvs = 0;
    for (case, wiring) in chosen {
        by_ipvs += play(case, Backend::Ipvs, *wiring)?;
    }
    println!(
        "  {} of {} cases, {} of {} packets; IPVS took {by_ipvs} connections",
        chosen.len(),
        all.len(),
        packets(chosen),
        packets(&all),
    );
    ensure!(chosen.len() >= CASES && by_ipvs > 0, "IPVS took nothing");
    Ok(())
}

pub(crate) fn detection() -> Result<()> {
    let rows = &MATRIX[..times(MATRIX.len(), ROWS)];
    let Played { packets, by_ipvs } = play_rows("matrix", Backend::Ipvs, rows)?;
    println!("  {} of {} rows, {packets} packets, IPVS took {by_ipvs}", rows.len(), MATRIX.len());
    ensure!(rows.len() >= ROWS && by_ipvs > 0, "IPVS took nothing");
    let rows = &MATRIX[..times(MATRIX.len(), 0)];
    if !rows.is_empty() {
        let played = play_egress("matrix-out", Backend::Ipvs, rows)?;
        println!("  with egress masquerade: {} rows, {played:?}", rows.len());
    }
    Ok(())
}
