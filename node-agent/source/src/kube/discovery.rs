//! Whether the API serves ClusterNetworkPolicies, and in which version: they are a
//! CustomResourceDefinition, which may come and go while the agent runs.
//!
//! Everybody may read what an API server serves (`system:discovery`), so a cluster without
//! ClusterNetworkPolicies needs no role for them.

use std::sync::Arc;
use std::time::Duration;

use hyper::Request;
use kube::Client;
use serde::Deserialize;
use tokio::time::timeout;

use super::exchange::Reply;
use super::failure::Failure;
use super::traffic::Traffic;

/// Time limit for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// Time until the API is asked again whether it serves ClusterNetworkPolicies.
pub(super) const ABSENT: Duration = Duration::from_secs(60);

const JSON: &str = "application/json";

const GROUP: &str = "/apis/policy.networking.k8s.io";
const DEFINITION: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/\
                          clusternetworkpolicies.policy.networking.k8s.io";
const RESOURCE: &str = "clusternetworkpolicies";
/// The versions whose fields are known, the newest first.
const VERSIONS: [&str; 2] = ["v1beta1", "v1alpha2"];
/// The preceding version, which has other fields and is not supported.
const OLD_VERSION: &str = "v1alpha1";
const OLD: [(&str, &str); 2] = [
    ("adminnetworkpolicies", "AdminNetworkPolicy"),
    ("baselineadminnetworkpolicies", "BaselineAdminNetworkPolicy"),
];

/// What the API serves.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Discovered {
    /// Where ClusterNetworkPolicies are; `None` if they are not served.
    pub path: Option<String>,
    /// Objects of the old version, which are not enforced, one line each.
    pub old: Vec<String>,
}

#[derive(Deserialize)]
struct Group {
    #[serde(default)]
    versions: Vec<Version>,
}

#[derive(Deserialize)]
struct Version {
    version: String,
}

#[derive(Deserialize)]
struct Resources {
    #[serde(default)]
    resources: Vec<Named>,
}

#[derive(Deserialize)]
struct Named {
    name: String,
}

#[derive(Deserialize)]
struct Objects {
    #[serde(default)]
    items: Vec<Object>,
}

#[derive(Deserialize)]
struct Object {
    metadata: Named,
}

/// Asks what is served.
pub(super) async fn discover(
    client: &Client,
    traffic: &Arc<Traffic>,
) -> Result<Discovered, Failure> {
    let mut discovered = Discovered::default();
    let Some(group) = ask::<Group>(client, traffic, GROUP).await? else { return Ok(discovered) };
    let is_served = |version: &str| group.versions.iter().any(|served| served.version == version);
    for version in VERSIONS.into_iter().filter(|version| is_served(version)) {
        let path = format!("{GROUP}/{version}");
        let resources = ask::<Resources>(client, traffic, &path).await?;
        let mut names = resources.iter().flat_map(|list| &list.resources);
        if names.any(|resource| resource.name == RESOURCE) {
            discovered.path = Some(format!("{path}/{RESOURCE}"));
            break;
        }
    }
    if is_served(OLD_VERSION) {
        discovered.old = old(client, traffic).await?;
    }
    Ok(discovered)
}

/// Whether the CustomResourceDefinition exists although the kind is not served: a starting API
/// server does not serve everything at once. Without permission to read it, the answer is no.
pub(super) async fn is_defined(client: &Client, traffic: &Arc<Traffic>) -> Result<bool, Failure> {
    match ask::<serde::de::IgnoredAny>(client, traffic, DEFINITION).await {
        Ok(found) => Ok(found.is_some()),
        Err(failure) if failure.is_forbidden() => Ok(false),
        Err(failure) => Err(failure),
    }
}

/// Reads objects of the old version.
async fn old(client: &Client, traffic: &Arc<Traffic>) -> Result<Vec<String>, Failure> {
    let mut lines = Vec::new();
    for (resource, kind) in OLD {
        let path = format!("{GROUP}/{OLD_VERSION}/{resource}");
        match ask::<Objects>(client, traffic, &path).await {
            Ok(objects) => {
                lines.extend(objects.iter().flat_map(|list| &list.items).map(|object| {
                    let name = &object.metadata.name;
                    format!("{kind} {name} is not enforced: write it as a ClusterNetworkPolicy")
                }))
            }
            Err(failure) if failure.is_forbidden() => lines.push(format!(
                "the API serves {kind} objects ({OLD_VERSION}), which are not enforced; the \
                 agent's ClusterRole does not allow it to list them"
            )),
            Err(failure) => return Err(failure),
        }
    }
    Ok(lines)
}

/// The answer; `None` if there is nothing at this path. Not every server says so in a `Status`: the
/// code counts, whatever the body is.
async fn ask<T: serde::de::DeserializeOwned>(
    client: &Client,
    traffic: &Arc<Traffic>,
    path: &str,
) -> Result<Option<T>, Failure> {
    let request = Request::get(path).body(Vec::new()).expect("the path is valid");
    let answer = async { Reply::accepting(JSON, client, request, traffic).await?.whole().await };
    match timeout(ANSWER_TIMEOUT, answer).await.unwrap_or(Err(Failure::TimedOut(ANSWER_TIMEOUT))) {
        Ok(body) => serde_json::from_slice(&body).map(Some).map_err(Failure::from),
        Err(Failure::Refused(status)) if status.code == 404 => Ok(None),
        Err(failure) => Err(failure),
    }
}

#[cfg(test)]
mod tests {
    use hyper::Response;
    use kube::client::Body;

    use super::*;
    use crate::running::in_runtime;

    fn answering(code: u16, content_type: &'static str, body: &'static str) -> Client {
        let answer = move |_: Request<Body>| async move {
            let answer = Response::builder().status(code).header("content-type", content_type);
            answer.body(Body::from(body.as_bytes().to_vec())).map_err(std::io::Error::other)
        };
        Client::new(tower::service_fn(answer), "default")
    }

    /// A server that is built from the same library as kube-apiserver names its paths.
    #[test]
    fn a_group_that_is_not_served_may_be_denied_in_any_words() {
        const STATUS: &str = r#"{"kind":"Status","reason":"NotFound","code":404}"#;
        let cases = [
            ("a Status", JSON, STATUS),
            ("the paths that are served", JSON, r#"{"paths":["/api","/apis"]}"#),
            ("a text", "text/plain; charset=utf-8", "404 page not found"),
            ("nothing", "", ""),
        ];
        for (name, content_type, body) in cases {
            in_runtime(async {
                let client = answering(404, content_type, body);
                let traffic = Arc::default();
                let discovered = discover(&client, &traffic).await;
                assert_eq!(discovered.unwrap(), Discovered::default(), "{name}");
                assert!(!is_defined(&client, &traffic).await.unwrap(), "{name}");
            });
        }
        in_runtime(async {
            let refused = discover(&answering(503, JSON, r#"{"paths":[]}"#), &Arc::default()).await;
            let is_503 =
                |failure| matches!(failure, Failure::Refused(status) if status.code == 503);
            assert!(refused.is_err_and(is_503), "that says nothing of what is served");
        });
    }
}
