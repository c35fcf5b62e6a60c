//! Multus beside denizen. Multus is called first, and calls the plugins of the pod's own network:
//! denizen belongs into that network's list.
//!
//! The thin plugin has a copy of the network's configuration in its own file, first of `delegates`.
//! It makes the copy when it starts (multus-cni's `thin_entrypoint`), from the first `.conf` or
//! `.conflist` whose name does not begin with `00-multus.conf`. The thick plugin names the
//! network's file (`clusterNetwork`), and reads it at each call.

use std::path::Path;

use serde_json::Value;
use serde_json::value::RawValue;

use super::conflist::{Conflist, Members, Unusable, kind, members, string, wrapped};
use super::own_entry;

/// The plugin's type: the thin plugin, and the thick one's client.
const TYPES: [&str; 2] = ["multus", "multus-shim"];

/// Whether Multus, unlike runtimes, ignores files with this extension.
pub(super) fn ignores(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending == "json")
}

/// Whether `text` is a configuration of Multus: a lone plugin, or a list.
pub(super) fn is_multus(text: &str) -> bool {
    plugin(text).is_some()
}

/// The name of the file that the thick plugin delegates to.
pub(super) fn network_file(text: &str) -> Option<String> {
    let network = string(members(plugin(text)?.get()).ok()?.get("clusterNetwork")?)?;
    Some(Path::new(&network).file_name()?.to_string_lossy().into_owned())
}

/// The types of the plugins that Multus's file `text` delegates to, and denizen's entry among them.
/// `None` if they are in another file.
pub(super) fn delegate(text: &str) -> Option<(Vec<String>, Option<Value>)> {
    let network = network(text)?.get();
    match Conflist::parse(network) {
        Ok(list) => Some((list.kinds(), list.entry())),
        Err(_) => Some((vec![kind(network)?], None)),
    }
}

/// Multus's file `text` with `entry` in the copy of the pod's network; `None` if it needs no
/// change.
///
/// # Errors
/// [`Unusable`].
pub(super) fn with(text: &str, entry: &Value) -> Result<Option<String>, Unusable> {
    changed(text, |network| with_entry(network, entry))
}

/// Multus's file `text` without denizen; `None` if it does not contain denizen.
///
/// # Errors
/// [`Unusable`].
pub(super) fn without(text: &str) -> Result<Option<String>, Unusable> {
    changed(text, |network| match Conflist::parse(network) {
        Ok(list) => match list.lone() {
            Some(lone) => Ok(Some(lone.to_owned())),
            None => own_entry::without(&list),
        },
        Err(_) => Ok(None),
    })
}

/// Takes denizen out of Multus's own list, where earlier releases put it, and applies `change` to
/// the pod's own network.
fn changed(
    text: &str,
    change: impl FnOnce(&str) -> Result<Option<String>, Unusable>,
) -> Result<Option<String>, Unusable> {
    let alone = match Conflist::parse(text) {
        Ok(list) => own_entry::without(&list)?,
        Err(_) => None,
    };
    let now = alone.as_deref().unwrap_or(text);
    let Some(network) = network(now) else { return Ok(alone) };
    let Some(next) = change(network.get())? else { return Ok(alone) };
    let start = network.get().as_ptr() as usize - now.as_ptr() as usize;
    let (before, after) = (&now[..start], &now[start + network.get().len()..]);
    Ok(Some([before, next.trim_end(), after].concat()))
}

fn with_entry(network: &str, entry: &Value) -> Result<Option<String>, Unusable> {
    // Earlier releases wrapped Multus's own configuration in a list, and Multus took that list for
    // the pod's network.
    if let Some(inner) = self::network(network) {
        let inner = inner.get();
        return Ok(Some(with_entry(inner, entry)?.unwrap_or_else(|| inner.to_owned())));
    }
    match members(network)?.contains_key("plugins") {
        true => Ok(own_entry::with(&Conflist::parse(network)?, entry)),
        false => wrapped(network, entry).map(Some),
    }
}

/// The plugin Multus in `text`.
fn plugin(text: &str) -> Option<&RawValue> {
    let is_it = |plugin: &RawValue| kind(plugin.get()).is_some_and(|kind| TYPES.contains(&&*kind));
    match Conflist::parse(text) {
        Ok(list) => list.plugins().iter().copied().find(|plugin| is_it(plugin)),
        Err(_) => serde_json::from_str::<&RawValue>(text).ok().filter(|plugin| is_it(plugin)),
    }
}

/// The pod's own network in Multus's file `text`: the first that it delegates to.
fn network(text: &str) -> Option<&RawValue> {
    let members: Members<'_> = members(plugin(text)?.get()).ok()?;
    let delegates: Vec<&RawValue> = serde_json::from_str(members.get("delegates")?.get()).ok()?;
    delegates.first().copied()
}

#[cfg(test)]
mod tests;
