//! A node to be checked, without denizen.

use std::fs;
use std::path::PathBuf;

use anyhow::Result;
use serde_json::json;
use tempfile::TempDir;

use super::CheckReport;
use crate::node::cluster::NODE;
use crate::node::manifest::{Manifests, node};
use crate::node::netns::Netns;
use crate::node::world::ip;

/// A node on which nothing is wrong.
pub struct CheckedNode {
    /// Its network.
    pub netns: Netns,
    /// Its files.
    pub folder: TempDir,
    /// Its cluster's objects.
    pub manifests: Manifests,
}

impl CheckedNode {
    /// A node that forwards packets, with a Node object and a CNI configuration.
    pub fn new(label: &str) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let manifests = Manifests::in_folder(&folder.path().join("manifests"))?;
        manifests.put("node", &[node(NODE, &[ip("192.168.0.2")], "")])?;
        let netns = Netns::new(label)?;
        netns.sysctl("net.ipv4.ip_forward", "1")?;
        let node = Self { netns, folder, manifests };
        fs::create_dir(node.path("cni"))?;
        let list =
            json!({ "cniVersion": "1.0.0", "name": "pods", "plugins": [{ "type": "bridge" }] });
        fs::write(node.path("cni/10-pods.conflist"), list.to_string())?;
        Ok(node)
    }

    /// The path of one of the node's files.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The flags for the node's files, without the one for its manifests.
    pub fn flags(&self) -> Vec<String> {
        let at = |flag: &str, name| format!("--{flag}={}", self.path(name).display());
        let node = format!("--node-name={NODE}");
        vec!["--pre".to_owned(), node, at("run-dir", "run"), at("cni-conf-dir", "cni")]
    }

    /// The flags for the node's files and its manifests, and these flags.
    pub fn all_flags(&self, flags: &[&str]) -> Vec<String> {
        let manifests = format!("--manifests={}", self.manifests.folder().display());
        let flags = flags.iter().map(|flag| (*flag).to_owned());
        self.flags().into_iter().chain([manifests]).chain(flags).collect()
    }

    /// Checks it with these flags.
    pub fn check(&self, flags: &[&str]) -> Result<CheckReport> {
        CheckReport::on(&self.netns, self.all_flags(flags))
    }
}
