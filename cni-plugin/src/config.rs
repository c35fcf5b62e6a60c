//! Standard input: [`RawConfig`] as written, [`PluginConfig`] checked.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use denizen_state::{AttachmentId, json, run_dir};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use crate::environment::is_name;
use crate::error::{CniError, quoted, shortened};
use crate::host_port::PORT_MAPPINGS;
use crate::redirect::RedirectConfig;
use crate::version::CniVersion;

/// The default timeout of an ADD that waits for the agent.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(1);

/// The longest timeout: runtimes give up an ADD after some minutes, and report it as hung before.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Keys that the specification defines for every plugin.
const EVERY_PLUGINS: [&str; 6] =
    ["cniVersion", "name", "type", "args", "runtimeConfig", "capabilities"];

/// Keys that this plugin uses.
const OURS: [&str; 5] = ["prevResult", "hostPorts", "redirect", "runDir", "waitForAgent"];

/// The key under which `install-cni` keeps the entries of portmap that it has taken out of the
/// list, to put them back later. The plugin ignores it.
pub const REPLACED_PORTMAP: &str = "replacedPortmap";

/// The capability by which a runtime passes the pod's annotations.
pub const ANNOTATIONS: &str = "io.kubernetes.cri.pod-annotations";

/// Keys of other plugins that programs in Go write even if empty, because their configuration
/// struct has them. If empty, they are ignored.
const HARMLESS_EMPTY: [&str; 2] = ["ipam", "dns"];

/// The prefix of keys by which the runtime passes data to plugins.
const PROTOCOL: &str = "cni.dev/";

/// The configuration as written: an object with unchecked values.
#[derive(Debug)]
pub(crate) struct RawConfig<'a> {
    fields: BTreeMap<Cow<'a, str>, &'a RawValue>,
}

impl<'a> RawConfig<'a> {
    pub(crate) fn parse(input: &'a [u8]) -> Result<RawConfig<'a>, CniError> {
        if input.trim_ascii().is_empty() {
            return Err(CniError::Decode(
                "standard input is empty: a network configuration is missing".to_owned(),
            ));
        }
        let fields = serde_json::from_slice(input).map_err(|error| {
            let why = error.to_string();
            let why = shortened(&why);
            CniError::Decode(format!("standard input is not a network configuration: {why}"))
        })?;
        Ok(RawConfig { fields })
    }

    /// The version as written, if any.
    pub(crate) fn version_text(&self) -> Result<Option<String>, CniError> {
        self.typed("cniVersion")
    }

    /// The version of the configuration.
    pub(crate) fn version(&self) -> Result<CniVersion, CniError> {
        let known = CniVersion::list();
        let name = self.version_text()?.ok_or_else(|| {
            CniError::IncompatibleVersion(format!(
                "cniVersion is missing: this plugin supports {known}"
            ))
        })?;
        CniVersion::named(&name).ok_or_else(|| {
            let name = quoted(&name);
            CniError::IncompatibleVersion(format!(
                "cniVersion {name} is unknown: this plugin supports {known}"
            ))
        })
    }

    fn typed<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>, CniError> {
        let Some(raw) = self.fields.get(key).filter(|raw| raw.get() != "null") else {
            return Ok(None);
        };
        json::parse(raw.get()).map(Some).map_err(|error| CniError::malformed(key, &error))
    }

    /// Refuses the first unknown key: the operator who wrote it expects an effect.
    fn refuse_unknown(&self) -> Result<(), CniError> {
        let known = |key: &str, value: &RawValue| {
            EVERY_PLUGINS.contains(&key)
                || OURS.contains(&key)
                || key == REPLACED_PORTMAP
                || key.starts_with(PROTOCOL)
                || (HARMLESS_EMPTY.contains(&key)
                    && value.get().split_whitespace().collect::<String>() == "{}")
        };
        match self.fields.iter().find(|(key, value)| !known(key, value)) {
            None => Ok(()),
            Some((key, value)) => Err(CniError::UnsupportedField {
                key: key.to_string(),
                value: value.get().to_owned(),
                why: format!("denizen knows {}", OURS[1..].join(", ")),
            }),
        }
    }
}

/// A checked configuration.
#[derive(Debug)]
pub(crate) struct PluginConfig<'a> {
    pub(crate) network: String,
    pub(crate) run_dir: PathBuf,
    pub(crate) wait_for_agent: Option<WaitForAgent>,
    pub(crate) redirect: Option<RedirectConfig>,
    /// The pod's annotations; `None` if the runtime does not pass annotations. A pod without
    /// annotations has an empty map.
    pub(crate) annotations: Option<BTreeMap<String, String>>,
    /// What the runtime passes about host ports; `None` if the entry does not ask for them.
    pub(crate) port_mappings: Option<Box<RawValue>>,
    /// The previous plugin's result, unchanged.
    pub(crate) prev_result: Option<&'a RawValue>,
}

