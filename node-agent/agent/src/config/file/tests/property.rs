//! Any file is accepted or refused with an error, without a panic.

use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::config::file::kube_proxy::fields;

/// Valid and invalid field names.
fn name() -> impl Strategy<Value = String> {
    let own = flags().into_iter().filter_map(|flag| field_of(&flag));
    let known = own.chain(fields().map(str::to_owned));
    let names: Vec<String> =
        known.flat_map(|path| path.split('.').map(str::to_owned).collect::<Vec<_>>()).collect();
    prop_oneof![4 => select(names), 1 => "[a-zA-Z.<~ ]{0,8}"]
}

fn value() -> impl Strategy<Value = serde_json::Value> {
    let words =
        ["", "0s", "10.0.0.0/8", "nftables", "BridgeInterface", "true", "-1", "a,b", "=", "\u{0}"];
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        any::<u64>().prop_map(Into::into),
        any::<f64>().prop_map(Into::into),
        select(words.to_vec()).prop_map(Into::into),
        ".{0,12}".prop_map(Into::into),
    ];
    leaf.prop_recursive(4, 32, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Into::into),
            prop::collection::btree_map(name(), inner, 0..6)
                .prop_map(|map| map.into_iter().collect()),
        ]
    })
}

fn document() -> impl Strategy<Value = serde_json::Value> {
    let nature = select(vec![
        ("denizen.io/v1alpha1", "DenizenConfiguration"),
        ("kubeproxy.config.k8s.io/v1alpha1", "KubeProxyConfiguration"),
        ("v1", "ConfigMap"),
    ]);
    let fields = prop::collection::btree_map(name(), value(), 0..12);
    (nature, fields).prop_map(|((version, kind), mut fields)| {
        fields.insert("apiVersion".to_owned(), version.into());
        fields.insert("kind".to_owned(), kind.into());
        fields.into_iter().collect()
    })
}

fn is_read_or_refused(text: &str) {
    let run = command();
    let contents = contents(&run, text);
    for problem in contents.errors.iter().chain(&contents.warnings) {
        assert!(!problem.to_string().trim().is_empty());
    }
    if contents.errors.is_empty() {
        // The command line accepts what the file check accepts, one source of objects at a time.
        let words = contents.settings.iter().map(Setting::word);
        let mut line = vec!["denizen-agent".to_owned(), "run".to_owned()];
        line.extend(words.filter(|word| !word.starts_with("--manifests=")));
        if let Err(error) = command().try_get_matches_from(line) {
            panic!("{text}\n{error}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn any_document(document in document()) {
        is_read_or_refused(&document.to_string());
    }

    #[test]
    fn any_text(text in "(apiVersion: denizen.io/v1alpha1\nkind: DenizenConfiguration\n)?[ a-zA-Z:\\-\\[\\]{}&*!|>'\"#%@\n0-9]{0,200}") {
        is_read_or_refused(&text);
    }

    #[test]
    fn a_truncated_file(at in 0usize..2000) {
        let text = include_str!("../../../../../../conf/agent/config.yaml");
        is_read_or_refused(text.get(..at).unwrap_or(text));
    }
}
