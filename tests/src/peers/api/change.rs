//! Changes of objects, for kubectl.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::{Method, Request, Response};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::answer::{failure, json_answer};
use super::kinds::{PathTarget, RESOURCES, Resource};
use super::server::Shared;
use super::store::Stored;
use super::watch::Body;

/// Carries out a change, and answers with the resulting object.
pub(super) async fn change(
    shared: &Arc<Shared>,
    target: &PathTarget,
    request: Request<Incoming>,
) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let Ok(body) = body.collect().await else {
        return failure(400, "BadRequest", "half a body");
    };
    let written: Value = serde_json::from_slice(&body.to_bytes()).unwrap_or_default();
    let namespace = target.namespace.as_deref().unwrap_or_default();
    let there = |name: &str| shared.store.get(target.resource, namespace, name);
    let content_type = parts.headers.get("content-type").and_then(|value| value.to_str().ok());
    if let Some(refusal) = refused(shared, target, &parts.method) {
        return refusal;
    }
    match (&parts.method, &target.name) {
        (&Method::DELETE, Some(name)) if target.resource.kind == "Namespace" => {
            match there(name).filter(|before| is_meant(&before.value, &written)) {
                Some(before) => terminate(shared, before.value.clone()),
                None => not_found(target),
            }
        }
        (&Method::DELETE, Some(name)) => {
            match shared.store.delete(target.resource, namespace, name) {
                Some(_) => json_answer(
                    200,
                    json!({ "kind": "Status", "apiVersion": "v1", "status": "Success" })
                        .to_string()
                        .into(),
                ),
                None => not_found(target),
            }
        }
        (&Method::POST, None) => {
            let name = written["metadata"]["name"].as_str().unwrap_or_default();
            match there(name) {
                Some(_) => failure(409, "AlreadyExists", &format!("{name} already exists")),
                None => put(shared, target, written, 201),
            }
        }
        (&Method::PUT, Some(name)) if there(name).is_some() => put(shared, target, written, 200),
        (&Method::PATCH, Some(name)) => match (content_type, there(name)) {
            (Some("application/merge-patch+json"), Some(before)) => {
                let mut merged = before.value.clone();
                merge(&mut merged, &written);
                put(shared, target, merged, 200)
            }
            (Some("application/merge-patch+json"), None) => not_found(target),
            (_, _) => failure(415, "UnsupportedMediaType", "this server knows merge patches alone"),
        },
        _ => not_found(target),
    }
}

/// The namespaces that always exist.
const NAMESPACES: [&str; 2] = ["default", "kube-system"];

/// How long a namespace is still there after it was deleted.
const TERMINATING: Duration = Duration::from_millis(50);

/// The error if nothing new can be made in this namespace.
fn refused(shared: &Arc<Shared>, target: &PathTarget, method: &Method) -> Option<Response<Body>> {
    let namespace = target.namespace.as_deref().filter(|name| !NAMESPACES.contains(name))?;
    let namespaces = RESOURCES.into_iter().find(|resource| resource.kind == "Namespace")?;
    let found = shared.store.get(namespaces, "", namespace);
    let is_ending = |found: &Stored| !found.value["metadata"]["deletionTimestamp"].is_null();
    match found {
        // Tests put objects into namespaces that do not exist, and agents write events into them.
        _ if method != Method::POST || target.resource.kind == "Event" => None,
        None => Some(failure(404, "NotFound", &format!("namespaces {namespace:?} not found"))),
        Some(found) if is_ending(&found) => {
            let message = format!("unable to create new content in namespace {namespace}");
            Some(failure(403, "Forbidden", &message))
        }
        Some(_) => None,
    }
}

/// Whether `DeleteOptions` permit to delete this object.
fn is_meant(object: &Value, options: &Value) -> bool {
    let uid = &options["preconditions"]["uid"];
    uid.is_null() || *uid == object["metadata"]["uid"]
}

/// Deletes a namespace: it takes a moment, and what is in the namespace goes first.
fn terminate(shared: &Arc<Shared>, mut namespace: Value) -> Response<Body> {
    let name = namespace["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    namespace["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    namespace["status"]["phase"] = "Terminating".into();
    let resource = Resource::of(&namespace);
    let shown = namespace.to_string();
    let (Ok(resource), Ok(Some(_))) = (resource, shared.store.update(namespace)) else {
        return failure(409, "Conflict", "it has changed meanwhile");
    };
    let shared = shared.clone();
    tokio::spawn(async move {
        sleep(TERMINATING).await;
        shared.store.empty(&name);
        shared.store.delete(resource, "", &name);
    });
    json_answer(200, shown.into())
}

fn put(shared: &Arc<Shared>, target: &PathTarget, mut object: Value, code: u16) -> Response<Body> {
    if let Some(namespace) = &target.namespace {
        object["metadata"]["namespace"] = namespace.as_str().into();
    }
    // Every real object has this field, with a few hundred bytes.
    object["metadata"]["managedFields"] =
        json!([{ "manager": "kubectl", "operation": "Update", "fieldsV1": { "f:spec": {} } }]);
    match shared.store.put(object) {
        Ok(stored) => json_answer(code, stored.json.clone()),
        Err(error) => failure(400, "BadRequest", &error.to_string()),
    }
}

/// A merge patch (RFC 7396).
fn merge(into: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        into.clone_from(patch);
        return;
    };
    if !into.is_object() {
        *into = json!({});
    }
    for (name, value) in patch {
        if value.is_null() {
            into.as_object_mut().map(|fields| fields.remove(name));
        } else {
            merge(&mut into[name], value);
        }
    }
}

pub(super) fn not_found(target: &PathTarget) -> Response<Body> {
    let name = target.name.as_deref().unwrap_or_default();
    failure(404, "NotFound", &format!("{} {name:?} not found", target.resource.plural))
}