impl<'a> PluginConfig<'a> {
    /// The whole configuration, for ADD, CHECK and STATUS.
    pub(crate) fn whole(raw: &RawConfig<'a>) -> Result<PluginConfig<'a>, CniError> {
        raw.refuse_unknown()?;
        let wait_for_agent = raw.typed("waitForAgent")?.map(WaitForAgent::of).transpose()?;
        let redirect = raw.typed("redirect")?.map(RedirectConfig::of).transpose()?;
        let annotations = match redirect {
            Some(_) => annotations(raw)?,
            None => None,
        };
        let port_mappings = port_mappings(raw)?;
        let removal = PluginConfig::for_removal(raw)?;
        Ok(PluginConfig { wait_for_agent, redirect, annotations, port_mappings, ..removal })
    }

    /// The part that removal needs. Other keys are not checked, and a bad `waitForAgent` counts as
    /// missing: a mistyped key must not keep a pod from being deleted.
    pub(crate) fn for_removal(raw: &RawConfig<'a>) -> Result<PluginConfig<'a>, CniError> {
        let network: String = raw
            .typed("name")?
            .ok_or_else(|| CniError::InvalidConfig("name is missing".to_owned()))?;
        if !is_name(&network) {
            let network = quoted(&network);
            return Err(CniError::InvalidConfig(format!("name is malformed: {network}")));
        }
        let run_dir = raw.typed("runDir")?.unwrap_or_else(|| PathBuf::from(run_dir::DEFAULT));
        if !Path::new(&run_dir).is_absolute() {
            let run_dir = quoted(&run_dir.to_string_lossy());
            return Err(CniError::InvalidConfig(format!(
                "runDir is not an absolute path: {run_dir}"
            )));
        }
        let prev_result = raw.fields.get("prevResult").copied().filter(|raw| raw.get() != "null");
        let wait_for_agent = raw.typed("waitForAgent").ok().flatten();
        let wait_for_agent = wait_for_agent.and_then(|fields| WaitForAgent::of(fields).ok());
        Ok(PluginConfig {
            network,
            run_dir,
            wait_for_agent,
            redirect: None,
            annotations: None,
            port_mappings: None,
            prev_result,
        })
    }

    /// The previous plugin's result, which exists only in a chain.
    pub(crate) fn prev_result(&self) -> Result<&'a RawValue, CniError> {
        self.prev_result.ok_or_else(|| {
            CniError::InvalidConfig(
                "prevResult is missing: denizen is chained behind the plugin that makes the interface"
                    .to_owned(),
            )
        })
    }
}

/// What the runtime passes to a plugin with this capability.
fn passed(raw: &RawConfig<'_>, capability: &str) -> Result<Option<Box<RawValue>>, CniError> {
    let runtime: Option<BTreeMap<String, Box<RawValue>>> = raw.typed("runtimeConfig")?;
    Ok(runtime.and_then(|mut runtime| runtime.remove(capability)))
}

/// What the runtime passes about host ports, if the entry has the object `hostPorts`.
fn port_mappings(raw: &RawConfig<'_>) -> Result<Option<Box<RawValue>>, CniError> {
    let asked: Option<BTreeMap<String, serde_json::Value>> = raw.typed("hostPorts")?;
    match asked.as_ref().map(BTreeMap::first_key_value) {
        None => Ok(None),
        Some(None) => passed(raw, PORT_MAPPINGS),
        Some(Some((key, value))) => Err(CniError::UnsupportedField {
            key: format!("hostPorts.{key}"),
            value: value.to_string(),
            why: "it has no keys: the agent decides how host ports are served".to_owned(),
        }),
    }
}

/// The pod's annotations, which the runtime passes to a plugin with this capability.
fn annotations(raw: &RawConfig<'_>) -> Result<Option<BTreeMap<String, String>>, CniError> {
    let Some(passed) = passed(raw, ANNOTATIONS)? else { return Ok(None) };
    // A pod without annotations has `null`, as Go writes a map that was never made.
    let annotations: Option<BTreeMap<String, String>> = json::parse(passed.get())
        .map_err(|error| CniError::malformed(&format!("runtimeConfig.{ANNOTATIONS}"), &error))?;
    Ok(Some(annotations.unwrap_or_default()))
}

/// The attachments that the runtime still knows, from a GC's configuration.
pub(crate) fn valid_attachments(raw: &RawConfig<'_>) -> Result<Vec<AttachmentId>, CniError> {
    #[derive(Deserialize)]
    struct Valid {
        #[serde(rename = "containerID")]
        container_id: String,
        ifname: String,
    }
    let key = "cni.dev/valid-attachments";
    // Absent is not empty: an empty list removes everything.
    let valid: Vec<Valid> =
        raw.typed(key)?.ok_or_else(|| CniError::InvalidConfig(format!("{key} is missing")))?;
    Ok(valid.iter().map(|valid| AttachmentId::new(&valid.container_id, &valid.ifname)).collect())
}

/// How an ADD waits for the agent to program the kernel for its pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WaitForAgent {
    pub(crate) timeout: Duration,
    pub(crate) on_timeout: OnTimeout,
}

