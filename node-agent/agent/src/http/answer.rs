//! Answers to HTTP requests.

use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::time::Instant;

use hyper::body::Incoming;
use hyper::header::{HeaderName, HeaderValue};
use hyper::{Method, Request, StatusCode};
use jiff::Timestamp;

use super::ask::ask;
use super::connections::Connections;
use super::page::{is_meant_for, page};
use super::{Published, Site};
use crate::control::AgentRequest;
use denizen_model::{ServiceName, family_of};
use denizen_observe::status::health::HealthReport;
use denizen_observe::status::metrics::CONTENT_TYPE as METRICS;
use denizen_page::{Answer, answer, plain};

/// The header in which a load balancer expects this node's weight.
const WEIGHT: HeaderName = HeaderName::from_static("x-load-balancing-endpoint-weight");

/// The same as `/healthz` and `/livez`, by paths that no other program answers: kubelet's probes
/// must not take kube-proxy for this agent.
const READY: &str = "/denizen/ready";
const LIVE: &str = "/denizen/live";

/// Answers requests from what the loop publishes.
#[derive(Debug)]
pub(super) struct Answers {
    published: Published,
    connections: Connections,
}

impl Answers {
    pub(super) fn new(published: Published) -> Self {
        Self { published, connections: Connections::default() }
    }

    /// Answers a request at `site`, which arrived at the node's address `local`.
    pub(super) async fn answer(
        &self,
        site: Site,
        local: SocketAddr,
        request: &Request<Incoming>,
    ) -> Answer {
        match site {
            Site::HealthCheck => self.health_check(local),
            Site::Health | Site::Probe => self.health(request.uri().path()),
            Site::Metrics => self.metrics(local, request).await,
        }
    }

    async fn metrics(&self, local: SocketAddr, request: &Request<Incoming>) -> Answer {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return plain(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD are allowed\n");
        }
        match request.uri().path() {
            path @ ("/healthz" | "/livez" | READY | LIVE) => self.health(path),
            _ if !is_meant_for(local.ip(), request.headers()) => plain(
                StatusCode::MISDIRECTED_REQUEST,
                "use this node's address or localhost as the host name\n",
            ),
            "/metrics" => {
                // If the loop hangs, the last figures are served.
                let _ = ask(&self.published.requests, AgentRequest::Measure).await;
                answer(StatusCode::OK, METRICS, self.published.metrics.encode())
            }
            "/proxyMode" => match ask(&self.published.requests, AgentRequest::Status).await {
                Ok(status) => plain(StatusCode::OK, &status.backend),
                Err(_) => plain(StatusCode::SERVICE_UNAVAILABLE, "the agent is busy\n"),
            },
            "/" | "/style.css" => page(&self.published.requests, &self.connections, request).await,
            path => {
                let page = self.published.start.page(path, now());
                page.unwrap_or_else(|| plain(StatusCode::NOT_FOUND, "no such page\n"))
            }
        }
    }

    /// Health in kube-proxy's form. As in kube-proxy, any method is accepted.
    fn health(&self, path: &str) -> Answer {
        let loop_state = *self.published.loop_state.borrow();
        let metrics = &self.published.metrics.like_kube_proxy;
        let ((well, report), answers) = match path {
            "/healthz" | READY => {
                (HealthReport::healthz(&loop_state, now(), Timestamp::now()), &metrics.healthz)
            }
            "/livez" | LIVE => {
                (HealthReport::livez(&loop_state, now(), Timestamp::now()), &metrics.livez)
            }
            _ => return plain(StatusCode::NOT_FOUND, "no such page\n"),
        };
        answers.get_or_create(&[("code", if well { "200" } else { "503" })]).inc();
        match serde_json::to_string(&report) {
            Ok(body) => json(well, body),
            Err(error) => plain(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
        }
    }

    /// The service that has this health-check node port.
    pub(super) fn owner(&self, port: u16) -> Option<ServiceName> {
        let ports = self.published.ports.borrow();
        let check = ports.checks.get(&NonZeroU16::new(port)?)?;
        Some(check.service.clone())
    }

    /// Status, headers and body of kube-proxy's health-check node port (`service_health.go`), for
    /// any path and method.
    fn health_check(&self, local: SocketAddr) -> Answer {
        let ports = self.published.ports.borrow();
        let check = NonZeroU16::new(local.port()).and_then(|port| ports.checks.get(&port));
        let Some(check) = check else {
            return plain(StatusCode::NOT_FOUND, "no service has this health-check port\n");
        };
        let family = family_of(local.ip().to_canonical());
        let count = check.local_endpoints.get(&family).copied().unwrap_or_default();
        let healthy = self.published.loop_state.borrow().is_ready(now());
        let ServiceName { namespace, name } = &check.service;
        let [namespace, name] = [namespace, name].map(|text| serde_json::Value::from(&**text));
        let body = format!(
            "{{\n\t\"service\": {{\n\t\t\"namespace\": {namespace},\n\t\t\"name\": {name}\n\t}},\n\
             \t\"localEndpoints\": {count},\n\t\"serviceProxyHealthy\": {healthy}\n}}"
        );
        let mut answer = json(count > 0 && healthy, body);
        answer.headers_mut().insert(WEIGHT, HeaderValue::from(count));
        answer
    }
}

/// JSON, with 200 if all is well, else 503.
fn json(well: bool, body: String) -> Answer {
    let status = if well { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    answer(status, "application/json", body)
}

#[expect(
    clippy::disallowed_methods,
    reason = "whether the loop is late must be decided without the loop"
)]
fn now() -> Instant {
    Instant::now()
}
