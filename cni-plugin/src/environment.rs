//! The call, from the runtime's `CNI_*` variables: [`Environment`] as written, [`Attach`] checked.

use std::ffi::OsString;
use std::path::PathBuf;

use denizen_state::{AttachmentId, PodRef};
use serde_json::Map;

use crate::error::{CniError, quoted, shortened};

/// The longest interface name that the kernel accepts, without the terminating zero.
const LONGEST_IF_NAME: usize = 15;

/// The `CNI_*` variables, unchecked. An empty variable counts as missing, as runtimes mean it.
#[derive(Debug, Clone, Default)]
pub struct Environment {
    /// `CNI_COMMAND`.
    pub command: Option<OsString>,
    /// `CNI_CONTAINERID`.
    pub container_id: Option<OsString>,
    /// `CNI_NETNS`.
    pub netns: Option<OsString>,
    /// `CNI_IFNAME`.
    pub if_name: Option<OsString>,
    /// `CNI_ARGS`.
    pub args: Option<OsString>,
}

impl Environment {
    /// The variables of this process.
    pub fn of_process() -> Environment {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        Environment {
            command: variable("CNI_COMMAND"),
            container_id: variable("CNI_CONTAINERID"),
            netns: variable("CNI_NETNS"),
            if_name: variable("CNI_IFNAME"),
            args: variable("CNI_ARGS"),
        }
    }

    /// Whether all variables are missing: a person runs the plugin by hand.
    pub(crate) fn is_empty(&self) -> bool {
        let all = [&self.command, &self.container_id, &self.netns, &self.if_name, &self.args];
        all.into_iter().all(Option::is_none)
    }

    /// The command that the plugin is called for.
    pub(crate) fn command(&self) -> Result<CniCommand, CniError> {
        let name = text("CNI_COMMAND", self.command.as_ref())?;
        let name =
            name.ok_or_else(|| CniError::Environment("CNI_COMMAND is missing".to_owned()))?;
        let unknown = || format!("CNI_COMMAND is unknown: {}", quoted(name));
        CniCommand::named(name).ok_or_else(|| CniError::Environment(unknown()))
    }

    /// The attachment's name, which suffices for DEL.
    pub(crate) fn named(&self) -> Result<AttachmentName, CniError> {
        self.present(&[("CNI_CONTAINERID", &self.container_id), ("CNI_IFNAME", &self.if_name)])?;
        let container_id = text("CNI_CONTAINERID", self.container_id.as_ref())?.unwrap_or_default();
        let if_name = text("CNI_IFNAME", self.if_name.as_ref())?.unwrap_or_default();
        if !is_name(container_id) {
            return Err(CniError::Environment(format!(
                "CNI_CONTAINERID is malformed: {} (a letter or digit, then letters, digits, '_', \
                 '.' and '-')",
                quoted(container_id)
            )));
        }
        is_if_name(if_name).map_err(|why| {
            CniError::Environment(format!("CNI_IFNAME is malformed: {} {why}", quoted(if_name)))
        })?;
        Ok(AttachmentName { container_id: container_id.to_owned(), if_name: if_name.to_owned() })
    }

    /// The attachment, with everything that ADD and CHECK need.
    pub(crate) fn attach(&self) -> Result<Attach, CniError> {
        self.present(&[
            ("CNI_CONTAINERID", &self.container_id),
            ("CNI_IFNAME", &self.if_name),
            ("CNI_NETNS", &self.netns),
        ])?;
        let named = self.named()?;
        let netns = text("CNI_NETNS", self.netns.as_ref())?.unwrap_or_default();
        let args = text("CNI_ARGS", self.args.as_ref())?.unwrap_or_default();
        Ok(Attach { named, netns: PathBuf::from(netns), pod: pod(args)? })
    }

    /// Checks that the variables are present. The error names all missing ones at once.
    fn present(&self, variables: &[(&str, &Option<OsString>)]) -> Result<(), CniError> {
        let missing: Vec<_> =
            variables.iter().filter(|(_, value)| value.is_none()).map(|(name, _)| *name).collect();
        match missing.as_slice() {
            [] => Ok(()),
            missing => {
                Err(CniError::Environment(format!("missing variables: {}", missing.join(", "))))
            }
        }
    }
}

/// A command of the specification.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CniCommand {
    Add,
    Del,
    Check,
    Gc,
    Status,
    Version,
}

impl CniCommand {
    fn named(name: &str) -> Option<CniCommand> {
        Some(match name {
            "ADD" => CniCommand::Add,
            "DEL" => CniCommand::Del,
            "CHECK" => CniCommand::Check,
            "GC" => CniCommand::Gc,
            "STATUS" => CniCommand::Status,
            "VERSION" => CniCommand::Version,
            _ => return None,
        })
    }
}

/// The name of one attachment of one container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AttachmentName {
    pub(crate) container_id: String,
    pub(crate) if_name: String,
}

impl AttachmentName {
    pub(crate) fn id(&self) -> AttachmentId {
        AttachmentId::new(&self.container_id, &self.if_name)
    }
}

/// One attachment of one container, with its namespace and its pod.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Attach {
    pub(crate) named: AttachmentName,
    pub(crate) netns: PathBuf,
    pub(crate) pod: Option<PodRef>,
}

fn text<'a>(name: &str, value: Option<&'a OsString>) -> Result<Option<&'a str>, CniError> {
    match value {
        None => Ok(None),
        Some(value) => match value.to_str() {
            Some(value) => Ok(Some(value)),
            None => {
                let value = format!("{value:?}");
                let value = shortened(&value);
                Err(CniError::Environment(format!("{name} is not UTF-8: {value}")))
            }
        },
    }
}

/// Whether the specification permits `name` as a container id or a network's name.
pub(crate) fn is_name(name: &str) -> bool {
    let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    name.starts_with(|c: char| c.is_ascii_alphanumeric()) && name.chars().all(inner)
}

/// Whether the kernel accepts `name` for an interface.
pub(crate) fn is_if_name(name: &str) -> Result<(), &'static str> {
    let bad = |c: char| c == '/' || c == ':' || c.is_whitespace() || c.is_control();
    match name {
        "." | ".." => Err("is a directory's name"),
        _ if name.len() > LONGEST_IF_NAME => Err("has more than 15 bytes"),
        _ if name.contains(bad) => Err("contains '/', ':', white space or a control character"),
        _ => Ok(()),
    }
}

/// The pod that `CNI_ARGS` names. Other arguments are for other plugins and are ignored.
pub(crate) fn pod(args: &str) -> Result<Option<PodRef>, CniError> {
    let (mut namespace, mut name, mut uid) = (None, None, None);
    for pair in args.split(';').filter(|pair| !pair.is_empty()) {
        let Some((key, value)) = pair.split_once('=') else {
            return Err(CniError::Environment(format!(
                "CNI_ARGS is malformed: {} has no '='",
                quoted(pair)
            )));
        };
        let place = match key {
            "K8S_POD_NAMESPACE" => &mut namespace,
            "K8S_POD_NAME" => &mut name,
            "K8S_POD_UID" => &mut uid,
            _ => continue,
        };
        *place = (!value.is_empty()).then(|| value.to_owned());
    }
    Ok(namespace.zip(name).map(|(namespace, name)| PodRef {
        namespace,
        name,
        uid,
        unknown: Map::new(),
    }))
}

#[cfg(test)]
mod tests;
