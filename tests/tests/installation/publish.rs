//! `conf/release/publish`, to a real registry: what it publishes is pulled back by containerd and by
//! Helm's library, and what goes wrong leaves nothing half published.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};
use denizen_tests::node::netns::{Netns, checked, folder};
use denizen_tests::peers::containerd::Containerd;
use denizen_tests::peers::registry::{REGISTRY, Registry, RegistryMode, tags};
use denizen_tests::{binary, conf};
use serde_json::{Value, json};
use tempfile::TempDir;

const VERSION: &str = env!("CARGO_PKG_VERSION");
const PROGRAMS: [&str; 3] = ["denizen", "denizen-agent", "kubectl-denizen"];
const ARCHITECTURES: [&str; 2] = ["amd64", "arm64"];

/// A host with a registry, a checked-out tag, and stand-ins for what a release builds.
struct Publisher {
    _registry: Registry,
    host: Netns,
    folder: TempDir,
}

impl Publisher {
    fn new(label: &str, mode: RegistryMode) -> Result<Self> {
        let (host, folder) = (Netns::new(label)?, folder()?);
        let registry = Registry::start(&host, &folder.path().join("registry"), mode)?;
        let publisher = Self { _registry: registry, host, folder };
        publisher.check_out()?;
        for architecture in ARCHITECTURES {
            let built = publisher.path("programs").join(architecture);
            for (file, text) in
                PROGRAMS.map(|name| (format!("bin/{name}"), name)).into_iter().chain([
                    ("completions/denizen-agent.bash".to_owned(), "completions"),
                    ("man1/denizen-agent.1".to_owned(), "page"),
                    ("debian/usr/sbin/iptables".to_owned(), "iptables"),
                    ("bird/usr/sbin/bird".to_owned(), "bird"),
                ])
            {
                let path = built.join(file);
                fs::create_dir_all(path.parent().context("a folder")?)?;
                fs::write(&path, format!("{text} for {architecture}"))?;
                fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
            }
        }
        Ok(publisher)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// This very source, as a commit with the release's tag.
    fn check_out(&self) -> Result<()> {
        let source = conf::folder().join("..");
        fs::create_dir(self.path("source"))?;
        let copy = "git -C \"$0\" ls-files -z --cached --others --exclude-standard --deduplicate |
            (cd \"$0\" && xargs -0 ls -d 2> /dev/null) | tar -C \"$0\" -c -T - | tar -C \"$1\" -x";
        checked(Command::new("sh").args(["-c", copy]).arg(source).arg(self.path("source")))?;
        for words in [
            &["init", "--quiet"][..],
            &["add", "--all"],
            &["commit", "--quiet", "--message", "release"],
            &["tag", &format!("v{VERSION}")],
        ] {
            self.git(words)?;
        }
        Ok(())
    }

    fn git(&self, words: &[&str]) -> Result<()> {
        let mut git = Command::new("git");
        git.args(["-c", "user.name=a", "-c", "user.email=a@example.org"]).args(words);
        // The same commit in every run.
        let time =
            [("GIT_AUTHOR_DATE", "@1800000000 +0000"), ("GIT_COMMITTER_DATE", "@1800000000 +0000")];
        checked(git.envs(time).current_dir(self.path("source"))).map(drop)
    }

    /// Runs the script on this host; `first` are folders in front of the path.
    fn publish(&self, first: &[&Path], words: &[&str]) -> Result<Output> {
        let path = std::env::var("PATH").unwrap_or_default();
        let first = first.iter().map(|folder| folder.display().to_string());
        let path: Vec<String> = first.chain([path]).collect();
        let mut publish = Command::new(self.path("source/conf/release/publish"));
        publish.env("PATH", path.join(":")).env("HOME", self.folder.path());
        publish.env_remove("SOURCE_DATE_EPOCH").args(words);
        Ok(self.host.run(|| publish.output())??)
    }

    /// The usual words, with this directory, and more.
    fn published(&self, directory: &str, more: &[&str]) -> Result<Output> {
        self.publish(
            &[],
            &self.words(directory, more).iter().map(String::as_str).collect::<Vec<_>>(),
        )
    }

    fn words(&self, directory: &str, more: &[&str]) -> Vec<String> {
        let team = format!("{REGISTRY}/team");
        let (directory, programs) = (self.path(directory), self.path("programs"));
        let words = ["--registry", &team, "--directory", &directory.display().to_string()];
        let words = words.into_iter().chain(["--programs"]).map(str::to_owned);
        let words = words.chain([programs.display().to_string(), "--plain-http".to_owned()]);
        words.chain(more.iter().map(|word| (*word).to_owned())).collect()
    }

    fn all_tags(&self) -> Result<Vec<String>> {
        Ok([tags(&self.host, "team/denizen")?, tags(&self.host, "team/charts/denizen")?].concat())
    }

    /// Nothing was published, and it was said in one line.
    fn refused(&self, output: &Output, directory: &str, printed: &str) -> Result<()> {
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(!output.status.success(), "{printed}: {output:?}");
        ensure!(error.starts_with("publish: ") && error.contains(printed), "{printed}: {error}");
        assert_eq!(error.lines().count(), 1, "{error}");
        ensure!(!self.path(directory).exists(), "{printed}: the directory is there");
        let left = fs::read_dir(self.folder.path())?.flatten().map(|entry| entry.file_name());
        let left: Vec<_> =
            left.filter(|name| name.to_string_lossy().starts_with(".publish")).collect();
        ensure!(left.is_empty(), "{printed}: {left:?}");
        Ok(())
    }
}

fn succeeded(output: Output) -> Result<String> {
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

/// The digests of what a directory's `images` names.
fn digests(directory: &Path) -> Result<BTreeMap<String, String>> {
    let text = fs::read_to_string(directory.join("images"))?;
    let lines = text.lines().filter_map(|line| line.split_once(' '));
    Ok(lines.map(|(place, digest)| (place.to_owned(), digest.to_owned())).collect())
}

/// Pulls the chart with Helm's library and renders it.
const HELM: &str = r#"
import helm_python, json, os, sys
reference, version, folder = sys.argv[1:4]
with helm_python.RegistryClient(plain_http=True) as client:
    digest = client.resolve(reference + ":" + version)["digest"]
    client.pull(reference, version=version, destination=folder, plain_http=True)
(archive,) = os.listdir(folder)
with helm_python.Chart.load(os.path.join(folder, archive)) as chart:
    files = chart.render({"apiServer": "https://a"}, name="denizen", namespace="kube-system")
print(json.dumps({"digest": digest, "archive": archive, "files": list(files.values())}))
"#;

#[test]
fn what_is_published_is_what_containerd_and_helm_pull() -> Result<()> {
    let publisher = Publisher::new("pub-pull", RegistryMode::Open)?;
    let url = ["--url", "https://example.org/files"];
    let printed = succeeded(publisher.published("out", &url)?)?;
    ensure!(printed.ends_with("not signed: see --sign\n"), "{printed}");
    let out = publisher.path("out");
    checked(
        Command::new("sha256sum").args(["--check", "--strict", "SHA256SUMS"]).current_dir(&out),
    )?;
    let digests = digests(&out)?;
    let place = |name: &str| format!("{REGISTRY}/team/{name}");
    let runtime =
        Containerd::start(&publisher.host, &publisher.path("containerd"), &publisher.path("cache"));
    let runtime = runtime?;
    for (tag, inside, text) in [
        (VERSION.to_owned(), "usr/local/bin/denizen-agent", "denizen-agent"),
        (format!("{VERSION}-iptables"), "usr/sbin/iptables", "iptables"),
        (format!("{VERSION}-bird"), "usr/sbin/bird", "bird"),
    ] {
        let image = place(&format!("denizen:{tag}"));
        let (digest, platforms) = runtime.pull(&publisher.host, &image)?;
        assert_eq!(Some(&digest), digests.get(&image), "{image}");
        assert_eq!(platforms, "linux/amd64,linux/arm64", "{image}");
        for architecture in ARCHITECTURES {
            let found = file_of(&publisher, &image, architecture, inside)?;
            assert_eq!(found, format!("{text} for {architecture}"), "{image}");
        }
    }
    let chart = place("charts/denizen");
    let pulled = publisher.path("pulled");
    fs::create_dir(&pulled)?;
    let mut python = Command::new("python3");
    python.env("PYTHONPATH", binary::helm()?).args([
        "-c",
        HELM,
        &format!("oci://{chart}"),
        VERSION,
    ]);
    let helm = publisher.host.run(|| checked(python.arg(&pulled)))??;
    let helm: Value = serde_json::from_slice(&helm.stdout)?;
    assert_eq!(
        helm["digest"].as_str(),
        digests.get(&format!("{chart}:{VERSION}")).map(String::as_str)
    );
    let archive = format!("denizen-{VERSION}.tgz");
    ensure!(fs::read(pulled.join(&archive))? == fs::read(out.join(&archive))?, "another chart");
    let image = json!(format!("image: \"{}\"", place(&format!("denizen:{VERSION}"))));
    let image = image.as_str().unwrap_or_default();
    let rendered = helm["files"].to_string().replace("\\\"", "\"");
    ensure!(rendered.contains(image), "the chart names the image: {rendered}");
    named_by_the_provenance(&out, &digests)
}

/// A file of an image, as the registry has it for an architecture.
fn file_of(publisher: &Publisher, image: &str, architecture: &str, file: &str) -> Result<String> {
    let copy = tempfile::tempdir()?;
    let mut skopeo = Command::new("skopeo");
    skopeo.args(["--override-arch", architecture, "copy", "--quiet", "--src-tls-verify=false"]);
    skopeo.arg(format!("docker://{image}")).arg(format!("dir:{}", copy.path().display()));
    publisher.host.run(|| checked(&mut skopeo))??;
    let manifest: Value = serde_json::from_slice(&fs::read(copy.path().join("manifest.json"))?)?;
    for layer in manifest["layers"].as_array().context("layers")? {
        let digest = layer["digest"].as_str().context("a digest")?.trim_start_matches("sha256:");
        let mut tar = Command::new("tar");
        tar.args(["--extract", "--gzip", "--to-stdout", "--file"])
            .arg(copy.path().join(digest))
            .arg(file);
        let found = tar.output()?;
        if found.status.success() {
            return Ok(String::from_utf8(found.stdout)?);
        }
    }
    anyhow::bail!("{image} has no {file}")
}

/// It is about each file and image, from this commit.
fn named_by_the_provenance(out: &Path, digests: &BTreeMap<String, String>) -> Result<()> {
    let statement: Value = serde_json::from_slice(&fs::read(out.join("provenance.json"))?)?;
    assert_eq!(statement["predicateType"], "https://slsa.dev/provenance/v1");
    let mut subjects: BTreeMap<String, String> = BTreeMap::new();
    for subject in statement["subject"].as_array().context("subjects")? {
        let digest = subject["digest"]["sha256"].as_str().context("a digest")?;
        subjects.insert(subject["name"].as_str().context("a name")?.to_owned(), digest.to_owned());
    }
    for (place, digest) in digests {
        assert_eq!(
            subjects.remove(place).map(|sum| format!("sha256:{sum}")).as_ref(),
            Some(digest)
        );
    }
    let sums = fs::read_to_string(out.join("SHA256SUMS"))?;
    let mut files: BTreeMap<&str, &str> = sums
        .lines()
        .filter_map(|line| line.split_once("  "))
        .map(|(sum, file)| (file, sum))
        .collect();
    // These are about the others.
    let [images, own] = ["images", "provenance.json"].map(|file| files.remove(file));
    ensure!(images.is_some() && own.is_some(), "{sums}");
    let subjects = subjects.iter().map(|(file, sum)| (file.as_str(), sum.as_str())).collect();
    assert_eq!(files, subjects);
    for architecture in ARCHITECTURES {
        for file in ["tar.gz", "cdx.json"] {
            let name = format!("denizen-{VERSION}-linux-{architecture}.{file}");
            ensure!(files.contains_key(&*name), "{name}: {sums}");
        }
    }
    ensure!(files.contains_key("denizen.yaml"), "krew's manifest");
    let commit = &statement["predicate"]["buildDefinition"]["resolvedDependencies"][0]["digest"];
    ensure!(commit["gitCommit"].as_str().is_some_and(|commit| commit.len() == 40), "{commit}");
    Ok(())
}

/// So a failed run can go on, and anybody can check a release.
#[test]
fn the_same_tag_gives_the_same_digests_and_no_other_takes_its_place() -> Result<()> {
    let publisher = Publisher::new("pub-same", RegistryMode::Open)?;
    succeeded(publisher.published("out", &[])?)?;
    let again = publisher.published("again", &[])?;
    publisher.refused(&again, "again", "is in the registry already")?;
    succeeded(publisher.published("again", &["--resume"])?)?;
    assert_eq!(digests(&publisher.path("again"))?, digests(&publisher.path("out"))?);
    fs::write(publisher.path("programs/arm64/bin/denizen"), "another")?;
    let other = publisher.published("other", &["--resume"])?;
    publisher.refused(&other, "other", "is in the registry already, and is another")
}

#[test]
fn what_cannot_be_published_leaves_nothing() -> Result<()> {
    let publisher = Publisher::new("pub-no", RegistryMode::Open)?;
    let elsewhere = publisher.path("elsewhere");
    fs::create_dir(&elsewhere)?;
    let words = publisher.words("out", &[]);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let nobody = words.iter().map(|word| word.replace("127.0.0.1:5000", "127.0.0.1:5001"));
    let nobody: Vec<String> = nobody.collect();
    let nobody: Vec<&str> = nobody.iter().map(String::as_str).collect();
    publisher.refused(&publisher.publish(&[], &nobody)?, "out", "the registry refuses")?;
    publisher.refused(&publisher.publish(&[], &words[2..])?, "out", "are missing")?;
    let there = publisher.published("elsewhere", &[])?;
    ensure!(String::from_utf8_lossy(&there.stderr).contains("is there already"), "{there:?}");
    let unsigned = publisher.published("out", &["--sign", "key"])?;
    publisher.refused(&unsigned, "out", "these programs are missing: cosign")?;
    let file = publisher.path("source/README.md");
    let text = fs::read_to_string(&file)?;
    fs::write(&file, "changed")?;
    let changed = publisher.published("out", &[])?;
    publisher.refused(&changed, "out", "the tree has changes")?;
    fs::write(&file, text)?;
    publisher.git(&["tag", "--delete", &format!("v{VERSION}")])?;
    let untagged = publisher.published("out", &[])?;
    publisher.refused(&untagged, "out", &format!("the commit has no tag v{VERSION}"))?;
    assert_eq!(publisher.all_tags()?, Vec::<String>::new());
    Ok(())
}

#[test]
fn a_registry_that_refuses_has_nothing_and_is_named() -> Result<()> {
    let publisher = Publisher::new("pub-closed", RegistryMode::Closed)?;
    let output = publisher.published("out", &[])?;
    publisher.refused(&output, "out", "the registry refuses")?;
    drop(publisher);
    let publisher = Publisher::new("pub-ro", RegistryMode::ReadOnly)?;
    let output = publisher.published("out", &[])?;
    publisher.refused(&output, "out", &format!("the registry refuses {REGISTRY}/team/"))?;
    assert_eq!(publisher.all_tags()?, Vec::<String>::new());
    Ok(())
}

/// A stand-in for cosign, which notes what it is asked, and the tags there are by then.
const COSIGN: &str = r#"#!/bin/sh
echo "$@" >> "$0.asked"
curl --silent http://127.0.0.1:5000/v2/team/denizen/tags/list >> "$0.tags"
if [ -e "$0.fails" ]; then echo "no such key" >&2; exit 1; fi
[ "$1" != sign-blob ] || echo signature > "$4"
"#;

#[test]
fn signatures_are_made_before_anything_has_a_tag() -> Result<()> {
    let publisher = Publisher::new("pub-sign", RegistryMode::Open)?;
    let tools = publisher.path("tools");
    fs::create_dir(&tools)?;
    let cosign = tools.join("cosign");
    fs::write(&cosign, COSIGN)?;
    fs::set_permissions(&cosign, fs::Permissions::from_mode(0o755))?;
    let words = publisher.words("out", &["--sign", "keyless"]);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    fs::write(tools.join("cosign.fails"), "")?;
    let failed = publisher.publish(&[&tools], &words)?;
    publisher.refused(&failed, "out", "signing failed, and nothing has a tag: no such key")?;
    assert_eq!(publisher.all_tags()?, Vec::<String>::new());
    for file in ["cosign.fails", "cosign.asked"] {
        fs::remove_file(tools.join(file))?;
    }
    succeeded(publisher.publish(&[&tools], &words)?)?;
    let asked = fs::read_to_string(tools.join("cosign.asked"))?;
    for digest in digests(&publisher.path("out"))?.values() {
        for word in ["sign --yes ", "attest --yes --type slsaprovenance1 --predicate "] {
            let is_it =
                |line: &str| line.starts_with(word) && line.ends_with(&format!("@{digest}"));
            ensure!(asked.lines().any(is_it), "{word} {digest}: {asked}");
        }
    }
    let seen = fs::read_to_string(tools.join("cosign.tags"))?;
    ensure!(!seen.contains("\"tags\":["), "there was a tag before the signatures: {seen}");
    ensure!(publisher.path("out/SHA256SUMS.sigstore.json").exists(), "no signature of the files");
    assert_eq!(publisher.all_tags()?.len(), 4);
    Ok(())
}
