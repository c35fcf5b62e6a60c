//! Who keeps their address: every way to tell this node's pods apart × pods' wiring × who sends ×
//! where to.
//!
//! What each mode takes for a local pod is written down here by reasoning from what the mode looks
//! at ([`MATRIX`]), and what follows for a frontend from Kubernetes' rules
//! ([`frontend::Frontend::expected`]): the program is not asked. Then a packet is sent for every
//! combination, and `explain` is asked about it. Only what arrives counts, and no answer is needed,
//! so that a packet with a borrowed address is seen as well as an honest one.

mod context;
mod frontend;
mod packets;
mod table;

use anyhow::{Context, Result, ensure};
use denizen_tests::agent::{Agent, Settings};
use denizen_tests::flows::table::Backend;

use self::context::MatrixContext;
use self::frontend::{FRONTENDS, KEPT, WITH_EGRESS};
use self::packets::play;
use self::table::{MATRIX, Row};

fn settings(context: &MatrixContext, backend: Backend, mode: &str) -> Settings {
    let flags = backend.flags().into_iter().chain([format!("--detect-local={mode}")]);
    context.fixture.cluster.settings_with(flags)
}

/// One world for each backend, and one agent after another in it: a mode leaves nothing behind for
/// the next.
fn play_rows(label: &str, rows: &[Row]) -> Result<()> {
    for backend in Backend::ALL {
        let context = MatrixContext::new(&format!("{label}-{}", backend as u8))?;
        let node = &context.fixture.cluster.world.node;
        for row in rows {
            let agent = Agent::start(node, settings(&context, backend, row.mode))?;
            play(&context, &agent, row, &FRONTENDS).with_context(|| format!("{backend:?}"))?;
            agent.terminate()?;
        }
    }
    Ok(())
}

#[test]
fn pod_state() -> Result<()> {
    play_rows("matrix-pods", &MATRIX[..2])
}

#[test]
fn bridges() -> Result<()> {
    play_rows("matrix-bridge", &MATRIX[2..5])
}

#[test]
fn prefixes() -> Result<()> {
    play_rows("matrix-prefix", &MATRIX[5..7])
}

#[test]
fn ranges() -> Result<()> {
    play_rows("matrix-cidr", &MATRIX[7..])
}

/// Whoever is taken for a local pod is masqueraded on the way out, in every mode, and nobody else.
fn egress(label: &str, backend: Backend) -> Result<()> {
    let context = MatrixContext::new(label)?;
    let node = &context.fixture.cluster.world.node;
    let file = context.fixture.cluster.run_dir().join("egress.yaml");
    std::fs::write(&file, KEPT)?;
    for row in &MATRIX {
        let mut settings = settings(&context, backend, row.mode);
        let flag = format!("--egress-masquerade-config={}", file.display());
        settings.flags.push(flag);
        let agent = Agent::start(node, settings)?;
        play(&context, &agent, row, &WITH_EGRESS)?;
        agent.terminate()?;
    }
    Ok(())
}

#[test]
fn egress_nftables() -> Result<()> {
    egress("matrix-out", Backend::Nftables)
}

#[test]
fn egress_iptables_legacy() -> Result<()> {
    egress("matrix-out-l", Backend::IptablesLegacy)
}

#[test]
fn egress_iptables_nft() -> Result<()> {
    egress("matrix-out-n", Backend::IptablesNft)
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
        play(&context, &agent, row, &FRONTENDS).with_context(|| format!("{backend:?}"))?;
        let still = node.output("sysctl", &["-n", "net.bridge.bridge-nf-call-iptables"])?;
        ensure!(still.trim() == "0", "the agent set it while this was played");
        agent.terminate()?;
    }
    Ok(())
}
