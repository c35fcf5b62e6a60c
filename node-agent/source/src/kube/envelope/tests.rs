use denizen_fixture::protobuf;
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
    let list = protobuf::list("networking.k8s.io/v1", "NetworkPolicy", "9", "", items);
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
