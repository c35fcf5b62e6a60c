//! What our pages for people share: the style, the headers of responses, and the name that a
//! request is addressed to. It knows no page.

#![deny(missing_docs)]

mod response;

pub use response::{Answer, answer, plain, protect};

use std::collections::BTreeSet;

use http::header::{HOST, HeaderMap};
use http::uri::Authority;

/// Colours, and the looks of elements: a page's own style comes after it.
pub const STYLE: &str = include_str!("style.css");

/// The host name and the port that a request is addressed to.
///
/// A page of another site may have its own name lead to a loopback address, and so read what a
/// browser fetches from there (DNS rebinding). The `Host` header of such a request has the other
/// site's name.
pub fn addressed_to(headers: &HeaderMap) -> Option<Authority> {
    headers.get(HOST)?.to_str().ok()?.parse().ok()
}

/// The classes of a page that its style does not have, for tests: such a class shows that a style
/// was renamed.
pub fn unstyled<'a>(page: &'a str, style: &str) -> BTreeSet<&'a str> {
    let named = page.split("class=\"").skip(1).filter_map(|rest| rest.split('"').next());
    let is_styled = |class: &&str| {
        let selector = format!(".{class}");
        let mut found = style.match_indices(&selector);
        found.any(|(at, _)| {
            let next = style[at + selector.len()..].chars().next();
            next.is_some_and(|next| !next.is_alphanumeric() && next != '-')
        })
    };
    named.flat_map(str::split_whitespace).filter(|class| !is_styled(class)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_without_a_style_is_found() {
        let style = ".bad { color: red } .good-ground { color: green }";
        let page = r#"<p class="bad"><b class="good bad other">"#;
        assert_eq!(unstyled(page, style), BTreeSet::from(["good", "other"]));
    }
}
