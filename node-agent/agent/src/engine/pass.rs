//! The result of a pass.

use std::error::Error;

use super::EngineError;
use denizen_backend::Repair;
use denizen_plan::FrontendKey;
use denizen_text::describe;

/// The result of a pass.
#[derive(Debug)]
pub struct Pass<E: Error + 'static> {
    /// What could not be programmed is tried again by the next pass.
    pub result: Result<Progress, EngineError<E>>,
    /// What other programs had changed and the pass has repaired.
    pub drift: Repair,
    /// Frontends whose flows may be stale: their rules were missing for a while, or an earlier run
    /// programmed them and they no longer exist.
    pub stale_frontends: Vec<FrontendKey>,
}

/// How much of the plan is in the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// All that is decided is in the kernel.
    Complete,
    /// A part is in the kernel. [`super::Engine::wait`] completes when programming can go on.
    Continues,
    /// Another program keeps rewriting the same rules. Nothing more is written.
    Contended,
}

/// Why the last pass failed, by part.
#[derive(Debug, Default)]
pub(super) struct Failures {
    pub(super) firewall: Option<String>,
    pub(super) backend: Option<String>,
    pub(super) host_ports: Option<String>,
}

impl Failures {
    /// From the results of the pod firewall, the backend and host ports.
    pub(super) fn of<E: Error + 'static>(results: &[Result<Repair, EngineError<E>>; 3]) -> Self {
        let texts =
            results.each_ref().map(|result| result.as_ref().err().map(|error| describe(error)));
        let [firewall, backend, host_ports] = texts;
        Self { firewall, backend, host_ports }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &String> {
        self.backend.iter().chain(&self.firewall).chain(&self.host_ports)
    }
}
