//! `probe`: both ends of a connectivity test, for pods that `kubectl denizen test` makes of this
//! image. It needs no agent and no privilege.
//!
//! | file | knows |
//! | --- | --- |
//! | `message` | what both ends say to each other |
//! | `result` | what came of a probe |
//! | `serve` | the server |
//! | `connect` | the client |

#![expect(clippy::disallowed_methods, reason = "whoever waits for an answer has a clock")]

mod connect;
mod message;
mod result;
mod serve;

use std::fmt;
use std::num::NonZeroU16;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde::{Serialize, Serializer};

use super::{block_on, print};
use denizen_text::{duration, printable_json};

#[derive(Debug, Args)]
pub(super) struct ProbeArgs {
    #[command(subcommand)]
    end: ProbeEnd,
}

#[derive(Debug, Subcommand)]
enum ProbeEnd {
    /// Answer TCP connections and UDP datagrams with a name and the client's address, until a
    /// signal
    Serve(ServeArgs),
    /// Connect to servers, and print what came of it, as JSON
    Connect(ConnectArgs),
}

#[derive(Debug, Args)]
struct ServeArgs {
    /// What the server calls itself
    #[arg(long, value_name = "NAME")]
    name: String,
    /// A port to answer at
    #[arg(long = "port", value_name = "PORT", default_value = "8080")]
    ports: Vec<NonZeroU16>,
    /// Connect to this server before anything else, and tell what came of it in every answer over
    /// TCP. The server connects back to the first `--port`
    #[arg(long, value_name = "HOST:PORT[/PROTO]")]
    first: Vec<ProbeTarget>,
    /// Time limit for each of `--first`
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "4s")]
    timeout: Duration,
}

#[derive(Debug, Args)]
struct ConnectArgs {
    /// Whom to connect to; /udp for a datagram
    #[arg(value_name = "HOST:PORT[/PROTO]", required = true)]
    to: Vec<ProbeTarget>,
    /// Try again until there is an answer, for this long
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "4s")]
    timeout: Duration,
    /// Be content with a TCP connection, whoever accepts it
    #[arg(long)]
    handshake: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ProbeProtocol {
    Tcp,
    Udp,
}

/// Whom to connect to.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ProbeTarget {
    /// An address or a name, and a port.
    host: String,
    protocol: ProbeProtocol,
}

impl FromStr for ProbeTarget {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (host, protocol) = match text.rsplit_once('/') {
            None => (text, ProbeProtocol::Tcp),
            Some((host, "tcp")) => (host, ProbeProtocol::Tcp),
            Some((host, "udp")) => (host, ProbeProtocol::Udp),
            Some((_, other)) => return Err(format!("{other:?} is neither tcp nor udp")),
        };
        let port = host.rsplit_once(':').filter(|(name, _)| !name.is_empty());
        match port.map(|(_, port)| port.parse::<NonZeroU16>()) {
            Some(Ok(_)) => Ok(Self { host: host.to_owned(), protocol }),
            Some(Err(_)) | None => Err(format!("{text:?} is no HOST:PORT")),
        }
    }
}

impl fmt::Display for ProbeTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let protocol = match self.protocol {
            ProbeProtocol::Tcp => "tcp",
            ProbeProtocol::Udp => "udp",
        };
        write!(f, "{}/{protocol}", self.host)
    }
}

impl Serialize for ProbeTarget {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

pub(super) fn probe(args: ProbeArgs) -> anyhow::Result<()> {
    match args.end {
        ProbeEnd::Serve(args) => block_on(serve::serve(args)),
        ProbeEnd::Connect(args) => {
            let results = block_on(async { Ok(connect::connect(args).await) })?;
            print(&(printable_json(&serde_json::to_string(&results)?) + "\n"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_parsed_and_written_alike() {
        let cases = [
            ("10.0.0.1:80", Some("10.0.0.1:80/tcp")),
            ("[fd00::1]:80/udp", Some("[fd00::1]:80/udp")),
            ("web.shop:80/tcp", Some("web.shop:80/tcp")),
            ("10.0.0.1", None),
            (":80", None),
            ("10.0.0.1:0", None),
            ("10.0.0.1:80/sctp", None),
        ];
        for (text, expected) in cases {
            let target = text.parse::<ProbeTarget>().ok();
            assert_eq!(target.map(|target| target.to_string()).as_deref(), expected, "{text}");
        }
    }
}
