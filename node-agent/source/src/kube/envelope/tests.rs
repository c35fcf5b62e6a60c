use denizen_fixture::protobuf;
use k8s_pb::api::core::v1 as core;
use k8s_pb::apimachinery::pkg::apis::meta::v1 as meta;
use k8s_pb::apimachinery::pkg::runtime;
use prost::Message;
use serde_json::json;

use super::*;

#[test]
fn a_refusal_in_any_form_gives_its_code() {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "slow down",
        "reason": "TooManyRequests", "details": { "retryAfterSeconds": 7 }, "code": 429,
    });
    let written = protobuf::object("Status", &status);
    let cases: [(&str, Vec<u8>, &str, u32); 7] = [
        ("protobuf", protobuf::envelope("v1", "Status", &written), "slow down", 7),
        ("JSON", status.to_string().into(), "slow down", 7),
        (
            "text",
            b"Too many requests, please try again later.\n".to_vec(),
            "Too many requests, please",
            0,
        ),
        ("nothing", Vec::new(), "does not say why", 0),
        ("bytes", vec![0xff; 9], "does not say why", 0),
        ("another object", protobuf::envelope("v1", "Pod", b""), "k8s", 0),
        ("half of it", protobuf::envelope("v1", "Status", &written)[..9].to_vec(), "k8s", 0),
    ];
    for (name, body, message, retry_after) in cases {
        for header in [0, 3, 9] {
            let status = refusal(429, "Too Many Requests", header, &body);
            assert_eq!(status.code, 429, "{name}");
            assert!(
                status.message.starts_with(message) || status.message.contains(message),
                "{name}: {}",
                status.message
            );
            let asked = status.details.map_or(0, |details| details.retry_after_seconds);
            assert_eq!(asked, retry_after.max(header), "{name}");
        }
    }
}

#[test]
fn the_type_of_an_answer_says_its_encoding() {
    let encoding = |text: &str| Encoding::of_content_type(text).ok();
    let protobuf = "application/vnd.kubernetes.protobuf";
    assert_eq!(encoding(protobuf), Some(Encoding::Protobuf));
    assert_eq!(encoding(&format!("{protobuf};stream=watch")), Some(Encoding::Protobuf));
    assert_eq!(encoding("application/json; charset=utf-8"), Some(Encoding::Json));
    assert_eq!(encoding(""), Some(Encoding::Json));
    assert_eq!(encoding("text/html"), None);
}

#[test]
fn an_answer_is_one_object_or_several() {
    let policy = |name: &str| json!({ "metadata": { "name": name, "namespace": "shop", "resourceVersion": "7" } });
    let written = ["a", "b"].map(|name| protobuf::object("NetworkPolicy", &policy(name)));
    let items = written.iter().map(Vec::as_slice);
    let list = protobuf::list("networking.k8s.io/v1", "NetworkPolicy", "9", None, items);
    let one = protobuf::envelope("networking.k8s.io/v1", "NetworkPolicy", &written[0]);
    let json =
        json!({ "metadata": { "resourceVersion": "9" }, "items": [policy("a"), policy("b")] });
    let names = |encoding, bytes: &[u8]| -> Vec<String> {
        let objects = objects(encoding, bytes).unwrap().into_iter();
        objects.map(|object| object.metadata().unwrap().name.to_string()).collect()
    };
    assert_eq!(names(Encoding::Protobuf, &list), ["a", "b"]);
    assert_eq!(names(Encoding::Protobuf, &one), ["a"]);
    assert_eq!(names(Encoding::Json, json.to_string().as_bytes()), ["a", "b"]);
    assert_eq!(names(Encoding::Json, policy("a").to_string().as_bytes()), ["a"]);
    assert!(objects(Encoding::Protobuf, json.to_string().as_bytes()).is_err());
}

