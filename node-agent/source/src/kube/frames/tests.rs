use std::panic::catch_unwind;

use denizen_fixture::protobuf::{self, NextPage};
use proptest::prelude::*;
use serde_json::json;

use super::*;
use denizen_object::{Decoder, ObjectKind};

fn pod(number: usize) -> Vec<u8> {
    let metadata = json!({
        "name": format!("pod-{number}"), "namespace": "shop", "resourceVersion": "7",
        "managedFields": [{ "manager": "kubelet", "fieldsV1": { "f:status": {} } }],
    });
    let status = json!({ "phase": "Running", "podIP": format!("10.0.0.{}", number + 1) });
    protobuf::object("Pod", &json!({ "metadata": metadata, "status": status }))
}

fn list(pods: usize, version: &str, continue_token: &str) -> Vec<u8> {
    let items: Vec<_> = (0..pods).map(pod).collect();
    let next =
        Some(NextPage { continue_token, remaining: 1 }).filter(|_| !continue_token.is_empty());
    protobuf::list("v1", "Pod", version, next, items.iter().map(Vec::as_slice))
}

/// The names in a list that arrives in pieces of this size, and its version.
fn read(bytes: &[u8], size: usize) -> Result<(Vec<String>, Option<String>), Unreadable> {
    let (mut listed, mut names) = (ListItems::default(), Vec::new());
    for piece in bytes.chunks(size) {
        listed.push(piece);
        while let Some(object) = listed.next()? {
            names.push(
                object.metadata().map(|metadata| metadata.name.to_string()).unwrap_or_default(),
            );
        }
        assert!(listed.buffer.rest().len() < pod(0).len() + 20, "only what arrives is kept");
    }
    Ok((names, listed.end()?))
}

fn events() -> Vec<u8> {
    let object = |number| protobuf::envelope("v1", "Pod", &pod(number));
    let bookmark = json!({ "metadata": { "resourceVersion": "9" } });
    let bookmark = protobuf::envelope("v1", "Pod", &protobuf::object("Pod", &bookmark));
    let status = json!({ "message": "too old", "reason": "Expired", "code": 410 });
    let status = protobuf::envelope("v1", "Status", &protobuf::object("Status", &status));
    [
        protobuf::event("ADDED", &object(1)),
        protobuf::event("DELETED", &object(2)),
        protobuf::event("BOOKMARK", &bookmark),
        protobuf::event("ERROR", &status),
    ]
    .concat()
}

fn shown(event: &WatchEvent<'_>) -> String {
    let name = |object: &Object<'_>| {
        let metadata = object.metadata().unwrap();
        format!("{}@{}", &*metadata.name, &*metadata.resource_version)
    };
    match event {
        WatchEvent::Changed(object) => format!("+{}", name(object)),
        WatchEvent::Deleted(object) => format!("-{}", name(object)),
        WatchEvent::Bookmark(object) => name(object),
        WatchEvent::Refused(status) => format!("{} {}", status.code, status.message),
    }
}

fn watched(
    encoding: Encoding,
    bytes: &[u8],
    size: usize,
) -> Result<(Vec<String>, bool), Unreadable> {
    let (mut frames, mut seen) = (Frames::new(encoding), Vec::new());
    for piece in bytes.chunks(size) {
        frames.push(piece);
        while let Some(event) = frames.next()? {
            seen.push(shown(&event));
        }
    }
    Ok((seen, frames.is_between_events()))
}

#[test]
fn a_list_is_the_same_in_pieces_of_any_size() {
    let bytes = list(20, "42", "");
    let names: Vec<String> = (0..20).map(|number| format!("pod-{number}")).collect();
    for size in [1, 2, 3, 7, 100, 200] {
        assert_eq!(read(&bytes, size).unwrap(), (names.clone(), Some("42".into())), "{size}");
    }
    assert_eq!(read(&list(0, "42", ""), 5).unwrap(), (Vec::new(), Some("42".into())));
}

/// Wherever it is cut: what is gone would be known from it.
#[test]
fn half_a_list_is_never_a_list() {
    let bytes = list(3, "42", "");
    // The two empty texts at its end say nothing.
    for length in 0..bytes.len() - 4 {
        let end = read(&bytes[..length], 10);
        assert!(!matches!(end, Ok((_, Some(_)))), "{length} of {}: {end:?}", bytes.len());
    }
}

#[test]
fn lists_that_are_none() {
    let mut long = b"k8s\0\x12".to_vec();
    long.extend([0xff, 0xff, 0xff, 0xff, 0x0f, 0x12, 0xff, 0xff, 0xff, 0x7f]);
    let object = protobuf::envelope("v1", "Pod", &pod(1));
    let cases: [(&str, Vec<u8>, &str); 7] = [
        ("JSON", b"{\"kind\":\"PodList\"}".to_vec(), "says that it is protobuf"),
        ("one object", object, "not a list"),
        ("a page", list(2, "42", "more"), "only a part"),
        ("no version", list(2, "", ""), "no resource version"),
        ("an item of 256 MiB", long, "more than 16 MiB"),
        ("an item beyond the list", b"k8s\0\x12\x04\x12\x7f".to_vec(), "breaks off"),
        ("a group", b"k8s\0\x12\x02\x0b\x0c".to_vec(), "wire type 3"),
    ];
    for (name, bytes, expected) in cases {
        let error = read_any(&bytes).expect_err(name).to_string();
        assert!(error.contains(expected), "{name}: {error}");
    }
}

