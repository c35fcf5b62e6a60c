//! The matrix of who keeps their address, by every backend that this kernel has: see
//! [`denizen_tests::oracle::detection`].

use anyhow::{Context, Result, ensure};
use denizen_tests::agent::Agent;
use denizen_tests::oracle::detection::{
    FRONTENDS, MATRIX, MatrixContext, Row, check_egress, check_row, check_rows, settings,
};
use denizen_tests::oracle::flows::table::Backend;

fn by_every_backend(label: &str, rows: &[Row]) -> Result<()> {
    for backend in Backend::ALL {
        check_rows(&format!("{label}-{}", backend as u8), backend, rows)?;
    }
    Ok(())
}

#[test]
fn pod_state() -> Result<()> {
    by_every_backend("matrix-pods", &MATRIX[..2])
}

#[test]
fn bridges() -> Result<()> {
    by_every_backend("matrix-bridge", &MATRIX[2..5])
}

#[test]
fn prefixes() -> Result<()> {
    by_every_backend("matrix-prefix", &MATRIX[5..7])
}

#[test]
fn ranges() -> Result<()> {
    by_every_backend("matrix-cidr", &MATRIX[7..])
}

#[test]
fn egress_nftables() -> Result<()> {
    check_egress("matrix-out", Backend::Nftables, &MATRIX).map(drop)
}

#[test]
fn egress_iptables_legacy() -> Result<()> {
    check_egress("matrix-out-l", Backend::IptablesLegacy, &MATRIX).map(drop)
}

#[test]
fn egress_iptables_nft() -> Result<()> {
    check_egress("matrix-out-n", Backend::IptablesNft, &MATRIX).map(drop)
}

/// nf_tables' bridge family knows the port whether or not bridged packets pass the IP hooks.
#[test]
fn ports_are_known_without_bridge_netfilter() -> Result<()> {
    let context = MatrixContext::new("matrix-nocall")?;
    let node = &context.fixture.cluster.world.node;
    let by_port = MATRIX.iter().filter(|row| row.mode.contains("port"));
    let all = by_port.flat_map(|row| Backend::ALL.map(|backend| (row, backend)));
    // Of iptables' own, physdev needs them to pass.
    for (row, backend) in
        all.filter(|(row, backend)| row.mode != "bridge-port" || *backend == Backend::Nftables)
    {
        let agent = Agent::start(node, settings(&context, backend, row.mode))?;
        for tables in ["iptables", "ip6tables"] {
            node.sysctl(&format!("net.bridge.bridge-nf-call-{tables}"), "0")?;
        }
        check_row(&context, &agent, row, &FRONTENDS).with_context(|| format!("{backend:?}"))?;
        let still = node.output("sysctl", &["-n", "net.bridge.bridge-nf-call-iptables"])?;
        ensure!(still.trim() == "0", "the agent set it while this was played");
        agent.terminate()?;
    }
    Ok(())
}
