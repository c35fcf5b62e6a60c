//! Checks that the operator may do what a test needs, before anything is made.

use futures_util::future::join_all;
use serde::Deserialize;
use serde_json::json;

use anyhow::bail;

use crate::cluster::Api;
use crate::objects;

const REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";

/// Where the role is.
const ROLE: &str = "conf/kubectl/rbac-test.yaml has a role for it";

/// API group, resource, and what is done with it.
const NEEDED: [(&str, &str, &[&str]); 5] = [
    ("", "namespaces", &["create", "get", "list", "delete"]),
    ("", "pods", &["create", "list"]),
    ("", "pods/exec", &["get", "create"]),
    ("", "services", &["create", "get"]),
    ("networking.k8s.io", "networkpolicies", &["create"]),
];

#[derive(Deserialize)]
struct Review {
    status: ReviewStatus,
}

#[derive(Deserialize)]
struct ReviewStatus {
    allowed: bool,
}

/// Asks the API server whether the test may be made.
///
/// # Errors
/// Something is not permitted: all of that is named. An API server that does not say is no error.
pub async fn check(api: &Api) -> anyhow::Result<()> {
    let all = NEEDED.iter().flat_map(|(group, resource, verbs)| {
        verbs.iter().map(move |verb| is_missing(api, group, resource, verb))
    });
    let missing: Vec<String> = join_all(all).await.into_iter().flatten().collect();
    if !missing.is_empty() {
        bail!("not permitted: {}. Nothing was made; {ROLE}", missing.join(", "));
    }
    Ok(())
}

/// The right, if it is missing.
async fn is_missing(api: &Api, group: &str, resource: &str, verb: &str) -> Option<String> {
    let (plural, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    let attributes = json!({
        "group": group, "resource": plural, "subresource": subresource, "verb": verb,
    });
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
        "spec": { "resourceAttributes": attributes },
    });
    let review: Review = objects::create(&api.client, REVIEWS, &review).await.ok()?;
    (!review.status.allowed).then(|| format!("{verb} {resource}"))
}

/// The error with what was done and, if that is not permitted, the right that it needs.
pub fn with_need(error: kube::Error, what: &str, need: &str) -> anyhow::Error {
    let what = match is_forbidden(&error) {
        true => format!("{what} (needs: {need}; {ROLE})"),
        false => what.to_owned(),
    };
    anyhow::Error::from(error).context(what)
}

pub fn is_forbidden(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 403)
}
