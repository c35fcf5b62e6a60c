//! Sampling of dropped packets: additional rules have the kernel report them while a command
//! watches.

#![expect(clippy::disallowed_methods, reason = "the loop has the clock")]

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::if_on;
use crate::control::Sampled;
use crate::engine::Engine;

/// How long one request has packets sampled. A command that watches repeats its request earlier.
/// This long after the last request the sampling rules are removed, however the command ended.
const SAMPLE_DURATION: Duration = Duration::from_secs(5);

/// Until when packets are sampled.
#[derive(Debug, Default)]
pub(super) struct Sampling {
    until: Option<Instant>,
}

impl Sampling {
    /// Completes when no request has come for [`SAMPLE_DURATION`]; never while packets are not
    /// sampled.
    pub(super) async fn due(&self) {
        if_on(self.until.map(sleep_until)).await
    }

    /// Begins or extends sampling. Returns which drops are sampled, and whether a pass must program
    /// the sampling rules; `None` if no rule in nf_tables drops packets.
    pub(super) fn begin(&mut self, engine: &mut Engine) -> Option<(Sampled, bool)> {
        let sampled = engine.sample_drops(true);
        if !sampled.services && !sampled.network_policies {
            return None;
        }
        let is_new = self.until.replace(Instant::now() + SAMPLE_DURATION).is_none();
        Some((sampled, is_new))
    }

    /// Ends sampling. Returns whether it was on; then a pass must remove the sampling rules.
    pub(super) fn end(&mut self, engine: &mut Engine) -> bool {
        let was_on = self.until.take().is_some();
        engine.sample_drops(false);
        was_on
    }
}
