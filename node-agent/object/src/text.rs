//! Texts of objects.

use std::borrow::{Borrow, Cow};
use std::fmt;
use std::ops::Deref;

use serde::Deserialize;

/// A text that is not copied, unless it has escapes.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
pub struct BorrowedText<'a>(#[serde(borrow)] Cow<'a, str>);

impl Deref for BorrowedText<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for BorrowedText<'_> {
    fn borrow(&self) -> &str {
        self
    }
}

impl<'a> From<&'a str> for BorrowedText<'a> {
    fn from(text: &'a str) -> Self {
        Self(Cow::Borrowed(text))
    }
}

impl fmt::Debug for BorrowedText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

impl fmt::Display for BorrowedText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self)
    }
}
