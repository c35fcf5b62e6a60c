//! CHECK names what somebody changed of a pod's rules.

use serde_json::json;

use super::context::{Mesh, nft};

/// A change by `nft`, with the handle of the outbound rule of the proxy's user for `HANDLE`, and
/// what CHECK says of it.
type Change = (&'static str, &'static str, &'static [&'static str]);

const CHANGES: [Change; 8] = [
    (
        "the table is gone",
        "delete table inet denizen-redirect",
        &["table denizen-redirect is missing in the pod"],
    ),
    (
        "it is dormant",
        "add table inet denizen-redirect { flags dormant; }",
        &["table denizen-redirect is dormant"],
    ),
    (
        "a chain is gone",
        "flush chain inet denizen-redirect inbound; delete chain inet denizen-redirect inbound",
        &["chain inbound is missing"],
    ),
    (
        "a chain is foreign",
        "add chain inet denizen-redirect mine",
        &["chain mine in denizen-redirect is not denizen's"],
    ),
    (
        "a rule is gone",
        "delete rule inet denizen-redirect outbound handle HANDLE",
        &["rule \"proxy-init/ignore-proxy-user-id\" of chain outbound is missing"],
    ),
    (
        "a rule is foreign",
        "insert rule inet denizen-redirect outbound tcp dport 1 return",
        &["chain outbound has a foreign rule: \"a rule without a comment\""],
    ),
    (
        "a rule does something else",
        "replace rule inet denizen-redirect outbound handle HANDLE meta skuid 7 counter return comment \"proxy-init/ignore-proxy-user-id\"",
        &[
            "rule \"proxy-init/ignore-proxy-user-id\" of chain outbound is missing",
            "chain outbound has a foreign rule: \"proxy-init/ignore-proxy-user-id\"",
        ],
    ),
    (
        "a rule is last",
        "delete rule inet denizen-redirect outbound handle HANDLE; add rule inet denizen-redirect outbound meta skuid 2102 counter return comment \"proxy-init/ignore-proxy-user-id\"",
        &["the rules of chain outbound are in another order"],
    ),
];

/// The handle of the rule that returns what the proxy sends.
fn handle(mesh: &Mesh) -> String {
    let table =
        nft(&mesh.base.pod, &["-a", "list", "chain", "inet", "denizen-redirect", "outbound"]);
    let table = table.unwrap();
    let rule = table.lines().find(|line| line.contains("ignore-proxy-user-id")).unwrap();
    rule.rsplit(' ').next().unwrap().to_owned()
}

#[test]
fn check_names_every_difference() {
    for (name, change, reasons) in CHANGES {
        let mesh = Mesh::bridged(&json!({ "profile": "linkerd" }), &[]);
        let result = mesh.add().unwrap();
        mesh.ours("CHECK", &result).unwrap();
        nft(&mesh.base.pod, &[&change.replace("HANDLE", &handle(&mesh))]).unwrap();
        let refusal = mesh.ours("CHECK", &result).expect_err(name);
        let message = refusal["msg"].as_str().unwrap();
        assert_eq!(refusal["code"], 100, "{name}");
        for reason in reasons {
            assert!(message.contains(reason), "{name}: {message}");
        }
        mesh.ours("ADD", &result).expect(name);
        let repaired = mesh.ours("CHECK", &result);
        // ADD knows its own chains alone.
        assert_eq!(repaired.is_ok(), !name.starts_with("a chain is foreign"), "{name}");
    }
}
