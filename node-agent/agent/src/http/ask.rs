//! Questions to the agent's loop.

use std::time::Duration;

use serde_json::Value;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::control::{Asked, Request};

/// Time limit for the loop's answer.
const LOOP_TIME: Duration = Duration::from_secs(2);

/// Asks the loop. `None` if it does not answer in time.
pub(super) async fn ask(requests: &mpsc::Sender<Asked>, request: Request) -> Option<Value> {
    let (answer, answered) = oneshot::channel();
    let asked = Asked { request, answer };
    let answer = async {
        requests.send(asked).await.ok()?;
        answered.await.ok()
    };
    timeout(LOOP_TIME, answer).await.ok().flatten()
}