fn read_any(bytes: &[u8]) -> Result<Option<String>, Unreadable> {
    let mut listed = ListItems::default();
    listed.push(bytes);
    while listed.next()?.is_some() {}
    listed.end()
}

#[test]
fn events_are_the_same_in_pieces_of_any_size() {
    let expected = ["+pod-1@7", "-pod-2@7", "@9", "410 too old"];
    let object = |name: &str, version: &str| {
        let metadata = json!({ "name": name, "resourceVersion": version });
        json!({ "metadata": metadata })
    };
    let json = [
        json!({ "type": "MODIFIED", "object": object("pod-1", "7") }),
        json!({ "type": "DELETED", "object": object("pod-2", "7") }),
        json!({ "type": "BOOKMARK", "object": object("", "9") }),
        json!({ "type": "ERROR", "object": { "kind": "Status", "message": "too old", "code": 410 } }),
    ];
    let json: String = json.iter().map(|event| format!("{event}\n\n")).collect();
    for (encoding, bytes) in [(Encoding::Protobuf, events()), (Encoding::Json, json.into_bytes())] {
        for size in [1, 2, 3, 5, 64, 1 << 20] {
            let (seen, is_between) = watched(encoding, &bytes, size).unwrap();
            assert_eq!(seen, expected, "{encoding:?} {size}");
            assert!(is_between);
        }
        let half = &bytes[..bytes.len() - 5];
        let (seen, is_between) = watched(encoding, half, 64).unwrap();
        assert_eq!((seen.len(), is_between), (3, false), "{encoding:?}: it ends within an event");
    }
}

#[test]
fn events_that_are_none() {
    let cases = [
        ("over 16 MiB", Encoding::Protobuf, vec![1, 0, 0, 1], "more than 16 MiB"),
        ("JSON", Encoding::Protobuf, b"{\"type\":\"ADDED\"}".to_vec(), "more than 16 MiB"),
        (
            "an object without envelope",
            Encoding::Protobuf,
            protobuf::event("ADDED", &pod(1)),
            "is not",
        ),
        (
            "another type",
            Encoding::Protobuf,
            protobuf::event("SHIFTED", &protobuf::envelope("v1", "Pod", b"")),
            "SHIFTED",
        ),
        ("protobuf", Encoding::Json, [events(), b"\n".to_vec()].concat(), "expected value"),
        ("a long line", Encoding::Json, vec![b'x'; (16 << 20) + 1], "more than 16 MiB"),
    ];
    for (name, encoding, bytes, expected) in cases {
        let error = watched(encoding, &bytes, 1 << 16).expect_err(name).to_string();
        assert!(error.contains(expected), "{name}: {error}");
    }
}

/// Uses all that can be read of an object.
fn decode_all(object: Object<'_>) {
    let _ = object.metadata();
    for kind in ObjectKind::ALL {
        let mut decoder = Decoder::new("node-1".into()).with_other_nodes(true);
        let found = object.found(kind);
        let _ = found.decode(&mut decoder, &mut Vec::new());
        let _ = found.key(&decoder);
    }
}

fn use_all(bytes: &[u8], size: usize) {
    for encoding in [Encoding::Protobuf, Encoding::Json] {
        let mut frames = Frames::new(encoding);
        'pieces: for piece in bytes.chunks(size) {
            frames.push(piece);
            loop {
                match frames.next() {
                    Ok(Some(WatchEvent::Changed(object))) => decode_all(object),
                    Ok(Some(_)) => {}
                    Ok(None) => break,
                    Err(_) => break 'pieces,
                }
            }
        }
        let objects = super::super::envelope::objects(encoding, bytes);
        objects.into_iter().flatten().for_each(decode_all);
    }
    let mut listed = ListItems::default();
    'pieces: for piece in bytes.chunks(size) {
        listed.push(piece);
        loop {
            match listed.next() {
                Ok(Some(object)) => decode_all(object),
                Ok(None) => break,
                Err(_) => break 'pieces,
            }
        }
    }
    let _ = listed.end();
    decode_all(Object::Protobuf(bytes));
    let _ = super::super::envelope::refusal(500, "", 0, bytes);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..300), size in 1..50_usize) {
        use_all(&bytes, size);
        use_all(&[b"k8s\0".as_slice(), &bytes].concat(), size);
    }

    #[test]
    fn changed_answers_are_survived(
        place in any::<prop::sample::Index>(),
        byte in any::<u8>(),
        cut in any::<prop::sample::Index>(),
        size in 1..300_usize,
    ) {
        for mut bytes in [list(3, "42", ""), events(), pod(1)] {
            let at = place.index(bytes.len());
            bytes[at] = byte;
            use_all(&bytes, size);
            bytes.truncate(cut.index(bytes.len()));
            use_all(&bytes, size);
        }
    }
}

#[test]
fn a_property_test_would_see_a_panic() {
    assert!(catch_unwind(|| use_all(&[], 0)).is_err(), "chunks of no bytes");
}
