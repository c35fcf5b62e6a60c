//! Removal of the previous backend's rules, tried again until it is done.

use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use thiserror::Error;
use tracing::{info, warn};

use super::iptables;
use super::owner::Owner;
use crate::BackendName;
use crate::chosen::ChosenError;
use crate::forward::{self, ForwardError};
use crate::iptables::IptablesError;
use denizen_iptables::Variant;
use denizen_text::describe;

/// The pause between two attempts. An operator, or the end of another program, must remove the
/// cause.
const RETRY: Duration = Duration::from_secs(60);

/// A thread that removes the previous backend's rules. The process waits for it before it ends: a
/// program that the thread has started would go on, and remove the next agent's rules.
type Removal = JoinHandle<Result<(), LeftError>>;

/// Why rules are left.
#[derive(Debug, Error)]
enum LeftError {
    /// Tables of nf_tables are left.
    #[error(transparent)]
    Tables(#[from] ChosenError),
    /// Chains of iptables are left.
    #[error(transparent)]
    Chains(#[from] IptablesError),
    /// Rules in other firewalls' chains are left.
    #[error(transparent)]
    Forward(#[from] ForwardError),
}

/// Removes denizen's chains from the variant of iptables that is not `used`, or from both.
fn remove_other_chains(used: Option<Variant>) -> Result<(), IptablesError> {
    let (what, count) = match used {
        Some(used) => (
            "the chains in the other variant's tables are removed",
            iptables::cleanup_other_than(used)?,
        ),
        None if iptables::was_here() => {
            ("the iptables backend's chains are removed", iptables::cleanup(Owner::Denizen)?)
        }
        None => return Ok(()),
    };
    if count > 0 {
        info!(count, "{what}");
    }
    Ok(())
}

/// The state of the removal.
#[derive(Debug)]
pub struct Predecessor {
    /// The backend that replaces it.
    successor: BackendName,
    attempt: Attempt,
    problem: Option<String>,
}

#[derive(Debug, Default)]
enum Attempt {
    /// This backend's rules are not all in the kernel yet, so the other's still serve.
    #[default]
    NotYet,
    Running(Removal),
    Failed {
        at: Instant,
    },
    Done,
}

impl Predecessor {
    /// For an agent with this backend.
    pub fn of(successor: BackendName) -> Self {
        Self { successor, attempt: Attempt::default(), problem: None }
    }

    /// Continues the removal, once this backend's rules are all in the kernel (`is_synced`).
    /// `remove_tables`:
    /// [`Chosen::remove_other_tables`](crate::chosen::Chosen::remove_other_tables).
    pub fn remove(
        &mut self,
        is_synced: bool,
        remove_tables: impl FnOnce() -> Result<Option<Variant>, ChosenError>,
        now: Instant,
    ) {
        self.poll(now);
        let is_due = match &self.attempt {
            Attempt::NotYet => is_synced,
            Attempt::Failed { at } => now.saturating_duration_since(*at) >= RETRY,
            Attempt::Running(_) | Attempt::Done => false,
        };
        if is_due {
            let (used, successor) = (remove_tables(), self.successor);
            let removal = move || {
                remove_other_chains(used?)?;
                match successor {
                    // The task that inspects other firewalls' chains keeps or removes our rules in
                    // them.
                    BackendName::Nftables | BackendName::Iptables | BackendName::Ipvs => {}
                    BackendName::None => drop(forward::cleanup()?),
                }
                Ok(())
            };
            self.attempt = Attempt::Running(thread::spawn(removal));
        }
    }

    /// Why rules are left; `None` if none are, or the attempt still runs.
    pub fn problem(&mut self, now: Instant) -> Option<&str> {
        self.poll(now);
        self.problem.as_deref()
    }

    /// Waits for a removal that has begun.
    pub fn wait(&mut self) {
        if let Attempt::Running(removal) = std::mem::take(&mut self.attempt) {
            // A panic ends it too.
            let _ = removal.join();
        }
    }

    fn poll(&mut self, now: Instant) {
        let is_over = matches!(&self.attempt, Attempt::Running(removal) if removal.is_finished());
        if is_over && let Attempt::Running(removal) = std::mem::take(&mut self.attempt) {
            self.take(removal, now);
        }
    }

    fn take(&mut self, removal: Removal, now: Instant) {
        let error = match removal.join() {
            Ok(Ok(())) => {
                (self.attempt, self.problem) = (Attempt::Done, None);
                return;
            }
            Ok(Err(error)) => describe(&error),
            Err(_) => "the removal panicked; the log says where".to_owned(),
        };
        let problem = format!(
            "rules of the previous backend are still there and may send connections to endpoints \
             that are gone: {error} (to remove them, start the agent once with NET_ADMIN and \
             NET_RAW, or stop it and run `denizen-agent cleanup` on the node)"
        );
        if self.problem.as_ref() != Some(&problem) {
            warn!(
                problem,
                "cannot remove the rules of the previous backend; retrying every minute"
            );
        }
        (self.attempt, self.problem) = (Attempt::Failed { at: now }, Some(problem));
    }
}
