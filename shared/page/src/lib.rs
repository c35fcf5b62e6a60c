//! What our pages for people share: the style, the headers of responses, and the name that a
//! request is addressed to. It knows no page.

#![deny(missing_docs)]

mod response;

pub use response::{Answer, answer, plain, protect};

use http::header::{HOST, HeaderMap};
use http::uri::Authority;

/// Colours, and the looks of elements: a page's own style comes after it.
pub const STYLE: &str = include_str!("style.css");

/// The host name and the port that a request is addressed to.
///
/// A page of another site may have its own name lead to a loopback address, and so read what a
/// browser fetches from there (DNS rebinding). Such requests name that host.
pub fn addressed_to(headers: &HeaderMap) -> Option<Authority> {
    headers.get(HOST)?.to_str().ok()?.parse().ok()
}
