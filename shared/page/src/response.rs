//! Responses, with the headers that each of them has.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use http::{Response, StatusCode};
use http_body_util::Full;

/// A response whose body is known as a whole.
pub type Answer = Response<Full<Bytes>>;

/// A response of plain text.
pub fn plain(status: StatusCode, text: &str) -> Answer {
    answer(status, "text/plain; charset=utf-8", text.to_owned())
}

/// A response of this type. The browser does not guess another one.
pub fn answer(status: StatusCode, content_type: &'static str, body: String) -> Answer {
    let mut answer = Response::new(Full::from(body));
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    answer
}

/// Headers of a page. They tell the browser: do not show it in a frame, keep no copy, tell no other
/// site its address.
const PRIVATE: [(&str, &str); 4] = [
    ("x-frame-options", "DENY"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cache-control", "no-store"),
];

/// Adds the headers of a page. `policy` says what the browser may load and run.
pub fn protect(answer: &mut Answer, policy: &'static str) {
    for (name, value) in PRIVATE.into_iter().chain([("content-security-policy", policy)]) {
        answer.headers_mut().insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
}
