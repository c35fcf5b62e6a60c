//! Events while files change.

use super::*;
use crate::running::{RunningSource, in_runtime};

fn start(config: ManifestsConfig) -> RunningSource<()> {
    RunningSource::start(|outlet| run(config, outlet))
}

#[test]
fn only_changes_are_sent() {
    in_runtime(async {
        let place = TestFolder::new();
        place.write("a.yaml", &service("a", "10.0.0.1"));
        let mut source = start(place.config());
        let first = source.batch().await;
        assert_eq!(services(&first), ["d/a 10.0.0.1"]);
        assert_eq!(first[1..], listed());

        place.write("b.yaml", &service("b", "10.0.0.2"));
        assert_eq!(services(&source.batch().await), ["d/b 10.0.0.2"]);
        place.write("a.yaml", &service("a", "10.0.0.3"));
        assert_eq!(services(&source.batch().await), ["d/a 10.0.0.3"]);
        // Renamed and rewritten with the same content: no event.
        std::fs::rename(place.folder.path().join("b.yaml"), place.folder.path().join("c.yaml"))
            .unwrap();
        place.write("a.yaml", &service("a", "10.0.0.3"));
        place.write(".hidden.yaml", &service("h", "10.0.0.9"));
        sleep(Duration::from_millis(100)).await;
        place.remove("a.yaml");
        assert_eq!(services(&source.batch().await), ["d/a -"]);
        // Two files at once are one change.
        place.write("d.yaml", &service("d", "10.0.0.4"));
        place.remove("c.yaml");
        assert_eq!(services(&source.batch().await), ["d/b -", "d/d 10.0.0.4"]);
        source.stop().await;
    });
}

#[test]
fn of_two_files_with_one_object_the_first_by_name_wins() {
    in_runtime(async {
        let place = TestFolder::new();
        place.write("b.yaml", &service("a", "10.0.0.2"));
        place.write("c.yaml", &service("a", "10.0.0.3"));
        let mut source = start(place.config());
        assert_eq!(services(&source.batch().await), ["d/a 10.0.0.2"]);
        source.problem("c.yaml: Service d/a is in b.yaml already: left out").await;
        place.write("a.yaml", &service("a", "10.0.0.1"));
        assert_eq!(services(&source.batch().await), ["d/a 10.0.0.1"]);
        place.remove("a.yaml");
        assert_eq!(services(&source.batch().await), ["d/a 10.0.0.2"]);
        place.remove("b.yaml");
        assert_eq!(services(&source.batch().await), ["d/a 10.0.0.3"]);
        source.no_problem().await;
        source.stop().await;
    });
}

