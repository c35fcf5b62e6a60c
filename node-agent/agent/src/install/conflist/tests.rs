use proptest::prelude::*;
use serde_json::{Map, json};

use super::*;

fn ours() -> Value {
    json!({ "type": "denizen", "waitForAgent": { "timeout": "1s", "onTimeout": "isolate" } })
}

/// Any JSON, a few levels deep.
fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "\\PC{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("\\PC{0,6}", inner, 0..4)
                .prop_map(|map| Value::from(map.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

fn plugin() -> impl Strategy<Value = Value> {
    let keys = prop::collection::btree_map("[a-z\\PC]{1,6}", value(), 0..4);
    (keys, "[a-z]{1,6}x").prop_map(|(keys, kind)| {
        let mut plugin: Map<String, Value> = keys.into_iter().collect();
        plugin.insert("type".to_owned(), kind.into());
        Value::from(plugin)
    })
}

/// A configuration list in any style: compact or not, with tabs, and with unknown keys.
fn conflist() -> impl Strategy<Value = String> {
    let parts = (
        prop::collection::vec(plugin(), 1..4),
        prop::collection::btree_map("x[a-z]{0,4}", value(), 0..3),
        0_usize..3,
        "[ \t\r\n]{0,3}",
    );
    parts.prop_map(|(plugins, others, style, space)| {
        let mut list: Map<String, Value> = others.into_iter().collect();
        list.insert("cniVersion".to_owned(), "1.0.0".into());
        list.insert("name".to_owned(), "pods".into());
        list.insert("plugins".to_owned(), plugins.into());
        let text = match style {
            0 => serde_json::to_string(&list).unwrap(),
            1 => serde_json::to_string_pretty(&list).unwrap(),
            // Line ends inside strings are escaped, so these line ends are between values.
            _ => serde_json::to_string_pretty(&list).unwrap().replace('\n', "\r\n\t"),
        };
        format!("{space}{text}{space}")
    })
}

proptest! {
    #[test]
    fn an_added_entry_is_removed_byte_for_byte(text in conflist()) {
        let with = Conflist::parse(&text).unwrap().with_entry(&ours()).expect("it was not there");
        let list = Conflist::parse(&with).expect("still valid");
        prop_assert_eq!(list.with_entry(&ours()), None, "once is enough");
        prop_assert_eq!(list.without_entry().unwrap(), Some(text.clone()));
        let (mut before, after): (Value, Value) =
            (serde_json::from_str(&text).unwrap(), serde_json::from_str(&with).unwrap());
        before["plugins"].as_array_mut().unwrap().push(ours());
        prop_assert_eq!(before, after, "ours is the last, and all else is as it was");
    }

    #[test]
    fn only_a_differing_entry_is_replaced(text in conflist(), other in plugin()) {
        let mut old = other;
        old["type"] = PLUGIN.into();
        let with_old = Conflist::parse(&text).unwrap().with_entry(&old).unwrap();
        let with = Conflist::parse(&with_old).unwrap().with_entry(&ours()).expect("it says something else");
        prop_assert_eq!(Conflist::parse(&with).unwrap().without_entry().unwrap(), Some(text));
    }

    #[test]
    fn a_lone_plugin_is_wrapped_as_it_is(plugin in plugin(), pretty in any::<bool>()) {
        let mut plugin = plugin;
        plugin["name"] = "lone".into();
        plugin["cniVersion"] = "0.4.0".into();
        let text = match pretty {
            true => serde_json::to_string_pretty(&plugin),
            false => serde_json::to_string(&plugin),
        };
        let text = text.unwrap();
        let list = wrapped(&text, &ours()).unwrap();
        prop_assert!(list.contains(&text));
        prop_assert!(Conflist::parse(&list).unwrap().is_pair());
        let list: Value = serde_json::from_str(&list).unwrap();
        prop_assert_eq!(list, json!({ "name": "lone", "cniVersion": "0.4.0", "plugins": [plugin, ours()] }));
    }

    /// Any text: no panic, and no change to invalid text.
    #[test]
    fn broken_text_is_left_alone(text in conflist(), cut in any::<prop::sample::Index>()) {
        let cut = cut.index(text.trim_end().len());
        if text.is_char_boundary(cut) {
            prop_assert!(Conflist::parse(&text[..cut]).is_err());
            prop_assert!(wrapped(&text[..cut], &ours()).is_err());
        }
    }
}

#[test]
fn errors_say_what_is_not_valid() {
    let head = r#""cniVersion": "1.0.0", "name": "n""#;
    let cases = [
        ("[]".to_owned(), "it is not a JSON object"),
        (r#"{"cniVersion":"1.0.0","plugins":[{"type":"a"}]}"#.to_owned(), "it has no name"),
        (format!("{{{head}}}"), "it has no plugins"),
        (format!(r#"{{{head},"plugins":[]}}"#), "it has no plugins"),
        (format!(r#"{{{head},"plugins":{{}}}}"#), "its plugins are not a list"),
        (
            format!(r#"{{{head},"plugins":[{{"type":"a"}},{{}}]}}"#),
            "one of its plugins has no type",
        ),
        (
            r#"{"cniVersion":"0.2.0","name":"n","plugins":[{"type":"a"}]}"#.to_owned(),
            "cniVersion \"0.2.0\"",
        ),
        (r#"{"name":"n","plugins":[{"type":"a"}]}"#.to_owned(), "cniVersion \"\""),
    ];
    for (text, expected) in cases {
        let error = Conflist::parse(&text).unwrap_err().to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
    let several = r#"{"cniVersions":["1.1.0","9.9.9"],"name":"n","plugins":[{"type":"a"}]}"#;
    Conflist::parse(several).unwrap();
}

#[test]
fn our_entry_is_removed_at_any_position() {
    let of =
        |plugins: &str| format!(r#"{{"cniVersion":"1.0.0","name":"n","plugins":[{plugins}]}}"#);
    let cases = [
        (r#"{"type":"a"}, {"type":"denizen"}"#, Ok(Some(r#"{"type":"a"}"#))),
        (r#"{"type":"denizen"}, {"type":"a"}"#, Ok(Some(r#"{"type":"a"}"#))),
        (
            r#"{"type":"a"},{"type":"denizen"} , {"type":"b"}"#,
            Ok(Some(r#"{"type":"a"} , {"type":"b"}"#)),
        ),
        (r#"{"type":"a"}"#, Ok(None)),
        (r#"{"type":"denizen"}"#, Err(Unusable::Alone)),
    ];
    for (before, after) in cases {
        let found = Conflist::parse(&of(before)).unwrap().without_entry();
        assert_eq!(found, after.map(|after| after.map(of)), "{before}");
    }
}
