//! The plugin's errors: error objects of the CNI specification.

use std::borrow::Cow;
use std::error::Error;
use std::io;

use denizen_state::StateError;
use serde::Serialize;
use thiserror::Error;

use crate::version::CniVersion;

/// Why a call failed. Each variant has a code of the specification, on which the runtime acts; the
/// text is for the operator, and names the object.
#[derive(Debug, Error)]
pub enum CniError {
    /// This plugin, or the command, does not support the configuration's version.
    #[error("{0}")]
    IncompatibleVersion(String),
    /// An unknown key, or an unusable value.
    #[error("unsupported field {}: {} ({why})", quoted(.key), shortened(.value))]
    UnsupportedField {
        /// The key.
        key: String,
        /// Its value.
        value: String,
        /// What is allowed.
        why: String,
    },
    /// A `CNI_*` variable is missing or not valid.
    #[error("{0}")]
    Environment(String),
    /// The kernel or the file system returned an error.
    #[error("{doing}")]
    Io {
        /// The failed operation, and its object.
        doing: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// Standard input cannot be decoded.
    #[error("{0}")]
    Decode(String),
    /// The configuration, or the previous plugin's result, is not valid.
    #[error("{0}")]
    InvalidConfig(String),
    /// The state file could not be read or changed.
    #[error(transparent)]
    State(#[from] StateError),
    /// A temporary failure: the runtime should try again.
    #[error("{0}")]
    TryAgainLater(String),
    /// `STATUS`: an ADD would fail now.
    #[error("{0}")]
    NotAvailable(String),
    /// `CHECK`: the record, the result and the kernel disagree.
    #[error("{0}")]
    Disagreement(String),
}

/// The first code that the specification leaves to plugins, and the only one used here.
const DISAGREEMENT: u32 = 100;

impl CniError {
    /// A [`CniError::Io`] about `doing`.
    pub(crate) fn io(doing: impl Into<String>, source: impl Into<io::Error>) -> CniError {
        CniError::Io { doing: doing.into(), source: source.into() }
    }

    /// A [`CniError::InvalidConfig`]: `what` cannot be decoded.
    pub(crate) fn malformed(what: &str, error: &serde_json::Error) -> CniError {
        let why = error.to_string();
        CniError::InvalidConfig(format!("{what} is malformed: {}", shortened(&why)))
    }

    /// The specification's code.
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

    /// The message and all its causes on one line.
    pub fn in_full(&self) -> String {
        in_full(self)
    }

    /// The error object to print, in the format of `version`.
    pub(crate) fn object(&self, version: CniVersion) -> String {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct ErrorObject {
            cni_version: &'static str,
            code: u32,
            msg: String,
            #[serde(skip_serializing_if = "String::is_empty")]
            details: String,
        }
        let object = ErrorObject {
            cni_version: version.name(),
            code: self.code(),
            msg: bounded(&self.to_string()).into(),
            details: bounded(&causes(self)).into(),
        };
        serde_json::to_string(&object).expect("strings and a number are always JSON")
    }
}

/// The longest value of a caller that an error shows whole, in characters.
const LONGEST_VALUE: usize = 100;

/// The longest text of an error, in characters: it goes to logs, and to the pod's events.
const LONGEST_TEXT: usize = 4_000;

/// `text` of a caller in quotation marks, as an error shows it.
pub(crate) fn quoted(text: &str) -> String {
    format!("{:?}", shortened(text))
}

/// `text` of a caller, as an error shows it: a long one without its middle.
pub(crate) fn shortened(text: &str) -> Cow<'_, str> {
    without_middle(text, LONGEST_VALUE)
}

/// The text of a whole error, limited in length whatever values are in it.
fn bounded(text: &str) -> Cow<'_, str> {
    without_middle(text, LONGEST_TEXT)
}

/// `text`, shortened to about `longest` characters: more of its beginning stays than of its end.
fn without_middle(text: &str, longest: usize) -> Cow<'_, str> {
    // A text has at least as many bytes as characters.
    if text.len() <= longest || text.chars().count() <= longest {
        return text.into();
    }
    let end = longest / 3;
    let begin: String = text.chars().take(longest - end).collect();
    let end: String = text.chars().rev().take(end).collect();
    let end: String = end.chars().rev().collect();
    format!("{begin}… ({} bytes) …{end}", text.len()).into()
}

/// The message of an error and all its causes on one line.
pub(crate) fn in_full(error: &dyn Error) -> String {
    match causes(error) {
        causes if causes.is_empty() => error.to_string(),
        causes => format!("{error}: {causes}"),
    }
}

/// The causes below an error's message, outermost first.
fn causes(error: &dyn Error) -> String {
    let causes = std::iter::successors(error.source(), |&cause| cause.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

#[cfg(test)]
mod tests;
