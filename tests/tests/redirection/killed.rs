//! ADDs that are killed while they redirect a pod.

use std::os::unix::net::UnixListener;
use std::process::Child;
use std::time::Duration;

use denizen_state::AttachmentId;
use denizen_state::run_dir::SOCKET;
use denizen_tests::eventually::eventually;
use denizen_tests::kernel::system_calls::{Ended, killed_at};
use denizen_tests::node::cni::{denizen, give, spawn};
use denizen_tests::test_length::times;
use serde_json::{Value, json};

use super::context::{Mesh, nft};

const LIST: [&str; 5] = ["--stateless", "list", "table", "inet", "denizen-redirect"];

/// So many places of those of a whole run, evenly.
fn places(whole: Ended) -> impl Iterator<Item = usize> {
    let Ended::Behind(all) = whole else { panic!("nobody killed it") };
    let count = times(all, 40).min(all);
    (0..count).map(move |turn| turn * all / count)
}

/// Wherever it ends, the pod has all rules or none, and a record of them only where it has them.
#[test]
fn a_killed_add_leaves_all_rules_or_none() {
    let mesh = Mesh::bridged(&json!({ "profile": "linkerd" }), &[]);
    let result = mesh.add().unwrap();
    let whole = nft(&mesh.base.pod, &LIST).unwrap();
    let anew = |place| {
        mesh.ours("DEL", &result).unwrap();
        nft(
            &mesh.base.pod,
            &["add table inet denizen-redirect; delete table inet denizen-redirect"],
        )
        .unwrap();
        add_killed_at(&mesh, &result, place)
    };
    let (mut killed, mut with_rules) = (0, 0);
    for place in places(anew(usize::MAX)) {
        let was_killed = anew(place) == Ended::Killed;
        let rules = nft(&mesh.base.pod, &LIST).ok();
        let id = AttachmentId::new(&mesh.call.container, &mesh.call.interface);
        let record = mesh.base.state().attachments.remove(&id);
        if let Some(rules) = &rules {
            assert_eq!(*rules, whole, "at {place}");
        }
        let is_recorded = record.is_some_and(|record| record.redirect.is_some());
        assert!(rules.is_some() || !is_recorded, "a record without rules at {place}");
        assert!(was_killed || is_recorded, "its ADD had returned");
        killed += usize::from(was_killed);
        with_rules += usize::from(was_killed && rules.is_some());
    }
    assert!(killed > with_rules && with_rules > 0, "{killed} killed, {with_rules} with rules");
}

/// What CHECK says of rules that no record wants.
const LEFT: &str = "rules of an earlier ADD are left in the pod";

/// The ADD of our plugin alone, which waits for its standard input, and that input.
fn start_add(mesh: &Mesh, result: &Value) -> (Child, String) {
    let input = mesh.chain.configuration(&mesh.chain.plugins[1], "1.1.0", Some(result));
    let variables = mesh.call.environment("ADD");
    (spawn(&mesh.base.node, &denizen(), variables), input.to_string())
}

fn add_killed_at(mesh: &Mesh, result: &Value, place: usize) -> Ended {
    let (add, input) = start_add(mesh, result);
    killed_at(add, input.as_bytes(), place).unwrap()
}

fn why_check_fails(mesh: &Mesh, result: &Value) -> Option<String> {
    let refusal = mesh.ours("CHECK", result).err()?;
    Some(refusal["msg"].as_str().unwrap().to_owned())
}

/// Whether the pod has any rules of ours, by whichever backend.
fn has_rules(mesh: &Mesh) -> bool {
    mesh.has_table() || !mesh.counted_by_iptables().is_empty()
}

/// While a repeated ADD that wants less waits for the agent, its record is written, and the rules
/// of the first ADD are still there.
#[test]
fn rules_that_a_killed_add_leaves_are_named_and_removed() {
    let iptables = json!({ "profile": "linkerd", "backend": "iptables" });
    let linkerd = json!({ "profile": "linkerd" });
    let cases = [
        ("none", linkerd.clone(), Value::Null),
        ("none of iptables", iptables.clone(), Value::Null),
        ("another backend", linkerd, iptables),
    ];
    for (name, first, second) in cases {
        let mut mesh = Mesh::bridged(&first, &[]);
        let result = mesh.add().unwrap();
        let before = mesh.record();
        let silent = UnixListener::bind(mesh.base.run_dir().join(SOCKET)).unwrap();
        mesh.redirect_as(&second);
        mesh.chain.plugins[1]["waitForAgent"] = json!({ "timeout": "60s" });
        let (mut add, input) = start_add(&mesh, &result);
        give(&mut add, input.as_bytes());
        eventually(name, Duration::from_secs(60), || Ok(mesh.record() != before)).unwrap();
        add.kill().unwrap();
        add.wait().unwrap();
        drop(silent);
        mesh.chain.plugins[1].as_object_mut().unwrap().remove("waitForAgent");

        let why = why_check_fails(&mesh, &result).expect(name);
        assert!(why.contains(LEFT), "{name}: {why}");
        // Whatever the next ADD is, it knows of them.
        mesh.redirect_as(&Value::Null);
        mesh.ours("ADD", &result).expect(name);
        assert!(!has_rules(&mesh), "{name}");
        assert_eq!(why_check_fails(&mesh, &result), None, "{name}");
        let record = mesh.record();
        assert!(record.redirect.is_none() && record.obsolete_redirects.is_empty(), "{name}");
    }
}

/// Wherever it ends, the pod has the rules that the record says, or CHECK fails.
#[test]
fn a_killed_add_that_wants_less_leaves_nothing_unknown() {
    let mut mesh = Mesh::bridged(&json!({ "profile": "linkerd" }), &[]);
    let result = mesh.add().unwrap();
    let mut anew = |place| {
        mesh.redirect_as(&json!({ "profile": "linkerd", "verify": "none" }));
        mesh.ours("ADD", &result).unwrap();
        mesh.redirect_as(&Value::Null);
        let ended = add_killed_at(&mesh, &result, place);
        (ended, mesh.record(), mesh.has_table(), why_check_fails(&mesh, &result))
    };
    let (mut kept, mut named) = (0, 0);
    for place in places(anew(usize::MAX).0) {
        let (ended, record, has_table, why) = anew(place);
        match record.redirect {
            Some(_) => assert!(has_table && why.is_none(), "at {place}: {why:?}"),
            None => assert_eq!(has_table, why.is_some_and(|why| why.contains(LEFT)), "at {place}"),
        }
        assert!(ended == Ended::Killed || !has_table, "its ADD had returned");
        kept += usize::from(record.redirect.is_some());
        named += usize::from(record.redirect.is_none() && has_table);
    }
    assert!(kept > 0 && named > 0, "{kept} with a record, {named} named");
}
