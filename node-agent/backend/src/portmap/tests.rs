//! The real plugin's rules are in `tests/tests/services/host_ports/portmap.rs`.

#![expect(clippy::disallowed_methods, reason = "the judge is a program")]

use std::process::Command;

use nix::sched::{CloneFlags, unshare};

use super::legacy::{removal, rule};
use super::*;

#[test]
fn a_rule_that_iptables_prints_names_its_container() {
    let line = concat!(
        r#"-A CNI-HOSTPORT-DNAT -p tcp -m comment --comment "dnat name: \"pods\" id: \"3f1c\"" "#,
        "-m multiport --dports 8080 -j CNI-DN-c83ef2d",
    );
    let found = rule(line).unwrap();
    assert_eq!(&*found.container, "3f1c");
    let input = removal(&[found]);
    let spec = line.strip_prefix("-A ").unwrap();
    let expected = format!("*nat\n:CNI-DN-c83ef2d - [0:0]\n-D {spec}\n-X CNI-DN-c83ef2d\nCOMMIT\n");
    assert_eq!(input, expected);
    for other in [
        r#"-A CNI-HOSTPORT-DNAT -j CNI-DN-c83ef2d"#,
        r#"-A KUBE-SERVICES -m comment --comment "dnat name: \"pods\" id: \"3f1c\"" -j CNI-DN-c8"#,
        r#"-A CNI-HOSTPORT-DNAT -m comment --comment "dnat name: \"pods\" id: \"3f1c\"" -j ACCEPT"#,
    ] {
        assert_eq!(rule(other), None, "{other}");
    }
}

/// As releases since 1.6 make it, which Debian does not have.
#[test]
fn rules_of_portmaps_own_table_go_by_their_comment() {
    let inside = || {
        unshare(CloneFlags::CLONE_NEWNET).expect("a network namespace; the tests run as root");
        let nft = |arguments: &str| {
            let output = Command::new("nft").args([arguments]).output().expect("nft");
            assert!(output.status.success(), "{output:?}");
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        nft("table ip cni_hostport { chain hostports { \
             tcp dport 80 dnat to 10.1.0.5:80 comment \"gone\"; \
             tcp dport 81 dnat to 10.1.0.6:80 comment \"lives\"; }; }");
        let all: BTreeSet<Arc<str>> = ["gone".into(), "lives".into()].into();
        assert_eq!(containers().expect("read"), all);
        remove(&|container| container == "gone").expect("removed");
        assert_eq!(containers().expect("read"), ["lives".into()].into());
        assert!(nft("list ruleset").contains("10.1.0.6:80 comment \"lives\""));
    };
    std::thread::spawn(inside).join().expect("the test holds");
}
