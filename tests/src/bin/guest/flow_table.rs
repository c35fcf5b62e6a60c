//! The flow table and the detection matrix, which hold for ipvs as they do for nftables.

use anyhow::{Result, ensure};
use denizen_tests::node::pod::Wiring;
use denizen_tests::oracle::detection::{CheckedPackets, MATRIX, check_egress, check_rows};
use denizen_tests::oracle::flows::run_cases;
use denizen_tests::oracle::flows::table::{self, Backend, FlowCase};
use denizen_tests::test_length::in_full;

pub(crate) fn flows() -> Result<()> {
    let table = table::cases(Backend::Ipvs)?;
    for (first, wiring) in [Wiring::Bridged, Wiring::Routed].into_iter().enumerate() {
        // Unless tests run in full length, the pods of every other case are bridged, and those of
        // the rest are routed. With the other backends, each case is played with both.
        let cases = table.iter().skip(in_full(0, first)).step_by(in_full(1, 2));
        let cases: Vec<FlowCase> = cases.cloned().collect();
        let by_ipvs = run_cases(&cases, Backend::Ipvs, wiring)?;
        let packets: usize = cases.iter().map(|case| case.flows.len()).sum();
        let cases = cases.len();
        println!("  {cases} cases, {packets} packets, IPVS took {by_ipvs} connections");
        ensure!(by_ipvs > 0, "IPVS took nothing");
    }
    Ok(())
}

pub(crate) fn detection() -> Result<()> {
    let CheckedPackets { packets, by_ipvs } = check_rows("matrix", Backend::Ipvs, &MATRIX)?;
    println!("  {} rows, {packets} packets, IPVS took {by_ipvs}", MATRIX.len());
    ensure!(by_ipvs > 0, "IPVS took nothing");
    let rows = &MATRIX[..in_full(MATRIX.len(), 1)];
    let CheckedPackets { packets, .. } = check_egress("matrix-out", Backend::Ipvs, rows)?;
    println!("  with egress masquerade: {} rows, {packets} packets", rows.len());
    Ok(())
}