#[test]
fn a_file_that_is_not_regular_is_named_and_does_not_block() {
    in_runtime(async {
        let place = TestFolder::new();
        let at = |name: &str| place.folder.path().join(name);
        place.write("a.yaml", &service("a", "10.0.0.1"));
        place.write("b.yaml", &service("b", "10.0.0.2"));
        let mut source = start(place.config());
        assert_eq!(services(&source.batch().await), ["d/a 10.0.0.1", "d/b 10.0.0.2"]);

        nix::unistd::mkfifo(&at("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        std::fs::rename(at("pipe"), at("a.yaml")).unwrap();
        source
            .problem("a.yaml: skipped: cannot be read: it is a named pipe, and not a regular file")
            .await;
        // The kernel calls it a regular file, but a read blocks until its next
        // message.
        std::os::unix::fs::symlink("/proc/kmsg", at("c.yaml")).unwrap();
        source.problem("c.yaml: skipped: cannot be read: it is a file of /proc").await;
        place.write("b.yaml", &service("b", "10.0.0.3"));
        assert_eq!(services(&source.batch().await), ["d/b 10.0.0.3"], "the service in a stays");
        place.remove("a.yaml");
        place.remove("c.yaml");
        assert_eq!(services(&source.batch().await), ["d/a -"]);
        source.no_problem().await;
        source.stop().await;
    });
}

#[test]
fn a_mounted_config_map_is_followed() {
    in_runtime(async {
        let place = TestFolder::new();
        let at = |name: &str| place.folder.path().join(name);
        std::fs::create_dir(at("..1")).unwrap();
        place.write("..1/a.yaml", &service("a", "10.0.0.1"));
        std::os::unix::fs::symlink("..1", at("..data")).unwrap();
        std::os::unix::fs::symlink("..data/a.yaml", at("a.yaml")).unwrap();
        let mut source = start(place.config());
        assert_eq!(services(&source.batch().await), ["d/a 10.0.0.1"]);

        std::fs::create_dir(at("..2")).unwrap();
        place.write("..2/a.yaml", &service("a", "10.0.0.2"));
        std::os::unix::fs::symlink("..2", at("..data_tmp")).unwrap();
        std::fs::rename(at("..data_tmp"), at("..data")).unwrap();
        assert_eq!(services(&source.batch().await), ["d/a 10.0.0.2"]);
        source.stop().await;
    });
}

#[test]
fn a_folder_that_is_missing_at_the_start_is_waited_for() {
    in_runtime(async {
        let place = TestFolder::new();
        let folder = place.folder.path().join("late");
        let config = ManifestsConfig { folder: folder.clone(), ..place.config() };
        let mut source = start(config);
        source.problem(&format!("cannot read the folder of manifests {}", folder.display())).await;
        assert!(
            source.events.try_recv().is_err(),
            "the services are unknown, which is not the same as none"
        );
        place.write("a.yaml", &service("a", "10.0.0.1"));
        std::fs::create_dir(place.folder.path().join("made")).unwrap();
        std::fs::rename(
            place.folder.path().join("a.yaml"),
            place.folder.path().join("made/a.yaml"),
        )
        .unwrap();
        std::fs::rename(place.folder.path().join("made"), &folder).unwrap();
        let first = source.batch().await;
        assert_eq!(services(&first), ["d/a 10.0.0.1"]);
        assert_eq!(first[1..], listed());
        source.no_problem().await;
        source.stop().await;
    });
}

#[test]
fn while_the_folder_is_gone_its_last_content_stays() {
    in_runtime(async {
        let place = TestFolder::new();
        let folder = place.folder.path().join("manifests");
        std::fs::create_dir(&folder).unwrap();
        place.write("manifests/a.yaml", &service("a", "10.0.0.1"));
        place.write("manifests/b.yaml", &service("b", "10.0.0.2"));
        let mut source = start(ManifestsConfig { folder: folder.clone(), ..place.config() });
        assert_eq!(services(&source.batch().await).len(), 2);

        std::fs::rename(&folder, place.folder.path().join("away")).unwrap();
        source.problem("cannot read the folder of manifests").await;
        assert!(source.events.try_recv().is_err(), "a missing folder yields no events");
        std::fs::create_dir(&folder).unwrap();
        place.write("manifests/b.yaml", &service("b", "10.0.0.3"));
        // The folder may be read before the file is in it.
        let mut names = Vec::new();
        while names.last().map(String::as_str) != Some("d/b 10.0.0.3") {
            names.extend(services(&source.batch().await));
        }
        assert!(names.contains(&"d/a -".to_owned()), "{names:?}");
        source.no_problem().await;
        source.stop().await;
    });
}

#[test]
fn a_link_in_the_path_may_be_replaced() {
    in_runtime(async {
        let place = TestFolder::new();
        let at = |name: &str| place.folder.path().join(name);
        for (folder, address) in [("one", "10.0.0.1"), ("two", "10.0.0.2")] {
            std::fs::create_dir(at(folder)).unwrap();
            place.write(&format!("{folder}/a.yaml"), &service("a", address));
        }
        std::os::unix::fs::symlink("one", at("current")).unwrap();
        let mut source = start(ManifestsConfig { folder: at("current"), ..place.config() });
        assert_eq!(services(&source.batch().await), ["d/a 10.0.0.1"]);
        std::os::unix::fs::symlink("two", at("next")).unwrap();
        std::fs::rename(at("next"), at("current")).unwrap();
        assert_eq!(services(&source.batch().await), ["d/a 10.0.0.2"]);
        source.stop().await;
    });
}
