//! Shows dropped packets while a command watches them.

#![expect(clippy::disallowed_methods, reason = "the loop has the clock")]

use std::future::pending;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until};

use super::Agent;
use crate::control::Sampled;

/// A command that watches asks again before this is over. If it ends, however it ends, the rules go
/// that show packets.
const FOR: Duration = Duration::from_secs(5);

/// Until when packets are shown.
#[derive(Debug, Default)]
pub(super) struct Sampling {
    until: Option<Instant>,
}

impl Sampling {
    /// Returns when nobody has asked for long enough; never while packets are not shown.
    pub(super) async fn expired(&self) {
        match self.until {
            Some(until) => sleep_until(until).await,
            None => pending().await,
        }
    }
}

impl Agent {
    /// Shows packets from now on. Returns the answer, and whether programming succeeded, if there
    /// was anything to program.
    pub(super) fn sample(&mut self) -> (Value, Option<bool>) {
        let sampled = self.engine.sample_drops(true);
        let Sampled { services, network_policies } = sampled;
        if !services && !network_policies {
            let error = "no rule of this agent's in nf_tables drops packets: services are not in \
                         nf_tables (--backend), and NetworkPolicies are not enforced here";
            return (json!({ "error": error }), None);
        }
        let is_new = self.sampling.until.is_none();
        let programmed = is_new.then(|| self.program(false));
        self.sampling.until = Some(Instant::now() + FOR);
        (json!(sampled), programmed)
    }

    /// Removes the rules that show packets, before the agent ends.
    pub(super) fn leave_no_samples(&mut self) {
        if self.sampling.until.is_some() {
            self.end_sampling();
        }
    }

    /// Removes the rules that show packets.
    pub(super) fn end_sampling(&mut self) -> bool {
        self.sampling.until = None;
        self.engine.sample_drops(false);
        self.program(false)
    }
}
