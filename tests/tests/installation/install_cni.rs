//! `denizen-agent install-cni` as it runs on a node: beside owners that rewrite their files, and
//! killed at any instant.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use denizen_tests::binary;
use denizen_tests::eventually::eventually;
use denizen_tests::test_length;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tempfile::TempDir;

const TIMEOUT: Duration = Duration::from_secs(30);
const LIST: &str = r#"{
  "cniVersion": "1.0.0", "name": "pods",
  "plugins": [
    { "type": "bridge" },
    { "type": "portmap" }
  ]
}
"#;
const LONE: &str = "{ \"cniVersion\": \"0.4.0\", \"name\": \"pods\", \"type\": \"ptp\" }\n";

struct CniNode {
    folder: TempDir,
}

impl CniNode {
    fn new() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        fs::create_dir(folder.path().join("net.d"))?;
        fs::create_dir(folder.path().join("bin"))?;
        Ok(Self { folder })
    }

    fn conf(&self) -> PathBuf {
        self.folder.path().join("net.d")
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    fn command(&self, flags: &[&str]) -> Result<Command> {
        let mut command = Command::new(binary::ours("denizen-agent")?);
        command.arg("install-cni").arg("--cni-conf-dir").arg(self.conf());
        command.arg("--cni-bin-dir").arg(self.folder.path().join("bin")).args(flags);
        Ok(command)
    }

    fn run(&self, flags: &[&str]) -> Result<Output> {
        Ok(self.command(flags)?.output()?)
    }

    fn plugin(&self) -> PathBuf {
        self.folder.path().join("bin/denizen")
    }

    fn start(&self) -> Result<Running> {
        self.start_with_log(File::create(self.folder.path().join("log"))?)
    }

    fn start_with_log(&self, log: File) -> Result<Running> {
        let child = self.command(&[])?.stdin(Stdio::null()).stderr(log).spawn()?;
        Ok(Running(child))
    }

    /// As an owner writes its file: beside, and renamed.
    fn write(&self, name: &str, text: &str) -> Result<()> {
        let beside = self.folder.path().join("beside");
        fs::write(&beside, text)?;
        Ok(fs::rename(beside, self.conf().join(name))?)
    }

    fn wait(&self, what: &str, so: impl Fn() -> bool) -> Result<()> {
        eventually(what, TIMEOUT, || Ok(so()))
            .with_context(|| format!("{:?} {}", active(&self.conf()), self.log()))
    }
}

struct Running(Child);

