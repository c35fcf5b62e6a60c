//! CNI configurations as text: denizen's entry put in and taken out, and not a byte of anything
//! else changed. Pure.
//!
//! Configurations have owners who compare what they find with what they wrote, and operators who
//! read them: an order of keys, an indentation or a number's spelling is nobody else's to change.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;

use denizen_cni::CniVersion;
use serde_json::Value;
use serde_json::value::RawValue;
use thiserror::Error;

/// The `type` of our entry: the plugin's file name.
pub const PLUGIN: &str = "denizen";

/// Why a text is not a configuration that denizen can be chained in.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum Unusable {
    /// Not JSON, or no object.
    #[error("it is not a JSON object: {0}")]
    Json(String),
    /// Runtimes refuse it too.
    #[error("it is not a CNI configuration: {0}")]
    Shape(&'static str),
    /// A chain in this version cannot have denizen in it: it has no results with interfaces, or is
    /// not known.
    #[error("denizen cannot be chained in cniVersion {0:?}")]
    Version(String),
    /// Without denizen nothing would be left.
    #[error("denizen is its only plugin")]
    Alone,
}

/// The members of an object, each as it is written. Of a repeated key the last counts, as Go's
/// decoder has it.
type Members<'a> = BTreeMap<Cow<'a, str>, &'a RawValue>;

/// A valid list of plugins.
#[derive(Debug)]
pub struct Conflist<'a> {
    text: &'a str,
    plugins: Vec<&'a RawValue>,
}

impl<'a> Conflist<'a> {
    /// Reads `text`, the content of a `.conflist`.
    ///
    /// # Errors
    /// [`Unusable`].
    pub fn parse(text: &'a str) -> Result<Self, Unusable> {
        let members = members(text)?;
        check_head(&members)?;
        let plugins = members.get("plugins").ok_or(Unusable::Shape("it has no plugins"))?;
        let plugins: Vec<&'a RawValue> = serde_json::from_str(plugins.get())
            .map_err(|_| Unusable::Shape("its plugins are no list"))?;
        if plugins.is_empty() {
            return Err(Unusable::Shape("it has no plugins"));
        }
        if plugins.iter().any(|plugin| kind(plugin).is_none()) {
            return Err(Unusable::Shape("one of its plugins has no type"));
        }
        Ok(Self { text, plugins })
    }

    /// The list with denizen in it as `entry` says: where it stands, or else at the end; `None`
    /// when it is so already.
    pub fn with(&self, entry: &Value) -> Option<String> {
        if let Some(ours) = self.ours() {
            let is = serde_json::from_str::<Value>(self.plugins[ours].get()).ok();
            return (is.as_ref() != Some(entry))
                .then(|| self.replaced(self.place(ours), &entry.to_string()));
        }
        let last = self.place(self.plugins.len() - 1);
        // As the last one is set off from what is before it, so is ours from it.
        let before = self.text[..last.start].trim_end().len();
        let space = &self.text[before..last.start];
        Some(self.replaced(last.end..last.end, &format!(",{space}{entry}")))
    }

    /// The list without denizen; `None` when it is not in it.
    ///
    /// # Errors
    /// [`Unusable::Alone`].
    pub fn without(&self) -> Result<Option<String>, Unusable> {
        let Some(ours) = self.ours() else {
            return Ok(None);
        };
        let cut = match ours {
            0 if self.plugins.len() == 1 => return Err(Unusable::Alone),
            0 => self.place(0).start..self.place(1).start,
            _ => self.place(ours - 1).end..self.place(ours).end,
        };
        Ok(Some(self.replaced(cut, "")))
    }

    /// How many plugins there are, and whether denizen is the last of them.
    pub fn ends_with_ours(&self) -> (usize, bool) {
        (self.plugins.len(), self.ours() == Some(self.plugins.len() - 1))
    }

    fn ours(&self) -> Option<usize> {
        self.plugins.iter().position(|plugin| kind(plugin).as_deref() == Some(PLUGIN))
    }

    /// Where in the text the plugin stands: its raw value is a piece of that very text.
    fn place(&self, plugin: usize) -> Range<usize> {
        let raw = self.plugins[plugin].get();
        let start = raw.as_ptr() as usize - self.text.as_ptr() as usize;
        start..start + raw.len()
    }

    fn replaced(&self, place: Range<usize>, by: &str) -> String {
        [&self.text[..place.start], by, &self.text[place.end..]].concat()
    }
}

/// A list of the lone plugin that `text`, the content of a `.conf`, configures, and denizen.
///
/// # Errors
/// [`Unusable`].
pub fn wrapped(text: &str, entry: &Value) -> Result<String, Unusable> {
    let members = members(text)?;
    if !says(&members, "type") {
        return Err(Unusable::Shape("it has no type"));
    }
    check_head(&members)?;
    let head = ["cniVersion", "cniVersions", "name"].iter().filter_map(|key| {
        let value = members.get(*key)?.get();
        Some(format!("\n  \"{key}\": {value},"))
    });
    let head: String = head.collect();
    Ok(format!("{{{head}\n  \"plugins\": [\n{},\n{entry}\n  ]\n}}\n", text.trim()))
}

fn members(text: &str) -> Result<Members<'_>, Unusable> {
    serde_json::from_str(text).map_err(|error| Unusable::Json(error.to_string()))
}

/// A name, and a version that denizen speaks: of several, runtimes take the newest that they know.
fn check_head(members: &Members<'_>) -> Result<(), Unusable> {
    if !says(members, "name") {
        return Err(Unusable::Shape("it has no name"));
    }
    let one = members.get("cniVersion").and_then(|version| string(version));
    let several = members.get("cniVersions");
    let several =
        several.and_then(|versions| serde_json::from_str::<Vec<String>>(versions.get()).ok());
    let said: Vec<String> = several.into_iter().flatten().chain(one).collect();
    match said.iter().any(|version| CniVersion::named(version).is_some()) {
        true => Ok(()),
        false => Err(Unusable::Version(said.join(", "))),
    }
}

/// Whether there is a text under `key`, and not an empty one.
fn says(members: &Members<'_>, key: &str) -> bool {
    let text = members.get(key).and_then(|value| string(value));
    text.is_some_and(|text| !text.is_empty())
}

fn kind(plugin: &RawValue) -> Option<String> {
    let members: Members<'_> = serde_json::from_str(plugin.get()).ok()?;
    string(members.get("type")?).filter(|kind| !kind.is_empty())
}

fn string(value: &RawValue) -> Option<String> {
    serde_json::from_str(value.get()).ok()
}

#[cfg(test)]
mod tests;
