//! Reads the state file again and again, and decodes only the records that changed.
//!
//! The agent reads the file after each ADD and DEL, and one record of hundreds differs. Everything
//! is still checked. A file that is not as this module expects (a repeated key, a record that
//! belongs to another attachment, an unreadable file) is left to the typed format: this module is
//! an optimisation and decides nothing. A test checks that both read the same.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Map;
use serde_json::value::RawValue;

use crate::error::StateError;
use crate::format;
use crate::json;
use crate::run_dir::STATE_FILE;
use crate::state::{Attachment, AttachmentId, State, VERSION};
use crate::store::RunDir;

/// What the last read has decoded: each record, with its text.
#[derive(Debug, Default)]
pub struct StateReader {
    records: HashMap<AttachmentId, (Box<str>, Attachment)>,
}

impl StateReader {
    /// As [`RunDir::read`].
    ///
    /// # Errors
    ///
    /// Those of [`RunDir::read`].
    pub fn read(&mut self, dir: &RunDir) -> Result<Option<State>, StateError> {
        let path = dir.path().join(STATE_FILE);
        let Some(text) = dir.text(&path)? else { return Ok(None) };
        match self.parse(&text) {
            Some(state) => Ok(Some(state)),
            None => format::parse(&text, &path).map(Some),
        }
    }

    /// `None` if the typed format must read `text`; it also reports what is wrong with `text`, if
    /// anything is.
    fn parse(&mut self, text: &[u8]) -> Option<State> {
        let DistinctMembers(mut members) = serde_json::from_slice(text).ok()?;
        let records: DistinctMembers<'_> = json::parse(members.remove("attachments")?).ok()?;
        let mut state = State {
            version: json::parse(members.remove("version")?).ok()?,
            epoch: json::parse(members.remove("epoch")?).ok()?,
            generation: json::parse(members.remove("generation")?).ok()?,
            plugin_was_called: match members.remove("pluginWasCalled") {
                Some(value) => json::parse(value).ok()?,
                None => false,
            },
            attachments: BTreeMap::new(),
            unknown: Map::new(),
        };
        for (name, value) in members {
            state.unknown.insert(name, json::parse(value).ok()?);
        }
        let mut before = std::mem::take(&mut self.records);
        for (id, text) in records.0 {
            let id = AttachmentId(id);
            let same = before.remove(&id).filter(|(earlier, _)| **earlier == *text);
            let record = match same {
                Some(record) => record,
                None => (text.into(), json::parse::<Attachment>(text).ok()?),
            };
            if record.1.id() != id {
                return None;
            }
            state.attachments.insert(id.clone(), record.1.clone());
            self.records.insert(id, record);
        }
        (state.version == VERSION).then_some(state)
    }
}

/// The members of an object, each with the text of its value. A repeated name is an error.
struct DistinctMembers<'a>(BTreeMap<String, &'a str>);

impl<'de> Deserialize<'de> for DistinctMembers<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ObjectVisitor;

        impl<'de> Visitor<'de> for ObjectVisitor {
            type Value = DistinctMembers<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = BTreeMap::new();
                while let Some((name, value)) = map.next_entry::<String, &RawValue>()? {
                    if members.insert(name, value.get()).is_some() {
                        return Err(A::Error::custom("a repeated name"));
                    }
                }
                Ok(DistinctMembers(members))
            }
        }

        deserializer.deserialize_map(ObjectVisitor)
    }
}

#[cfg(test)]
mod tests;
