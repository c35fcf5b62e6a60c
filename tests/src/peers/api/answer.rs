//! What the tests' server answers.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use denizen_fixture::protobuf::{self, NextPage};
use flate2::Compression;
use flate2::write::GzEncoder;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::HeaderValue;
use hyper::{Method, Request, Response};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::behaviour::{ReceivedRequest, ServerBehaviour, query_of};
use super::change;
use super::exec;
use super::kinds::{PathTarget, RESOURCES, Resource};
use super::select::Selector;
use super::server::Shared;
use super::store::Stored;
use super::watch::{Body, Pipe, Watch, WatchScope, expired};

/// Where a client asks what it may do (SelfSubjectAccessReview).
const REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";

/// A request's answer.
pub(super) async fn answer(
    shared: Arc<Shared>,
    connection: usize,
    request: Request<Incoming>,
) -> Response<Body> {
    let received = ReceivedRequest {
        method: request.method().to_string(),
        path: request.uri().path().to_owned(),
        query: query_of(request.uri().query().unwrap_or_default()),
        protobuf: header(&request, "accept").starts_with(PROTOBUF) && !shared.behaviour().only_json,
        user_agent: header(&request, "user-agent").to_owned(),
        metadata_only: header(&request, "accept").contains("as=PartialObjectMetadataList"),
        gzip: header(&request, "accept-encoding").contains("gzip"),
        connection: Some(connection),
        at: Instant::now(),
        status: 0,
    };
    let number = shared.record(received.clone());
    let token = request.headers().get("authorization").and_then(|value| value.to_str().ok());
    let mut response = match (fault(&shared, &received, token).await, &shared.upstream) {
        (None, Some(upstream)) => upstream.forward(&shared, &received, request).await,
        (None, None) => encoded(&received, answer_to(&shared, &received, request).await).await,
        (Some(fault), _) => encoded(&received, fault).await,
    };
    response.headers_mut().insert("date", date(shared.behaviour().clock_ahead));
    shared.answered(number, response.status().as_u16());
    response
}

/// A header's value, empty if there is none. Of `accept` only the first type matters: Kubernetes
/// chooses the first one that the server has.
fn header<'r>(request: &'r Request<Incoming>, name: &str) -> &'r str {
    request.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

pub(super) const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// Writes an error in the encoding that was asked for. One that is plain text stays plain text.
async fn encoded(received: &ReceivedRequest, response: Response<Body>) -> Response<Body> {
    if !received.protobuf || response.status().as_u16() < 400 {
        return response;
    }
    let (mut head, body) = response.into_parts();
    let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let Ok(status) = serde_json::from_slice::<Value>(&body) else {
        return Response::from_parts(head, whole(body));
    };
    head.headers.insert("content-type", HeaderValue::from_static(PROTOBUF));
    let written = protobuf::envelope("v1", "Status", &protobuf::object("Status", &status));
    Response::from_parts(head, whole(written.into()))
}

/// The answer of the API's priority and fairness, which is not a Kubernetes object.
fn too_many(seconds: u64) -> Response<Body> {
    let text = Bytes::from_static(b"Too many requests, please try again later.\n");
    Response::builder()
        .status(429)
        .header("content-type", "text/plain; charset=utf-8")
        .header("retry-after", seconds)
        .body(whole(text))
        .expect("a status and headers that exist")
}

