//! Multus beside `install-cni`, in both orders and again and again. Multus takes as its delegate
//! the first `.conf` or `.conflist` whose name does not begin with `00-multus.conf`, and copies it.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::super::folder::{ConfigReport, FolderError, active, insert, remove_denizen};

const LIST: &str = r#"{
  "cniVersion": "1.0.0", "name": "pods",
  "plugins": [
    { "type": "bridge" },
    { "type": "portmap" }
  ]
}
"#;
const OLD_LIST: &str =
    r#"{"cniVersion":"0.3.1","name":"pods","plugins":[{"type":"bridge"}, {"type":"portmap"}]}"#;
const LONE: &str = "{ \"cniVersion\": \"0.3.1\", \"name\": \"pods\", \"type\": \"ptp\" }\n";
const NEW_LONE: &str = "{ \"cniVersion\": \"1.0.0\", \"name\": \"pods\", \"type\": \"ptp\" }\n";

/// The file of the pod network, before Multus and denizen, and the types of its plugins.
const NETWORKS: [(&str, &str, &[&str]); 4] = [
    ("10-x.conflist", LIST, &["bridge", "portmap"]),
    ("10-x.conflist", OLD_LIST, &["bridge", "portmap"]),
    ("10-x.conf", LONE, &["ptp"]),
    ("10-x.conf", NEW_LONE, &["ptp"]),
];

fn ours() -> Value {
    json!({ "type": "denizen", "waitForAgent": { "timeout": "1s" } })
}

/// What Multus writes when it starts.
fn start_multus(folder: &Path) {
    let (_, text) = contents(folder)
        .into_iter()
        .filter(|(name, _)| name.ends_with(".conf") || name.ends_with(".conflist"))
        .find(|(name, _)| !name.starts_with("00-multus.conf"))
        .unwrap();
    let delegate: Value = serde_json::from_str(&text).unwrap();
    let version = delegate["cniVersion"].clone();
    let multus = json!({
        "type": "multus", "kubeconfig": "/etc/cni/net.d/multus.d/multus.kubeconfig",
        "delegates": [delegate],
    });
    let (name, whole) = match version == json!("1.0.0") {
        true => {
            let name = "multus-cni-network";
            (
                "00-multus.conflist",
                json!({ "cniVersion": version, "name": name, "plugins": [multus] }),
            )
        }
        false => {
            let mut multus = multus;
            multus["cniVersion"] = version;
            multus["name"] = "multus-cni-network".into();
            ("00-multus.conf", multus)
        }
    };
    fs::write(folder.join(name), format!("{whole:#}\n")).unwrap();
}

fn contents(folder: &Path) -> BTreeMap<String, String> {
    let entries = fs::read_dir(folder).unwrap().flatten();
    let files = entries.filter(|entry| entry.path().is_file());
    files
        .map(|entry| {
            let text = fs::read_to_string(entry.path()).unwrap();
            (entry.file_name().into_string().unwrap(), text)
        })
        .collect()
}

/// The types of the plugins of a configuration.
fn types(configuration: &Value) -> Vec<&str> {
    match configuration["plugins"].as_array() {
        Some(plugins) => plugins.iter().filter_map(|plugin| plugin["type"].as_str()).collect(),
        None => configuration["type"].as_str().into_iter().collect(),
    }
}

/// Whom the runtime calls, and whom Multus calls for the pod's own interface.
fn called(folder: &Path) -> (Vec<String>, Vec<String>) {
    let (_, text) = contents(folder).into_iter().next().unwrap();
    let first: Value = serde_json::from_str(&text).unwrap();
    let multus = if first["plugins"].is_array() { &first["plugins"][0] } else { &first };
    let owned = |types: Vec<&str>| types.into_iter().map(str::to_owned).collect();
    (owned(types(&first)), owned(types(&multus["delegates"][0])))
}

fn assert_delegates_to(folder: &Path, plugins: &[&str], round: &str) {
    let (outer, inner) = called(folder);
    assert_eq!(outer, ["multus"], "{round}: {:?}", contents(folder));
    assert_eq!(inner, plugins, "{round}: {:?}", contents(folder));
}

