//! What agents and nft are given: the features of the golden files of `render`, and large ones.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use denizen_tests::agent::{Agent, Objects, Settings};
use denizen_tests::binary;
use denizen_tests::node::manifest::{Manifests, Port, node, service, slice};
use denizen_tests::node::netns::{Netns, checked};
use tempfile::TempDir;

const HERE: &str = "node-1";

/// Facts for an agent, and flags.
pub struct Feature {
    pub name: String,
    folder: TempDir,
    flags: Vec<String>,
}

impl Feature {
    fn empty(name: &str) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let run_dir = folder.path().join("run");
        fs::create_dir(&run_dir)?;
        fs::set_permissions(&run_dir, Permissions::from_mode(0o700))?;
        fs::create_dir(folder.path().join("manifests"))?;
        let (name, flags) = (name.to_owned(), Vec::new());
        Ok(Self { name, folder, flags })
    }

    /// One of the golden files of `render`.
    pub fn golden(name: &str) -> Result<Self> {
        let mut feature = Self::empty(name)?;
        let folder = golden();
        let text = fs::read_to_string(folder.join(format!("{name}.yaml")))?;
        fs::write(feature.manifests().join("all.yaml"), &text)?;
        let flags = text.lines().find_map(|line| line.strip_prefix("# flags: "));
        let words = flags.unwrap_or_default().split_whitespace();
        let here = folder.to_string_lossy();
        feature.flags = words.map(|word| word.replace("GOLDEN", &here)).collect();
        if let Ok(state) = fs::read(folder.join(format!("{name}.json"))) {
            let path = feature.run_dir().join("pods.json");
            fs::write(&path, state)?;
            fs::set_permissions(path, Permissions::from_mode(0o600))?;
        }
        Ok(feature)
    }

    /// As many services of one endpoint each, in both families.
    pub fn many(services: u32) -> Result<Self> {
        let feature = Self::empty(&format!("{services} services"))?;
        let ports = [Port::tcp("http", 80, 8080)];
        let mut objects = vec![node(HERE, &["192.168.0.2".parse()?], "")];
        for n in 0..services {
            let (name, [a, b]) = (format!("s{n}"), [(n >> 8) as u8, n as u8]);
            let own = [format!("10.96.{a}.{b}").parse()?, format!("fd00:96::{n:x}").parse()?];
            objects.push(service(&name, &own, &ports));
            objects.push(slice(&name, &ports, &[(format!("10.1.{a}.{b}").parse()?, HERE)]));
            objects.push(slice(&name, &ports, &[(format!("fd00:1::{n:x}").parse()?, HERE)]));
        }
        Manifests::in_folder(&feature.manifests())?.put("all", &objects)?;
        Ok(feature)
    }

    /// A service of as many endpoints.
    pub fn large(endpoints: u32) -> Result<Self> {
        let feature = Self::empty(&format!("{endpoints} endpoints"))?;
        let ports = [Port::tcp("http", 80, 8080).at_node(30080)];
        let mut all = Vec::new();
        for n in 0..endpoints {
            all.push((format!("10.1.{}.{}", n >> 8, n & 0xff).parse()?, HERE));
        }
        let objects = [
            node(HERE, &["192.168.0.2".parse()?], ""),
            service("web", &["10.96.0.10".parse()?], &ports),
            slice("web", &ports, &all),
        ];
        Manifests::in_folder(&feature.manifests())?.put("all", &objects)?;
        Ok(feature)
    }

    fn manifests(&self) -> PathBuf {
        self.folder.path().join("manifests")
    }

    fn run_dir(&self) -> PathBuf {
        self.folder.path().join("run")
    }

    /// The agent, with all programmed.
    pub fn start(&self, at: &Netns) -> Result<Agent> {
        let settings = Settings {
            program: None,
            objects: Objects::Manifests(self.manifests()),
            run_dir: self.run_dir(),
            node_name: HERE.to_owned(),
            flags: self.flags.clone(),
        };
        Agent::start(at, settings).with_context(|| self.name.clone())
    }

    /// What `render` prints.
    pub fn rendered(&self) -> Result<String> {
        let mut command = Command::new(binary::ours("denizen-agent")?);
        command.arg("render").arg("--manifests").arg(self.manifests());
        command.arg("--run-dir").arg(self.run_dir());
        command.args(["--node-name", HERE]).args(&self.flags);
        Ok(String::from_utf8(checked(&mut command)?.stdout)?)
    }
}

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../node-agent/agent/tests/golden")
}

/// All features: every rule shape there is.
pub fn features() -> Result<Vec<Feature>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(golden())? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "yaml") {
            let name = path.file_stem().context("a name")?.to_string_lossy().into_owned();
            found.push(Feature::golden(&name)?);
        }
    }
    ensure!(found.len() > 10, "the golden files are not there");
    found.push(Feature::large(70)?);
    Ok(found)
}
