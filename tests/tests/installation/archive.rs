//! The archive of a release, made of stand-ins for the programs: what is in it, and that the same
//! files give the same bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use anyhow::{Context, Result, ensure};
use denizen_tests::binary;
use denizen_tests::conf;
use denizen_tests::node::netns::checked;
use serde_json::Value;
use tempfile::TempDir;

/// The name without its end.
const NAME: &str = concat!("denizen-", env!("CARGO_PKG_VERSION"), "-linux-amd64");

/// What the crates are, in the archive.
const BILL: &str = "denizen.cdx.json";

/// Makes the archive in a folder of its own, of programs that were written at this time.
fn archive(written: SystemTime) -> Result<TempDir> {
    let folder = tempfile::tempdir()?;
    let (built, out) = (folder.path().join("built"), folder.path().join("out"));
    fs::create_dir_all(built.join("bin"))?;
    for program in ["denizen", "denizen-agent", "kubectl-denizen"] {
        let mut file = File::create(built.join("bin").join(program))?;
        file.write_all(program.as_bytes())?;
        file.set_modified(written)?;
    }
    let documents = binary::ours("examples/completions-and-man-pages")?;
    checked(Command::new(documents).arg(&built))?;
    let mut make = Command::new(conf::folder().join("release/archive"));
    checked(make.env("SOURCE_DATE_EPOCH", "1800000000").arg("amd64").arg(built).arg(out))?;
    Ok(folder)
}

/// The files below a folder, by their paths in it.
fn files(folder: &Path) -> Result<BTreeSet<PathBuf>> {
    let find = checked(Command::new("find").args([".", "-type", "f"]).current_dir(folder))?;
    Ok(String::from_utf8(find.stdout)?.lines().map(PathBuf::from).collect())
}

fn unpacked() -> Result<(TempDir, PathBuf)> {
    let folder = archive(SystemTime::now())?;
    let out = folder.path().join("out");
    let check = |sums: &str, at: &Path| {
        checked(Command::new("sha256sum").args(["--check", "--strict", sums]).current_dir(at))
    };
    check(&format!("{NAME}.tar.gz.sha256"), &out)?;
    let archive = format!("{NAME}.tar.gz");
    checked(Command::new("tar").args(["--extract", "--file", &archive]).current_dir(&out))?;
    let root = out.join(NAME);
    check("SHA256SUMS", &root)?;
    Ok((folder, root))
}

#[test]
fn the_same_files_give_the_same_archive() -> Result<()> {
    let read =
        |folder: &TempDir| fs::read(folder.path().join("out").join(format!("{NAME}.tar.gz")));
    let (old, new) = (archive(SystemTime::UNIX_EPOCH)?, archive(SystemTime::now())?);
    ensure!(read(&old)? == read(&new)?, "two archives of the same files differ");
    Ok(())
}

/// krew installs a plugin from an archive with this checksum, and links this file.
#[test]
fn krews_manifest_names_the_archives_of_the_plugin() -> Result<()> {
    let folder = archive(SystemTime::now())?;
    let out = folder.path().join("out");
    let plugin = format!("kubectl-{NAME}.tar.gz");
    let arm64 = plugin.replace("amd64", "arm64");
    fs::write(out.join(format!("{arm64}.sha256")), format!("{} {arm64}\n", "0".repeat(64)))?;
    let mut krew = Command::new(conf::folder().join("release/krew"));
    let manifest = checked(krew.arg(&out).arg("https://example.org/files"))?;
    let manifest = String::from_utf8(manifest.stdout)?;
    let manifest: Value = serde_saphyr::from_str(&manifest)?;
    let platform = &manifest["spec"]["platforms"][0];
    let sum = fs::read_to_string(out.join(format!("{plugin}.sha256")))?;
    assert_eq!(platform["sha256"].as_str(), sum.split(' ').next());
    assert_eq!(platform["uri"], format!("https://example.org/files/{plugin}"));
    assert_eq!(manifest["spec"]["version"], concat!("v", env!("CARGO_PKG_VERSION")));
    let listed = checked(Command::new("tar").arg("-tf").arg(out.join(plugin)))?;
    assert_eq!(String::from_utf8(listed.stdout)?, "LICENSE\nkubectl-denizen\n");
    Ok(())
}

