//! The requests to agents.

use std::net::IpAddr;

use serde::Serialize;

/// A request, as `denizen-agent relay` takes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Request {
    Status(Empty),
    Check(Empty),
    Drops(Empty),
    Dropped(DroppedQuery),
    Refused(RefusedQuery),
    View(ViewQuery),
    Explain(ExplainQuery),
    Connections(ConnectionsQuery),
    /// How packets to an address leave the node.
    Route(IpAddr),
}

/// `{}`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Empty {}

/// A part of the services and pods.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ViewQuery {
    /// A text in the name or an address.
    pub search: String,
    /// The number of services to skip.
    pub skip: usize,
}

/// What happens to a packet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ExplainQuery {
    pub from: String,
    pub to: String,
}

/// Some of the connections.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ConnectionsQuery {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// The most that are shown.
    pub limit: usize,
}

/// What rules drop within a few seconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DroppedQuery {
    pub seconds: u64,
}

/// Flows whose packets were dropped or refused within the last 15 minutes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RefusedQuery {
    /// The most that are named.
    pub limit: usize,
}

impl Request {
    pub const STATUS: Self = Self::Status(Empty {});
    pub const CHECK: Self = Self::Check(Empty {});
    pub const DROPS: Self = Self::Drops(Empty {});

    /// As JSON, on one line.
    pub fn line(&self) -> String {
        serde_json::to_string(self).expect("plain data")
    }

    pub fn name(&self) -> &'static str {
        match self {
            Self::Status(_) => "status",
            Self::Check(_) => "check",
            Self::Drops(_) => "drops",
            Self::Dropped(_) => "dropped",
            Self::Refused(_) => "refused",
            Self::View(_) => "view",
            Self::Explain(_) => "explain",
            Self::Connections(_) => "connections",
            Self::Route(_) => "route",
        }
    }

    /// The agent's command with the same answer, for agents without `relay`; `None` if there is
    /// none.
    pub fn command(&self) -> Option<Vec<String>> {
        let mut words = vec![self.name().to_owned(), "--output=json".to_owned()];
        match self {
            Self::Status(_) | Self::Check(_) | Self::Drops(_) => {}
            Self::View(_) | Self::Dropped(_) | Self::Refused(_) | Self::Route(_) => return None,
            // Each flag and its value are one word, so that no name is taken for another flag.
            Self::Explain(ExplainQuery { from, to }) => {
                words.extend([format!("--from={from}"), format!("--to={to}")]);
            }
            Self::Connections(ConnectionsQuery { pod, service, limit: _ }) => {
                words.extend(pod.iter().map(|pod| format!("--pod={pod}")));
                words.extend(service.iter().map(|service| format!("--service={service}")));
            }
        }
        Some(words)
    }
}
