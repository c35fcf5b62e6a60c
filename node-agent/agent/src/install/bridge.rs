//! The CNI configuration of a node that has none (`--with-bridge`): the reference plugin `bridge`,
//! with `host-local` addresses from this node's podCIDRs.
//!
//! The file is written once. Pods and the bridge keep their addresses, so an operator must act when
//! a range changes ([`BridgeError::OtherRanges`]).

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use ipnetwork::IpNetwork;
use serde_json::{Value, json};
use thiserror::Error;

use super::folder::{self, FolderError};
use crate::control::{AgentClient, ControlError};

/// The file's name.
pub const FILE: &str = "10-denizen-bridge.conflist";

/// The plugins that the file names, besides denizen.
const PLUGINS: [&str; 2] = ["bridge", "host-local"];

/// Why the node has no bridge network.
#[derive(Debug, Error)]
pub enum BridgeError {
    /// The agent cannot be asked for this node's podCIDRs.
    #[error("this node's podCIDRs are not known")]
    Agent(#[from] ControlError),
    /// The agent does not know the podCIDRs, or the Node has none.
    #[error("this node's podCIDRs are not known: {0}")]
    Unknown(&'static str),
    #[error("{} does not exist: install the usual CNI plugins first", .0.display())]
    Plugin(PathBuf),
    /// The file has other ranges.
    #[error(
        "{} has {there}, but this node's podCIDRs are {wanted}: drain the node, \
         remove the bridge and that file",
        file.display()
    )]
    OtherRanges {
        file: PathBuf,
        /// The ranges in the file.
        there: String,
        /// This node's podCIDRs.
        wanted: String,
    },
    #[error(transparent)]
    Folder(#[from] FolderError),
}

/// This node's podCIDRs, as the agent knows them.
///
/// # Errors
/// [`BridgeError`].
pub async fn ranges(run_dir: &Path) -> Result<Vec<IpNetwork>, BridgeError> {
    let status = AgentClient::new(run_dir).status().await?;
    let announced = || status.announcements.map(|announcements| announcements.pod_cidrs);
    let known = status.routing.map(|routing| routing.pod_cidrs).or_else(announced);
    let known = known.ok_or(BridgeError::Unknown("--routing-mode is off"))?;
    let ranges: Vec<_> = known.iter().filter_map(|text| text.parse().ok()).collect();
    match ranges.is_empty() {
        true => Err(BridgeError::Unknown("its Node object has none (yet)")),
        false => Ok(ranges),
    }
}

/// Writes the file with denizen's `entry`, unless it is there. Returns whether it was written.
///
/// # Errors
/// [`BridgeError`]. A file that is there is left as it is.
pub fn put(
    folder: &Path,
    plugins: &Path,
    ranges: &[IpNetwork],
    entry: &Value,
) -> Result<bool, BridgeError> {
    let file = folder.join(FILE);
    match fs::read_to_string(&file) {
        Ok(text) => {
            let (there, wanted) = (subnets(&text), texts(ranges));
            if there == wanted {
                return Ok(false);
            }
            let (there, wanted) = (there.join(", "), wanted.join(", "));
            return Err(BridgeError::OtherRanges { file, there, wanted });
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(source) => {
            return Err(FolderError::Io { doing: "read", path: file, source }.into());
        }
    }
    let missing =
        PLUGINS.map(|plugin| plugins.join(plugin)).into_iter().find(|program| !program.exists());
    if let Some(missing) = missing {
        return Err(BridgeError::Plugin(missing));
    }
    Ok(folder::create(&file, &conflist(ranges, entry))?)
}

/// The file's text.
fn conflist(ranges: &[IpNetwork], entry: &Value) -> String {
    let of = |is_v6: bool| ranges.iter().any(move |range| range.is_ipv6() == is_v6);
    let defaults = [("0.0.0.0/0", of(false)), ("::/0", of(true))];
    let routes = defaults.iter().filter(|(_, is_wanted)| *is_wanted);
    let bridge = json!({
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": true,
        "hairpinMode": true,
        "ipam": {
            "type": "host-local",
            "ranges": texts(ranges).iter().map(|range| json!([{ "subnet": range }])).collect::<Vec<_>>(),
            "routes": routes.map(|(to, _)| json!({ "dst": to })).collect::<Vec<_>>(),
        },
    });
    let list =
        json!({ "cniVersion": "1.0.0", "name": "denizen-bridge", "plugins": [bridge, entry] });
    format!("{list:#}\n")
}

fn texts(ranges: &[IpNetwork]) -> Vec<String> {
    ranges.iter().map(IpNetwork::to_string).collect()
}

/// The ranges in such a file.
fn subnets(text: &str) -> Vec<String> {
    let list: Value = serde_json::from_str(text).unwrap_or_default();
    let ranges = list["plugins"][0]["ipam"]["ranges"].as_array().cloned().unwrap_or_default();
    ranges.iter().filter_map(|range| Some(range[0]["subnet"].as_str()?.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(texts: &[&str]) -> Vec<IpNetwork> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    /// A folder of configurations, and one of plugins.
    fn folders() -> [tempfile::TempDir; 2] {
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        PLUGINS.iter().for_each(|name| fs::write(folders[1].path().join(name), "").unwrap());
        folders
    }

    #[test]
    fn it_has_the_nodes_ranges_and_is_written_once() {
        let [conf, bin] = folders();
        let entry = json!({ "type": "denizen" });
        let put = |texts: &[&str]| put(conf.path(), bin.path(), &ranges(texts), &entry);
        assert!(put(&["10.1.1.0/24", "fd01:1::/64"]).unwrap());
        let text = fs::read_to_string(conf.path().join(FILE)).unwrap();
        let ipam = json!({
            "type": "host-local",
            "ranges": [[{ "subnet": "10.1.1.0/24" }], [{ "subnet": "fd01:1::/64" }]],
            "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }],
        });
        let bridge = json!({
            "type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true,
            "ipam": ipam,
        });
        let wanted = json!({
            "cniVersion": "1.0.0", "name": "denizen-bridge", "plugins": [bridge, entry],
        });
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), wanted);
        assert!(!put(&["10.1.1.0/24", "fd01:1::/64"]).unwrap());
        let error = put(&["10.1.2.0/24", "fd01:1::/64"]).unwrap_err().to_string();
        assert!(error.contains("10.1.1.0/24, fd01:1::/64, but"), "{error}");
        assert_eq!(fs::read_to_string(conf.path().join(FILE)).unwrap(), text);
    }

    #[test]
    fn one_family_has_its_own_default_route_alone() {
        let list: Value =
            serde_json::from_str(&conflist(&ranges(&["fd01:1::/64"]), &Value::Null)).unwrap();
        assert_eq!(list["plugins"][0]["ipam"]["routes"], json!([{ "dst": "::/0" }]));
    }

    #[test]
    fn nothing_is_written_that_names_a_missing_plugin() {
        let [conf, bin] = folders();
        fs::remove_file(bin.path().join("host-local")).unwrap();
        let error = put(conf.path(), bin.path(), &ranges(&["10.1.1.0/24"]), &Value::Null);
        assert!(matches!(error, Err(BridgeError::Plugin(_))), "{error:?}");
        assert_eq!(fs::read_dir(conf.path()).unwrap().count(), 0);
    }
}