/// The answer that the server's behaviour gives in place of the right one, if any.
async fn fault(
    shared: &Arc<Shared>,
    received: &ReceivedRequest,
    token: Option<&str>,
) -> Option<Response<Body>> {
    let behaviour = shared.behaviour();
    let token = token.and_then(|text| text.strip_prefix("Bearer ")).unwrap_or_default();
    if !behaviour.tokens.is_empty() && !behaviour.tokens.iter().any(|known| known == token.trim()) {
        return Some(failure(401, "Unauthorized", "Unauthorized"));
    }
    let plural = PathTarget::parse(&received.path)?.resource.plural;
    while shared.behaviour().silent_paths.contains(&received.path) {
        sleep(Duration::from_millis(20)).await;
    }
    if behaviour.garbled_paths.contains(&received.path) {
        return Some(json_answer(200, "<html>Welcome</html>".into()));
    }
    if let Some(refusal) = refused(&behaviour, plural).await {
        return Some(refusal);
    }
    if let Some((_, seconds)) = behaviour.too_many.filter(|(of, _)| *of == plural) {
        return Some(too_many(seconds));
    }
    if behaviour.forbidden.contains(&plural) || behaviour.forbidden_paths.contains(&received.path) {
        let message =
            format!("{plural} is forbidden: User \"denizen\" cannot list resource \"{plural}\"");
        return Some(failure(403, "Forbidden", &message));
    }
    if received.is_watch() && behaviour.forgets {
        return Some(json_answer(410, expired().to_string().into()));
    }
    if received.is_watch() && behaviour.oversized.contains(&plural) {
        return Some(oversized(received));
    }
    None
}

/// A watch whose first event is longer than any client accepts.
fn oversized(received: &ReceivedRequest) -> Response<Body> {
    const TOO_LONG: u32 = (16 << 20) + 1;
    if received.protobuf {
        let length = Bytes::copy_from_slice(&TOO_LONG.to_be_bytes());
        return response_of(&format!("{PROTOBUF};stream=watch"), 200, whole(length));
    }
    json_answer(200, vec![b'x'; TOO_LONG as usize].into())
}

async fn answer_to(
    shared: &Arc<Shared>,
    received: &ReceivedRequest,
    request: Request<Incoming>,
) -> Response<Body> {
    let behaviour = shared.behaviour();
    if received.path == REVIEWS {
        return match refused(&behaviour, "selfsubjectaccessreviews").await {
            Some(refusal) => refusal,
            None => review(&behaviour, request).await,
        };
    }
    if let Some((namespace, pod, subresource)) = exec::subresource(&received.path) {
        let (resource, verbs) = match subresource {
            "exec" => ("pods/exec", behaviour.exec_verbs()),
            _ => ("pods/log", &["get"][..]),
        };
        if let Some(verb) = verbs.iter().find(|verb| behaviour.forbids(verb, resource)) {
            let who = "User \"denizen\"";
            let message =
                format!("pods {pod:?} is forbidden: {who} cannot {verb} resource {resource:?}");
            return failure(403, "Forbidden", &message);
        }
        return match subresource {
            "exec" => exec::exec(shared, request, (namespace, pod)),
            _ => json_answer(200, format!("the log of {pod}\n").into()),
        };
    }
    let Some(target) = PathTarget::parse(&received.path) else {
        return discovery(&received.path, &behaviour);
    };
    match (request.method(), &target.name) {
        (&Method::GET, Some(name)) => {
            let namespace = target.namespace.as_deref().unwrap_or_default();
            match shared.store.get(target.resource, namespace, name) {
                Some(object) => match object.protobuf.as_ref().filter(|_| received.protobuf) {
                    Some(message) => {
                        let Resource { version, kind, .. } = target.resource;
                        let written = protobuf::envelope(version, kind, message);
                        response_of(PROTOBUF, 200, whole(written.into()))
                    }
                    None => json_answer(200, object.json.clone()),
                },
                None => change::not_found(&target),
            }
        }
        (&Method::GET, None) if received.is_watch() => watch(shared, received, target),
        (&Method::GET, None) => page(shared, received, &target),
        _ => change::change(shared, &target, request).await,
    }
}

/// The answer to every request for a resource that the server does not serve, or serves badly;
/// `None` for other resources.
async fn refused(behaviour: &ServerBehaviour, plural: &str) -> Option<Response<Body>> {
    if behaviour.silent.contains(&plural) {
        std::future::pending::<()>().await;
    }
    if behaviour.garbled.contains(&plural) {
        return Some(json_answer(200, "<html>Welcome</html>".into()));
    }
    let message = "the server could not find the requested resource";
    let is_unserved = plural == TIERS && !behaviour.tiers || behaviour.unserved.contains(&plural);
    is_unserved.then(|| failure(404, "NotFound", message))
}