fn with_ours(plugins: &[&'static str]) -> Vec<&'static str> {
    [plugins, &["denizen"]].concat()
}

#[test]
fn multus_delegates_to_denizen_in_either_order() {
    for (name, text, plugins) in NETWORKS {
        for multus_first in [true, false] {
            let dir = tempfile::tempdir().unwrap();
            let folder = dir.path();
            fs::write(folder.join(name), text).unwrap();
            if multus_first {
                start_multus(folder);
            }
            let mut files = None;
            for round in 0..4 {
                let round = format!("{name}, Multus first: {multus_first}, round {round}");
                insert(folder, &ours()).unwrap();
                if multus_first {
                    assert_delegates_to(folder, &with_ours(plugins), &round);
                }
                // Multus does not look at its delegate's file again before it restarts.
                start_multus(folder);
                assert_delegates_to(folder, &with_ours(plugins), &round);
                assert_eq!(insert(folder, &ours()).unwrap(), ConfigReport::default(), "{round}");
                let entry = active(folder).unwrap();
                assert_eq!(entry.plugins, with_ours(plugins), "{round}");
                assert_eq!(entry.entry, Some(ours()), "{round}");
                let now = contents(folder);
                assert_eq!(*files.get_or_insert_with(|| now.clone()), now, "{round}");
            }
            remove_denizen(folder).unwrap();
            assert_delegates_to(folder, plugins, name);
            assert_eq!(contents(folder)[name], text, "byte for byte");
            assert_eq!(contents(folder).len(), 2);
            start_multus(folder);
            assert_delegates_to(folder, plugins, name);
        }
    }
}

/// What Multus wrote itself comes back byte for byte.
#[test]
fn multus_s_file_is_restored() {
    for (name, text, _) in NETWORKS {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path();
        fs::write(folder.join(name), text).unwrap();
        start_multus(folder);
        let before = contents(folder);
        insert(folder, &ours()).unwrap();
        assert_ne!(contents(folder), before);
        remove_denizen(folder).unwrap();
        assert_eq!(contents(folder), before, "{name}");
    }
}

/// Earlier releases put denizen behind Multus, in its list or around its lone plugin, and Multus
/// took that for its delegate.
#[test]
fn what_an_earlier_release_nested_is_unfolded() {
    for (name, text, plugins) in NETWORKS {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path();
        fs::write(folder.join(name), text).unwrap();
        for _ in 0..3 {
            start_multus(folder);
            let own =
                contents(folder).into_iter().find(|(name, _)| name.starts_with("00-multus.conf"));
            let (own, multus) = own.unwrap();
            let mut multus: Value = serde_json::from_str(&multus).unwrap();
            match multus["plugins"].as_array_mut() {
                Some(list) => list.push(ours()),
                None => {
                    multus = json!({
                        "cniVersion": "0.3.1", "name": "multus-cni-network",
                        "plugins": [multus, ours()],
                    });
                }
            }
            let own = if own.ends_with("list") { &own } else { "00-multus-and-denizen.conflist" };
            fs::write(folder.join(own), multus.to_string()).unwrap();
        }
        insert(folder, &ours()).unwrap();
        assert_delegates_to(folder, &with_ours(plugins), name);
        assert!(!contents(folder).contains_key("00-multus-and-denizen.conflist"));
        start_multus(folder);
        assert_delegates_to(folder, &with_ours(plugins), name);
    }
}

/// The thick plugin's file names its delegate's file, which it reads at each call.
#[test]
fn the_file_that_multus_names_gets_denizen() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path();
    let thick = |file: &str| {
        let network = format!("/host/etc/cni/net.d/{file}");
        let thick = json!({
            "cniVersion": "0.3.1", "name": "multus-cni-network", "type": "multus-shim",
            "clusterNetwork": network,
        });
        fs::write(folder.join("00-multus.conf"), thick.to_string()).unwrap();
    };
    thick("20-y.conflist");
    assert!(matches!(insert(folder, &ours()), Err(FolderError::Nothing(_))));
    fs::write(folder.join("10-x.conflist"), LIST).unwrap();
    fs::write(folder.join("20-y.conflist"), OLD_LIST).unwrap();
    let report = insert(folder, &ours()).unwrap();
    assert_eq!(report.changed, [folder.join("20-y.conflist")]);
    assert_eq!(contents(folder)["10-x.conflist"], LIST);
    assert_eq!(active(folder).unwrap().path, folder.join("20-y.conflist"));
    assert_eq!(active(folder).unwrap().entry, Some(ours()));
    remove_denizen(folder).unwrap();
    assert_eq!(contents(folder)["20-y.conflist"], OLD_LIST);
    // Beside a lone plugin, it takes the list only when it restarts.
    fs::write(folder.join("30-z.conf"), LONE).unwrap();
    thick("30-z.conf");
    let report = insert(folder, &ours()).unwrap();
    assert_eq!(report.changed, [folder.join("30-z-and-denizen.conflist")]);
    let (path, why) = &report.unusable[0];
    assert_eq!(path, &folder.join("00-multus.conf"));
    assert!(why.contains("30-z-and-denizen.conflist") && why.contains("restart"), "{why}");
    thick("30-z-and-denizen.conflist");
    assert_eq!(insert(folder, &ours()).unwrap(), ConfigReport::default());
    assert_eq!(active(folder).unwrap().plugins, ["ptp", "denizen"]);
    fs::write(folder.join("05-w.conflist"), LIST).unwrap();
    assert_eq!(insert(folder, &ours()).unwrap().unusable, []);
    assert_eq!(active(folder).unwrap().plugins, ["ptp", "denizen"], "not taken from under Multus");
    remove_denizen(folder).unwrap();
    let left: Value = serde_json::from_str(&contents(folder)["30-z-and-denizen.conflist"]).unwrap();
    assert_eq!(types(&left), ["ptp"], "Multus still calls what it says");
}

/// `--rename-conf-file`: the copy in Multus's file is all that there is.
#[test]
fn a_delegate_without_a_file_gets_denizen() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path();
    fs::write(folder.join("10-x.conflist"), LIST).unwrap();
    start_multus(folder);
    fs::rename(folder.join("10-x.conflist"), folder.join("10-x.conflist.old")).unwrap();
    insert(folder, &ours()).unwrap();
    assert_delegates_to(folder, &["bridge", "portmap", "denizen"], "renamed");
    assert_eq!(contents(folder)["10-x.conflist.old"], LIST);
}
