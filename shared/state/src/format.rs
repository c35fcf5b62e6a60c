//! The text of the state file: JSON with one attachment per line, so that `grep` finds a pod and
//! `less` shows it.

use std::io::{self, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::ser::{Formatter, Serializer};

use crate::error::StateError;
use crate::state::{State, VERSION};

/// The nesting depth of an attachment's key: in the file's object, in `attachments`.
const ATTACHMENT_DEPTH: usize = 2;

/// Formats the file's text. Pure.
pub(crate) fn print(state: &State) -> Result<Vec<u8>, serde_json::Error> {
    let mut text = Vec::with_capacity(256 + 512 * state.attachments.len());
    state.serialize(&mut Serializer::with_formatter(&mut text, LinePerAttachment { depth: 0 }))?;
    text.push(b'\n');
    Ok(text)
}

/// Parses `text`. Pure; `path` is for the error's text only.
pub(crate) fn parse(text: &[u8], path: &Path) -> Result<State, StateError> {
    let unreadable = |why: String| StateError::Unreadable { path: path.to_owned(), why };
    let state = serde_json::from_slice::<State>(text)
        .map_err(|error| newer(text, path).unwrap_or_else(|| unreadable(error.to_string())))?;
    if state.version > VERSION {
        return Err(StateError::NewerVersion {
            path: path.to_owned(),
            found: state.version.into(),
        });
    }
    if state.version < VERSION {
        return Err(unreadable(format!("version {} never existed", state.version)));
    }
    match state.attachments.iter().find(|(id, attachment)| **id != attachment.id()) {
        Some((id, _)) => {
            Err(unreadable(format!("the record at {:?} belongs to another attachment", id.0)))
        }
        None => Ok(state),
    }
}

/// The error if `text`, which does not match our schema, is of a newer version: its advice differs.
fn newer(text: &[u8], path: &Path) -> Option<StateError> {
    #[derive(Deserialize)]
    struct Versioned {
        version: u64,
    }
    let found = serde_json::from_slice::<Versioned>(text).ok()?.version;
    (found > u64::from(VERSION)).then(|| StateError::NewerVersion { path: path.to_owned(), found })
}

/// Compact JSON with a line break before each top-level member and each attachment.
struct LinePerAttachment {
    depth: usize,
}

impl Formatter for LinePerAttachment {
    fn begin_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.depth += 1;
        writer.write_all(b"{")
    }

    fn end_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.depth -= 1;
        writer.write_all(if self.depth < ATTACHMENT_DEPTH { b"\n}" } else { b"}" })
    }

    fn begin_object_key<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        writer.write_all(if first { b"" } else { b"," })?;
        writer.write_all(if self.depth <= ATTACHMENT_DEPTH { b"\n" } else { b"" })
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(if self.depth <= ATTACHMENT_DEPTH { b": " } else { b":" })
    }
}

#[cfg(test)]
mod tests;