/// The server's time: `ahead` seconds ahead of the real time.
fn date(ahead: i64) -> HeaderValue {
    let now = SystemTime::now();
    let ahead_of = Duration::from_secs(ahead.unsigned_abs());
    let time = if ahead < 0 { now - ahead_of } else { now + ahead_of };
    HeaderValue::from_str(&httpdate::fmt_http_date(time)).expect("a date is a header's value")
}

/// Whether the client may do what it asks about.
async fn review(behaviour: &ServerBehaviour, request: Request<Incoming>) -> Response<Body> {
    let Ok(body) = request.into_body().collect().await else {
        return failure(400, "BadRequest", "half a body");
    };
    let mut review: Value = serde_json::from_slice(&body.to_bytes()).unwrap_or_default();
    let attributes = &review["spec"]["resourceAttributes"];
    let of = |key: &str| attributes[key].as_str().filter(|text| !text.is_empty());
    let resource = of("resource").map(|resource| match of("subresource") {
        Some(subresource) => format!("{resource}/{subresource}"),
        None => resource.to_owned(),
    });
    let verb = of("verb").unwrap_or_default();
    let allowed = resource.is_some_and(|resource| !behaviour.forbids(verb, &resource));
    review["status"] = json!({ "allowed": allowed });
    json_answer(201, review.to_string().into())
}

fn selector(
    received: &ReceivedRequest,
    target: &PathTarget,
    behaviour: &ServerBehaviour,
) -> Result<Selector, String> {
    let (labels, fields) =
        (received.parameter("labelSelector"), received.parameter("fieldSelector"));
    if let Some(fields) =
        fields.filter(|selector| behaviour.refuses_fields && !selector.starts_with("metadata."))
    {
        let known = "only \"metadata.name\", \"metadata.namespace\"";
        return Err(format!("{fields:?} is not a known field selector: {known}"));
    }
    Selector::parse(labels, fields, target.namespace.as_deref())
}

fn watch(shared: &Arc<Shared>, received: &ReceivedRequest, target: PathTarget) -> Response<Body> {
    let behaviour = shared.behaviour();
    let selector = match selector(received, &target, &behaviour) {
        Ok(selector) => selector,
        Err(error) => return failure(400, "BadRequest", &error),
    };
    let initial = received.is_stream();
    if initial
        && (behaviour.refuses_streams
            || received.parameter("resourceVersionMatch") != Some("NotOlderThan"))
    {
        let message = "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for watch \
                       unless the WatchList feature gate is enabled";
        return failure(422, "Invalid", message);
    }
    let since = received.parameter("resourceVersion").unwrap_or_default();
    let since = match (initial, since.parse()) {
        (true, _) => None,
        (false, Ok(since)) => Some(since),
        (false, Err(_)) => return failure(400, "BadRequest", "invalid resource version"),
    };
    let (pipe, body) = Pipe::new(behaviour);
    let protobuf = received.protobuf && protobuf::has(target.resource.kind);
    let scope = WatchScope {
        protobuf,
        resource: target.resource,
        selector,
        since,
        bookmarks: received.parameter("allowWatchBookmarks") == Some("true"),
        seconds: received
            .parameter("timeoutSeconds")
            .and_then(|text| text.parse().ok())
            .unwrap_or(1800),
    };
    tokio::spawn(Watch::new(shared.clone(), scope, pipe).run());
    match protobuf {
        true => response_of(&format!("{PROTOBUF};stream=watch"), 200, body),
        false => response(200, body),
    }
}

