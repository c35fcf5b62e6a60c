//! Reading JSON.

use serde::Deserialize;

/// Reads `text`, as the bytes that it is: for each kind of input, the compiler makes everything that
/// reads JSON anew, and text as a second kind beside bytes makes the plugin 25 KB larger.
///
/// # Errors
/// When `text` is no JSON, or is not a `T`.
pub fn parse<'a, T: Deserialize<'a>>(text: &'a str) -> serde_json::Result<T> {
    serde_json::from_slice(text.as_bytes())
}