/// What happens to an ADD whose pod is not programmed in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum OnTimeout {
    /// The pod starts, and is detected as local a moment later.
    #[default]
    Proceed,
    /// The ADD fails, and the runtime tries again.
    Fail,
    /// The pod starts, and the firewall drops its packets until the agent has decided about them.
    Isolate,
}

impl WaitForAgent {
    fn of(mut fields: BTreeMap<String, serde_json::Value>) -> Result<WaitForAgent, CniError> {
        let refused =
            |key: &str, value: &serde_json::Value, why: &str| CniError::UnsupportedField {
                key: format!("waitForAgent.{key}"),
                value: value.to_string(),
                why: why.to_owned(),
            };
        let timeout = match fields.remove("timeout") {
            None => DEFAULT_TIMEOUT,
            Some(value) => value
                .as_str()
                .and_then(duration)
                .filter(|timeout| (Duration::from_millis(1)..=LONGEST_TIMEOUT).contains(timeout))
                .ok_or_else(|| refused("timeout", &value, "from \"1ms\" to \"60s\""))?,
        };
        let on_timeout = match fields.remove("onTimeout") {
            None => OnTimeout::default(),
            Some(value) => serde_json::from_value(value.clone()).map_err(|_| {
                refused("onTimeout", &value, "\"proceed\", \"fail\" or \"isolate\"")
            })?,
        };
        match fields.first_key_value() {
            None => Ok(WaitForAgent { timeout, on_timeout }),
            Some((key, value)) => Err(refused(key, value, "denizen knows timeout and onTimeout")),
        }
    }
}

/// Parses a duration in whole milliseconds, seconds or minutes.
fn duration(text: &str) -> Option<Duration> {
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(digits);
    let milliseconds = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(milliseconds).map(Duration::from_millis)
}

#[cfg(test)]
mod tests;
