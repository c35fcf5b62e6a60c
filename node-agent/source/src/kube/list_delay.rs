//! Spreads the first lists of agents that start together, as in a rollout or after a power failure.
//!
//! Only the first lists of Services, EndpointSlices and pods are delayed: a cluster has most of
//! these. An agent waits for a random time that grows with the number of nodes. To learn that
//! number, it asks for one Node, and the answer says how many more there are. Rules that an earlier
//! agent left stay in force meanwhile. A pod's ADD ends the wait, since it needs the listed
//! objects.

use std::sync::Arc;
use std::time::Duration;

use hyper::Request;
use kube::Client;
use tokio::sync::{OnceCell, watch};
use tokio::time::timeout;
use tracing::{debug, info};

use super::backoff::part_of;
use super::envelope::{ACCEPT, ACCEPT_METADATA, Encoding, JsonList, ListMetadata, Unreadable};
use super::exchange::Reply;
use super::failure::Failure;
use super::traffic::Traffic;
use denizen_object::ObjectKind;
use denizen_object::protobuf::{Envelope, Field, FromProtobuf, ProtobufError};
use denizen_text::describe;

/// The longest wait grows by this much with each node: about 250 agents begin in a second.
const FOR_EACH_NODE: Duration = Duration::from_millis(4);

/// The longest wait in any cluster.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// Up to this many nodes, nobody waits.
const FEW: u32 = 100;

/// Time limit for the number of nodes.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// The wait of one agent, which all its kinds share.
#[derive(Debug)]
pub(super) struct ListDelay {
    wait: OnceCell<Duration>,
    /// Whether a pod's ADD needs what is listed.
    needed: watch::Sender<bool>,
}

impl ListDelay {
    pub(super) fn new() -> Self {
        Self { wait: OnceCell::new(), needed: watch::Sender::new(false) }
    }

    /// Ends the wait, and all later waits.
    pub(super) fn cancel(&self) {
        self.needed.send_replace(true);
    }

    /// Waits for this agent's time.
    pub(super) async fn wait(&self, client: &Client, traffic: &Arc<Traffic>) {
        let mut needed = self.needed.subscribe();
        if *needed.borrow() {
            return;
        }
        let wait = async {
            let chosen = self.wait.get_or_try_init(|| async {
                let nodes = count_nodes(client, traffic).await?;
                let wait = part_of(longest(nodes));
                if !wait.is_zero() {
                    info!(nodes, ?wait, "spreading first lists");
                }
                Ok::<_, Failure>(wait)
            });
            match chosen.await {
                Ok(wait) => tokio::time::sleep(*wait).await,
                // The lists fail then too, and each agent waits for a random time after that.
                Err(error) => debug!(error = describe(&error), "cannot count the nodes"),
            }
        };
        tokio::select! {
            () = wait => {}
            _ = needed.wait_for(|needed| *needed) => {}
        }
    }
}

/// Whether the first list of this kind is delayed: a cluster may have many more objects of this
/// kind than nodes.
pub(super) fn is_delayed(kind: ObjectKind) -> bool {
    match kind {
        ObjectKind::Service | ObjectKind::EndpointSlice | ObjectKind::Pod => true,
        ObjectKind::Node
        | ObjectKind::ServiceCidr
        | ObjectKind::Namespace
        | ObjectKind::NetworkPolicy
        | ObjectKind::ClusterNetworkPolicy
        | ObjectKind::OtherNode => false,
    }
}

fn longest(nodes: u32) -> Duration {
    if nodes <= FEW { Duration::ZERO } else { (FOR_EACH_NODE * nodes).min(MAX_WAIT) }
}

/// How many nodes the cluster has.
pub(super) async fn count_nodes(client: &Client, traffic: &Arc<Traffic>) -> Result<u32, Failure> {
    let nodes = async {
        // A Node may take 10 kB, most of it its images; its metadata takes a fifth of that. But in
        // a list of metadata, old servers (1.20) do not say how many objects are left out.
        for accepted in [ACCEPT_METADATA, ACCEPT] {
            let request = Request::get("/api/v1/nodes?limit=1").body(Vec::new());
            let request = request.expect("the path is valid");
            let reply = Reply::accepting(accepted, client, request, traffic).await?;
            let (encoding, body) = (reply.encoding, reply.whole().await?);
            if let Some(more) = left_out(encoding, &body).map_err(Failure::Answer)? {
                return Ok(u32::try_from(more).unwrap_or_default().saturating_add(1));
            }
        }
        Ok(1)
    };
    timeout(ANSWER_TIMEOUT, nodes).await.unwrap_or(Err(Failure::TimedOut(ANSWER_TIMEOUT)))
}

