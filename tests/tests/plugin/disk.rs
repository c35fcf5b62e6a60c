//! A run directory that is spoilt, full or read-only: an error that names it, and nothing harmed.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;

use denizen_tests::node::cni::{Disk, PluginContext};
use serde_json::Value;

/// Something wrong with the run directory that a record was already in: its name, how it comes
/// about, the code of an ADD, and what the message names.
type Spoilt = (&'static str, fn(&Path), u32, &'static str);

fn rewrite(dir: &Path, change: fn(String) -> String) {
    let path = dir.join("pods.json");
    let text = std::io::read_to_string(fs::File::open(&path).unwrap()).unwrap();
    fs::remove_file(&path).unwrap();
    std::io::Write::write_all(&mut fs::File::create(&path).unwrap(), change(text).as_bytes())
        .unwrap();
}

fn spoilt() -> Vec<Spoilt> {
    vec![
        ("truncated", |dir| rewrite(dir, |text| text[..text.len() / 2].to_owned()), 6, "pods.json"),
        ("empty", |dir| rewrite(dir, |_| String::new()), 6, "pods.json"),
        ("not JSON", |dir| rewrite(dir, |_| "pods: []".to_owned()), 6, "pods.json"),
        ("another schema", |dir| rewrite(dir, |_| "{\"pods\": {}}".to_owned()), 6, "pods.json"),
        (
            "newer version",
            |dir| rewrite(dir, |text| text.replacen("1", "2", 1)),
            6,
            "upgrade denizen",
        ),
        (
            "somebody else's file",
            |dir| chown(dir.join("pods.json"), Some(65_534), None).unwrap(),
            5,
            "pods.json",
        ),
        (
            "a link to a file",
            |dir| {
                fs::rename(dir.join("pods.json"), dir.join("real")).unwrap();
                symlink("real", dir.join("pods.json")).unwrap();
            },
            5,
            "pods.json",
        ),
        (
            "a lock that is a link",
            |dir| {
                fs::remove_file(dir.join("pods.json.lock")).unwrap();
                symlink("real", dir.join("pods.json.lock")).unwrap();
            },
            5,
            "pods.json.lock",
        ),
        ("somebody else's directory", |dir| chown(dir, Some(65_534), None).unwrap(), 5, "denizen"),
        (
            "a directory that all may write",
            |dir| fs::set_permissions(dir, Permissions::from_mode(0o777)).unwrap(),
            5,
            "users other than its owner",
        ),
        (
            "a link to a directory",
            |dir| {
                fs::rename(dir, dir.with_extension("real")).unwrap();
                symlink(dir.with_extension("real"), dir).unwrap();
            },
            5,
            "not a directory",
        ),
    ]
}

#[test]
fn a_spoilt_run_directory_is_named_and_left_alone() {
    for (name, spoil, code, named) in spoilt() {
        let context = PluginContext::new();
        context.add("c1");
        spoil(&context.run_dir());
        let before = fs::File::open(context.run_dir().join("pods.json"))
            .map(std::io::read_to_string)
            .unwrap()
            .unwrap();
        let second = context.variables("ADD", "c2");
        let refusal = context.call(second, &context.configuration("1.1.0")).expect_err(name);
        assert_eq!(refusal["code"], code, "{name}: {refusal}");
        assert!(refusal["msg"].as_str().unwrap().contains(named), "{name}: {refusal}");
        let status = context
            .call(context.variables("STATUS", "c1"), &context.configuration("1.1.0"))
            .expect_err(name);
        assert_eq!(status["code"], 50, "{name}: {status}");
        assert!(status["msg"].as_str().unwrap().contains(named), "{name}: {status}");
        let after = fs::File::open(context.run_dir().join("pods.json"))
            .map(std::io::read_to_string)
            .unwrap()
            .unwrap();
        assert_eq!(after, before, "{name}");
    }
}

#[test]
fn a_full_disk_and_a_read_only_one_cost_an_error_and_no_record() {
    let context = PluginContext::new();
    fs::create_dir(context.run_dir()).unwrap();
    let disk = Disk::mount(&context.node, &context.run_dir(), "size=64k,mode=0700");
    let text =
        || std::io::read_to_string(fs::File::open(disk.path().join("pods.json")).unwrap()).unwrap();
    let configuration = context.configuration("1.1.0");
    context.add("c1");
    let before = text();
    let mut filler = fs::File::create(disk.path().join("filler")).unwrap();
    let filled = std::io::copy(&mut std::io::repeat(7), &mut filler).unwrap_err();
    assert_eq!(filled.kind(), std::io::ErrorKind::StorageFull);
    drop(filler);
    let refused = |command: &str, code: u32, word: &str| {
        let variables = context.variables(command, "c2");
        let refusal = context.call(variables, &configuration).unwrap_err();
        assert_eq!(refusal["code"], code, "{refusal}");
        assert!(refusal.to_string().contains(word), "{refusal}");
        assert_eq!(text(), before);
    };
    refused("ADD", 5, "No space left");
    refused("STATUS", 50, "No space left");
    assert!(
        !disk.path().join("pods.json.next").exists(),
        "what could not be finished is not left in the way"
    );
    fs::remove_file(disk.path().join("filler")).unwrap();

    disk.make_read_only();
    refused("ADD", 5, "Read-only file system");
    refused("STATUS", 50, "Read-only file system");
    // Nothing to remove, nothing to write.
    let other = context.variables("DEL", "c2");
    assert_eq!(context.call(other, &configuration), Ok(Value::Null));
    let refusal = context.call(context.variables("DEL", "c1"), &configuration).unwrap_err();
    assert_eq!(refusal["code"], 5, "{refusal}");
}
