//! What the plugin says when it cannot do what it was called for: an error object of the CNI
//! specification.

use std::error::Error as _;
use std::io;

use denizen_shared::state::StateError;
use serde::Serialize;
use thiserror::Error;

use crate::version::CniVersion;

/// Why a call failed. A variant is a code of the specification, which the runtime acts on; the text
/// is for the operator, and names the thing.
#[derive(Debug, Error)]
pub enum CniError {
    /// The configuration is of a version that this plugin, or the command, does not know.
    #[error("{0}")]
    IncompatibleVersion(String),
    /// A key that this plugin does not know, or a value that it cannot use.
    #[error("unsupported field {key:?}: {value} ({why})")]
    UnsupportedField {
        /// Where it stands.
        key: String,
        /// What stands there.
        value: String,
        /// What would be right.
        why: String,
    },
    /// A `CNI_*` variable is missing or cannot be what it says.
    #[error("{0}")]
    Environment(String),
    /// The kernel or the file system refused.
    #[error("{doing}")]
    Io {
        /// What was being done, and with what.
        doing: String,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// Text that is not what it should be, all of it: standard input.
    #[error("{0}")]
    Decode(String),
    /// A configuration, or the result of the plugin before this one, that cannot be right.
    #[error("{0}")]
    InvalidConfig(String),
    /// The state file could not be read or changed.
    #[error(transparent)]
    State(#[from] StateError),
    /// It will be right in a moment: the runtime should come again.
    #[error("{0}")]
    TryAgainLater(String),
    /// `STATUS`: an ADD would fail now.
    #[error("{0}")]
    NotAvailable(String),
    /// `CHECK`: the record, the result and the kernel disagree.
    #[error("{0}")]
    Disagreement(String),
}

/// The first code that the specification leaves to plugins; the only one that this plugin uses.
const DISAGREEMENT: u32 = 100;

impl CniError {
    /// An [`CniError::Io`] about `doing`.
    pub(crate) fn io(doing: impl Into<String>, source: impl Into<io::Error>) -> CniError {
        CniError::Io { doing: doing.into(), source: source.into() }
    }

    /// The code, as the specification numbers them.
    pub fn code(&self) -> u32 {
        match self {
            CniError::IncompatibleVersion(_) => 1,
            CniError::UnsupportedField { .. } => 2,
            CniError::Environment(_) => 4,
            CniError::Io { .. } => 5,
            CniError::Decode(_) => 6,
            CniError::InvalidConfig(_) => 7,
            CniError::TryAgainLater(_) => 11,
            CniError::NotAvailable(_) => 50,
            CniError::Disagreement(_) => DISAGREEMENT,
            CniError::State(error) => match error {
                StateError::Locked { .. } => 11,
                StateError::Unreadable { .. } | StateError::NewerVersion { .. } => 6,
                StateError::NoRunDir { .. }
                | StateError::NotOurs { .. }
                | StateError::Io { .. } => 5,
            },
        }
    }

    /// The causes below the message, outermost first.
    fn details(&self) -> String {
        let causes = std::iter::successors(self.source(), |&cause| cause.source());
        causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
    }

    /// The message and all its causes, as one line for a person.
    pub(crate) fn in_full(&self) -> String {
        match self.details() {
            details if details.is_empty() => self.to_string(),
            details => format!("{self}: {details}"),
        }
    }

    /// The error object to print, in the words of `version`.
    pub(crate) fn object(&self, version: CniVersion) -> String {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Object {
            cni_version: &'static str,
            code: u32,
            msg: String,
            #[serde(skip_serializing_if = "String::is_empty")]
            details: String,
        }
        let object = Object {
            cni_version: version.name(),
            code: self.code(),
            msg: self.to_string(),
            details: self.details(),
        };
        serde_json::to_string(&object).expect("strings and a number are always JSON")
    }
}
