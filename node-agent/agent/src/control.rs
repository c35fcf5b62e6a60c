//! Requests to the agent's loop, from its socket and its HTTP server.
//!
//! On the socket each request and each answer is one JSON line. A client may send several requests
//! over one connection; they are answered in order. Inside the agent, each request has an answer of
//! its own type.

mod client;
mod server;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use denizen_state::socket::{WaitAnswer, WaitFor};
use serde::{Deserialize, Serialize};
use thiserror::Error;
use tokio::sync::oneshot;

pub use self::client::AgentClient;
pub use self::server::{listen, serve};
use crate::log::{LogLevel, LogLevelQuery};
use denizen_observe::names::Names;
use denizen_observe::status::Status;
use denizen_observe::status::view::{View, ViewQuery};
use denizen_observe::trace::Prediction;
use denizen_plan::explain::{Announced, Explanation};
use denizen_plan::{FrontendAddress, FrontendKey, Plan};

/// The channel for an answer, or for the reason why there is none; closed if the client is gone.
pub type Reply<T> = oneshot::Sender<Result<T, String>>;

/// A request to the loop.
#[derive(Debug)]
pub enum AgentRequest {
    /// Answered once the pod is programmed.
    WaitFor(WaitFor, Reply<WaitAnswer>),
    /// What happens to a packet.
    Explain(ExplainQuery, Reply<Explanation>),
    /// Why an address is, or is not, announced.
    Announce(IpAddr, Reply<Announced>),
    /// A packet, resolved and explained, for `denizen-agent trace`.
    Trace(ExplainQuery, Reply<Prediction>),
    Names(Reply<Names>),
    /// The virtual servers that are planned.
    VirtualServers(Reply<Vec<ServerAddress>>),
    /// Shows packets that rules drop or refuse, for a few seconds from now on.
    Sample(Reply<Sampled>),
    /// Shows or changes what is logged.
    LogLevel(LogLevelQuery, Reply<LogLevel>),
    Status(Reply<Status>),
    /// The content of the status page.
    View(ViewQuery, Reply<View>),
    /// Sets the metrics' gauges.
    Measure(Reply<()>),
}

/// A request on the socket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Request {
    /// Wait until a pod is programmed.
    WaitFor(WaitFor),
    /// Explain what happens to a packet.
    Explain {
        /// Source and destination, as on the command line.
        explain: ExplainQuery,
    },
    /// Explain why an address is, or is not, announced.
    Announce {
        announce: IpAddr,
    },
    /// Resolve and explain a packet for `denizen-agent trace`.
    Trace {
        /// Source and destination, as on the command line.
        trace: ExplainQuery,
    },
    Names {
        names: Empty,
    },
    /// The virtual servers that are planned, as [`ServerAddress`]es.
    VirtualServers {
        #[serde(rename = "virtualServers")]
        virtual_servers: Empty,
    },
    /// Show packets that rules drop or refuse, for a few seconds from now on.
    Sample {
        sample: Empty,
    },
    /// Shows or changes what is logged.
    LogLevel {
        #[serde(rename = "logLevel")]
        log_level: LogLevelQuery,
    },
    Status {
        status: Empty,
    },
    /// The content of the status page.
    View {
        view: ViewQuery,
    },
    /// Update the metrics' gauges. The answer is empty.
    Measure {
        measure: Empty,
    },
}

/// `--from` and `--to` of `denizen-agent explain` and `trace`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExplainQuery {
    /// `ADDR[@INTERFACE]`, or a pod of this node.
    pub from: String,
    /// `ADDR:PORT[/PROTO]`, `ADDR/icmp` or `ADDR/icmpv6`, or a service or a pod in place of the
    /// address.
    pub to: String,
}

/// Which dropped packets are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Sampled {
    /// Those that the rules of services drop or refuse.
    pub services: bool,
    /// Those that NetworkPolicies drop.
    pub network_policies: bool,
}

/// A virtual server's protocol, by its number in the IP header, and its address and port.
pub type ServerAddress = (u8, SocketAddr);

/// The addresses of the planned virtual servers.
pub fn server_addresses(plan: &Plan) -> Vec<ServerAddress> {
    let keys = plan.ipvs().into_iter().flat_map(|ipvs| ipvs.servers().keys());
    let at = |key: &FrontendKey| match key.address {
        FrontendAddress::Ip(ip) => Some((key.protocol.number(), (ip, key.port.get()).into())),
        FrontendAddress::Node(_) => None,
    };
    keys.filter_map(at).collect()
}

/// `{}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Empty {}

/// Why the socket cannot be used.
#[derive(Debug, Error)]
pub enum ControlError {
    /// Another agent answers there.
    #[error("another agent (process {pid}) runs on {path}", path = .path.display())]
    Taken { path: PathBuf, pid: i32 },
    /// No agent answers.
    #[error(
        "no agent answers on {path}: is `denizen-agent run` running with this --run-dir?",
        path = .path.display()
    )]
    Nobody {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The socket cannot be created.
    #[error("cannot listen on {path}", path = .path.display())]
    Listen {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The agent accepts the request and does not answer.
    #[error(
        "the agent (process {pid}) does not answer on {path} within {within:?}: it is stopped, or hangs",
        path = .path.display()
    )]
    Silent {
        path: PathBuf,
        /// The agent's process id from the socket; 0 if it runs in another PID namespace.
        pid: i32,
        within: Duration,
    },
    /// The agent's answer is not valid.
    #[error("the agent's answer cannot be read: {0}: is the agent of another version?")]
    Answer(String),
    /// The agent refuses the request, for this reason.
    #[error("{0}")]
    Refused(String),
}