impl Running {
    fn terminate(&mut self) -> Result<ExitStatus> {
        kill(Pid::from_raw(self.0.id().try_into()?), Signal::SIGTERM)?;
        Ok(self.0.wait()?)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The types of the plugins of the configuration that containerd would take: the first by name,
/// which must be valid.
fn active(folder: &Path) -> Result<Vec<String>> {
    let mut paths: Vec<PathBuf> =
        fs::read_dir(folder)?.flatten().map(|entry| entry.path()).collect();
    paths.retain(|path| {
        path.extension().is_some_and(|extension| {
            extension == "conflist" || extension == "conf" || extension == "json"
        })
    });
    paths.sort();
    let path = paths.first().context("no configuration")?;
    let value: Value = serde_json::from_str(&fs::read_to_string(path)?)?;
    let types = match value["plugins"].as_array() {
        Some(plugins) => plugins.iter().map(|plugin| plugin["type"].as_str()).collect(),
        None => Some(vec![value["type"].as_str().context("no type")?]),
    };
    let types: Vec<&str> = types.context("a plugin without a type")?;
    ensure!(!types.is_empty(), "no plugins");
    Ok(types.into_iter().map(str::to_owned).collect())
}

fn is(folder: &Path, expected: &[&str]) -> bool {
    active(folder).is_ok_and(|types| types == expected)
}

#[test]
fn once_and_out_again() -> Result<()> {
    for (name, text) in [("10-x.conflist", LIST), ("10-x.conf", LONE)] {
        let node = CniNode::new()?;
        let refused = node.run(&["--once"])?;
        let printed = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(
            !refused.status.success() && printed.contains("no usable CNI configuration"),
            "{printed}"
        );
        node.write(name, text)?;
        let output = node.run(&["--once", "--run-dir", "/run/other"])?;
        assert!(output.status.success(), "{output:?}");
        assert_eq!(active(&node.conf())?.last().map(String::as_str), Some("denizen"));
        let whole: String = fs::read_dir(node.conf())?
            .flatten()
            .map(|entry| fs::read_to_string(entry.path()).unwrap())
            .collect();
        assert!(whole.contains(r#""runDir":"/run/other""#), "{whole}");
        assert!(node.folder.path().join("bin/denizen").is_file());
        assert!(node.run(&["--uninstall"])?.status.success());
        let left: Vec<_> =
            fs::read_dir(node.conf())?.flatten().map(|entry| entry.file_name()).collect();
        assert_eq!(left, [name]);
        assert_eq!(fs::read_to_string(node.conf().join(name))?, text);
        assert!(
            node.folder.path().join("bin/denizen").is_file(),
            "pods that were made with it may need it"
        );
    }
    Ok(())
}

#[test]
fn it_waits_for_a_configuration_and_keeps_its_place_in_it() -> Result<()> {
    let node = CniNode::new()?;
    let mut running = node.start()?;
    node.wait("it says that it waits", || node.log().contains("waiting for one"))?;
    node.write("00-broken.conflist", "{ \"name\": ")?;
    node.write("10-x.conflist", LIST)?;
    node.wait("the broken one is named", || node.log().contains("00-broken.conflist"))?;
    assert_eq!(fs::read_to_string(node.conf().join("00-broken.conflist"))?, "{ \"name\": ");
    fs::remove_file(node.conf().join("00-broken.conflist"))?;
    node.wait("put in", || is(&node.conf(), &["bridge", "portmap", "denizen"]))?;
    for round in 0..test_length::times(50, 5) {
        let text = LIST.replace("bridge", if round % 2 == 0 { "ptp" } else { "bridge" });
        node.write("10-x.conflist", &text)?;
        let first = if round % 2 == 0 { "ptp" } else { "bridge" };
        node.wait("put in again", || is(&node.conf(), &[first, "portmap", "denizen"]))?;
    }
    assert!(running.terminate()?.success());
    assert_eq!(active(&node.conf())?.len(), 3, "it stays when the program is upgraded");
    Ok(())
}

/// An uninstallation may begin before the old pod has ended. After the next boot, an entry that was
/// put back would keep every pod from starting.
#[test]
fn a_removed_entry_is_never_put_back() -> Result<()> {
    for (name, text, with) in [
        ("10-x.conflist", LIST, &["bridge", "portmap", "denizen"][..]),
        ("10-x.conf", LONE, &["ptp", "denizen"]),
    ] {
        let node = CniNode::new()?;
        node.write(name, text)?;
        let mut running = node.start()?;
        node.wait("put in", || is(&node.conf(), with))?;
        let refused = node.run(&["--uninstall"])?;
        let printed = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && printed.contains("still runs"), "{printed}");
        assert!(is(&node.conf(), with), "it is as it was: {:?}", active(&node.conf()));
        // The owner rewrites its file, and the pod ends while it is about to put denizen back.
        node.write(name, text)?;
        assert!(running.terminate()?.success());
        assert!(node.run(&["--uninstall"])?.status.success());
        let left: Vec<_> =
            fs::read_dir(node.conf())?.flatten().map(|entry| entry.file_name()).collect();
        assert_eq!(left, [name]);
        assert_eq!(fs::read_to_string(node.conf().join(name))?, text);
    }
    Ok(())
}

/// The entry would stay in the folder that the runtime reads.
#[test]
fn a_removal_from_a_wrong_folder_is_an_error() -> Result<()> {
    let node = CniNode::new()?;
    fs::write(node.conf().join("README"), "no configuration")?;
    let printed = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
    let refused = node.run(&["--uninstall"])?;
    assert!(!refused.status.success(), "an empty folder");
    assert!(printed(&refused).contains("no usable CNI configuration"), "{}", printed(&refused));
    fs::remove_dir_all(node.conf())?;
    assert!(!node.run(&["--uninstall"])?.status.success(), "no folder");
    Ok(())
}

/// Without the program that the entry names, no pod starts.
#[test]
fn a_program_that_is_removed_or_replaced_is_put_back() -> Result<()> {
    let node = CniNode::new()?;
    node.write("10-x.conflist", LIST)?;
    let _running = node.start()?;
    node.wait("put in", || is(&node.conf(), &["bridge", "portmap", "denizen"]))?;
    let (plugin, before) = (node.plugin(), fs::read(node.plugin())?);
    let folder = plugin.parent().context("a folder")?.to_owned();
    let losses: [(&str, &dyn Fn() -> io::Result<()>); 4] = [
        ("removed", &|| fs::remove_file(&plugin)),
        ("replaced", &|| fs::write(&plugin, "#!/bin/sh\nexit 1\n")),
        ("not executable", &|| fs::set_permissions(&plugin, Permissions::from_mode(0o644))),
        ("its folder replaced", &|| {
            fs::rename(&folder, node.folder.path().join("old"))?;
            fs::create_dir(&folder)
        }),
    ];
    for (what, lose) in losses {
        lose()?;
        node.wait(what, || {
            let mode = fs::metadata(&plugin).map(|there| there.mode() & 0o111);
            mode.is_ok_and(|mode| mode == 0o111) && fs::read(&plugin).is_ok_and(|now| now == before)
        })?;
    }
    assert!(is(&node.conf(), &["bridge", "portmap", "denizen"]));
    Ok(())
}

#[test]
fn the_entry_is_kept_if_the_log_cannot_be_written() -> Result<()> {
    let node = CniNode::new()?;
    let mut running = node.start_with_log(File::options().write(true).open("/dev/full")?)?;
    for first in ["bridge", "ptp"] {
        node.write("10-x.conflist", &LIST.replace("bridge", first))?;
        node.wait("put in", || is(&node.conf(), &[first, "portmap", "denizen"]))?;
    }
    assert!(running.terminate()?.success());
    Ok(())
}

/// Multus is first by name, and calls what it copied from the network's file when it started:
/// before denizen was there, and after.
#[test]
fn behind_multus_it_is_in_the_network_that_multus_delegates_to() -> Result<()> {
    let node = CniNode::new()?;
    node.write("10-x.conflist", LIST)?;
    let start_multus = |network: &str| {
        let network: Value = serde_json::from_str(network)?;
        let multus = json!({
            "cniVersion": "0.4.0", "name": "multus-cni-network", "type": "multus",
            "delegates": [network],
        });
        node.write("00-multus.conf", &multus.to_string())
    };
    let delegates_to = || -> Result<Vec<String>> {
        let multus = fs::read_to_string(node.conf().join("00-multus.conf"))?;
        let multus: Value = serde_json::from_str(&multus)?;
        let plugins = multus["delegates"][0]["plugins"].as_array().context("a list")?;
        Ok(plugins.iter().filter_map(|plugin| plugin["type"].as_str().map(str::to_owned)).collect())
    };
    start_multus(LIST)?;
    let running = node.start()?;
    for round in 0..3 {
        let what = format!("denizen is called, round {round}");
        let expected = ["bridge", "portmap", "denizen"];
        node.wait(&what, || delegates_to().is_ok_and(|types| types == expected))?;
        assert!(is(&node.conf(), &["multus"]));
        start_multus(&fs::read_to_string(node.conf().join("10-x.conflist"))?)?;
    }
    assert_eq!(delegates_to()?, ["bridge", "portmap", "denizen"], "by Multus itself");
    drop(running);
    assert!(node.run(&["--uninstall"])?.status.success());
    assert_eq!(delegates_to()?, ["bridge", "portmap"]);
    assert_eq!(fs::read_to_string(node.conf().join("10-x.conflist"))?, LIST);
    assert_eq!(fs::read_dir(node.conf())?.count(), 2);
    Ok(())
}

#[test]
fn a_plugin_that_does_not_run_is_not_installed() -> Result<()> {
    let node = CniNode::new()?;
    node.write("10-x.conflist", LIST)?;
    assert!(node.run(&["--once"])?.status.success());
    assert!(node.run(&["--uninstall"])?.status.success());
    let plugin = node.folder.path().join("bin/denizen");
    let before = fs::read(&plugin)?;
    for (name, program) in
        [("broken", "\u{7f}ELF is not this"), ("another", "#!/bin/sh\necho '{}'\n")]
    {
        let other = node.folder.path().join(name);
        fs::write(&other, program)?;
        let output = node.run(&["--once", "--plugin", other.to_str().context("UTF-8")?])?;
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && printed.contains("VERSION"), "{printed}");
        assert_eq!(fs::read(&plugin)?, before, "what was there still is");
        assert_eq!(
            fs::read_to_string(node.conf().join("10-x.conflist"))?,
            LIST,
            "nor is it in the chain"
        );
    }
    Ok(())
}

/// The runtime passes the annotations of pods to a plugin that has this capability.
#[test]
fn with_redirect_the_entry_has_the_capability() -> Result<()> {
    let redirect = r#"{"redirect":{"profile":"linkerd"}}"#;
    let others = r#"{"redirect":{"profile":"linkerd"},"capabilities":{"ips":true}}"#;
    for (config, expected) in [
        ("{}", None),
        (redirect, Some(json!({ "io.kubernetes.cri.pod-annotations": true }))),
        (others, Some(json!({ "io.kubernetes.cri.pod-annotations": true, "ips": true }))),
    ] {
        let node = CniNode::new()?;
        node.write("10-x.conflist", LIST)?;
        let output = node.run(&["--once", "--plugin-config", config])?;
        assert!(output.status.success(), "{output:?}");
        let list = fs::read_to_string(node.conf().join("10-x.conflist"))?;
        let list: Value = serde_json::from_str(&list)?;
        assert_eq!(list["plugins"][2].get("capabilities"), expected.as_ref(), "{list}");
    }
    let node = CniNode::new()?;
    node.write("10-x.conflist", LIST)?;
    let wrong = r#"{"redirect":{},"capabilities":[]}"#;
    let output = node.run(&["--once", "--plugin-config", wrong])?;
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        !output.status.success() && printed.contains("capabilities are not an object"),
        "{printed}"
    );
    Ok(())
}

/// Killed at any instant, the node has a valid configuration all the time, and the next run does
/// what this one did not.
#[test]
fn a_crash_at_any_point_leaves_a_valid_configuration() -> Result<()> {
    for (name, text) in [("10-x.conflist", LIST), ("10-x.conf", LONE)] {
        let node = CniNode::new()?;
        node.write(name, text)?;
        let (folder, stop) = (node.conf(), AtomicBool::new(false));
        thread::scope(|scope| -> Result<()> {
            let checker = scope.spawn(|| -> Result<u64> {
                let mut checks = 0;
                while !stop.load(Ordering::Relaxed) {
                    valid(&folder)?;
                    checks += 1;
                }
                Ok(checks)
            });
            for round in 0..test_length::times(200, 30) {
                let flag = if round % 2 == 0 { "--once" } else { "--uninstall" };
                let mut child = node.command(&[flag])?.stderr(Stdio::null()).spawn()?;
                thread::sleep(Duration::from_micros((round as u64 * 7919) % 25_000));
                let _ = child.kill();
                child.wait()?;
            }
            stop.store(true, Ordering::Relaxed);
            let checks = checker.join().expect("it does not panic")?;
            ensure!(checks > 0, "nobody looked");
            Ok(())
        })?;
        assert!(node.run(&["--once"])?.status.success());
        assert_eq!(active(&node.conf())?.last().map(String::as_str), Some("denizen"));
        assert!(node.run(&["--uninstall"])?.status.success());
        assert_eq!(fs::read_to_string(node.conf().join(name))?, text);
    }
    Ok(())
}

/// A file may go between the look at the folder and the look at it, as for the runtime, which then
/// looks again.
fn valid(folder: &Path) -> Result<()> {
    active(folder).or_else(|_| active(folder)).or_else(|_| active(folder)).map(drop)
}
