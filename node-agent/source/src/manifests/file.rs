//! Converts a file's text to events. Pure.

use std::collections::HashSet;

use super::problem::{FileProblem, FileProblems, ProblemKind};
use crate::Features;
use denizen_object::manifest::{self, Format};
use denizen_object::{DecodedObject, Decoder};
use denizen_text::describe;

/// Reads the text of `file`: passes each object to `sink` once, and returns what could not be used.
pub(super) fn read(
    file: &str,
    format: Format,
    text: &str,
    features: Features,
    decoder: &mut Decoder,
    sink: &mut dyn FnMut(DecodedObject),
) -> FileProblems {
    let mut problems = FileProblems::default();
    let mut seen = HashSet::new();
    manifest::objects(format, text, &mut |place, found| {
        let problem = |what| FileProblem { file: file.to_owned(), place: Some(place), what };
        let found = match found {
            Ok(found) if features.need(found.kind()) => found,
            Ok(_of_no_feature) => return,
            Err(error) => return problems.push(problem(ProblemKind::Skipped(describe(&error)))),
        };
        let mut warnings = Vec::new();
        let item = found.decode(decoder, &mut warnings);
        for warning in warnings {
            problems.push(problem(ProblemKind::PartSkipped(warning)));
        }
        match item {
            Ok(Some(item)) if seen.contains(&item.key) => {
                let winner = "an earlier document".to_owned();
                problems
                    .push(problem(ProblemKind::Duplicate { object: item.key.to_string(), winner }));
            }
            Ok(Some(item)) => {
                seen.insert(item.key.clone());
                sink(item);
            }
            Ok(None) => {}
            Err(error) => problems.push(problem(ProblemKind::Skipped(describe(&error)))),
        }
    });
    problems
}

/// The format of a file with this name; `None` if it is not a manifest.
pub(super) fn format_of(name: &str) -> Option<Format> {
    if name.starts_with('.') {
        return None;
    }
    match name.rsplit_once('.')?.1 {
        "yaml" | "yml" => Some(Format::Yaml),
        "json" => Some(Format::Json),
        _ => None,
    }
}
