//! What the text of an annotation sets.

use denizen_state::redirect::Redirect;

use super::key::RedirectKey;

/// What an annotation sets.
#[derive(Debug, Clone, Copy)]
pub(super) enum Reads {
    /// This value.
    One(&'static RedirectKey),
    /// All the values in a text that has a format of its own. The function does what
    /// [`Reads::apply`] does.
    Several(fn(&mut Redirect, &str) -> Result<Vec<&'static str>, String>),
}

impl Reads {
    /// Applies the annotation's `text` to `redirect`. Returns the names of the changed values, or
    /// what is wrong with the text.
    pub(super) fn apply(
        self,
        redirect: &mut Redirect,
        text: &str,
    ) -> Result<Vec<&'static str>, String> {
        match self {
            Reads::One(key) => key.apply(redirect, &key.entries(text)).map(|()| vec![key.name]),
            Reads::Several(apply) => apply(redirect, text),
        }
    }
}
