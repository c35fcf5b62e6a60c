//! HTTP requests by curl: a client that is not ours.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::node::netns::Netns;

/// What came back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// The status code.
    pub status: u16,
    /// Everything before the body, as it came.
    pub head: String,
    /// The body.
    pub body: String,
}

impl Reply {
    /// The value of a header field, whose name is written in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        let fields = self.head.lines().filter_map(|line| line.split_once(':'));
        let mut named = fields.filter(|(field, _)| field.eq_ignore_ascii_case(name));
        named.next().map(|(_, value)| value.trim())
    }

    /// The body as JSON.
    pub fn json(&self) -> Result<Value> {
        serde_json::from_str(&self.body).with_context(|| format!("no JSON: {}", self.body))
    }
}

/// `http://ADDRESS:PORT/PATH`.
pub fn url(address: IpAddr, port: u16, path: &str) -> String {
    format!("http://{}{path}", SocketAddr::new(address, port))
}

/// Requests `url` from inside `from`; `more` are further arguments of curl.
///
/// # Errors
/// When nobody answers, with curl's message.
pub fn fetch(from: &Netns, url: &str, more: &[&str]) -> Result<Reply> {
    let mut arguments = vec!["--silent", "--show-error", "--include", "--max-time", "20"];
    arguments.extend(more);
    arguments.push(url);
    let text = from.output("curl", &arguments)?;
    let (head, body) = text.split_once("\r\n\r\n").with_context(|| format!("no HTTP: {text}"))?;
    let status = head.split(' ').nth(1).and_then(|word| word.parse().ok());
    Ok(Reply {
        status: status.with_context(|| format!("no status: {head}"))?,
        head: head.to_owned(),
        body: body.to_owned(),
    })
}

/// The value of this series in the `/metrics` of a node's agent.
pub fn metric(node: &Netns, series: &str) -> Result<f64> {
    const METRICS: u16 = 10249;
    let reply = fetch(node, &url(Ipv4Addr::LOCALHOST.into(), METRICS, "/metrics"), &[])?;
    let mut values = reply.body.lines().filter_map(|line| line.rsplit_once(' '));
    let found = values.find(|(name, _)| *name == series);
    Ok(found.with_context(|| format!("no metric {series}"))?.1.parse()?)
}
