//! Denizen in place of portmap in a list of plugins: takes portmap's entries out, and puts them
//! back as they were. Pure.
//!
//! Entries that are taken out are kept in denizen's own entry, so that they cannot be lost while
//! denizen is in the list.

use denizen_cni::REPLACED_PORTMAP;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::conflist::{Conflist, PLUGIN, Unusable, kind};

pub const PORTMAP: &str = "portmap";

/// An entry that was taken out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Removed {
    /// How many plugins were before the entry, without denizen.
    behind: usize,
    /// The entry's text, from the end of the plugin before it.
    text: String,
}

/// Whether denizen's `entry` replaces portmap, or is to replace it.
pub(super) fn replaces(entry: &Value) -> bool {
    entry.get(REPLACED_PORTMAP).is_some()
}

/// The list of plugins `text` without portmap's entries, and the entries that were taken out.
/// Entries with options that denizen does not support stay: see [`obstacle`].
///
/// # Errors
/// [`Unusable`].
pub(super) fn without(text: &str) -> Result<(String, Vec<Removed>), Unusable> {
    let (mut text, mut removed) = (text.to_owned(), Vec::new());
    loop {
        let list = Conflist::parse(&text)?;
        let plugins = list.plugins();
        let is_replaced = |plugin: &RawValue| is_portmap(plugin) && obstacle_of(plugin).is_none();
        // portmap is never the first plugin: it needs another plugin's result.
        let found = plugins.iter().skip(1).position(|plugin| is_replaced(plugin));
        let Some(number) = found.map(|number| number + 1) else { break };
        let cut = list.place(number - 1).end..list.place(number).end;
        let before = plugins.iter().take(number);
        let behind = before.filter(|plugin| !is(plugin, PLUGIN)).count() + removed.len();
        removed.push(Removed { behind, text: text[cut.clone()].to_owned() });
        text.replace_range(cut, "");
    }
    Ok((text, removed))
}

/// `text`, a list of plugins without denizen, with the entries that [`without`] took out.
///
/// # Errors
/// [`Unusable`].
pub(super) fn with(text: String, removed: &[Removed]) -> Result<String, Unusable> {
    let mut text = text;
    for Removed { behind, text: entry } in removed {
        let list = Conflist::parse(&text)?;
        let behind = (*behind).clamp(1, list.plugins().len());
        let at = list.place(behind - 1).end;
        text.insert_str(at, entry);
    }
    Ok(text)
}

/// The entries of portmap that are kept in `entry`.
pub(super) fn kept(entry: &Value) -> Vec<Removed> {
    let kept = entry.get(REPLACED_PORTMAP).cloned().unwrap_or_default();
    serde_json::from_value(kept).unwrap_or_default()
}

/// `entry`, with the entries `removed` kept in it.
pub(super) fn keeping(entry: &Value, removed: &[Removed]) -> Value {
    let mut entry = entry.clone();
    if let Some(fields) = entry.as_object_mut() {
        let kept = serde_json::to_value(removed).expect("it has no map with other keys than text");
        fields.insert(REPLACED_PORTMAP.to_owned(), kept);
    }
    entry
}

/// Why portmap stays in a list though it is to be replaced.
pub(super) fn obstacle(list: &Conflist<'_>) -> Option<String> {
    let mut portmaps = list.plugins().iter().filter(|plugin| is_portmap(plugin));
    portmaps.find_map(|plugin| obstacle_of(plugin))
}

fn obstacle_of(plugin: &RawValue) -> Option<String> {
    let fields: Map<String, Value> = serde_json::from_str(plugin.get()).ok()?;
    let is_set = |key: &str| fields.get(key).is_some_and(|value| !is_nothing(value));
    let why = if is_set("conditionsV4") || is_set("conditionsV6") {
        "conditionsV4 or conditionsV6: denizen serves a host port to everybody, and a NetworkPolicy \
         limits the clients"
    } else if is_set("masqAll") {
        "masqAll: denizen keeps the clients' addresses"
    } else if fields.get("snat") == Some(&false.into()) {
        "snat false: denizen masquerades a pod that reaches itself, and what comes from 127.0.0.0/8"
    } else if is_set("externalSetMarkChain") {
        "externalSetMarkChain: denizen uses no chain of others"
    } else {
        return None;
    };
    Some(format!("portmap stays in the list, since its entry has {why}"))
}

fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(is_so) => !is_so,
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Number(_) | Value::Object(_) => false,
    }
}

fn is_portmap(plugin: &RawValue) -> bool {
    is(plugin, PORTMAP)
}

fn is(plugin: &RawValue, name: &str) -> bool {
    kind(plugin.get()).as_deref() == Some(name)
}
