//! CHECK names what somebody changed of a pod's rules, and `denizen inspect` shows them.

use std::process::{Command, Stdio};
use std::time::Duration;

use denizen_tests::eventually::observed;
use denizen_tests::node::cni::denizen;
use denizen_tests::peers::sidecar::{CLIENT_UID, fetch, serve};
use serde_json::json;

use super::context::{Mesh, nft};

/// How long other packets may arrive at the pod.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A change by `nft`, with the handle of the outbound rule of the proxy's user for `HANDLE`, and
/// what CHECK says of it.
type RuleChange = (&'static str, &'static str, &'static [&'static str]);

const CHANGES: [RuleChange; 8] = [
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
        "replace rule inet denizen-redirect outbound handle HANDLE meta skuid 7 counter return \
         comment \"proxy-init/ignore-proxy-user-id\"",
        &[
            "rule \"proxy-init/ignore-proxy-user-id\" of chain outbound is missing",
            "chain outbound has a foreign rule: \"proxy-init/ignore-proxy-user-id\"",
        ],
    ),
    (
        "a rule is last",
        "delete rule inet denizen-redirect outbound handle HANDLE; \
         add rule inet denizen-redirect outbound meta skuid 2102 counter return \
         comment \"proxy-init/ignore-proxy-user-id\"",
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

/// `denizen inspect` with these arguments: whether it succeeds, and what it prints where.
fn inspect(arguments: &[&str]) -> (bool, String, String) {
    let mut inspect = Command::new(denizen());
    let output = inspect.arg("inspect").args(arguments).stdin(Stdio::null()).output().unwrap();
    let [printed, complaint] =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    (output.status.success(), printed, complaint)
}

#[test]
fn inspect_says_how_it_is_used() {
    let usage = "Usage: denizen inspect CONTAINER|NAMESPACE/POD [RUN_DIR]";
    for arguments in [&["--help"] as &[_], &["-h"], &["web-0", "--help"]] {
        let (succeeds, printed, complaint) = inspect(arguments);
        assert!(
            succeeds && printed.contains(usage) && complaint.is_empty(),
            "{printed}{complaint}"
        );
    }
    let cases: [(&[&str], &str); 5] = [
        (&[], "the pod is missing"),
        (&[""], "the pod is missing"),
        (&["--output"], "there is no option --output"),
        (&["web-0", "-x"], "there is no option -x"),
        (&["web-0", "/run/denizen", "more"], "\"more\" is too much"),
    ];
    for (arguments, why) in cases {
        let (succeeds, printed, complaint) = inspect(arguments);
        assert!(!succeeds && printed.is_empty(), "{arguments:?}: {printed}");
        assert!(complaint.starts_with(&format!("denizen: {why}")), "{arguments:?}: {complaint}");
        assert!(complaint.contains(usage), "{arguments:?}: {complaint}");
    }
}

/// What `denizen inspect` prints of the pod `default/web-0`, or why it fails.
fn inspected(mesh: &Mesh, container: &str) -> Result<String, String> {
    let (succeeds, printed, complaint) =
        inspect(&[container, mesh.base.run_dir().to_str().unwrap()]);
    if succeeds { Ok(printed) } else { Err(complaint) }
}

#[test]
fn inspect_shows_each_rule_with_what_it_counted() {
    let skip = ("config.linkerd.io/skip-outbound-ports", "443");
    for backend in ["nftables", "iptables"] {
        let redirect = json!({ "profile": "linkerd", "backend": backend, "verify": "none" });
        let mesh = Mesh::bridged(&redirect, &[skip]);
        mesh.add().unwrap();
        serve(&mesh.base.pod, 8080);
        fetch(&mesh.base.pod, CLIENT_UID, "127.0.0.1:8080".parse().unwrap()).unwrap();
        // The first chain also counts what its neighbours on the bridge announce meanwhile.
        let both = || Ok(["web-", "default/web-0"].map(|pod| inspected(&mesh, pod).unwrap()));
        let is_same = |[one, other]: &[String; 2]| one == other;
        let [text, _] = observed("both names show the pod", TIMEOUT, both, is_same).unwrap();
        let words: &[&str] = match backend {
            "nftables" => &[
                "web-0/eth0 (default/web-0): redirected by the profile linkerd",
                "connections inbound:",
                "0 proxy-init/redirect-all-incoming-to-proxy-port: in through eth0 TCP, to port 4143",
                "connections outbound:",
                "1 proxy-init/ignore-loopback: out through lo, not redirected",
                "0 proxy-init/ignore-port-443: TCP to port 443, not redirected",
                "skipOutboundPorts is from the annotation config.linkerd.io/skip-outbound-ports",
            ],
            _ => &["[1:60] -A PROXY_INIT_OUTPUT -o lo", "is from the annotation"],
        };
        for word in words {
            assert!(text.contains(word), "{word:?} is not in\n{text}");
        }
        assert!(!text.contains("not as recorded"), "{text}");
    }
}

#[test]
fn inspect_names_what_differs_and_what_is_not_there() {
    let mesh = Mesh::bridged(&json!({ "profile": "linkerd" }), &[]);
    mesh.add().unwrap();
    nft(&mesh.base.pod, &[&CHANGES[4].1.replace("HANDLE", &handle(&mesh))]).unwrap();
    let text = inspected(&mesh, "web-0").unwrap();
    assert!(text.contains(" missing proxy-init/ignore-proxy-user-id: of user 2102"), "{text}");
    assert!(text.contains("not as recorded: rule \"proxy-init/ignore-proxy-user-id\""), "{text}");
    let unknown = inspected(&mesh, "other").unwrap_err();
    assert!(unknown.contains("other is not recorded in"), "{unknown}");

    let plain = Mesh::bridged(&json!({ "profile": "custom" }), &[]);
    plain.add().unwrap();
    let text = inspected(&plain, "web-0").unwrap();
    assert_eq!(text, "web-0/eth0 (default/web-0): denizen does not redirect it\n");
}
