use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::time::{Duration, Instant};

use super::*;
use crate::running::{RunningSource, in_runtime};
use denizen_state::{HostInterface, PodRef};

fn start(run_dir: &Path) -> RunningSource<()> {
    let config = StateFileConfig { run_dir: run_dir.to_owned() };
    RunningSource::start(|outlet| run(config, latest::Sender::default(), outlet))
}

async fn pods(source: &mut RunningSource<()>) -> PodSet {
    let batch = source.batch().await;
    match batch.as_slice() {
        [Event::Pods(pods)] => pods.clone(),
        other => panic!("not one set of pods: {other:?}"),
    }
}

/// A run directory that does not exist yet, and its parent.
fn run_dir() -> (tempfile::TempDir, PathBuf) {
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("run");
    (parent, path)
}

fn attachment(
    container: &str,
    interface: Option<&str>,
    bridge: Option<&str>,
    ips: &[&str],
) -> Attachment {
    Attachment {
        container_id: container.to_owned(),
        if_name: "eth0".to_owned(),
        network: "pods".to_owned(),
        pod: Some(PodRef {
            namespace: "default".to_owned(),
            name: format!("pod-{container}"),
            uid: None,
            unknown: Default::default(),
        }),
        netns: None,
        host_interface: interface.map(|name| HostInterface {
            name: name.to_owned(),
            index: 7,
            mac: "0a:58:0a:01:02:03".to_owned(),
            unknown: Default::default(),
        }),
        l3_interface: None,
        bridge: bridge.map(str::to_owned),
        ips: ips.iter().map(|ip| ip.parse().unwrap()).collect(),
        added_at: "2026-11-20T12:00:00Z".to_owned(),
        adopted: false,
        redirect: None,
        mac: None,
        obsolete_redirects: Vec::new(),
        further_interfaces: Vec::new(),
        host_ports_adopted: false,
        host_ports: Vec::new(),
        unknown: Default::default(),
    }
}

fn add(dir: &RunDir, attachment: Attachment) -> (denizen_state::Epoch, denizen_state::Generation) {
    let add = |state: &mut State| {
        state.attachments.insert(attachment.id(), attachment);
    };
    let ((), epoch, generation) = dir.update(Duration::from_secs(5), add).unwrap();
    (epoch, generation)
}

fn names(pods: &PodSet) -> Vec<&str> {
    pods.pods.iter().map(|pod| pod.id.0.as_str()).collect()
}

#[expect(clippy::disallowed_methods, reason = "a test writes content that the plugin never writes")]
fn replace_file(dir: &Path, text: &str) {
    std::fs::write(dir.join("other"), text).unwrap();
    std::fs::set_permissions(
        dir.join("other"),
        std::os::unix::fs::PermissionsExt::from_mode(0o600),
    )
    .unwrap();
    std::fs::rename(dir.join("other"), dir.join(STATE_FILE)).unwrap();
}

#[test]
fn pods_of_attachments() {
    let mut vlan = attachment("d", Some("veth4"), Some("br0"), &["10.0.0.4"]);
    vlan.l3_interface = Some("br0.7".to_owned());
    let mut nameless = attachment("e", Some("veth5"), None, &["10.0.0.5"]);
    nameless.pod = None;
    let cases = [
        (
            "routed",
            attachment("a", Some("veth1"), None, &["10.0.0.1", "fd00::1"]),
            Some("default/pod-a veth1 - 10.0.0.1 fd00::1"),
        ),
        (
            "bridged",
            attachment("b", Some("veth2"), Some("cni0"), &["10.0.0.2"]),
            Some("default/pod-b cni0 veth2 10.0.0.2"),
        ),
        (
            "one address twice",
            attachment("c", Some("veth3"), None, &["10.0.0.3", "10.0.0.3"]),
            Some("default/pod-c veth3 - 10.0.0.3"),
        ),
        (
            "an IPv4-mapped address",
            attachment("h", Some("veth8"), None, &["::ffff:10.0.0.8", "10.0.0.8"]),
            Some("default/pod-h veth8 - 10.0.0.8"),
        ),
        ("a VLAN on the bridge", vlan, Some("default/pod-d br0.7 - 10.0.0.4")),
        ("not named", nameless, Some("e/eth0 veth5 - 10.0.0.5")),
        ("no interface on the node", attachment("f", None, None, &["10.0.0.6"]), None),
        ("no address", attachment("g", Some("veth7"), None, &[]), Some("default/pod-g veth7 -")),
    ];
    for (name, attachment, expected) in cases {
        let pod = local_pod(&attachment.id(), &attachment);
        let shown = pod.map(|pod| {
            let port = pod.port.as_deref().unwrap_or("-");
            let mut shown = format!("{pod} {} {port}", pod.interface);
            for ip in &pod.ips {
                shown += &format!(" {ip}");
            }
            shown
        });
        assert_eq!(shown.as_deref(), expected, "{name}");
    }
}

