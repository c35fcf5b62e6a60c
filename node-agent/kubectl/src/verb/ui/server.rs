//! Who may ask what: pages on loopback, which other users of this machine and other sites' pages
//! reach too.
//!
//! The token is in the URL's fragment, which browsers send nobody. The page's script sends it as a
//! header. What needs no token tells nothing about the cluster.

use std::convert::Infallible;
use std::rc::Rc;
use std::time::Duration;

use denizen_page::{Answer, STYLE, addressed_to, answer, plain, protect};
use http::header::{AUTHORIZATION, ETAG, HeaderMap, HeaderValue, IF_NONE_MATCH, ORIGIN};
use http::{Method, Request, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use maud::{DOCTYPE, Markup, html};
use tokio::net::TcpStream;

use super::Ui;
use super::drawing::PictureFilter;
use super::observation::EdgeVerdict;

/// What the browser may do: run our script, load our style, ask us. Nothing else, and nobody else.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
                      connect-src 'self'; form-action 'none'; base-uri 'none'; \
                      frame-ancestors 'none'";

/// Time limit for a request's head.
const HEAD: Duration = Duration::from_secs(5);

/// Serves one connection.
pub async fn serve(stream: TcpStream, ui: Rc<Ui>) {
    let answer = service_fn(|request: Request<Incoming>| {
        let ui = ui.clone();
        async move {
            let (head, _) = request.into_parts();
            let query = head.uri.query().unwrap_or_default();
            let mut answer = match refused(&ui, &head.method, head.uri.path(), &head.headers) {
                Some(refusal) => refusal,
                None => answered(&ui, head.uri.path(), query, &head.headers).await,
            };
            protect(&mut answer, POLICY);
            Ok::<_, Infallible>(answer)
        }
    });
    // A browser that goes away is no error.
    let _ = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), answer)
        .await;
}

/// Why a request is not answered.
fn refused(ui: &Ui, method: &Method, path: &str, headers: &HeaderMap) -> Option<Answer> {
    let hosts = ["127.0.0.1", "localhost"].map(|name| format!("{name}:{}", ui.port));
    if !addressed_to(headers).is_some_and(|host| hosts.iter().any(|own| host.as_str() == own)) {
        let words = format!("this is {}\n", hosts.join(" or "));
        return Some(plain(StatusCode::MISDIRECTED_REQUEST, &words));
    }
    let is_own = |origin: &HeaderValue| {
        hosts.iter().any(|own| origin.as_bytes() == format!("http://{own}").as_bytes())
    };
    if headers.get(ORIGIN).is_some_and(|origin| !is_own(origin)) {
        return Some(plain(StatusCode::FORBIDDEN, "other sites' pages may not ask\n"));
    }
    if method != Method::GET {
        return Some(plain(StatusCode::METHOD_NOT_ALLOWED, "only GET is allowed\n"));
    }
    let is_public = ["/", "/style.css", "/script.js"].contains(&path);
    if !is_public && !has_token(headers, &ui.token) {
        let words = "the address that kubectl denizen ui printed has a token\n";
        return Some(plain(StatusCode::UNAUTHORIZED, words));
    }
    None
}

fn has_token(headers: &HeaderMap, token: &str) -> bool {
    let given = headers.get(AUTHORIZATION).map(HeaderValue::as_bytes);
    let Some(given) = given.and_then(|given| given.strip_prefix(b"Bearer ")) else { return false };
    // The comparison takes as long for a token that is nearly right.
    given.len() == token.len()
        && given.iter().zip(token.bytes()).fold(0, |sum, (one, other)| sum | (one ^ other)) == 0
}

async fn answered(ui: &Rc<Ui>, path: &str, query: &str, headers: &HeaderMap) -> Answer {
    let html =
        |page: Markup| answer(StatusCode::OK, "text/html; charset=utf-8", page.into_string());
    match path {
        "/" => html(shell()),
        "/style.css" => {
            let style = [STYLE, include_str!("style.css")].concat();
            answer(StatusCode::OK, "text/css; charset=utf-8", style)
        }
        "/script.js" => {
            let script = include_str!("script.js").to_owned();
            answer(StatusCode::OK, "text/javascript; charset=utf-8", script)
        }
        "/picture" => {
            ui.refresh().await;
            let mut state = ui.state.borrow_mut();
            let tag = format!("\"{}\"", state.version());
            if headers.get(IF_NONE_MATCH).is_some_and(|seen| seen.as_bytes() == tag.as_bytes()) {
                return plain(StatusCode::NOT_MODIFIED, "");
            }
            let mut answer = html(state.parts(&filter(query)));
            if let Ok(tag) = HeaderValue::from_str(&tag) {
                answer.headers_mut().insert(ETAG, tag);
            }
            answer
        }
        "/explain" => {
            let edge = value(query, "edge").unwrap_or_default();
            plain(StatusCode::OK, &ui.explain(&edge).await)
        }
        _ => plain(StatusCode::NOT_FOUND, "no such page\n"),
    }
}

