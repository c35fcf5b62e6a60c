use std::path::Path;

use proptest::prelude::*;

use super::*;
use crate::arbitrary::state;

fn typed(text: &[u8]) -> Option<State> {
    format::parse(text, Path::new("pods.json")).ok()
}

proptest! {
    /// Whatever the file had before: a record of another text is not taken for this one's.
    #[test]
    fn each_file_is_read_as_in_the_typed_format(states in prop::collection::vec(state(), 1..5)) {
        let mut reader = StateReader::default();
        for state in states {
            let printed = format::print(&state).unwrap();
            for text in [&printed, &serde_json::to_vec_pretty(&state).unwrap(), &printed] {
                prop_assert_eq!(reader.parse(text), Some(state.clone()));
                prop_assert_eq!(reader.records.len(), state.attachments.len());
            }
        }
    }

    /// The reader must not accept what the typed format refuses, nor read it otherwise.
    #[test]
    fn a_damaged_file_is_never_accepted(
        state in state(), at in any::<prop::sample::Index>(), byte in any::<u8>(),
    ) {
        let mut reader = StateReader::default();
        let mut text = format::print(&state).unwrap();
        reader.parse(&text);
        let at = at.index(text.len());
        text[at] = byte;
        for damaged in [text.as_slice(), &text[..at]] {
            let read = reader.parse(damaged);
            let is_same = read.is_none() || read == typed(damaged);
            prop_assert!(is_same, "{}", String::from_utf8_lossy(damaged));
        }
    }
}

#[test]
fn what_is_odd_is_left_to_the_typed_format() {
    let cases = [
        r#"{"version":1,"epoch":"a","generation":1,"attachments":{},"epoch":"b"}"#,
        r#"{"version":1,"epoch":"a","generation":1,"attachments":{},"attachments":{}}"#,
        r#"{"version":1,"epoch":"a","generation":1,"attachments":{},"x":1,"\u0078":2}"#,
        r#"{"version":2,"epoch":"a","generation":1,"attachments":{}}"#,
        r#"{"version":1,"epoch":"a","generation":1}"#,
        r#"{"version":1,"epoch":"a","generation":1,"attachments":[]}"#,
    ];
    for text in cases {
        assert_eq!(StateReader::default().parse(text.as_bytes()), None, "{text}");
    }
    let record = serde_json::to_string(&crate::fuzzing::record()).unwrap();
    for attachments in [
        format!(r#"{{"another/eth0":{record}}}"#),
        format!(r#"{{"3f1c/eth0":{record},"3f1c/eth0":{record}}}"#),
    ] {
        let text =
            format!(r#"{{"version":1,"epoch":"a","generation":1,"attachments":{attachments}}}"#);
        assert_eq!(StateReader::default().parse(text.as_bytes()), None, "{text}");
    }
}