/// How many objects a list leaves out; `None` if it leaves out some and does not say how many.
fn left_out(encoding: Encoding, body: &[u8]) -> Result<Option<i64>, Unreadable> {
    let metadata = match encoding {
        Encoding::Json => serde_json::from_slice::<JsonList<'_>>(body)?.metadata,
        Encoding::Protobuf => {
            let envelope = Envelope::open(body)?.ok_or(Unreadable::NotProtobuf)?;
            Head::decode(envelope.object)?.metadata
        }
    };
    Ok((metadata.continue_token.is_empty() || metadata.remaining > 0).then_some(metadata.remaining))
}

/// A list without its items.
#[derive(Debug, Default)]
struct Head<'a> {
    metadata: ListMetadata<'a>,
}

impl<'a> FromProtobuf<'a> for Head<'a> {
    fn take(&mut self, field: &Field<'a>) -> Result<(), ProtobufError> {
        match field.number {
            1 => self.metadata.merge(field.bytes()?),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use denizen_fixture::protobuf;
    use hyper::Response;
    use kube::client::Body;
    use serde_json::json;

    use super::*;

    #[test]
    fn the_wait_grows_with_the_nodes_up_to_a_bound() {
        assert_eq!(longest(100), Duration::ZERO);
        assert_eq!(longest(1_000), Duration::from_secs(4));
        assert_eq!(longest(5_000), Duration::from_secs(20));
        assert_eq!(longest(u32::MAX), MAX_WAIT);
        for _ in 0..100 {
            assert!(part_of(longest(1_000)) <= Duration::from_secs(4));
        }
    }

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap()
    }

    fn without_a_server() -> Client {
        let nobody = tower::service_fn(|_: Request<Body>| async {
            Err::<Response<Body>, _>(std::io::Error::other("no server"))
        });
        Client::new(nobody, "default")
    }

    /// A pod's ADD needs what is listed, and so does each one after it.
    #[test]
    fn nothing_waits_any_more_after_an_add() {
        const DAY: Duration = Duration::from_secs(86_400);
        runtime().block_on(async {
            let (client, traffic) = (without_a_server(), Arc::default());
            let list_delay = ListDelay { wait: OnceCell::new_with(Some(DAY)), ..ListDelay::new() };
            let mut waiting = std::pin::pin!(list_delay.wait(&client, &traffic));
            let early = timeout(Duration::from_millis(1), &mut waiting).await;
            assert!(early.is_err(), "it is not this agent's turn");
            list_delay.cancel();
            waiting.await;
            list_delay.wait(&client, &traffic).await;
        });
    }

    /// Without an answer to how many nodes there are, the lists would fail too.
    #[test]
    fn without_a_number_of_nodes_nothing_waits() {
        runtime().block_on(async {
            let (client, traffic) = (without_a_server(), Arc::default());
            ListDelay::new().wait(&client, &traffic).await;
        });
    }

    #[test]
    fn nodes_are_counted_in_both_encodings() {
        let metadata =
            json!({ "resourceVersion": "7", "continue": "x", "remainingItemCount": 4999 });
        let list = json!({ "metadata": metadata, "items": [{}] }).to_string();
        let next = protobuf::NextPage { continue_token: "x", remaining: 4999 };
        let written = protobuf::list("v1", "Node", "7", Some(next), []);
        for (encoding, list) in [(Encoding::Json, list.as_bytes()), (Encoding::Protobuf, &*written)]
        {
            assert_eq!(left_out(encoding, list).unwrap(), Some(4999));
        }
        let one = protobuf::list("v1", "Node", "7", None, []);
        assert_eq!(left_out(Encoding::Protobuf, &one).unwrap(), Some(0));
        let untold = json!({ "metadata": { "resourceVersion": "7", "continue": "x" } });
        let untold = untold.to_string();
        assert_eq!(left_out(Encoding::Json, untold.as_bytes()).unwrap(), None);
        assert!(left_out(Encoding::Protobuf, b"{}").is_err());
    }
}
