#![expect(clippy::disallowed_methods, reason = "a test writes as any editor would")]

use std::fs;

use super::*;
use crate::running::{RunningSource, in_runtime};
use denizen_fixture::range;

fn kept(file: &File) -> Vec<String> {
    file.egress.kept.iter().map(ToString::to_string).collect()
}

#[test]
fn yaml_and_json_are_equivalent() {
    let yaml = "# ours\nnonMasqueradeCIDRs:\n  - 10.0.0.0/8\n  - fd00::/8\nmasqLinkLocal: true\nresyncInterval: 1m30s\n";
    let json = r#"{"nonMasqueradeCIDRs": ["fd00::/8", "10.0.0.0/8"], "masqLinkLocal": true, "resyncInterval": "90s"}"#;
    let file = parse(yaml).unwrap();
    assert_eq!(file, parse(json).unwrap());
    assert_eq!(kept(&file), ["10.0.0.0/8", "fd00::/8", "fe80::/10"]);
    assert_eq!((file.egress.v6, file.resync), (true, Duration::from_secs(90)));
}

#[test]
fn a_file_that_is_not_regular_is_an_error_and_does_not_block() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config");
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let error = denizen_text::describe(&read(&path).unwrap_err());
    assert!(error.contains("it is a named pipe"), "{error}");
}

#[test]
fn defaults_are_those_of_ip_masq_agent() {
    for text in ["", "# nothing\n---\n", "nonMasqueradeCIDRs:\n", "{}", "nonMasqueradeCIDRs: []"] {
        let file = parse(text).unwrap();
        assert_eq!(kept(&file), ["169.254.0.0/16"], "{text}");
        assert_eq!((file.egress.v6, file.resync), (false, RESYNC), "{text}");
    }
    let both =
        parse("nonMasqueradeCIDRs: ['::/128']\nmasqLinkLocalIPv6: true\nmasqLinkLocal: false")
            .unwrap();
    assert_eq!(kept(&both), ["169.254.0.0/16", "::/128"]);
    let none = read(Path::new("/nowhere/at/all")).unwrap();
    assert_eq!(kept(&none), ["10.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16"]);
}

#[test]
fn errors_name_the_field() {
    let cases = [
        ("nonMasqueradeCIDRs: [10.0.0.0]", "nonMasqueradeCIDRs: \"10.0.0.0\" is not a CIDR"),
        ("nonMasqueradeCIDRs: [10.0.0.1/8]", "10.0.0.0/8 is meant?"),
        ("nonMasqueradeCIDRs: 10.0.0.0/8", "nonMasqueradeCIDRs"),
        ("masqLinkLocal: perhaps", "masqLinkLocal"),
        ("resyncInterval: soon", "resyncInterval: \"soon\" is not a duration"),
        ("resyncInterval: 10ms", "less than a second"),
        ("nonMasqueradeCIDRs: [", ""),
        ("- 10.0.0.0/8", ""),
    ];
    for (text, words) in cases {
        let error = parse(text).unwrap_err();
        assert!(error.contains(words), "{text}: {error}");
    }
    let ignored = parse("cidrLimit: 64\nnonMasqueradeSrcCIDRs: [10.0.0.0/8]").unwrap().ignored;
    assert_eq!(ignored, ["cidrLimit", "nonMasqueradeSrcCIDRs"]);
}

fn config_in(folder: &Path) -> EgressConfig {
    EgressConfig { file: folder.join("config"), run_dir: folder.to_owned() }
}

#[test]
fn at_a_start_with_a_bad_file_the_last_good_one_stays_in_force() {
    in_runtime(async {
        let folder = tempfile::tempdir().unwrap();
        let config = config_in(folder.path());
        let bad = || fs::write(&config.file, "nonMasqueradeCIDRs: [10.0.0.0/33]").unwrap();
        let restarted = async |problem: &str| {
            let mut source = RunningSource::start(|outlet| run(config.clone(), outlet));
            source.problem(problem).await;
            source.stop().await;
            at_start(&config)
        };
        bad();
        assert_eq!(restarted("there was no good one").await, None);
        for good in [
            "nonMasqueradeCIDRs: [10.0.0.0/8]",
            "nonMasqueradeCIDRs: [10.0.0.0/8, 'fd00::/8']\nmasqLinkLocal: true",
            "",
        ] {
            fs::write(&config.file, good).unwrap();
            let expected = at_start(&config).unwrap();
            let mut source = RunningSource::start(|outlet| run(config.clone(), outlet));
            assert_eq!(source.batch().await, [Event::Egress(expected.clone())]);
            source.stop().await;
            bad();
            assert_eq!(
                restarted("the last good file stays in force").await,
                Some(expected),
                "{good}"
            );
        }
        forget(folder.path());
        assert_eq!(restarted("there was no good one").await, None);
    });
}

#[test]
fn a_change_is_sent_and_a_bad_file_changes_nothing() {
    in_runtime(async {
        let folder = tempfile::tempdir().unwrap();
        let path = config_in(folder.path()).file;
        fs::write(&path, "nonMasqueradeCIDRs: [10.0.0.0/8]").unwrap();
        let config = config_in(folder.path());
        let mut source = RunningSource::start(|outlet| run(config, outlet));
        let egress = |batch: Vec<Event>| match batch.as_slice() {
            [Event::Egress(egress)] => egress.clone(),
            other => panic!("{other:?}"),
        };
        assert_eq!(egress(source.batch().await).kept[0], range("10.0.0.0/8"));
        fs::write(&path, "nonMasqueradeCIDRs: [10.0.0.0/33]").unwrap();
        source.problem("\"10.0.0.0/33\" is not a CIDR").await;
        // As in a ConfigMap volume: another file takes the name.
        fs::write(folder.path().join("new"), "nonMasqueradeCIDRs: [11.0.0.0/8]").unwrap();
        fs::rename(folder.path().join("new"), &path).unwrap();
        assert_eq!(egress(source.batch().await).kept[0], range("11.0.0.0/8"));
        source.no_problem().await;
        fs::remove_file(&path).unwrap();
        assert_eq!(egress(source.batch().await).kept.len(), 4);
        source.stop().await;
    });
}
