//! systemd-networkd, which removes routes that others made.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use denizen_state::regular;

use super::Finding;
use denizen_backend::iptables::processes_called;

/// The process name, which the kernel truncates to 15 bytes.
const NAME: &str = "systemd-network";

/// The folders of its configuration. Of files with the same name, the one in the first folder
/// counts (networkd.conf(5)).
const FOLDERS: [&str; 4] =
    ["etc/systemd", "run/systemd", "usr/local/lib/systemd", "usr/lib/systemd"];

/// The most bytes of a file.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// A finding if a systemd-networkd manages this network namespace and is configured to remove
/// routes that it did not make.
pub(super) fn removes_routes() -> Option<Finding> {
    let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/net")).ok();
    let own = namespace("thread-self");
    let is_here = |process: &u32| namespace(&process.to_string()) == own;
    let process = processes_called(NAME).into_iter().find(is_here)?;
    let root = PathBuf::from(format!("/proc/{process}/root"));
    let is_left_alone = manages_foreign_routes(&root) == Some(false);
    (!is_left_alone).then(|| {
        Finding::warning(
            "systemd-networkd manages links here: when it restarts, it removes the routes of \
             others, and so the agent's, until the agent makes them again",
            "set ManageForeignRoutes=no in the section [Network] of /etc/systemd/networkd.conf",
        )
        .coded("networkd-removes-routes", [])
    })
}

/// `ManageForeignRoutes` as configured in the files under `root`; `None` if it is not set.
fn manages_foreign_routes(root: &Path) -> Option<bool> {
    let folders = || FOLDERS.map(|folder| root.join(folder)).into_iter();
    let main = folders().map(|folder| folder.join("networkd.conf")).find(|path| path.exists());
    let mut parts = BTreeMap::new();
    // In reverse, so that the first folder's file replaces those of the same name.
    for folder in folders().rev() {
        let entries = fs::read_dir(folder.join("networkd.conf.d")).into_iter().flatten().flatten();
        parts.extend(entries.map(|entry| (entry.file_name(), entry.path())));
    }
    let parts = parts
        .into_values()
        .filter(|path| path.extension().is_some_and(|extension| extension == "conf"));
    let files = main.into_iter().chain(parts);
    let texts = files.filter_map(|path| regular::read_to_string(&path, MAX_FILE_BYTES).ok());
    texts.filter_map(|text| setting(&text)).next_back()
}

/// `ManageForeignRoutes` in one file; the last line counts.
fn setting(text: &str) -> Option<bool> {
    let mut section = "";
    let mut found = None;
    for line in text.lines().map(str::trim) {
        if line.starts_with('[') {
            section = line;
        } else if let Some((name, value)) = line.split_once('=')
            && (section, name.trim()) == ("[Network]", "ManageForeignRoutes")
        {
            let value = value.trim().to_ascii_lowercase();
            found = Some(!matches!(&*value, "no" | "n" | "false" | "f" | "off" | "0"));
        }
    }
    found
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests put files there")]
mod tests {
    use super::*;

    const NO: &str = "# comment\n[Network]\nManageForeignRoutes = no\n";
    const YES: &str = "[Network]\nManageForeignRoutes=no\nManageForeignRoutes=yes\n";

    #[test]
    fn the_last_part_counts_and_the_first_folder_hides_others() {
        let folder = tempfile::tempdir().unwrap();
        let found = || manages_foreign_routes(folder.path());
        let put = |path: &str, text: &str| {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        assert_eq!(found(), None);
        put("usr/lib/systemd/networkd.conf", NO);
        assert_eq!(found(), Some(false));
        put("etc/systemd/networkd.conf", "[DHCPv4]\nManageForeignRoutes=no\n");
        assert_eq!(found(), None, "of another section, and it hides the other file");
        put("usr/lib/systemd/networkd.conf.d/20-b.conf", YES);
        put("etc/systemd/networkd.conf.d/10-a.conf", NO);
        put("etc/systemd/networkd.conf.d/30-c.txt", NO);
        assert_eq!(found(), Some(true), "the last one by name");
        put("etc/systemd/networkd.conf.d/20-b.conf", NO);
        assert_eq!(found(), Some(false), "it hides the one of the same name");
    }
}
