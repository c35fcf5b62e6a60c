//! Shows dropped packets while a command watches them.

#![expect(clippy::disallowed_methods, reason = "the loop has the clock")]

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::if_on;
use crate::control::Sampled;
use crate::engine::Engine;

/// How long one request shows packets. A command that watches repeats it earlier; after the last
/// one the rules that show packets are removed, however the command ended.
const FOR: Duration = Duration::from_secs(5);

/// Until when packets are shown.
#[derive(Debug, Default)]
pub(super) struct Sampling {
    until: Option<Instant>,
}

impl Sampling {
    /// Returns when nobody has asked for long enough; never while packets are not shown.
    pub(super) async fn due(&self) {
        if_on(self.until.map(sleep_until)).await
    }

    /// Shows packets from now on. Returns whose, and whether a pass must program that; `None` if no
    /// rule in nf_tables drops packets.
    pub(super) fn begin(&mut self, engine: &mut Engine) -> Option<(Sampled, bool)> {
        let sampled = engine.sample_drops(true);
        if !sampled.services && !sampled.network_policies {
            return None;
        }
        let is_new = self.until.replace(Instant::now() + FOR).is_none();
        Some((sampled, is_new))
    }

    /// Ends it. Returns whether packets were shown; then a pass must program the change.
    pub(super) fn end(&mut self, engine: &mut Engine) -> bool {
        let was_on = self.until.take().is_some();
        engine.sample_drops(false);
        was_on
    }
}
