use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn ours() -> Value {
    json!({ "type": "denizen", "waitForAgent": { "timeout": "1s" } })
}

#[derive(Debug, Clone)]
struct Written {
    name: String,
    text: String,
}

/// A file as a node may have it: a valid configuration, or anything else.
fn file() -> impl Strategy<Value = Written> {
    let name = (
        "[0-9]{2}",
        "[a-c]",
        prop::sample::select(vec!["conflist", "conf", "json", "bak", "lock"]),
    );
    let list = concat!(
        r#"{"cniVersion": "1.0.0", "name": "NET", "plugins": [ {"type": "bridge"}, "#,
        r#"{"type": "portmap", "capabilities": {"portMappings": true}} ]}"#,
    );
    let lone =
        "{\n\t\"cniVersion\": \"0.4.0\", \"name\": \"NET\",\n\t\"type\": \"ptp\", \"mtu\": 1e3 }\n";
    let texts = [
        list,
        lone,
        "{",
        "",
        "[]",
        r#"{"name":"NET","plugins":[]}"#,
        r#"{"cniVersion":"0.2.0","name":"NET","type":"a"}"#,
    ];
    (name, prop::sample::select(texts.to_vec())).prop_map(|((number, letter, ending), text)| {
        Written { text: text.replace("NET", &letter), name: format!("{number}-{letter}.{ending}") }
    })
}

fn put(folder: &Path, name: &str, text: &str) {
    File::create(folder.join(name)).unwrap().write_all(text.as_bytes()).unwrap();
}

fn contents(folder: &Path) -> BTreeMap<String, String> {
    let entries = fs::read_dir(folder).unwrap().flatten();
    entries
        .map(|entry| (entry.file_name().into_string().unwrap(), read(&entry.path()).unwrap()))
        .collect()
}

/// The list of plugins that a runtime uses, if it skips invalid files.
fn active(folder: &Path) -> Option<Vec<Value>> {
    let in_order = contents(folder).into_iter();
    in_order.filter_map(|(name, text)| plugins(&name, &text)).next()
}

fn plugins(name: &str, text: &str) -> Option<Vec<Value>> {
    let value: Value = serde_json::from_str(text).ok()?;
    value["name"].as_str()?;
    value["cniVersion"].as_str().filter(|version| *version >= "0.3.0")?;
    match name.rsplit('.').next()? {
        "conflist" => value["plugins"].as_array().filter(|plugins| !plugins.is_empty()).cloned(),
        "conf" | "json" => value["type"].as_str().map(|_| vec![value.clone()]),
        _ => None,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn the_active_configuration_gets_denizen_and_loses_it_again(
        files in prop::collection::vec(file(), 0..5),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path();
        files.iter().for_each(|file| put(folder, &file.name, &file.text));
        let (before, was_active) = (contents(folder), active(folder));
        let report = insert(folder, &ours());
        match was_active {
            None => {
                prop_assert!(matches!(report, Err(FolderError::Nothing(_))), "{report:?}");
                prop_assert_eq!(contents(folder), before);
            }
            Some(mut expected) => {
                prop_assert_eq!(report.unwrap().changed.len(), 1);
                expected.push(ours());
                prop_assert_eq!(active(folder), Some(expected));
                let after = contents(folder);
                prop_assert!(insert(folder, &ours()).unwrap().changed.is_empty(), "once is enough");
                prop_assert_eq!(contents(folder), after);
                remove_denizen(folder).unwrap();
                prop_assert_eq!(contents(folder), before, "byte for byte");
            }
        }
    }
}

const LONE: &str = r#"{"cniVersion":"1.0.0","name":"n","type":"ptp"}"#;
const LIST: &str = r#"{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"bridge"}]}"#;

#[test]
fn a_wrapped_lone_plugin_follows_its_owner() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path();
    put(folder, "10-x.conf", LONE);
    insert(folder, &ours()).unwrap();
    put(folder, "10-x.conf", &LONE.replace("ptp", "bridge"));
    insert(folder, &ours()).unwrap();
    assert_eq!(active(folder).unwrap()[0]["type"], "bridge", "the owner changed it");
    put(folder, "05-y.conflist", LIST);
    insert(folder, &ours()).unwrap();
    assert_eq!(contents(folder).keys().collect::<Vec<_>>(), ["05-y.conflist", "10-x.conf"]);
    fs::remove_file(folder.join("05-y.conflist")).unwrap();
    insert(folder, &ours()).unwrap();
    fs::remove_file(folder.join("10-x.conf")).unwrap();
    insert(folder, &ours()).unwrap();
    assert!(active(folder).is_some(), "it is all that there is, and stays");
    put(folder, "10-x.conflist", LIST);
    insert(folder, &ours()).unwrap();
    assert_eq!(
        contents(folder).keys().collect::<Vec<_>>(),
        ["10-x.conflist"],
        "and would hide the new one"
    );
}

#[test]
fn links_owners_and_modes_stay() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let dir = tempfile::tempdir().unwrap();
    let (folder, elsewhere) = (dir.path().join("net.d"), dir.path().join("elsewhere"));
    fs::create_dir(&folder).unwrap();
    put(dir.path(), "elsewhere", LIST);
    fs::set_permissions(&elsewhere, fs::Permissions::from_mode(0o640)).unwrap();
    symlink(&elsewhere, folder.join("10-x.conflist")).unwrap();
    insert(&folder, &ours()).unwrap();
    assert!(folder.join("10-x.conflist").is_symlink());
    assert_eq!(fs::metadata(&elsewhere).unwrap().mode() & 0o777, 0o640);
    assert_eq!(active(&folder).unwrap().len(), 2);
    remove_denizen(&folder).unwrap();
    assert_eq!(read(&elsewhere).unwrap(), LIST);
}

#[test]
fn a_file_that_is_not_regular_is_skipped_and_does_not_block() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path();
    let pipe = folder.join("05-pipe.conflist");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    put(folder, "10-x.conflist", LIST);
    let report = insert(folder, &ours()).unwrap();
    let list = folder.join("10-x.conflist");
    assert_eq!(report.changed, std::slice::from_ref(&list));
    let why = "it is a named pipe, and not a regular file".to_owned();
    assert_eq!(report.unusable, [(pipe, why)]);
    assert_eq!(remove_denizen(folder).unwrap().changed, [list]);
}

#[test]
fn changes_by_others_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path();
    put(folder, "10-x.conflist", LIST);
    insert(folder, &ours()).unwrap();
    let now = contents(folder)["10-x.conflist"].replace("bridge", "ptp");
    put(folder, "10-x.conflist", &now);
    remove_denizen(folder).unwrap();
    assert_eq!(contents(folder)["10-x.conflist"], LIST.replace("bridge", "ptp"));
}

#[test]
fn a_file_that_was_written_meanwhile_is_not_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    put(dir.path(), "10-x.conflist", LIST);
    let path = dir.path().join("10-x.conflist");
    let error = replace(&path, Some("what was read"), "what would be written").unwrap_err();
    assert!(matches!(error, FolderError::Overtaken(_)), "{error}");
    assert_eq!(
        contents(dir.path()).into_iter().collect::<Vec<_>>(),
        [("10-x.conflist".to_owned(), LIST.to_owned())]
    );
}
