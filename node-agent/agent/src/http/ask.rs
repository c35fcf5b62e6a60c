//! Requests to the agent's loop.

use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::control::{AgentRequest, Reply};

/// Time limit for the loop's answer.
const LOOP_TIME: Duration = Duration::from_secs(2);

/// Asks the loop.
///
/// # Errors
/// What to tell a person: the loop's reason, or that it does not answer in time.
pub(super) async fn ask<T>(
    requests: &mpsc::Sender<AgentRequest>,
    request: impl FnOnce(Reply<T>) -> AgentRequest,
) -> Result<T, String> {
    let (reply, answered) = oneshot::channel();
    let request = request(reply);
    let answer = async {
        requests.send(request).await.ok()?;
        answered.await.ok()
    };
    let silent =
        "The agent's loop does not answer. The rules that it programmed last stay in the kernel.";
    timeout(LOOP_TIME, answer).await.ok().flatten().unwrap_or_else(|| Err(silent.to_owned()))
}
