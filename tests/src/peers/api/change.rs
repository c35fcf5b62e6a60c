//! What kubectl does to objects.

use std::sync::Arc;

use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::{Method, Request, Response};
use serde_json::{Value, json};

use super::answer::{failure, json_answer};
use super::kinds::PathTarget;
use super::server::Shared;
use super::watch::Body;

/// Carries out a change, and answers with what is there now.
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
    match (&parts.method, &target.name) {
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

fn put(shared: &Arc<Shared>, target: &PathTarget, mut object: Value, code: u16) -> Response<Body> {
    if let Some(namespace) = &target.namespace {
        object["metadata"]["namespace"] = namespace.as_str().into();
    }
    // Every real object has it, and a few hundred bytes of it.
    object["metadata"]["managedFields"] =
        json!([{ "manager": "kubectl", "operation": "Update", "fieldsV1": { "f:spec": {} } }]);
    match shared.store.put(object) {
        Ok(stored) => json_answer(code, stored.json.clone()),
        Err(error) => failure(400, "BadRequest", &error.to_string()),
    }
}

/// RFC 7396.
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
