//! What is wrong with the files, for a person.

use std::fmt;

use tracing::warn;

use super::decode::Place;
use crate::source::object::Warning;

/// Something in a file that is not used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Problem {
    pub(super) file: String,
    /// `None` for the whole file.
    pub(super) place: Option<Place>,
    pub(super) what: What,
}

/// What is not used, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum What {
    /// The file, document or object.
    Skipped(String),
    /// A part of an object.
    LeftOut(Warning),
    /// An object that another file, or an earlier document, has as well.
    Duplicate { object: String, winner: String },
}

impl Problem {
    /// Traces it.
    pub(super) fn trace(&self) {
        let file = &self.file;
        let document = self.place.map(|place| place.document);
        let line = self.place.and_then(|place| place.line);
        match &self.what {
            What::Skipped(error) => warn!(file, document, line, error, "manifest skipped"),
            What::LeftOut(Warning {
                object,
                field,
                value,
                problem,
            }) => {
                warn!(
                    file,
                    document,
                    object,
                    field,
                    value,
                    error = problem,
                    "part of a manifest left out"
                );
            }
            What::Duplicate { object, winner } => {
                warn!(file, document, object, winner, "duplicate manifest left out");
            }
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if let Some(Place { document, item, line }) = self.place {
            write!(f, ", document {document}")?;
            if let Some(item) = item {
                write!(f, ", item {item}")?;
            }
            if let Some(line) = line {
                write!(f, " (line {line})")?;
            }
        }
        match &self.what {
            What::Skipped(error) => write!(f, ": skipped: {error}"),
            What::LeftOut(warning) => write!(f, ": {warning}"),
            What::Duplicate { object, winner } => write!(f, ": {object} is in {winner} already: left out"),
        }
    }
}
