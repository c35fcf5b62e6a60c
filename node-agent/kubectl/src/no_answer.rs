//! Why a node did not answer.

use std::time::Duration;

use serde::Serialize;

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NoAnswer {
    /// For scripts.
    pub code: &'static str,
    pub reason: String,
}

impl NoAnswer {
    pub const NO_AGENT: &str = "no-agent";
    pub const NOT_RUNNING: &str = "not-running";
    pub const FORBIDDEN: &str = "forbidden";
    pub const TIMED_OUT: &str = "timed-out";
    pub const CUT_OFF: &str = "cut-off";
    pub const FAILED: &str = "failed";

    pub fn new(code: &'static str, reason: impl Into<String>) -> Self {
        Self { code, reason: reason.into() }
    }

    /// Appends to the reason.
    pub fn and(mut self, more: &str) -> Self {
        self.reason.push_str(more);
        self
    }

    pub fn timed_out(what: &str, limit: Duration) -> Self {
        Self::new(Self::TIMED_OUT, format!("{what} within {limit:?}"))
    }
}
