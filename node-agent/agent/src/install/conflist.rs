//! CNI configurations as text: adds and removes denizen's entry without changing a byte of anything
//! else. Pure.
//!
//! Owners of configurations compare them with what they wrote, and operators read them, so the
//! order of keys, indentation and the notation of numbers must stay.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;

use denizen_cni::CniVersion;
use serde_json::Value;
use serde_json::value::RawValue;
use thiserror::Error;

/// The `type` of our entry: the plugin's file name.
pub const PLUGIN: &str = "denizen";

/// Why denizen cannot be added to a configuration.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum Unusable {
    /// It is not JSON, or not an object.
    #[error("it is not a JSON object: {0}")]
    Json(String),
    /// It is not a valid CNI configuration; runtimes refuse it too.
    #[error("it is not a CNI configuration: {0}")]
    Shape(&'static str),
    /// Its version does not support denizen: its results have no interfaces, or the version is
    /// unknown.
    #[error("denizen cannot be chained in cniVersion {0:?}")]
    Version(String),
    /// Without denizen the list would be empty.
    #[error("denizen is its only plugin")]
    Alone,
}

/// The members of an object, each as it is written. Of a repeated key the last one counts, as in
/// Go's decoder.
pub(super) type Members<'a> = BTreeMap<Cow<'a, str>, &'a RawValue>;

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
            .map_err(|_| Unusable::Shape("its plugins are not a list"))?;
        if plugins.is_empty() {
            return Err(Unusable::Shape("it has no plugins"));
        }
        if plugins.iter().any(|plugin| kind(plugin.get()).is_none()) {
            return Err(Unusable::Shape("one of its plugins has no type"));
        }
        Ok(Self { text, plugins })
    }

    /// The list with `entry` in place of the existing one, else at the end; `None` if it needs no
    /// change.
    pub(super) fn with_entry(&self, entry: &Value) -> Option<String> {
        if let Some(ours) = self.ours() {
            let is = serde_json::from_str::<Value>(self.plugins[ours].get()).ok();
            return (is.as_ref() != Some(entry))
                .then(|| self.replaced(self.place(ours), &entry.to_string()));
        }
        let last = self.place(self.plugins.len() - 1);
        // The same white space as before the last entry.
        let before = self.text[..last.start].trim_end().len();
        let space = &self.text[before..last.start];
        Some(self.replaced(last.end..last.end, &format!(",{space}{entry}")))
    }

    /// The list without denizen's entry; `None` if it has none.
    ///
    /// # Errors
    /// [`Unusable::Alone`].
    pub(super) fn without_entry(&self) -> Result<Option<String>, Unusable> {
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

    /// The lone plugin from which [`wrapped`] made this list; `None` if it is another kind of list.
    pub(super) fn lone(&self) -> Option<&'a str> {
        let first = self.plugins.first()?.get();
        let is_whole = members(first).is_ok_and(|members| check_head(&members).is_ok());
        (is_whole && self.is_pair()).then_some(first)
    }

    /// The list as it is written.
    pub(super) fn text(&self) -> &'a str {
        self.text
    }

    /// The plugins, as they are written.
    pub(super) fn plugins(&self) -> &[&'a RawValue] {
        &self.plugins
    }

    /// Whether the list consists of one other plugin and, behind that, denizen.
    pub fn is_pair(&self) -> bool {
        self.plugins.len() == 2 && self.ours() == Some(1)
    }

    /// The types of all plugins.
    pub fn kinds(&self) -> Vec<String> {
        self.plugins.iter().filter_map(|plugin| kind(plugin.get())).collect()
    }

    /// Denizen's entry, if there is one.
    pub fn entry(&self) -> Option<Value> {
        serde_json::from_str(self.plugins[self.ours()?].get()).ok()
    }

    fn ours(&self) -> Option<usize> {
        self.plugins.iter().position(|plugin| kind(plugin.get()).as_deref() == Some(PLUGIN))
    }

    /// The position of the plugin in the text: its raw value is a slice of that text.
    pub(super) fn place(&self, plugin: usize) -> Range<usize> {
        let raw = self.plugins[plugin].get();
        let start = raw.as_ptr() as usize - self.text.as_ptr() as usize;
        start..start + raw.len()
    }

    fn replaced(&self, place: Range<usize>, by: &str) -> String {
        [&self.text[..place.start], by, &self.text[place.end..]].concat()
    }
}

/// A list of the lone plugin in `text`, the content of a `.conf`, and denizen.
///
/// # Errors
/// [`Unusable`].
pub fn wrapped(text: &str, entry: &Value) -> Result<String, Unusable> {
    let members = members(text)?;
    if !has_text(&members, "type") {
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

pub(super) fn members(text: &str) -> Result<Members<'_>, Unusable> {
    serde_json::from_str(text).map_err(|error| Unusable::Json(error.to_string()))
}

/// Checks name and version. Of several versions, runtimes use the newest that they support.
fn check_head(members: &Members<'_>) -> Result<(), Unusable> {
    if !has_text(members, "name") {
        return Err(Unusable::Shape("it has no name"));
    }
    let one = members.get("cniVersion").and_then(|version| string(version));
    let several = members.get("cniVersions");
    let several =
        several.and_then(|versions| serde_json::from_str::<Vec<String>>(versions.get()).ok());
    let versions_written: Vec<String> = several.into_iter().flatten().chain(one).collect();
    match versions_written.iter().any(|version| CniVersion::named(version).is_some()) {
        true => Ok(()),
        false => Err(Unusable::Version(versions_written.join(", "))),
    }
}

/// Whether `key` has a text that is not empty.
fn has_text(members: &Members<'_>, key: &str) -> bool {
    let text = members.get(key).and_then(|value| string(value));
    text.is_some_and(|text| !text.is_empty())
}

/// The type of a plugin.
pub(super) fn kind(plugin: &str) -> Option<String> {
    let members: Members<'_> = serde_json::from_str(plugin).ok()?;
    string(members.get("type")?).filter(|kind| !kind.is_empty())
}

pub(super) fn string(value: &RawValue) -> Option<String> {
    serde_json::from_str(value.get()).ok()
}

#[cfg(test)]
mod tests;
