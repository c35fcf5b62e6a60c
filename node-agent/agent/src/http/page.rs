//! The status page for people, rendered here without scripts. Its values are not to be trusted
//! (names of services and pods are whatever a manifest says), so the template escapes each of them,
//! and the headers forbid the browser to run anything.

mod connections;
mod draw;
mod drops;
mod firewall;
mod packet;
#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::sync::Arc;

use hyper::body::Incoming;
use hyper::header::HeaderMap;
use hyper::{Request, StatusCode};
use tokio::sync::mpsc;

use super::ask::ask;
use super::connections::Connections;
use crate::control::{AgentRequest, ExplainQuery};
use denizen_observe::connections::Summary;
use denizen_observe::status::view::{View, ViewQuery};
use denizen_page::{Answer, STYLE, addressed_to, answer, protect};
use denizen_plan::explain::Explanation;

/// What the browser may do: run no script, load only our style, send forms only to us.
const POLICY: &str = "default-src 'none'; style-src 'self'; form-action 'self'; base-uri 'none'; \
                      frame-ancestors 'none'";

/// The request's query.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct PageQuery {
    view: ViewQuery,
    from: String,
    to: String,
    /// Whether connections are counted.
    connections: bool,
    /// Seconds after which the browser reloads the page.
    every: Option<u32>,
}

/// The loop's answer, or why there is none.
type Answered<T> = Result<T, String>;

/// The page, or its style.
pub(super) async fn page(
    requests: &mpsc::Sender<AgentRequest>,
    connections: &Connections,
    request: &Request<Incoming>,
) -> Answer {
    let mut page = match request.uri().path() {
        "/style.css" => answer(
            StatusCode::OK,
            "text/css; charset=utf-8",
            [STYLE, include_str!("page/style.css")].concat(),
        ),
        _ => {
            let asking = PageQuery::parse(request.uri().query().unwrap_or_default());
            rendered(requests, connections, &asking).await
        }
    };
    protect(&mut page, POLICY);
    page
}

async fn rendered(
    requests: &mpsc::Sender<AgentRequest>,
    connections: &Connections,
    asking: &PageQuery,
) -> Answer {
    let query = asking.view.clone();
    let view: Answered<View> = ask(requests, |reply| AgentRequest::View(query, reply)).await;
    let explanation: Option<Answered<Explanation>> =
        match (asking.from.as_str(), asking.to.as_str()) {
            ("", _) | (_, "") => None,
            (from, to) => {
                let (from, to) = (from.to_owned(), to.to_owned());
                let query = ExplainQuery { from, to };
                Some(ask(requests, |reply| AgentRequest::Explain(query, reply)).await)
            }
        };
    let summary: Option<Answered<Arc<Summary>>> = match asking.connections {
        true => Some(connections.summary(ask(requests, AgentRequest::Names)).await),
        false => None,
    };
    let status = match view {
        Ok(_) => StatusCode::OK,
        Err(_) => StatusCode::SERVICE_UNAVAILABLE,
    };
    let page = draw::document(asking, &view, explanation.as_ref(), summary.as_ref());
    answer(status, "text/html; charset=utf-8", page.into_string())
}

impl PageQuery {
    fn parse(query: &str) -> Self {
        let mut asking = Self::default();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            let value = value.trim();
            match &*name {
                "q" => asking.view.search = value.to_owned(),
                "skip" => asking.view.skip = value.parse().unwrap_or_default(),
                "from" => asking.from = value.to_owned(),
                "to" => asking.to = value.to_owned(),
                "connections" => asking.connections = !value.is_empty(),
                "every" => asking.every = value.parse().ok().map(|every: u32| every.clamp(1, 3600)),
                _ => {}
            }
        }
        asking
    }

    /// The address of the page with this query.
    fn link(&self, part: &str) -> String {
        let mut query = form_urlencoded::Serializer::for_suffix("/?".to_owned(), 2);
        let every = self.every.map(|every| every.to_string()).unwrap_or_default();
        let skip = match self.view.skip {
            0 => String::new(),
            skip => skip.to_string(),
        };
        let connections = if self.connections { "yes".to_owned() } else { String::new() };
        let written = [
            ("q", &self.view.search),
            ("skip", &skip),
            ("from", &self.from),
            ("to", &self.to),
            ("connections", &connections),
            ("every", &every),
        ];
        for (name, value) in written.into_iter().filter(|(_, value)| !value.is_empty()) {
            query.append_pair(name, value);
        }
        format!("{}#{part}", query.finish())
    }
}

/// Whether a request on loopback is meant for this agent, and does not come from another site's
/// page through DNS rebinding ([`addressed_to`]): on loopback, only requests whose host name is an
/// address or localhost are accepted.
pub(super) fn is_meant_for(local: IpAddr, headers: &HeaderMap) -> bool {
    if !local.to_canonical().is_loopback() {
        return true;
    }
    let Some(authority) = addressed_to(headers) else {
        return false;
    };
    let name = authority.host().trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
}
