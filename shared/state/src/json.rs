//! Reading JSON.

use serde::Deserialize;

/// Parses `text` as bytes. The compiler instantiates everything that reads JSON for each kind of
/// input: text as a second kind beside bytes would make the plugin 25 KB larger.
///
/// # Errors
///
/// When `text` is not JSON, or not a `T`.
pub fn parse<'a, T: Deserialize<'a>>(text: &'a str) -> serde_json::Result<T> {
    serde_json::from_slice(text.as_bytes())
}
