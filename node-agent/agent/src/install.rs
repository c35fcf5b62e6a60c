//! `denizen-agent install-cni`: installs the plugin's program and its entry in the node's CNI
//! configuration, and keeps them installed.
//!
//! It works on files and knows nothing of services or rules. It runs as a container of its own
//! beside the agent.

#![expect(clippy::disallowed_methods, reason = "the installation is checked again after a while")]

pub mod bridge;
pub mod conflist;
pub mod folder;
mod folder_lock;
mod keep;
mod multus;
mod own_entry;
pub mod plugin;
pub mod portmap;

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use clap::Args;
use denizen_backend::portmap::removable;
use denizen_cni::{ANNOTATIONS, PORT_MAPPINGS, REPLACED_PORTMAP};
use denizen_state::{RunDir, StateError, run_dir};
use serde_json::{Map, Value};
use tracing::{info, warn};

use self::bridge::BridgeError;
use self::conflist::PLUGIN;
use self::folder::ConfigReport;
use self::folder_lock::FolderLock;
use self::plugin::PluginError;

/// The key of the plugin's entry that asks for host ports.
pub const HOST_PORTS: &str = "hostPorts";

/// `denizen-agent install-cni`, as written.
#[derive(Debug, Clone, Args)]
pub struct InstallArgs {
    /// The folder of the runtime's CNI configurations
    #[arg(long, value_name = "DIR", default_value = "/etc/cni/net.d")]
    pub cni_conf_dir: PathBuf,

    /// The folder of the runtime's CNI plugins
    #[arg(long, value_name = "DIR", default_value = "/opt/cni/bin")]
    pub cni_bin_dir: PathBuf,

    /// The plugin's program. The default is `denizen` beside this program
    #[arg(long, value_name = "FILE")]
    pub plugin: Option<PathBuf>,

    /// The plugin's configuration, as a JSON object
    #[arg(
        long,
        value_name = "JSON",
        default_value = r#"{"waitForAgent":{"timeout":"1s","onTimeout":"isolate"}}"#
    )]
    pub plugin_config: String,

    /// The run directory that the plugin and the agent share
    #[arg(long, value_name = "DIR", default_value = run_dir::DEFAULT)]
    pub run_dir: PathBuf,

    /// Have the runtime pass host ports to the plugin, for an agent with --host-ports. Without
    /// that agent they are recorded and not served
    #[arg(long)]
    pub host_ports: bool,

    /// Take portmap out of the list, too, for an agent with --host-ports, which removes portmap's
    /// rules as pods end. --uninstall puts portmap back
    #[arg(long, requires = "host_ports")]
    pub replace_portmap: bool,

    /// Give a node without a pod network one: write a CNI configuration of the plugins bridge and
    /// host-local, with addresses from this node's podCIDRs, which a running agent with
    /// --routing-mode=direct knows
    #[arg(long, conflicts_with = "uninstall")]
    pub with_bridge: bool,

    /// Install once and exit. It is an error if there is no CNI configuration yet
    #[arg(long)]
    pub once: bool,

    /// Remove denizen from the CNI configuration. The program stays: pods that were created with it
    /// may still need it
    #[arg(long, conflicts_with = "once")]
    pub uninstall: bool,
}

impl InstallArgs {
    /// The plugin's entry in a list of plugins.
    fn entry(&self) -> anyhow::Result<Value> {
        let config: Map<String, Value> = serde_json::from_str(&self.plugin_config)
            .context("--plugin-config is not a JSON object")?;
        ensure!(!config.contains_key("type"), "--plugin-config: the type is always \"{PLUGIN}\"");
        let mut entry = Map::from_iter([("type".to_owned(), PLUGIN.into())]);
        if self.run_dir != Path::new(run_dir::DEFAULT) {
            entry.insert("runDir".to_owned(), self.run_dir.to_string_lossy().into());
        }
        entry.extend(config);
        if self.host_ports {
            entry.entry(HOST_PORTS).or_insert_with(|| Map::new().into());
        }
        if self.replace_portmap && removable().is_ok() {
            entry.insert(REPLACED_PORTMAP.to_owned(), Vec::<Value>::new().into());
        }
        // Without these capabilities, the runtime passes neither the annotations by which pods are
        // selected nor the ports.
        let needed = [("redirect", ANNOTATIONS), (HOST_PORTS, PORT_MAPPINGS)];
        for (key, capability) in needed {
            if !entry.contains_key(key) {
                continue;
            }
            let capabilities = entry.entry("capabilities").or_insert_with(|| Map::new().into());
            capabilities
                .as_object_mut()
                .context("--plugin-config: capabilities are not an object")?
                .insert(capability.to_owned(), true.into());
        }
        Ok(entry.into())
    }
}

