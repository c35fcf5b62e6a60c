use denizen_cni::REPLACED_PORTMAP;
use serde_json::json;

use super::super::conflist::PLUGIN;
use super::super::portmap::PORTMAP;
use super::*;

const LISTS: [&str; 4] = [
    r#"{
  "cniVersion": "1.0.0", "name": "pods",
  "plugins": [
    { "type": "bridge" },
    { "type": "portmap",
      "capabilities": {"portMappings": true}  }
  ]
}
"#,
    concat!(
        r#"{"cniVersion":"0.4.0","name":"pods","plugins":[{"type":"calico"} , "#,
        r#"{"type":"portmap","snat":true,"capabilities":{"portMappings":true}},"#,
        r#"{"type":"bandwidth"}]}"#,
    ),
    concat!(
        r#"{"cniVersion":"0.4.0","name":"pods","plugins":[{"type":"ptp"},{"type":"portmap"},"#,
        r#"{"type":"tuning"},  {"type":"portmap","x":1.0}]}"#,
    ),
    r#"{"cniVersion":"0.4.0","name":"pods","plugins":[{"type":"ptp"}]}"#,
];

fn entry() -> Value {
    json!({
        "type": "denizen", "hostPorts": {}, "capabilities": { "portMappings": true },
        REPLACED_PORTMAP: [],
    })
}

fn kinds(text: &str) -> Vec<String> {
    Conflist::parse(text).unwrap().kinds()
}

#[test]
fn it_comes_in_place_and_goes_byte_for_byte() {
    for text in LISTS {
        let replaced = with(&Conflist::parse(text).unwrap(), &entry()).unwrap();
        let mut expected: Vec<_> = kinds(text);
        expected.retain(|kind| kind != PORTMAP);
        expected.push(PLUGIN.to_owned());
        assert_eq!(kinds(&replaced), expected, "{replaced}");
        let list = Conflist::parse(&replaced).unwrap();
        assert_eq!(with(&list, &entry()), None, "again: {replaced}");
        assert_eq!(without(&list).unwrap().as_deref(), Some(text));
        // Without the flag, portmap is there again, and denizen too.
        let plain = json!({ "type": "denizen" });
        let both = with(&list, &plain).unwrap();
        let mut expected = kinds(text);
        expected.push(PLUGIN.to_owned());
        assert_eq!(kinds(&both), expected, "{both}");
        // From both to one.
        let again = with(&Conflist::parse(&both).unwrap(), &entry()).unwrap();
        let back = without(&Conflist::parse(&again).unwrap()).unwrap();
        assert_eq!(back.as_deref(), Some(text), "{again}");
    }
}

/// Its owner writes the file anew, with an older denizen in it or without.
#[test]
fn it_is_replaced_again_and_what_was_kept_before_is_forgotten() {
    let denizen_between = concat!(
        r#"{"cniVersion":"0.4.0","name":"pods","plugins":[{"type":"ptp"},{"type":"denizen"},"#,
        r#"{"type":"portmap"},{"type":"tuning"}]}"#,
    );
    let replaced = with(&Conflist::parse(denizen_between).unwrap(), &entry()).unwrap();
    assert_eq!(kinds(&replaced), ["ptp", PLUGIN, "tuning"]);
    let back = without(&Conflist::parse(&replaced).unwrap()).unwrap().unwrap();
    assert_eq!(kinds(&back), ["ptp", PORTMAP, "tuning"]);
    let list = Conflist::parse(&replaced).unwrap();
    let rewritten =
        portmap::with(list.text().to_owned(), &portmap::kept(&list.entry().unwrap())).unwrap();
    assert_eq!(kinds(&rewritten).iter().filter(|kind| *kind == PORTMAP).count(), 1);
    let again = with(&Conflist::parse(&rewritten).unwrap(), &entry()).unwrap();
    assert_eq!(kinds(&again), ["ptp", PLUGIN, "tuning"]);
    let kept = portmap::kept(&Conflist::parse(&again).unwrap().entry().unwrap());
    assert_eq!(kept.len(), 1, "{again}");
}

#[test]
fn an_entry_that_does_more_stays_and_says_why() {
    for (more, word) in [
        (r#""conditionsV4":["-d","10.0.0.0/8"]"#, "NetworkPolicy"),
        (r#""masqAll":true"#, "clients' addresses"),
        (r#""snat":false"#, "snat false"),
        (r#""externalSetMarkChain":"KUBE-MARK-MASQ""#, "chain of others"),
    ] {
        let plugins = format!(r#"[{{"type":"ptp"}},{{"type":"portmap",{more}}}]"#);
        let text = format!(r#"{{"cniVersion":"0.4.0","name":"pods","plugins":{plugins}}}"#);
        let list = Conflist::parse(&text).unwrap();
        assert!(portmap::obstacle(&list).unwrap().contains(word), "{more}");
        let with = with(&list, &entry()).unwrap();
        assert_eq!(kinds(&with), ["ptp", PORTMAP, PLUGIN]);
    }
    let harmless = r#""conditionsV4":[],"masqAll":false,"snat":true"#;
    let text = LISTS[2].replace(r#""x":1.0"#, harmless);
    assert_eq!(portmap::obstacle(&Conflist::parse(&text).unwrap()), None);
}