fn value(query: &str, name: &str) -> Option<String> {
    let mut pairs = form_urlencoded::parse(query.as_bytes());
    pairs.find(|(key, _)| key == name).map(|(_, value)| value.trim().to_owned())
}

fn filter(query: &str) -> PictureFilter {
    let text = |name: &str| value(query, name).filter(|value| !value.is_empty());
    PictureFilter {
        search: text("search").unwrap_or_default(),
        namespace: text("namespace"),
        problems: text("problems").is_some(),
    }
}

/// For people who do not see the picture.
const KEYS: &str = "the picture: up and down go from edge to edge, left and right from box to box, \
                    Enter explains or opens; the table below has the same edges";

/// The page without anything of the cluster.
pub fn shell() -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { "denizen: who talks to whom" }
                link rel="stylesheet" href="/style.css";
                script src="/script.js" defer {}
            }
            body {
                header {
                    h1 { "denizen" }
                    p #live.badge.warn role="status" { "asking…" }
                    (controls())
                }
                main {
                    div #notices {}
                    div #summary aria-live="polite" {}
                    section.map {
                        div #scroll tabindex="0" aria-label=(KEYS) {
                            div #picture {}
                        }
                        (legend())
                    }
                    section #explanation hidden tabindex="-1" aria-live="polite" {
                        button #close type="button" { "Close" }
                        h2 { "Explained" }
                        pre #explained {}
                    }
                    div #rows {}
                }
            }
        }
    }
}

fn controls() -> Markup {
    html! {
        form #controls.search role="search" {
            input #search type="search" name="search" autocomplete="off" aria-label="search"
                placeholder="workload, service, port or reason";
            label.check { input #problems type="checkbox"; "only problems" }
            label.check { input #full type="checkbox"; "full size" }
            button #all type="button" hidden { "all namespaces" }
        }
    }
}

/// Lines as the picture has them, with their words.
fn legend() -> Markup {
    let lines = EdgeVerdict::ALL.map(|verdict| match verdict {
        EdgeVerdict::Connected => (verdict, "connected"),
        EdgeVerdict::Unanswered => (verdict, "unanswered: nothing came back"),
        EdgeVerdict::Refused => (verdict, "refused by a rule"),
        EdgeVerdict::Dropped => (verdict, "dropped by a rule"),
    });
    let boxes = ["workload", "service", "node", "outside"];
    html! {
        ul.legend aria-label="legend" {
            @for (verdict, words) in lines {
                @let end = format!("url(#end-{})", verdict.word());
                li {
                    svg width="46" height="12" aria-hidden="true" {
                        g.edge.(verdict.word()) { path.line d="M2 6 H40" marker-end=(end) {} }
                    }
                    (words)
                }
            }
            @for name in boxes { li { span.swatch.(name) {} (name) } }
            li.keys {
                kbd { "/" } " search, " kbd { "↑" } kbd { "↓" } " edges, " kbd { "←" } kbd { "→" }
                " boxes, " kbd { "Enter" } " explain, " kbd { "Esc" } " back"
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_what_is_looked_for() {
        let expected = PictureFilter {
            search: "<b> x".to_owned(),
            namespace: Some("shop".to_owned()),
            problems: true,
        };
        assert_eq!(filter("search=%3Cb%3E+x&namespace=shop&problems=yes&other=1"), expected);
        assert_eq!(filter("search=&namespace=&problems="), PictureFilter::default());
    }

    #[test]
    fn only_the_whole_token_is_one() {
        let given = |value: &'static str| {
            HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::from_static(value))])
        };
        assert!(has_token(&given("Bearer 00ff"), "00ff"));
        for other in ["Bearer 00f", "Bearer 00fe", "Bearer 00ff0", "00ff", "Bearer "] {
            assert!(!has_token(&given(other), "00ff"), "{other}");
        }
        assert!(!has_token(&HeaderMap::new(), "00ff"));
    }
}