#[test]
fn changes_are_sent_with_their_generation() {
    in_runtime(async {
        let (_parent, path) = run_dir();
        let mut source = start(&path);
        assert_eq!(pods(&mut source).await, PodSet::default(), "no file yet");
        let dir = RunDir::open(&path).expect("the source made the run directory");
        let version = add(&dir, attachment("b", Some("veth2"), None, &["10.0.0.2"]));
        assert_eq!(pods(&mut source).await.version, Some(version));
        let version = add(&dir, attachment("a", Some("veth1"), None, &["10.0.0.1"]));
        let sent = pods(&mut source).await;
        assert_eq!((names(&sent), sent.version.clone()), (vec!["a/eth0", "b/eth0"], Some(version)));
        dir.update(Duration::from_secs(5), |state| state.attachments.clear()).unwrap();
        assert!(pods(&mut source).await.pods.is_empty());
        source.stop().await;
    });
}

#[test]
fn a_file_that_cannot_be_used_keeps_the_last_known_pods() {
    let cases = [
        ("not JSON", "{", "cannot be read as a state file"),
        ("not ours", "[]", "cannot be read as a state file"),
        ("newer", r#"{"version": 2, "pods": []}"#, "has version 2"),
    ];
    for (name, text, problem) in cases {
        in_runtime(async {
            let (_parent, path) = run_dir();
            let dir = RunDir::create(&path).unwrap();
            add(&dir, attachment("a", Some("veth1"), None, &["10.0.0.1"]));
            let good = std::fs::File::open(path.join(STATE_FILE))
                .map(std::io::read_to_string)
                .unwrap()
                .unwrap();
            let mut source = start(&path);
            assert_eq!(names(&pods(&mut source).await), ["a/eth0"], "{name}");

            replace_file(&path, text);
            source.problem(problem).await;
            std::fs::remove_file(path.join(STATE_FILE)).unwrap();
            source.problem("the state file is gone").await;
            assert!(source.events.try_recv().is_err(), "{name}: pods are kept");
            replace_file(&path, &good);
            source.no_problem().await;
            assert!(source.events.try_recv().is_err(), "{name}: nothing is new");
            source.stop().await;
        });
    }
}

#[test]
fn an_unreadable_file_at_the_start_leaves_the_pods_unknown() {
    in_runtime(async {
        let (_parent, path) = run_dir();
        let dir = RunDir::create(&path).unwrap();
        replace_file(&path, "");
        let mut source = start(&path);
        source.problem("cannot be read as a state file").await;
        assert!(source.events.try_recv().is_err());
        std::fs::remove_file(path.join(STATE_FILE)).unwrap();
        assert_eq!(pods(&mut source).await, PodSet::default());
        add(&dir, attachment("a", Some("veth1"), None, &["10.0.0.1"]));
        assert_eq!(names(&pods(&mut source).await), ["a/eth0"]);
        source.stop().await;
    });
}

#[test]
fn a_run_directory_that_is_replaced_is_found_again() {
    in_runtime(async {
        let (parent, path) = run_dir();
        let dir = RunDir::create(&path).unwrap();
        add(&dir, attachment("a", Some("veth1"), None, &["10.0.0.1"]));
        let mut source = start(&path);
        assert_eq!(names(&pods(&mut source).await), ["a/eth0"]);
        std::fs::rename(&path, parent.path().join("away")).unwrap();
        std::fs::DirBuilder::new().mode(0o700).create(&path).unwrap();
        let dir = RunDir::open(&path).unwrap();
        add(&dir, attachment("b", Some("veth2"), None, &["10.0.0.2"]));
        assert_eq!(names(&pods(&mut source).await), ["b/eth0"]);
        source.stop().await;
    });
}

/// The time is printed, and only has to be far below every pause of the source: this is not a
/// benchmark.
#[test]
#[expect(clippy::disallowed_methods, reason = "a test measures")]
fn a_change_is_sent_at_once() {
    in_runtime(async {
        let (_parent, path) = run_dir();
        let dir = RunDir::create(&path).unwrap();
        for index in 0..100 {
            add(&dir, attachment(&format!("{index:064}"), Some("veth1"), None, &["10.0.0.1"]));
        }
        let mut source = start(&path);
        pods(&mut source).await;
        let mut times = Vec::new();
        for index in 0..50 {
            add(&dir, attachment(&format!("new-{index}"), Some("veth1"), None, &["10.0.0.1"]));
            let written = Instant::now();
            pods(&mut source).await;
            times.push(written.elapsed());
        }
        times.sort();
        println!("from rename to event, 100 pods: median {:?}, worst {:?}", times[25], times[49]);
        assert!(times[25] < Duration::from_millis(100), "{times:?}");
        source.stop().await;
    });
}
