//! The CNI configuration, the plugin's program, and what it has recorded.

use std::path::Path;

use super::{Check, Finding, Subject, Topic};
use crate::install::HOST_PORTS;
use crate::install::conflist::PLUGIN;
use crate::install::folder::{Active, active};
use crate::install::plugin::{PluginError, release};
use denizen_cni::PORT_MAPPINGS;
use denizen_state::{StateError, run_dir};
use denizen_text::describe;
use serde_json::Value;

/// The usual plugin for host ports.
const PORTMAP: &str = "portmap";

/// What to do if the plugin is not where it should be.
const INSTALL: &str = "keep `denizen-agent install-cni` running: the container install-cni of the \
                       DaemonSet does (see its log)";

pub(super) fn checks(subject: &Subject) -> Vec<Check> {
    let configuration = Check::new(Topic::CniConfiguration, configuration(subject));
    let (plugin, records) = match subject.is_before_installation {
        true => {
            let later = Finding::skipped("the installation brings it");
            (later.clone(), later)
        }
        false => (program(&subject.cni_bin_dir), records(subject)),
    };
    vec![configuration, Check::new(Topic::Plugin, plugin), Check::new(Topic::Records, records)]
}

fn configuration(subject: &Subject) -> Finding {
    match active(&subject.cni_conf_dir) {
        Err(error) => Finding::failure(
            describe(&error),
            "install a CNI plugin that makes the pods' interfaces, or name its folder with \
             --cni-conf-dir",
        )
        .coded("cni-unusable", [("error", describe(&error))]),
        Ok(active) if subject.is_before_installation => Finding::ok(format!(
            "denizen can be added to {}: {}",
            active.path.display(),
            active.plugins.join(", ")
        )),
        Ok(active) => entry(&active, subject),
    }
}

fn entry(active: &Active, subject: &Subject) -> Finding {
    let run_dir = &subject.run_dir;
    let (path, plugins) = (active.path.display(), active.plugins.join(", "));
    let Some(entry) = &active.entry else {
        return Finding::failure(
            format!("the runtime does not call denizen: {path} has {plugins}"),
            INSTALL,
        )
        .coded("cni-without-denizen", [("path", path.to_string()), ("plugins", plugins)]);
    };
    let recorded = entry["runDir"].as_str().unwrap_or(run_dir::DEFAULT);
    if Path::new(recorded) != *run_dir {
        let reason = format!("the plugin records in {recorded}, not in {}", run_dir.display());
        return Finding::failure(reason, "give the plugin and the agent the same run directory")
            .coded("run-dirs-differ", [("plugin", recorded.to_owned())]);
    }
    if let Some(finding) = host_ports(active, entry, subject) {
        return finding;
    }
    match active.plugins.last().is_some_and(|last| last == PLUGIN) {
        true => Finding::ok(format!("denizen is the last plugin of {path}: {plugins}")),
        false => Finding::warning(
            format!("denizen does not record what plugins behind it change: {path} has {plugins}"),
            "move its entry to the end",
        )
        .coded("cni-not-last", [("path", path.to_string()), ("plugins", plugins)]),
    }
}

/// A finding if host ports are asked for and served by different parties: portmap, the plugin's
/// entry, the agent.
fn host_ports(active: &Active, entry: &Value, subject: &Subject) -> Option<Finding> {
    let path = active.path.display();
    let is_requested = entry.get(HOST_PORTS).is_some_and(|value| !value.is_null());
    let is_passed = entry["capabilities"][PORT_MAPPINGS] == true;
    let is_portmap = active.plugins.iter().any(|plugin| plugin == PORTMAP);
    match (subject.policy.host_ports.is_some(), is_requested) {
        (true, false) => Some(
            Finding::failure(
                format!("the agent serves host ports, and denizen's entry in {path} asks for none"),
                "give install-cni --host-ports",
            )
            .coded("host-ports-not-asked", [("path", path.to_string())]),
        ),
        (true, true) if !is_passed => Some(
            Finding::failure(
                format!("the runtime does not pass host ports to denizen's entry in {path}"),
                "give the entry \"capabilities\": {\"portMappings\": true}, as install-cni \
             --host-ports does",
            )
            .coded("host-ports-not-passed", [("path", path.to_string())]),
        ),
        (true, true) if is_portmap => Some(
            Finding::warning(
                format!(
                    "{path} has portmap, too: it serves the same host ports, and each ADD waits"
                ),
                "give install-cni --replace-portmap",
            )
            .coded("portmap-too", [("path", path.to_string())]),
        ),
        (false, true) if !is_portmap => Some(
            Finding::warning(
                format!("denizen's entry in {path} asks for host ports, and the agent serves none"),
                "give the agent --host-ports=on",
            )
            .coded("host-ports-not-served", [("path", path.to_string())]),
        ),
        (true, true) | (false, _) => None,
    }
}

fn program(folder: &Path) -> Finding {
    let path = folder.join(PLUGIN);
    match release(&path) {
        Ok(release) if release == env!("CARGO_PKG_VERSION") => {
            Finding::ok(format!("{} runs, and is of this release ({release})", path.display()))
        }
        Ok(release) => Finding::warning(
            format!(
                "{} is of release {release}, and this program of {}",
                path.display(),
                env!("CARGO_PKG_VERSION")
            ),
            INSTALL,
        )
        .coded("plugin-of-another-release", [("release", release)]),
        Err(error @ (PluginError::Io { .. } | PluginError::Strange { .. })) => {
            Finding::failure(describe(&error), INSTALL)
                .coded("plugin-unusable", [("error", describe(&error))])
        }
    }
}

/// Whether the runtime calls the plugin.
fn records(subject: &Subject) -> Finding {
    const TRY: &str = "start a pod on this node that is not on the host's network, and check again";
    let records = match &subject.records {
        Ok(Some(records)) => &records.pods,
        Ok(None) | Err(StateError::NoRunDir { .. }) => {
            return Finding::warning("the plugin has not recorded any pod", TRY)
                .coded("records-none", []);
        }
        Err(error) => {
            return Finding::failure(
                describe(error),
                "the agent replaces a file that cannot be read; its log says why it did not",
            )
            .coded("records-unreadable", [("error", describe(error))]);
        }
    };
    let adopted = records.iter().filter(|pod| pod.adopted).count();
    match records.len() - adopted {
        0 if subject.plugin_was_called => Finding::ok(format!(
            "the plugin was called; of the pods that it recorded, none is left ({adopted} adopted)"
        )),
        0 if adopted > 0 => Finding::warning(
            format!("all {adopted} recorded pods were adopted, none by an ADD"),
            TRY,
        )
        .coded("records-adopted", [("adopted", adopted.to_string())]),
        0 => Finding::warning("no pod is recorded", TRY).coded("records-none", []),
        called => {
            Finding::ok(format!("{called} attachments recorded by the plugin, {adopted} adopted"))
        }
    }
}
