use proptest::prelude::*;

use super::*;
use crate::arbitrary::{attachment, state};
use crate::format;
use crate::state::State;

fn print(editor: &StateEditor<'_>) -> Vec<u8> {
    let mut text = Vec::new();
    editor.print(&mut text).unwrap();
    text
}

/// The result of adding `record` to `text` with [`StateEditor`].
fn put(text: &[u8], record: &Attachment) -> (Option<Attachment>, Vec<u8>) {
    let mut editor = StateEditor::parse(text, &record.id()).unwrap();
    (editor.put(record).unwrap(), print(&editor))
}

proptest! {
    #[test]
    fn a_record_is_put_and_removed_as_in_the_typed_format(mut state in state(), record in attachment()) {
        let text = format::print(&state).unwrap();
        let (replaced, printed) = put(&text, &record);
        let before = state.attachments.get(&record.id());
        let record = before.map_or(record.clone(), |before| record.in_place_of(before));
        let same = before == Some(&record);
        prop_assert_eq!(replaced, state.attachments.insert(record.id(), record.clone()));
        state.generation.0 += u64::from(!same);
        prop_assert_eq!(&printed, &format::print(&state).unwrap());
        prop_assert_eq!(put(&printed, &record).1, printed.clone());

        let mut editor = StateEditor::parse(&printed, &record.id()).unwrap();
        prop_assert!(editor.has());
        editor.remove();
        let removed = print(&editor);
        prop_assert!(!StateEditor::parse(&removed, &record.id()).unwrap().has());
        state.attachments.remove(&record.id());
        state.generation.0 += 1;
        prop_assert_eq!(removed, format::print(&state).unwrap());
    }

    #[test]
    fn a_file_with_other_formatting_is_read_too(state in state(), record in attachment()) {
        let pretty = serde_json::to_vec_pretty(&state).unwrap();
        let (_, printed) = put(&pretty, &record);
        let mut expected = state;
        let before = expected.attachments.get(&record.id());
        let record = before.map_or(record.clone(), |before| record.in_place_of(before));
        expected.generation.0 += u64::from(before != Some(&record));
        expected.attachments.insert(record.id(), record.clone());
        prop_assert_eq!(&serde_json::from_slice::<State>(&printed).unwrap(), &expected);

        let mut editor = StateEditor::parse(&printed, &record.id()).unwrap();
        editor.remove();
        expected.attachments.remove(&record.id());
        expected.generation.0 += 1;
        prop_assert_eq!(serde_json::from_slice::<State>(&print(&editor)).unwrap(), expected);
    }

    /// The editor must not accept what the typed format refuses.
    #[test]
    fn a_damaged_file_is_never_accepted(
        state in state(),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let mut text = format::print(&state).unwrap();
        let id = AttachmentId("a/eth0".to_owned());
        let at = at.index(text.len());
        text[at] = byte;
        for damaged in [text.as_slice(), &text[..at]] {
            if format::parse(damaged, std::path::Path::new("pods.json")).is_err() {
                let text = String::from_utf8_lossy(damaged);
                prop_assert!(StateEditor::parse(damaged, &id).is_none(), "{text}");
            }
        }
    }
}

#[test]
fn repeated_keys_are_left_to_the_typed_format() {
    let cases = [
        r#"{"version":1,"epoch":"a","generation":1,"attachments":{},"epoch":"b"}"#,
        r#"{"version":1,"epoch":"a","generation":1,"attachments":{},"generation":2}"#,
        r#"{"version":1,"epoch":"a","generation":1,"attachments":{},"attachments":{}}"#,
        r#"{"version":1,"epoch":"a","generation":1,"attachments":{},"x":1,"x":2}"#,
        r#"{"version":1,"epoch":"a","generation":1,"attachments":{},"\u0078":1,"x":2}"#,
        r#"{"version":2,"epoch":"a","generation":1,"attachments":{}}"#,
        r#"{"version":1,"epoch":"a","generation":1}"#,
    ];
    for text in cases {
        assert!(
            StateEditor::parse(text.as_bytes(), &AttachmentId(String::new())).is_none(),
            "{text}"
        );
    }
}