#[test]
fn the_archive_has_programs_manifests_and_documents_and_their_checksums() -> Result<()> {
    let (_folder, root) = unpacked()?;
    let there = files(&root)?;
    let mut wanted: BTreeSet<PathBuf> = [
        "./bin/denizen",
        "./bin/denizen-agent",
        "./bin/kubectl-denizen",
        "./README.md",
        "./CHANGELOG.md",
        "./LICENSE",
        "./SHA256SUMS",
        "./completions/denizen-agent.bash",
        "./completions/denizen-agent.fish",
        "./completions/_denizen-agent",
        "./man1/denizen-agent.1",
    ]
    .map(PathBuf::from)
    .into();
    wanted.insert(Path::new(".").join(BILL));
    let commands = denizen_agent::cli::command();
    for sub in commands.get_subcommands() {
        let name = sub.get_name();
        let nested = sub.get_subcommands().map(|nested| format!("{name}-{}", nested.get_name()));
        let names = nested.chain([name.to_owned()]);
        wanted.extend(names.map(|name| format!("./man1/denizen-agent-{name}.1").into()));
    }
    let conf = files(&conf::folder())?;
    wanted.extend(
        conf.iter().map(|file| Path::new("./conf").join(file.strip_prefix(".").unwrap_or(file))),
    );
    assert_eq!(there, wanted);
    let sums = fs::read_to_string(root.join("SHA256SUMS"))?;
    let summed = sums.lines().filter_map(|line| line.split_once("  ")).map(|(_, file)| file.into());
    wanted.remove(Path::new("./SHA256SUMS"));
    assert_eq!(summed.collect::<BTreeSet<PathBuf>>(), wanted);
    Ok(())
}

/// The checksums of Cargo.lock, by name and version.
fn locked() -> Result<BTreeMap<(String, String), Option<String>>> {
    let lock = fs::read_to_string(conf::folder().join("../Cargo.lock"))?;
    let field = |package: &str, name: &str| {
        let line = package.lines().find_map(|line| line.strip_prefix(&format!("{name} = \"")));
        line.map(|value| value.trim_end_matches('"').to_owned())
    };
    let packages = lock.split("[[package]]").skip(1);
    packages
        .map(|package| {
            let named = field(package, "name").zip(field(package, "version"));
            Ok((named.context("a package without a name")?, field(package, "checksum")))
        })
        .collect()
}

#[test]
fn the_bill_of_materials_has_every_crate_that_is_linked_and_no_other() -> Result<()> {
    let (_folder, root) = unpacked()?;
    let bill: Value = serde_json::from_slice(&fs::read(root.join(BILL))?)?;
    assert_eq!((&bill["bomFormat"], &bill["specVersion"]), (&"CycloneDX".into(), &"1.5".into()));
    let locked = locked()?;
    let text = |value: &Value| value.as_str().map(str::to_owned).context("a text");
    let mut references = BTreeSet::from(["denizen".to_owned()]);
    let mut names = BTreeSet::new();
    for component in bill["components"].as_array().context("components")? {
        let name = text(&component["name"])?;
        let named = (name.clone(), text(&component["version"])?);
        let checksum = locked.get(&named).with_context(|| format!("{named:?} is not locked"))?;
        assert_eq!(component["hashes"][0]["content"].as_str(), checksum.as_deref(), "{named:?}");
        ensure!(component["licenses"][0]["expression"].is_string(), "{component}");
        references.insert(text(&component["bom-ref"])?);
        names.insert(name);
    }
    for linked in
        ["denizen-agent", "denizen-cni", "denizen-kubectl", "denizen-nft", "ring", "tokio"]
    {
        ensure!(names.contains(linked), "{linked}: {names:?}");
    }
    // For tests, and for macros.
    for other in ["denizen-tests", "proptest", "clap_mangen", "serde_derive"] {
        ensure!(!names.contains(other), "{other}");
    }
    let mut described = BTreeSet::new();
    for dependency in bill["dependencies"].as_array().context("dependencies")? {
        described.insert(text(&dependency["ref"])?);
        for on in dependency["dependsOn"].as_array().context("dependsOn")? {
            ensure!(references.contains(&text(on)?), "{dependency}");
        }
    }
    assert_eq!(described, references);
    Ok(())
}
