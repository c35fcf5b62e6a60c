//! The namespace that a test lives in, and those that interrupted tests left.

#![expect(
    clippy::disallowed_methods,
    reason = "a deadline is a time of day, and deletion takes some"
)]

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, SystemTime};

use anyhow::{Context, bail, ensure};
use denizen_text::Printable;
use futures_util::future::join_all;
use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

use super::manifest::MANAGED_BY;
use super::rights::with_need;
use crate::cluster::Api;
use crate::objects::{self, percent};
use crate::output::{Body, Level, described};

/// Prefix of the namespaces' names.
const PREFIX: &str = "denizen-test-";

/// Annotation: the time after which a run is over for certain.
const DEADLINE: &str = "denizen.io/test-deadline";

/// Annotation with a random text, so that no namespace is taken for another run's.
const RUN: &str = "denizen.io/test-run";

/// Time limit for one request.
const REQUEST: Duration = Duration::from_secs(10);

/// How long to wait for the end of a namespace: its pods end first.
pub const DELETE_TIMEOUT: Duration = Duration::from_secs(30);

/// The pause between two attempts to delete a namespace.
const RETRY_PAUSE: Duration = Duration::from_millis(200);

/// The namespace of one run.
#[derive(Debug)]
pub struct TestNamespace {
    pub name: String,
    run: String,
}

/// The result of removing a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum NamespaceRemoval {
    /// It is not there any more.
    Gone,
    /// It is being deleted, by the API server.
    Terminating,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct NamespaceObject {
    metadata: NamespaceMetadata,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct NamespaceMetadata {
    name: String,
    uid: String,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    deletion_timestamp: Option<String>,
}

impl TestNamespace {
    /// Makes a namespace, whose run is over after `lifetime`.
    pub async fn create(api: &Api, lifetime: Duration) -> anyhow::Result<Self> {
        let run = random_text()?;
        let namespace = Self { name: format!("{PREFIX}{}", &run[..10]), run };
        let deadline = Timestamp::try_from(SystemTime::now() + lifetime);
        let deadline = deadline.context("this machine's clock is far from today")?;
        let object = json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": {
                "name": namespace.name,
                "labels": {
                    MANAGED_BY.0: MANAGED_BY.1,
                    "pod-security.kubernetes.io/enforce": "restricted",
                    "pod-security.kubernetes.io/warn": "restricted",
                },
                "annotations": { DEADLINE: deadline.to_string(), RUN: namespace.run },
            },
        });
        let created = objects::create::<Value>(&api.client, "/api/v1/namespaces", &object);
        let why = match timeout(REQUEST, created).await {
            Ok(Ok(_)) => return Ok(namespace),
            Ok(Err(kube::Error::Api(status))) if status.code < 500 => {
                let error = kube::Error::Api(status);
                return Err(with_need(error, "cannot make a namespace", "create namespaces"));
            }
            Ok(Err(error)) => anyhow::Error::from(error),
            Err(_) => anyhow::anyhow!("no answer within {REQUEST:?}"),
        };
        // The namespace may have been made all the same.
        namespace.remove(api).await?;
        Err(why.context("cannot make a namespace"))
    }

    /// The API path of a resource of the core group in this namespace.
    pub fn path(&self, plural: &str) -> String {
        format!("/api/v1/namespaces/{}/{plural}", self.name)
    }

    /// Deletes the namespace with all that is in it, if it is this run's, and waits up to
    /// [`DELETE_TIMEOUT`] for its end. Failed attempts are repeated.
    pub async fn remove(&self, api: &Api) -> anyhow::Result<NamespaceRemoval> {
        let is_own =
            |found: &NamespaceObject| found.metadata.annotations.get(RUN) == Some(&self.run);
        remove(api, &self.name, is_own).await
    }
}

/// Deletes the namespace `name`, if it is the right one (`is_it`).
async fn remove(
    api: &Api,
    name: &str,
    is_it: impl Fn(&NamespaceObject) -> bool,
) -> anyhow::Result<NamespaceRemoval> {
    let begun = Instant::now();
    let mut last = Ok(NamespaceRemoval::Terminating);
    while begun.elapsed() < DELETE_TIMEOUT {
        last = match timeout(REQUEST, remove_once(api, name, &is_it)).await {
            Ok(Ok(NamespaceRemoval::Gone)) => return Ok(NamespaceRemoval::Gone),
            Ok(Err(error)) if is_final(&error) => return Err(error),
            Ok(once) => once,
            Err(_) => Err(anyhow::anyhow!("no answer within {REQUEST:?}")),
        };
        sleep(RETRY_PAUSE).await;
    }
    last.with_context(|| format!("cannot delete namespace {name}"))
}

/// Whether another attempt would fail too.
fn is_final(error: &anyhow::Error) -> bool {
    match error.downcast_ref::<kube::Error>() {
        Some(kube::Error::Api(status)) => [401, 403].contains(&status.code),
        Some(_) => false,
        // An error of this module.
        None => true,
    }
}