/// A page of a list: all pages show the objects as they were for the first page.
fn page(shared: &Arc<Shared>, received: &ReceivedRequest, target: &PathTarget) -> Response<Body> {
    let behaviour = shared.behaviour();
    let selector = match selector(received, target, &behaviour) {
        Ok(selector) => selector,
        Err(error) => return failure(400, "BadRequest", &error),
    };
    let least = received.parameter("resourceVersion").and_then(|text| text.parse().ok());
    let current = shared.store.list(target.resource, &selector).1;
    if least.is_some_and(|least: u64| least > current) {
        let message = format!(
            "Timeout: Too large resource version: {}, current: {current}",
            least.unwrap_or_default()
        );
        return failure(504, "Timeout", &message);
    }
    let limit =
        received.parameter("limit").and_then(|text| text.parse().ok()).unwrap_or(usize::MAX);
    let limit = limit.min(behaviour.page).max(1);
    let (objects, version, from) =
        match received.parameter("continue").and_then(|token| token.split_once('.')) {
            None => {
                let (objects, version) = shared.store.list(target.resource, &selector);
                (objects, version, 0_usize)
            }
            Some((version, from)) => {
                let version: u64 = version.parse().unwrap_or_default();
                let lost = shared.take(|behaviour| &mut behaviour.loses_pages);
                match shared.store.kept(target.resource, version).filter(|_| !lost) {
                    Some(objects) => (objects, version, from.parse().unwrap_or_default()),
                    None => return json_answer(410, expired().to_string().into()),
                }
            }
        };
    let to = objects.len().min(from.saturating_add(limit));
    let continue_token = format!("{version}.{to}");
    let remaining = objects.len() - to;
    let next = (remaining > 0).then_some(NextPage { continue_token: &continue_token, remaining });
    let in_protobuf = received.protobuf && protobuf::has(target.resource.kind);
    let shown: Vec<Arc<Stored>>;
    let (objects_shown, resource) = if received.metadata_only {
        shown = objects[from..to].iter().map(|object| Arc::new(object.metadata_alone())).collect();
        (&*shown, Resource { version: "meta.k8s.io/v1", kind: METADATA, ..target.resource })
    } else {
        (&objects[from..to], target.resource)
    };
    let page = ListPage { objects: objects_shown, version, next };
    let text = if in_protobuf { page.in_protobuf(resource) } else { page.in_json(resource) };
    if to < objects.len() {
        shared.store.keep(target.resource, version, objects);
    }
    let breaks = shared.take(|behaviour| &mut behaviour.breaks_lists);
    let damages = behaviour.damages_lists;
    let (pipe, body) = Pipe::new(behaviour);
    let mut response = response_of(if in_protobuf { PROTOBUF } else { JSON }, 200, body);
    let text = if received.gzip && text.len() > COMPRESSED_ABOVE {
        response.headers_mut().insert("content-encoding", HeaderValue::from_static("gzip"));
        compressed(&text, damages)
    } else {
        text
    };
    tokio::spawn(pipe.list(text.into(), breaks));
    response
}

/// As with a real server, shorter answers are not compressed.
const COMPRESSED_ABOVE: usize = 128 << 10;

fn compressed(text: &[u8], damages: bool) -> Vec<u8> {
    /// The end of a gzip stream: a checksum, and the length.
    const CHECKSUM: usize = 8;
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(text).expect("memory takes all");
    let mut written = encoder.finish().expect("memory takes all");
    let at = written.len() - CHECKSUM;
    written[at] ^= u8::from(damages);
    written
}

/// The kind of objects of which only the metadata is shown.
const METADATA: &str = "PartialObjectMetadata";

/// What a list is made of.
struct ListPage<'a> {
    objects: &'a [Arc<Stored>],
    version: u64,
    next: Option<NextPage<'a>>,
}

