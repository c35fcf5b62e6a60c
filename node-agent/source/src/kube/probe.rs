//! Asks an API server once: what it is, and what it permits. For `check`.

use std::fmt;
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::Request;
use jiff::Timestamp;
use kube::Client;
use kube::client::Body;
use kube::core::Status;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::access::{Access, AccessError};
use super::client::client;
pub use super::failure::Failure;
use super::kinds::{self, ListedState};
use crate::Features;
use denizen_object::ObjectKind;

/// Time limit for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Where a client asks what it may do. Every authenticated client may ask.
const REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";

/// Something that a role permits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RolePermission {
    /// The API group; empty for the core.
    group: String,
    /// The resource, as in paths.
    resource: String,
    verb: &'static str,
}

impl RolePermission {
    /// Whether it is about events, without which everything else works.
    pub fn is_for_events(&self) -> bool {
        self.resource == "events"
    }

    /// `path`: that of a collection of all namespaces, or of one that is not in a namespace.
    fn to(verb: &'static str, path: &str) -> Self {
        let mut parts = path.trim_matches('/').split('/');
        let group = match parts.next() {
            Some("apis") => parts.next().unwrap_or_default(),
            Some(_) | None => "",
        };
        let resource = parts.next_back().unwrap_or_default();
        Self { group: group.to_owned(), resource: resource.to_owned(), verb }
    }

    /// The permissions that an agent with these features needs.
    fn all(features: Features) -> Vec<Self> {
        let mut rights = Vec::new();
        for kind in features.kinds() {
            let path = kinds::request(kind).url_path;
            rights.extend(["list", "watch"].map(|verb| Self::to(verb, &path)));
            if kind == ObjectKind::Pod {
                rights.push(Self::to("get", &path));
            }
        }
        rights.push(Self::to("create", "/apis/events.k8s.io/v1/events"));
        rights
    }
}

impl fmt::Display for RolePermission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { group, resource, verb } = self;
        match group.as_str() {
            "" => write!(f, "{verb} {resource}"),
            group => write!(f, "{verb} {resource}.{group}"),
        }
    }
}

/// Facts about the server.
#[derive(Debug, Clone)]
pub struct Server {
    /// Its release, such as `v1.33.1`; `None` if this client may not ask for it.
    pub release: Option<String>,
    /// Its time, to the second.
    pub date: Option<Timestamp>,
}

pub struct ServerProbe {
    client: Client,
}

impl ServerProbe {
    /// A probe with these credentials. No connection is made yet.
    pub async fn open(access: &Access) -> Result<Self, AccessError> {
        Ok(Self { client: client(access).await? })
    }

    /// What the server is. A missing release is not an error.
    pub async fn server(&self) -> Result<Server, Failure> {
        let request = Request::get("/version").body(Body::empty());
        let request = request.expect("the path is valid");
        let answer = async {
            let response = self.client.send(request).await?;
            let (head, body) = response.into_parts();
            Ok::<_, kube::Error>((head, body.collect().await?.to_bytes()))
        };
        let (head, body) = timeout(ANSWER_TIMEOUT, answer)
            .await
            .map_err(|_| Failure::TimedOut(ANSWER_TIMEOUT))??;
        let code = head.status.as_u16();
        if code == 401 || code >= 500 {
            let message = head.status.to_string();
            let status = Status::failure(&message, "the answer to /version");
            return Err(Failure::Refused(Box::new(status.with_code(code))));
        }
        let version: Option<Value> = serde_json::from_slice(&body).ok();
        let release = version.and_then(|version| Some(version["gitVersion"].as_str()?.to_owned()));
        let date = head.headers.get("date").and_then(|date| date.to_str().ok());
        let date = date.and_then(|date| jiff::fmt::rfc2822::parse(date).ok());
        Ok(Server { release, date: date.map(|date| date.timestamp()) })
    }

    /// The permissions that an agent with these features needs, and the server does not give.
    ///
    /// # Errors
    /// [`Failure`] if the server does not say.
    pub async fn missing(&self, features: Features) -> Result<Vec<RolePermission>, Failure> {
        let mut missing = Vec::new();
        for right in RolePermission::all(features) {
            if !self.permits(&right).await? {
                missing.push(right);
            }
        }
        Ok(missing)
    }

    async fn permits(
        &self,
        RolePermission { group, resource, verb }: &RolePermission,
    ) -> Result<bool, Failure> {
        let attributes = json!({ "group": group, "resource": resource, "verb": verb });
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
            "spec": { "resourceAttributes": attributes },
        });
        let request = Request::post(REVIEWS).header("content-type", "application/json");
        let request = request.body(review.to_string().into_bytes()).expect("the path is valid");
        let answer: Value = serde_json::from_str(&self.ask(request).await?)?;
        Ok(answer["status"]["allowed"] == true)
    }

    /// The runtime of a Node as kubelet names it, such as `containerd://1.7.2`; `None` without such
    /// a Node.
    pub async fn runtime_of(&self, name: &str) -> Result<Option<String>, Failure> {
        let fields = kinds::fields(ObjectKind::Node, name, Features::default());
        let params = kinds::list(ObjectKind::Node, fields, true, ListedState::Newest);
        let request = kinds::request(ObjectKind::Node).list(&params);
        let request = request.map_err(|error| Failure::from(kube::Error::BuildRequest(error)))?;
        let list: Value = serde_json::from_str(&self.ask(request).await?)?;
        let runtime = |node: &Value| {
            let runtime = &node["status"]["nodeInfo"]["containerRuntimeVersion"];
            runtime.as_str().unwrap_or_default().to_owned()
        };
        Ok(list["items"].as_array().and_then(|nodes| nodes.first()).map(runtime))
    }

    async fn ask(&self, request: Request<Vec<u8>>) -> Result<String, Failure> {
        let answer = timeout(ANSWER_TIMEOUT, self.client.request_text(request)).await;
        Ok(answer.map_err(|_| Failure::TimedOut(ANSWER_TIMEOUT))??)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_are_those_of_the_features() {
        let named = |features| -> Vec<String> {
            RolePermission::all(features).iter().map(ToString::to_string).collect()
        };
        let services = named(Features::default());
        for right in ["list services", "watch endpointslices.discovery.k8s.io", "list nodes"] {
            assert!(services.contains(&right.to_owned()), "{right}: {services:?}");
        }
        assert!(!services.contains(&"get pods".to_owned()), "{services:?}");
        let policies =
            named(Features { services: false, network_policy: true, other_nodes: false });
        for right in ["get pods", "watch networkpolicies.networking.k8s.io"] {
            assert!(policies.contains(&right.to_owned()), "{right}: {policies:?}");
        }
        assert!(!policies.contains(&"list services".to_owned()), "{policies:?}");
        assert_eq!(policies.last().map(String::as_str), Some("create events.events.k8s.io"));
    }
}