async fn remove_once(
    api: &Api,
    name: &str,
    is_it: impl Fn(&NamespaceObject) -> bool,
) -> anyhow::Result<NamespaceRemoval> {
    let path = format!("/api/v1/namespaces/{}", percent(name));
    let found: NamespaceObject = match objects::get(&api.client, &path).await {
        Ok(found) => found,
        Err(kube::Error::Api(status)) if status.code == 404 => return Ok(NamespaceRemoval::Gone),
        Err(error) => return Err(with_need(error, "cannot read a namespace", "get namespaces")),
    };
    ensure!(is_it(&found), "namespace {name} is not a test's: it is left as it is");
    if found.metadata.deletion_timestamp.is_none() {
        // A new namespace may get this name meanwhile.
        let options = json!({ "preconditions": { "uid": found.metadata.uid } });
        match objects::delete(&api.client, &path, &options).await {
            Ok(()) => {}
            Err(kube::Error::Api(status)) if [404, 409].contains(&status.code) => {}
            Err(error) => {
                return Err(with_need(error, "cannot delete a namespace", "delete namespaces"));
            }
        }
    }
    match objects::get::<NamespaceObject>(&api.client, &path).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(NamespaceRemoval::Gone),
        Ok(_) | Err(_) => Ok(NamespaceRemoval::Terminating),
    }
}

fn random_text() -> anyhow::Result<String> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| anyhow::anyhow!("no random numbers: {error}"))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The namespaces of tests: those that have both the label and the name.
async fn all(api: &Api) -> anyhow::Result<Vec<NamespaceMetadata>> {
    let selector = format!("{}={}", MANAGED_BY.0, MANAGED_BY.1);
    let found: Result<Vec<NamespaceObject>, _> =
        objects::list(&api.client, "/api/v1/namespaces", &[("labelSelector", &selector)]).await;
    let found =
        found.map_err(|error| with_need(error, "cannot list namespaces", "list namespaces"))?;
    Ok(found.into_iter().map(|found| found.metadata).filter(is_tests).collect())
}

fn is_tests(namespace: &NamespaceMetadata) -> bool {
    let manager = namespace.labels.get(MANAGED_BY.0);
    namespace.name.starts_with(PREFIX) && manager.is_some_and(|manager| manager == MANAGED_BY.1)
}

impl NamespaceMetadata {
    /// Whether its run is over for certain.
    fn is_over(&self) -> bool {
        let deadline = self.annotations.get(DEADLINE).and_then(|text| text.parse().ok());
        let now = Timestamp::try_from(SystemTime::now()).ok();
        deadline.zip(now).is_some_and(|(deadline, now): (Timestamp, _)| deadline < now)
    }
}

/// Names of namespaces whose run is over, and that are still there.
pub async fn left_over(api: &Api) -> anyhow::Result<Vec<String>> {
    let over = all(api).await?.into_iter().filter(NamespaceMetadata::is_over);
    Ok(over.map(|namespace| namespace.name).collect())
}

/// The result of removing all tests' namespaces.
#[derive(Debug, Serialize)]
pub struct Cleanup {
    namespaces: Vec<RemovedNamespace>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct RemovedNamespace {
    name: String,
    /// Whether its run was over for certain; another may have been going on.
    was_over: bool,
    /// `None` if it is still there.
    result: Option<NamespaceRemoval>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// Deletes the namespaces of all tests, and nothing else.
///
/// # Errors
/// They cannot be listed.
pub async fn cleanup(api: &Api) -> anyhow::Result<Cleanup> {
    let listed = match timeout(REQUEST, all(api)).await {
        Ok(listed) => listed?,
        Err(_) => bail!("the API server does not answer within {REQUEST:?}"),
    };
    let one = async |namespace: NamespaceMetadata| {
        let is_it = |found: &NamespaceObject| is_tests(&found.metadata);
        let removed = remove(api, &namespace.name, is_it).await;
        let error = removed.as_ref().err().map(described);
        let (was_over, result) = (namespace.is_over(), removed.ok());
        RemovedNamespace { name: namespace.name, was_over, result, error }
    };
    Ok(Cleanup { namespaces: join_all(listed.into_iter().map(one)).await })
}

impl Body for Cleanup {
    fn level(&self) -> Level {
        let is_there = |namespace: &RemovedNamespace| namespace.error.is_some();
        if self.namespaces.iter().any(is_there) { Level::Failure } else { Level::Good }
    }
}

impl fmt::Display for Cleanup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespaces.is_empty() {
            return writeln!(f, "no namespace of a test is there");
        }
        for RemovedNamespace { name, was_over, result, error } in &self.namespaces {
            let run = if *was_over { "" } else { ", whose run may have been going on" };
            let line = match (result, error) {
                (Some(NamespaceRemoval::Gone), _) => format!("deleted {name}{run}"),
                (Some(NamespaceRemoval::Terminating), _) => {
                    format!("{name}{run}: it is being deleted")
                }
                (None, error) => {
                    format!("{name}{run}: {}", error.as_deref().unwrap_or("it is still there"))
                }
            };
            writeln!(f, "{}", Printable(&line))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn namespace(name: &str, manager: &str, deadline: &str) -> NamespaceMetadata {
        let object = json!({
            "name": name, "labels": { MANAGED_BY.0: manager },
            "annotations": { DEADLINE: deadline },
        });
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn only_namespaces_with_the_label_and_the_name_are_tests() {
        let cases = [
            ("denizen-test-0a1b", "kubectl-denizen", true),
            ("denizen-test-0a1b", "Helm", false),
            ("denizen", "kubectl-denizen", false),
            ("my-denizen-test-1", "kubectl-denizen", false),
        ];
        for (name, manager, expected) in cases {
            assert_eq!(is_tests(&namespace(name, manager, "")), expected, "{name} {manager}");
        }
    }

    #[test]
    fn a_run_is_over_after_its_deadline() {
        let cases =
            [("2020-01-01T00:00:00Z", true), ("2999-01-01T00:00:00Z", false), ("soon", false)];
        for (deadline, expected) in cases {
            assert_eq!(namespace("n", "m", deadline).is_over(), expected, "{deadline}");
        }
    }
}