impl ListPage<'_> {
    fn in_protobuf(&self, Resource { version, kind, .. }: Resource) -> Vec<u8> {
        let items = self.objects.iter().filter_map(|object| object.protobuf.as_deref());
        protobuf::list(version, kind, &self.version.to_string(), self.next, items)
    }

    /// As with a real server, a list's items have no `kind` and `apiVersion`.
    fn in_json(&self, Resource { version: group, kind, .. }: Resource) -> Vec<u8> {
        let next = self.next.map(|NextPage { continue_token, remaining }| {
            format!(r#","continue":"{continue_token}","remainingItemCount":{remaining}"#)
        });
        let item = |object: &Arc<Stored>| {
            let fields = object.value.as_object().into_iter().flatten();
            let selected = fields.filter(|(name, _)| !["kind", "apiVersion"].contains(&&***name));
            serde_json::to_string(&selected.collect::<BTreeMap<_, _>>()).expect("plain data")
        };
        let items: Vec<String> = self.objects.iter().map(item).collect();
        let metadata =
            format!(r#""resourceVersion":"{}"{}"#, self.version, next.unwrap_or_default());
        let head =
            format!(r#""kind":"{kind}List","apiVersion":"{group}","metadata":{{{metadata}}}"#);
        format!(r#"{{{head},"items":[{}]}}"#, items.join(",")).into()
    }
}

const TIERS: &str = "clusternetworkpolicies";
const TIERS_GROUP: &str = "/apis/policy.networking.k8s.io";

/// The discovery that kubectl asks for before anything else.
fn discovery(path: &str, behaviour: &ServerBehaviour) -> Response<Body> {
    let groups: BTreeMap<&str, &str> = RESOURCES
        .iter()
        .filter(|resource| resource.plural != TIERS)
        .filter_map(|resource| Some((resource.version.split_once('/')?.0, resource.version)))
        .collect();
    if path.contains("policy.networking.k8s.io") && !behaviour.tiers {
        return failure(404, "NotFound", &format!("there is no {path}"));
    }
    let found = match path {
        TIERS_GROUP => json!({ "kind": "APIGroup", "versions": [{ "version": "v1alpha2" }] }),
        _ if path.contains("/customresourcedefinitions/") => json!({}),
        "/version" => json!({ "major": "1", "minor": "33", "gitVersion": behaviour.release }),
        "/api" => json!({ "kind": "APIVersions", "versions": ["v1"] }),
        "/apis" => {
            let group = |(name, version): (&&str, &&str)| {
                let version = json!({ "groupVersion": version, "version": "v1" });
                json!({ "name": name, "versions": [version], "preferredVersion": version })
            };
            let groups: Vec<Value> = groups.iter().map(group).collect();
            json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": groups })
        }
        _ => match RESOURCES.iter().find(|resource| Resource::prefix(resource.version) == path) {
            Some(found) => resources_of(found.version),
            None => return failure(404, "NotFound", &format!("there is no {path}")),
        },
    };
    json_answer(200, found.to_string().into())
}

fn resources_of(version: &str) -> Value {
    let resource = |resource: &Resource| {
        json!({
            "name": resource.plural, "singularName": resource.kind.to_lowercase(),
            "namespaced": resource.namespaced, "kind": resource.kind,
            "verbs": ["create", "delete", "get", "list", "patch", "update", "watch"],
        })
    };
    let own = RESOURCES.iter().filter(|resource| resource.version == version);
    let resources: Vec<Value> = own.map(resource).collect();
    json!({ "kind": "APIResourceList", "groupVersion": version, "resources": resources })
}

/// A failure, as a `Status` object of the API.
pub(super) fn failure(code: u16, reason: &str, message: &str) -> Response<Body> {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code,
    });
    json_answer(code, status.to_string().into())
}

pub(super) fn json_answer(code: u16, text: Bytes) -> Response<Body> {
    response(code, whole(text))
}

fn whole(bytes: Bytes) -> Body {
    Full::new(bytes).map_err(|never| match never {}).boxed_unsync()
}

const JSON: &str = "application/json";

fn response(code: u16, body: Body) -> Response<Body> {
    response_of(JSON, code, body)
}

fn response_of(content_type: &str, code: u16, body: Body) -> Response<Body> {
    Response::builder()
        .status(code)
        .header("content-type", content_type)
        .body(body)
        .expect("a status and a header that exist")
}
