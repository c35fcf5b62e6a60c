//! From a file's text to events. Pure.

use std::collections::HashSet;

use super::decode::{self, Format, Found};
use super::index::Key;
use super::problem::{Problem, Problems, What};
use crate::describe::describe;
use crate::model::Event;
use crate::source::object::{self, Kind, ObjectError, Warning};

/// An object of a file.
#[derive(Debug)]
pub(super) struct Item {
    pub(super) key: Key,
    pub(super) digest: u64,
    pub(super) event: Event,
}

/// Reads the text of `file`: hands every object of interest to `sink`, each once, and returns what could
/// not be used.
pub(super) fn read(
    file: &str,
    format: Format,
    text: &str,
    node_name: &str,
    sink: &mut dyn FnMut(Item),
) -> Problems {
    let mut problems = Problems::default();
    let mut seen = HashSet::new();
    decode::objects(format, text, &mut |place, found| {
        let problem = |what| Problem {
            file: file.to_owned(),
            place: Some(place),
            what,
        };
        let found = match found {
            Ok(found) => found,
            Err(error) => return problems.push(problem(What::Skipped(describe(&error)))),
        };
        let mut warnings = Vec::new();
        let item = item(&found, node_name, &mut warnings);
        for warning in warnings {
            problems.push(problem(What::LeftOut(warning)));
        }
        match item {
            Ok(Some(item)) if seen.contains(&item.key) => {
                let winner = "an earlier document".to_owned();
                problems.push(problem(What::Duplicate {
                    object: item.key.to_string(),
                    winner,
                }));
            }
            Ok(Some(item)) => {
                seen.insert(item.key.clone());
                sink(item);
            }
            Ok(None) => {}
            Err(error) => problems.push(problem(What::Skipped(describe(&error)))),
        }
    });
    problems
}

/// What an object says; `None` for another node's Node.
fn item(
    found: &Found<'_>,
    node_name: &str,
    warnings: &mut Vec<Warning>,
) -> Result<Option<Item>, ObjectError> {
    let (key, event) = match found.kind {
        Kind::Service => {
            let raw: object::Service = found.typed()?;
            let service = object::service(&raw, warnings)?;
            let shared = service.as_ref().map(|service| service.name.clone());
            let name = shared.unwrap_or_else(|| raw.metadata.service_name());
            (Key::Service(name.clone()), Event::Service(name, service))
        }
        Kind::EndpointSlice => {
            let raw: object::EndpointSlice = found.typed()?;
            let slice = object::slice(&raw, warnings)?;
            let shared = slice.as_ref().map(|slice| slice.name.clone());
            let name = shared.unwrap_or_else(|| raw.metadata.slice_name());
            (Key::Slice(name.clone()), Event::Slice(name, slice))
        }
        Kind::Node => {
            let raw: object::Node = found.typed()?;
            if raw.metadata.name != node_name {
                return Ok(None);
            }
            (Key::Node, Event::Node(Some(object::node(&raw, warnings)?)))
        }
        Kind::ServiceCidr => {
            let (name, ranges) = object::service_cidr(&found.typed()?, warnings)?;
            (
                Key::ServiceCidr(name.clone()),
                Event::ServiceCidr(name, Some(ranges)),
            )
        }
    };
    Ok(Some(Item {
        key,
        digest: found.digest(),
        event,
    }))
}

/// How a file of this name is written; `None` for one that is not a manifest.
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
