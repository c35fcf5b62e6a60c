//! ADDs that are killed while they redirect a pod.

use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use denizen_state::AttachmentId;
use denizen_tests::cni::{denizen, start};
use denizen_tests::effort::times;
use serde_json::json;

use super::context::{Mesh, nft};

const LIST: [&str; 5] = ["--stateless", "list", "table", "inet", "denizen-redirect"];

/// The multiples of the golden ratio, without their whole parts, lie evenly between 0 and 1.
const GOLDEN: f64 = 1.618_033_988_749_895;

/// Whenever it ends, the pod has all rules or none, and a record of them only where it has them.
#[test]
fn a_killed_add_leaves_all_rules_or_none() {
    let mesh = Mesh::bridged(&json!({ "profile": "linkerd" }), &[]);
    let result = mesh.add().unwrap();
    let whole = nft(&mesh.base.pod, &LIST).unwrap();
    let input = mesh.chain.configuration(&mesh.chain.plugins[1], "1.1.0", Some(&result));
    let (input, mut longest) = (input.to_string(), Duration::from_millis(5));
    let (mut killed, mut with_rules) = (0, 0);
    for turn in 0..times(1_000, 40) {
        mesh.ours("DEL", &result).unwrap();
        nft(
            &mesh.base.pod,
            &["add table inet denizen-redirect; delete table inet denizen-redirect"],
        )
        .unwrap();
        let variables = mesh.call.environment("ADD");
        let mut add = start(&mesh.base.node, &denizen(), variables, input.as_bytes());
        std::thread::sleep(longest.mul_f64(f64::from(turn as u32) * GOLDEN % 1.0));
        add.kill().unwrap();
        let was_killed = add.wait().unwrap().signal() == Some(9);
        // A whole ADD takes about as long, so that the kills fall anywhere in it.
        longest = longest.mul_f64(if was_killed { 1.05 } else { 0.9 });
        let rules = nft(&mesh.base.pod, &LIST).ok();
        let id = AttachmentId::new(&mesh.call.container, &mesh.call.interface);
        let record = mesh.base.state().attachments.remove(&id);
        if let Some(rules) = &rules {
            assert_eq!(*rules, whole);
        }
        let is_recorded = record.is_some_and(|record| record.redirect.is_some());
        assert!(rules.is_some() || !is_recorded, "a record without rules");
        assert!(was_killed || is_recorded, "its ADD had returned");
        killed += usize::from(was_killed);
        with_rules += usize::from(was_killed && rules.is_some());
    }
    assert!(killed > with_rules && with_rules > 0, "{killed} killed, {with_rules} with rules");
}
