//! The verbs.

pub mod bundle;
pub mod check;
pub mod connections;
pub mod drops;
pub mod explain;
pub mod impact;
mod node_drops;
pub mod policies;
pub mod refused;
pub mod services;
pub mod status;
pub mod test;
pub mod trace;
pub mod ui;

use serde::de::DeserializeOwned;

use crate::no_answer::NoAnswer;
use crate::session::Answers;

/// Reads the only answer. If it is missing or cannot be read, that is a failure of this node.
fn only<T: DeserializeOwned>(answers: Answers) -> Result<T, NoAnswer> {
    let failed = |why: String| NoAnswer::new(NoAnswer::FAILED, why);
    let answer = answers.answers.into_iter().next();
    let answer =
        answer.ok_or_else(|| failed("the agent sent no answer".to_owned()))?.map_err(failed)?;
    serde_json::from_str(answer.get()).map_err(|error| failed(format!("unknown answer: {error}")))
}
