//! One call, from variables and standard input to standard output.

use std::io::Read;
use std::time::SystemTime;

use denizen_state::AttachmentId;
use serde::Serialize;

use crate::command::{add, check, del, gc, status};
use crate::config::{PluginConfig, RawConfig, valid_attachments};
use crate::environment::{Attach, AttachmentName, CniCommand, Environment};
use crate::error::CniError;
use crate::prev_result::PrevResult;
use crate::version::CniVersion;

/// Size limit in bytes, more than any configuration with its `prevResult`, or a GC's list, needs.
const LONGEST_INPUT: u64 = 16 << 20;

/// The result of a call.
#[derive(Debug, PartialEq, Eq)]
pub enum CallResult {
    /// The call succeeded. This text goes to standard output.
    Done(String),
    /// The call failed. This error object goes to standard output.
    Failed(String),
    /// A person runs the plugin by hand. This text goes to standard error.
    ByHand(String),
}

/// Executes the call in `environment` and `input`, at the time `now`.
pub fn run(environment: &Environment, input: impl Read, now: SystemTime) -> CallResult {
    if environment.is_empty() {
        return CallResult::ByHand(about());
    }
    // An error has the format of the caller's version, once that is known.
    let mut version = CniVersion::NEWEST;
    match call(environment, input, now, &mut version) {
        Ok(output) => CallResult::Done(output),
        Err(error) => CallResult::Failed(error.object(version)),
    }
}

/// Checks `environment` and `input` as [`run`] does first, and does nothing else: for the fuzz
/// target, whose configurations name arbitrary directories.
#[doc(hidden)]
pub fn understand(environment: &Environment, input: &[u8]) -> Result<(), String> {
    let mut version = CniVersion::NEWEST;
    parse(environment, input, &mut version).map(drop).map_err(|error| error.object(version))
}

/// A fully checked call.
enum Call<'a> {
    Add(Attach, PluginConfig<'a>, PrevResult),
    Del(AttachmentName, PluginConfig<'a>),
    Check(Attach, PluginConfig<'a>, PrevResult),
    Gc(PluginConfig<'a>, Vec<AttachmentId>),
    Status(PluginConfig<'a>),
    Version(String),
}

fn call(
    environment: &Environment,
    input: impl Read,
    now: SystemTime,
    version: &mut CniVersion,
) -> Result<String, CniError> {
    let input = read(input)?;
    match parse(environment, &input, version)? {
        Call::Add(attach, config, prev_result) => return add(&attach, &config, prev_result, now),
        Call::Version(versions) => return Ok(versions),
        Call::Del(named, config) => del(&named, &config)?,
        Call::Check(attach, config, prev_result) => check(&attach, &config, &prev_result)?,
        Call::Gc(config, valid) => gc(&config, valid)?,
        Call::Status(config) => status(&config)?,
    }
    Ok(String::new())
}

fn parse<'a>(
    environment: &Environment,
    input: &'a [u8],
    version: &mut CniVersion,
) -> Result<Call<'a>, CniError> {
    let command = environment.command()?;
    if command == CniCommand::Version {
        // Of the input of VERSION only the version matters, and this plugin need not support it.
        return versions(input).map(Call::Version);
    }
    let raw = RawConfig::parse(input)?;
    *version = raw.version()?;
    knows(*version, command)?;
    let attached = || {
        let (attach, config) = (environment.attach()?, PluginConfig::whole(&raw)?);
        let prev_result =
            PrevResult::parse(config.prev_result()?, *version, &attach.named.if_name)?;
        Ok::<_, CniError>((attach, config, prev_result))
    };
    Ok(match command {
        CniCommand::Add => attached()
            .map(|(attach, config, prev_result)| Call::Add(attach, config, prev_result))?,
        CniCommand::Check => attached()
            .map(|(attach, config, prev_result)| Call::Check(attach, config, prev_result))?,
        CniCommand::Del => Call::Del(environment.named()?, PluginConfig::for_removal(&raw)?),
        CniCommand::Gc => Call::Gc(PluginConfig::for_removal(&raw)?, valid_attachments(&raw)?),
        CniCommand::Status => Call::Status(PluginConfig::whole(&raw)?),
        CniCommand::Version => versions(input).map(Call::Version)?,
    })
}

fn read(input: impl Read) -> Result<Vec<u8>, CniError> {
    let mut text = Vec::new();
    input
        .take(LONGEST_INPUT + 1)
        .read_to_end(&mut text)
        .map_err(|error| CniError::io("cannot read standard input", error))?;
    if text.len() as u64 > LONGEST_INPUT {
        return Err(CniError::Decode(format!(
            "standard input is longer than {LONGEST_INPUT} bytes"
        )));
    }
    Ok(text)
}

/// Refuses a command that is newer than the configuration's version.
fn knows(version: CniVersion, command: CniCommand) -> Result<(), CniError> {
    let since = match command {
        CniCommand::Add | CniCommand::Del | CniCommand::Version => CniVersion::V0_3_0,
        CniCommand::Check => CniVersion::V0_4_0,
        CniCommand::Gc | CniCommand::Status => CniVersion::V1_1_0,
    };
    if version >= since {
        return Ok(());
    }
    let (version, since) = (version.name(), since.name());
    Err(CniError::IncompatibleVersion(format!(
        "cniVersion {version} does not have this command: {since} does"
    )))
}

/// The answer to VERSION. A runtime asks in its own version, which this plugin need not support,
/// and some runtimes name none.
fn versions(input: &[u8]) -> Result<String, CniError> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Versions {
        cni_version: String,
        supported_versions: [&'static str; CniVersion::ALL.len()],
    }
    let asked = match input.trim_ascii() {
        [] => None,
        input => RawConfig::parse(input)?.version_text()?,
    };
    let versions = Versions {
        cni_version: asked.unwrap_or_else(|| CniVersion::NEWEST.name().to_owned()),
        supported_versions: CniVersion::ALL.map(CniVersion::name),
    };
    Ok(serde_json::to_string(&versions).expect("strings are always JSON"))
}

fn about() -> String {
    format!(
        "denizen {}: a chained CNI plugin that records this node's pods for denizen-agent

It is not run by hand: a container runtime calls it, behind the plugin that makes a pod's
interface. In a *.conflist under /etc/cni/net.d, as the last of \"plugins\":

    {{ \"type\": \"denizen\" }}

optionally with \"runDir\" (where it records; by default {}) and
\"waitForAgent\" (e.g. {{ \"timeout\": \"1s\", \"onTimeout\": \"proceed\" }}).

To see how a pod's TCP is redirected, run as root:
`denizen inspect CONTAINER|NAMESPACE/POD [RUN_DIR]`.

CNI versions: {}
",
        env!("CARGO_PKG_VERSION"),
        denizen_state::run_dir::DEFAULT,
        CniVersion::list()
    )
}