/// What surrounds objects, as Kubernetes' own definitions encode it.
#[test]
fn envelopes_lists_events_and_failures_of_upstream_are_read() {
    let text = |text: &str| Some(text.to_owned());
    let envelope = |api_version: &str, kind: &str, object: Vec<u8>| {
        let unknown = runtime::Unknown {
            type_meta: Some(runtime::TypeMeta { api_version: text(api_version), kind: text(kind) }),
            raw: Some(object),
            content_encoding: text(""),
            content_type: text(""),
        };
        [b"k8s\0".as_slice(), &unknown.encode_to_vec()].concat()
    };
    let namespace = |name: &str, version: &str| core::Namespace {
        metadata: Some(meta::ObjectMeta {
            name: text(name),
            namespace: text("of-none"),
            resource_version: text(version),
            ..meta::ObjectMeta::default()
        }),
        ..core::Namespace::default()
    };
    let list = core::NamespaceList {
        metadata: Some(meta::ListMeta {
            self_link: text("unused"),
            resource_version: text("9"),
            r#continue: text("next"),
            remaining_item_count: Some(4999),
        }),
        items: vec![namespace("a", "7"), namespace("b", "8")],
    };
    let list = envelope("v1", "NamespaceList", list.encode_to_vec());
    let items = objects(Encoding::Protobuf, &list).unwrap().into_iter();
    let items: Vec<_> = items.map(|object| shown(object.metadata().unwrap())).collect();
    assert_eq!(items, ["of-none/a@7", "of-none/b@8"]);
    let Envelope { kind, object } = Envelope::open(&list).unwrap().unwrap();
    assert_eq!(&*kind, "NamespaceList");
    let head = Fields::of(object).next().unwrap().unwrap();
    let metadata: ListMetadata<'_> = head.message().unwrap();
    let ListMetadata { resource_version, continue_token, remaining } = &metadata;
    assert_eq!((&**resource_version, &**continue_token, *remaining), ("9", "next", 4999));
    let failure = meta::Status {
        status: text("Failure"),
        message: text("too old"),
        reason: text("Expired"),
        details: Some(meta::StatusDetails {
            retry_after_seconds: Some(7),
            ..meta::StatusDetails::default()
        }),
        code: Some(410),
        ..meta::Status::default()
    };
    let failure = envelope("v1", "Status", failure.encode_to_vec());
    let event = |event_type: &str, object: Vec<u8>| {
        let event = meta::WatchEvent {
            r#type: text(event_type),
            object: Some(runtime::RawExtension { raw: Some(object) }),
        };
        let event = event.encode_to_vec();
        match WatchEvent::decode(Encoding::Protobuf, &event).unwrap() {
            WatchEvent::Changed(object) => format!("+{}", shown(object.metadata().unwrap())),
            WatchEvent::Deleted(object) => format!("-{}", shown(object.metadata().unwrap())),
            WatchEvent::Bookmark(object) => shown(object.metadata().unwrap()),
            WatchEvent::Refused(status) => {
                let after = status.details.map_or(0, |details| details.retry_after_seconds);
                format!("{} {} {} {after}", status.code, status.reason, status.message)
            }
        }
    };
    let object = || envelope("v1", "Namespace", namespace("a", "7").encode_to_vec());
    assert_eq!(event("ADDED", object()), "+of-none/a@7");
    assert_eq!(event("MODIFIED", object()), "+of-none/a@7");
    assert_eq!(event("DELETED", object()), "-of-none/a@7");
    assert_eq!(event("BOOKMARK", object()), "of-none/a@7");
    assert_eq!(event("ERROR", failure.clone()), "410 Expired too old 7");
    let status = refusal(410, "Gone", 0, &failure);
    assert_eq!((&*status.reason, &*status.message), ("Expired", "too old"));
    assert_eq!(status.details.map_or(0, |details| details.retry_after_seconds), 7);
}

fn shown(metadata: ObjectMetadata<'_>) -> String {
    let ObjectMetadata { resource_version, namespace, name } = metadata;
    format!("{}/{}@{}", &*namespace, &*name, &*resource_version)
}
