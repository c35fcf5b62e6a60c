//! Decides whether a watch that has been silent for too long may go on.
//!
//! A server sends a bookmark about every minute, so silence is a sign of trouble: the server may be
//! waiting for a version that it never reaches, because its etcd was restored from an older copy.
//! But some servers send no bookmark of a kind before that kind's first change after their start
//! (1.20 does so), and an agent that was suspended has received nothing either. So one object is
//! asked for first: that costs the server little, and a list of all pods from every node much.

use std::sync::Arc;

use kube::Client;
use kube::api::{ListParams, VersionMatch};
use kube::core::Request;
use tokio::time::timeout;

use super::backoff::ANSWER_TIMEOUT;
use super::exchange::Reply;
use super::failure::Failure;
use super::traffic::Traffic;

/// After this many silent watches in a row, the version is trusted no longer: after 12 minutes. A
/// server asks its etcd for the progress of a quiet kind every 10 minutes.
const MOST: u32 = 4;

/// How many watches in a row were silent.
#[derive(Debug, Default)]
pub(super) struct Silence {
    watches: u32,
}

impl Silence {
    /// Notes that a watch has brought something.
    pub(super) fn ends(&mut self) {
        self.watches = 0;
    }

    /// Notes a silent watch. Returns whether the next one may go on from `version`, because the
    /// server has reached it. `request`: for a list of the same objects.
    pub(super) async fn is_harmless(
        &mut self,
        client: &Client,
        request: &Request,
        version: &str,
        traffic: &Arc<Traffic>,
    ) -> Result<bool, Failure> {
        if self.watches >= MOST {
            self.watches = 0;
            return Ok(false);
        }
        self.watches += 1;
        let params = ListParams {
            limit: Some(1),
            resource_version: Some(version.to_owned()),
            version_match: Some(VersionMatch::NotOlderThan),
            ..ListParams::default()
        };
        let request = request.list(&params).map_err(kube::Error::BuildRequest)?;
        let answer = async { Reply::to(client, request, traffic).await?.whole().await };
        match timeout(ANSWER_TIMEOUT, answer)
            .await
            .unwrap_or(Err(Failure::TimedOut(ANSWER_TIMEOUT)))
        {
            Ok(_one) => Ok(true),
            Err(failure) if failure.is_of_the_future() => Ok(false),
            Err(failure) => Err(failure),
        }
    }
}

#[cfg(test)]
mod tests {
    use hyper::Response;
    use kube::client::Body;
    use serde_json::{Value, json};

    use super::*;
    use crate::running::in_runtime;

    fn answering(code: u16, body: &Value) -> Client {
        let body = body.to_string();
        let answer = move |request: hyper::Request<Body>| {
            let query = request.uri().query().unwrap_or_default().to_owned();
            let body = body.clone();
            async move {
                assert!(query.contains("limit=1"), "one object: {query}");
                assert!(query.contains("resourceVersion=7"), "{query}");
                assert!(query.contains("resourceVersionMatch=NotOlderThan"), "{query}");
                let answer =
                    Response::builder().status(code).header("content-type", "application/json");
                answer.body(Body::from(body.into_bytes())).map_err(std::io::Error::other)
            }
        };
        Client::new(tower::service_fn(answer), "default")
    }

    async fn asked(silence: &mut Silence, client: &Client) -> Result<bool, Failure> {
        silence.is_harmless(client, &Request::new("/api/v1/pods"), "7", &Arc::default()).await
    }

    /// The version is trusted for as long as a server may send no bookmark, but not for ever.
    #[test]
    fn a_version_that_the_server_has_reached_is_watched_from_again_a_few_times() {
        in_runtime(async {
            let list = json!({ "metadata": { "resourceVersion": "9" }, "items": [] });
            let (client, mut silence) = (answering(200, &list), Silence::default());
            for round in ["first", "later"] {
                for _ in 0..MOST {
                    assert!(asked(&mut silence, &client).await.unwrap(), "{round}");
                }
                assert!(!asked(&mut silence, &client).await.unwrap(), "{round}");
            }
            for _ in 0..3 * MOST {
                assert!(asked(&mut silence, &client).await.unwrap(), "something was heard");
                silence.ends();
            }
        });
    }

    #[test]
    fn a_version_that_the_server_has_not_reached_is_listed_anew() {
        in_runtime(async {
            let message = "Timeout: Too large resource version: 7, current: 5";
            let status = json!({ "kind": "Status", "message": message, "code": 504 });
            let answer = asked(&mut Silence::default(), &answering(504, &status)).await;
            assert!(!answer.unwrap());
        });
    }

    #[test]
    fn without_an_answer_nothing_is_known_of_the_version() {
        in_runtime(async {
            for code in [403, 429, 500, 503] {
                let answer = asked(&mut Silence::default(), &answering(code, &json!({}))).await;
                let is_code =
                    |failure| matches!(failure, Failure::Refused(status) if status.code == code);
                assert!(answer.is_err_and(is_code), "{code}");
            }
        });
    }
}
