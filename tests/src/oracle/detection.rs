//! Which senders keep their address: every mode of local detection × the pods' wiring × the sender
//! × the destination.
//!
//! Which senders each mode takes for local pods is written down here by reasoning from what the
//! mode looks at ([`MATRIX`]), and what follows for a frontend from Kubernetes' rules
//! ([`Frontend::expected`]): the program is not asked. Then a packet is sent for every combination,
//! and `explain` is asked about it. Only what arrives counts, and no answer is needed, so a packet
//! with a borrowed address can be observed as well as an honest one.

mod context;
mod frontend;
mod packets;
mod table;

use anyhow::{Context, Result};

use crate::agent::{Agent, Settings};
use crate::oracle::flows::table::Backend;

pub use self::context::MatrixContext;
pub use self::frontend::{FRONTENDS, Frontend, KEPT, Seen, WITH_EGRESS};
pub use self::packets::{CheckedPackets, check_row};
pub use self::table::{DetectedSender, MATRIX, Row, SENDERS};

/// The settings of an agent with this mode.
pub fn settings(context: &MatrixContext, backend: Backend, mode: &str) -> Settings {
    let flags = backend.flags().into_iter().chain([format!("--detect-local={mode}")]);
    context.fixture.cluster.settings_with(flags)
}

/// Checks these rows in one world, with one agent after another: no mode leaves anything behind for
/// the next one.
pub fn check_rows(label: &str, backend: Backend, rows: &[Row]) -> Result<CheckedPackets> {
    let context = MatrixContext::new(label)?;
    let node = &context.fixture.cluster.world.node;
    let mut sum = CheckedPackets::default();
    for row in rows {
        let agent = Agent::start(node, settings(&context, backend, row.mode))?;
        let result = check_row(&context, &agent, row, &FRONTENDS);
        sum.add(result.with_context(|| format!("{backend:?}"))?);
        agent.terminate()?;
    }
    Ok(sum)
}

/// Checks these rows with egress masquerade configured: in every mode, exactly the senders that are
/// taken for local pods are masqueraded on the way out.
pub fn check_egress(label: &str, backend: Backend, rows: &[Row]) -> Result<CheckedPackets> {
    let context = MatrixContext::new(label)?;
    let node = &context.fixture.cluster.world.node;
    let file = context.fixture.cluster.run_dir().join("egress.yaml");
    std::fs::write(&file, KEPT)?;
    let mut sum = CheckedPackets::default();
    for row in rows {
        let mut settings = settings(&context, backend, row.mode);
        settings.flags.push(format!("--egress-masquerade-config={}", file.display()));
        let agent = Agent::start(node, settings)?;
        sum.add(check_row(&context, &agent, row, &WITH_EGRESS)?);
        agent.terminate()?;
    }
    Ok(sum)
}
