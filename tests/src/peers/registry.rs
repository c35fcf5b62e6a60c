//! A real registry for images and charts: Debian's docker-registry, on a host's loopback.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::binary;
use crate::eventually::eventually;
use crate::node::netns::Netns;
use crate::packets::http::fetch;

/// The address that it listens at.
pub const REGISTRY: &str = "127.0.0.1:5000";

/// How long the registry may take to start on a busy machine.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// How the registry treats its clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RegistryMode {
    /// It accepts everything.
    Open,
    /// It accepts no uploads.
    ReadOnly,
    /// It asks for a name and a password, and accepts none.
    Closed,
}

/// A running registry. Dropping it ends it.
#[derive(Debug)]
pub struct Registry {
    child: Child,
}

impl Registry {
    /// Starts a registry on this host, with its content in `folder`, and waits until it answers.
    pub fn start(host: &Netns, folder: &Path, mode: RegistryMode) -> Result<Self> {
        fs::create_dir_all(folder)?;
        let users = folder.join("users");
        fs::write(&users, "")?;
        let content = folder.join("content").display().to_string();
        let mut config = serde_json::json!({
            "version": 0.1, "log": { "level": "warn", "accesslog": { "disabled": true } },
            "storage": { "filesystem": { "rootdirectory": content } },
            "http": { "addr": REGISTRY },
        });
        match mode {
            RegistryMode::Open => {}
            RegistryMode::ReadOnly => {
                config["storage"]["maintenance"]["readonly"]["enabled"] = true.into();
            }
            RegistryMode::Closed => {
                let auth = serde_json::json!({ "realm": "nobody", "path": users });
                config["auth"]["htpasswd"] = auth;
            }
        }
        let file = folder.join("config.yml");
        fs::write(&file, config.to_string())?;
        let mut command = Command::new(binary::registry()?);
        command.arg("serve").arg(&file).stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(File::create(folder.join("log"))?);
        let child = host.run(|| command.spawn())?.context("cannot start the registry")?;
        let registry = Self { child };
        eventually("the registry answers", START_TIMEOUT, || {
            Ok(fetch(host, &format!("http://{REGISTRY}/v2/"), &[]).is_ok())
        })
        .with_context(|| fs::read_to_string(folder.join("log")).unwrap_or_default())?;
        Ok(registry)
    }
}

/// The tags of a repository in the registry of this host, in order; empty if there is no such
/// repository.
pub fn tags(host: &Netns, repository: &str) -> Result<Vec<String>> {
    let reply = fetch(host, &format!("http://{REGISTRY}/v2/{repository}/tags/list"), &[])?;
    let tags = reply.json()?["tags"].as_array().cloned().unwrap_or_default();
    let mut tags: Vec<String> = tags.iter().filter_map(Value::as_str).map(str::to_owned).collect();
    tags.sort();
    Ok(tags)
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