#[test]
fn a_record_without_unknown_fields_is_read_without_copying() {
    let text = r#"{"containerId":"3f1c","ifName":"eth0","network":"pods",
        "pod":{"namespace":"default","name":"web-0","uid":"a-1"},
        "netns":"/var/run/netns/cni-1",
        "hostInterface":{"name":"veth3a1","index":12,"mac":"0a:58:0a:01:02:03"},
        "bridge":"cni0","ips":["10.1.2.3","fd00::3"],"addedAt":"2026-11-20T12:00:00Z"}"#;
    let checked: Checked<'_> = serde_json::from_str(text).unwrap();
    assert!(matches!(checked.container_id, Cow::Borrowed("3f1c")));
    let full = format!(
        r#"{{"version":1,"epoch":"a","generation":1,"attachments":{{"3f1c/eth0":{text}}}}}"#
    );
    let mut cursor = Cursor { text: &full, at: full.find(text).unwrap(), is_plain: true };
    assert_eq!(&full[cursor.value::<Checked<'_>>().unwrap().1], text);
    assert!(StateEditor::parse(full.as_bytes(), &AttachmentId(String::new())).is_some());
}

#[test]
fn a_printed_record_is_recognised() {
    let record = crate::fuzzing::record();
    let state = State {
        attachments: [(record.id(), record)].into(),
        ..State::empty(Epoch("a".to_owned()))
    };
    let text = String::from_utf8(format::print(&state).unwrap()).unwrap();
    let line = text.lines().find(|line| line.contains("containerId")).unwrap();
    assert!(printed::is_plain(text.as_bytes()));
    let (id, place) = printed::member(line).unwrap();
    assert_eq!((id, &line[place]), ("3f1c/eth0", line.split_once(": ").unwrap().1));
    for (from, to) in [
        ("\"3f1c/eth0\"", "\"3f1c/eth1\""),
        ("pods", "po\nds"),
        ("10.1.2.3", "10.1.2.333"),
        ("}", ",\"x\":1}"),
        ("}", ""),
    ] {
        assert_eq!(printed::member(&line.replacen(from, to, 1)), None, "{to}");
    }
    let more = |more: &str| {
        let (before, after) = line.split_once(",\"addedAt\"").unwrap();
        format!("{before}{more},\"addedAt\"{after}")
    };
    let port = r#""protocol":"tcp","port":8080,"podPort":80}"#;
    for known in [
        r#","mac":"0a:58:0a:01:02:03""#.to_owned(),
        format!(r#","mac":"0a:58:0a:01:02:03","hostPorts":[{{{port}]"#),
        format!(r#","hostPorts":[{{"ip":"192.168.0.2",{port},{{"family":6,{port}]"#),
    ] {
        assert!(printed::member(&more(&known)).is_some(), "{known}");
    }
    for bad in [
        r#","hostPorts":[]"#.to_owned(),
        format!(r#","hostPorts":[{{"ip":"x",{port}]"#),
        format!(r#","hostPorts":[{{"family":5,{port}]"#),
        format!(r#","hostPorts":[{{{port}]"#).replace("8080", "65536"),
        format!(r#","hostPorts":[{{{port}]"#).replace("8080", "0"),
        format!(r#","hostPorts":[{{{port}]"#).replace("tcp", "icmp"),
        format!(r#","hostPorts":[{{{port}]"#).replace("80}", "80,\"x\":1}"),
    ] {
        assert_eq!(printed::member(&more(&bad)), None, "{bad}");
    }
    let index = |index: &str| {
        let interface =
            format!(r#"{{"name":"veth3a1","index":{index},"mac":"0a:58:0a:01:02:03"}}"#);
        line.replacen("\"hostInterface\":null", &format!("\"hostInterface\":{interface}"), 1)
    };
    assert!(printed::member(&index("12")).is_some());
    for bad in ["012", "", "-1", "4294967296"] {
        assert_eq!(printed::member(&index(bad)), None, "{bad}");
    }
    for odd in ["\\", "\t", "\0"] {
        assert!(!printed::is_plain(text.replacen("pods", odd, 1).as_bytes()), "{odd:?}");
    }
}

#[test]
fn a_text_is_plain_without_escapes_and_control_characters_wherever_they_are() {
    for length in 1..20 {
        for (at, byte) in (0..length).flat_map(|at| (0..=u8::MAX).map(move |byte| (at, byte))) {
            // Line ends in front of it, which are plain, are looked at one by one.
            let mut text = vec![b'\n'; length];
            text[at] = byte;
            let expected = byte == b'\n' || (byte >= b' ' && byte != b'\\');
            assert_eq!(printed::is_plain(&text), expected, "{byte} at {at} of {length}");
            text.fill(b'x');
            text[at] = byte;
            assert_eq!(printed::is_plain(&text), expected, "{byte} at {at} of {length}");
        }
    }
}