/// Runs the command.
///
/// # Errors
/// The error to print.
pub async fn run(args: &InstallArgs) -> anyhow::Result<()> {
    if args.uninstall {
        let _lock = FolderLock::to_remove(&args.cni_conf_dir)?;
        let report = folder::remove_denizen(&args.cni_conf_dir)?;
        log(&report, "removed denizen from this CNI configuration");
        for pod in without_portmap(&args.run_dir)? {
            warn!(pod, "no other plugin knows this pod's host ports: start it again");
        }
        return Ok(());
    }
    let entry = args.entry()?;
    let plugin = match &args.plugin {
        Some(plugin) => plugin.clone(),
        None => std::env::current_exe().context("--plugin is not given")?.with_file_name(PLUGIN),
    };
    // The program first: a configuration that names a missing program prevents every pod from
    // starting.
    put_plugin(&plugin, &args.cni_bin_dir)?;
    if args.once {
        if let Some(problem) = portmap_stays(args) {
            warn!(problem, "CNI configuration");
        }
        if args.with_bridge {
            put_bridge(args, &entry).await?;
        }
        log(
            &folder::insert(&args.cni_conf_dir, &entry)?,
            "added denizen to this CNI configuration",
        );
        return Ok(());
    }
    keep::keep(args, &plugin, &entry).await
}

/// Installs the program, unless it is there.
fn put_plugin(plugin: &Path, folder: &Path) -> Result<(), PluginError> {
    if plugin::put(plugin, folder)? {
        info!(path = %folder.join(PLUGIN).display(), "plugin installed");
    }
    Ok(())
}

/// The pods whose host ports no other plugin has ever served: denizen's ADD recorded them.
fn without_portmap(run_dir: &Path) -> Result<Vec<String>, StateError> {
    let state = match RunDir::open(run_dir) {
        Err(StateError::NoRunDir { .. }) => None,
        other => other?.read()?,
    };
    let records = state.into_iter().flat_map(|state| state.attachments.into_values());
    let own = records.filter(|record| !record.host_ports.is_empty() && !record.host_ports_adopted);
    let name = |record: denizen_state::Attachment| match &record.pod {
        Some(pod) => format!("{}/{}", pod.namespace, pod.name),
        None => record.id().0,
    };
    Ok(own.map(name).collect())
}

/// Writes the bridge's configuration, if the file does not exist.
async fn put_bridge(args: &InstallArgs, entry: &Value) -> Result<(), BridgeError> {
    let ranges = bridge::ranges(&args.run_dir).await?;
    if bridge::put(&args.cni_conf_dir, &args.cni_bin_dir, &ranges, entry)? {
        info!(path = bridge::FILE, "wrote the CNI configuration of a bridge");
    }
    Ok(())
}

/// Why portmap is not replaced on this node.
fn portmap_stays(args: &InstallArgs) -> Option<String> {
    let why = removable().err().filter(|_| args.replace_portmap)?;
    Some(format!("portmap stays in the list: {why}"))
}

fn log(report: &ConfigReport, what: &str) {
    for path in &report.changed {
        info!(path = %path.display(), "{what}");
    }
    for (path, why) in &report.unusable {
        warn!(path = %path.display(), why, "file not changed");
    }
}
