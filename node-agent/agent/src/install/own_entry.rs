//! Denizen's entry in a list of plugins, and portmap's entries: those that denizen replaces are
//! kept in denizen's entry, and are not in the list. Pure.

use serde_json::Value;

use super::conflist::{Conflist, Unusable};
use super::portmap::{self, Removed};

/// `list` with `entry`: in place of the existing one, else at the end. `None` if it needs no
/// change.
pub(super) fn with(list: &Conflist<'_>, entry: &Value) -> Option<String> {
    let kept = kept_in(list);
    if portmap::replaces(entry) {
        let (text, mut removed) = portmap::without(list.text()).ok()?;
        if removed.is_empty() {
            // portmap was replaced before, or the list has none.
            removed = kept;
        }
        let entry = portmap::keeping(entry, &removed);
        let with = Conflist::parse(&text).ok()?.with_entry(&entry);
        return with.or_else(|| (text != list.text()).then_some(text));
    }
    if !kept.is_empty() {
        let without = without(list).ok()??;
        return Conflist::parse(&without).ok()?.with_entry(entry);
    }
    list.with_entry(entry)
}

/// `list` without denizen, and with the entries of portmap that denizen has replaced; `None` if it
/// does not contain denizen.
///
/// # Errors
/// [`Unusable::Alone`].
pub(super) fn without(list: &Conflist<'_>) -> Result<Option<String>, Unusable> {
    match list.without_entry()? {
        Some(text) => portmap::with(text, &kept_in(list)).map(Some),
        None => Ok(None),
    }
}

/// The entries of portmap that are kept in denizen's entry in `list`.
fn kept_in(list: &Conflist<'_>) -> Vec<Removed> {
    list.entry().map(|ours| portmap::kept(&ours)).unwrap_or_default()
}

#[cfg(test)]
mod tests;
