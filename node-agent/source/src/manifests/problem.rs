//! Problems in the files, as text for a person.

use std::fmt;

use tracing::warn;

use denizen_object::Warning;
use denizen_object::manifest::ObjectPosition;

/// Something in a file that is not used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FileProblem {
    pub(super) file: String,
    /// `None` for the whole file.
    pub(super) place: Option<ObjectPosition>,
    pub(super) what: ProblemKind,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ProblemKind {
    /// The file, document or object.
    Skipped(String),
    /// A part of an object.
    PartSkipped(Warning),
    /// An object that another file, or an earlier document, has too.
    Duplicate { object: String, winner: String },
}

/// Maximum number of problems that are named for one file, since a person reads them.
const MAX_NAMED: usize = 100;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct FileProblems {
    named: Vec<FileProblem>,
    more: usize,
}

impl FileProblems {
    /// One problem: the whole file cannot be used.
    pub(super) fn of_file(file: &str, error: String) -> Self {
        let problem =
            FileProblem { file: file.to_owned(), place: None, what: ProblemKind::Skipped(error) };
        Self { named: vec![problem], more: 0 }
    }

    pub(super) fn push(&mut self, problem: FileProblem) {
        if self.named.len() < MAX_NAMED {
            self.named.push(problem);
        } else {
            self.more += 1;
        }
    }

    /// Logs the problems that are new since `before`.
    pub(super) fn trace_new(&self, before: &Self) {
        self.named
            .iter()
            .filter(|problem| !before.named.contains(problem))
            .for_each(FileProblem::trace);
        if self.more > 0 && self.more != before.more {
            let file = self.named.first().map(|problem| problem.file.as_str());
            warn!(file, more = self.more, "further parts of a manifest are not used");
        }
    }

    pub(super) fn lines(&self) -> impl Iterator<Item = String> {
        let file = self.named.first().map_or("", |problem| problem.file.as_str());
        let more = (self.more > 0).then(|| format!("{file}: and {} more", self.more));
        self.named.iter().map(ToString::to_string).chain(more)
    }
}

impl FileProblem {
    pub(super) fn trace(&self) {
        let file = &self.file;
        let document = self.place.map(|place| place.document);
        let line = self.place.and_then(|place| place.line);
        match &self.what {
            ProblemKind::Skipped(error) => warn!(file, document, line, error, "manifest skipped"),
            ProblemKind::PartSkipped(Warning { object, field, value, problem }) => {
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
            ProblemKind::Duplicate { object, winner } => {
                warn!(file, document, object, winner, "duplicate manifest left out");
            }
        }
    }
}

impl fmt::Display for FileProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if let Some(ObjectPosition { document, item, line }) = self.place {
            write!(f, ", document {document}")?;
            if let Some(item) = item {
                write!(f, ", item {item}")?;
            }
            if let Some(line) = line {
                write!(f, " (line {line})")?;
            }
        }
        match &self.what {
            ProblemKind::Skipped(error) => write!(f, ": skipped: {error}"),
            ProblemKind::PartSkipped(warning) => write!(f, ": {warning}"),
            ProblemKind::Duplicate { object, winner } => {
                write!(f, ": {object} is in {winner} already: left out")
            }
        }
    }
}
