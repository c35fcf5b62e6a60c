//! A connection, for a person and for a program.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use serde::Serialize;

use super::Tracked;
use crate::names::Names;
use crate::status::DrainingSince;
use crate::trace::NamedAddress;

/// A tracked connection with names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NamedConnection {
    pub protocol: &'static str,
    /// See [`Tracked::state`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<&'static str>,
    /// Who opened the connection.
    pub client: NamedAddress,
    /// What the client connected to: the frontend, if it is a service's.
    pub destination: NamedAddress,
    /// The service port that the destination is a frontend of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// Where it goes, if that is not the destination.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<NamedAddress>,
    /// Since when that endpoint drains, if it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub draining_since: Option<DrainingSince>,
    /// The source that the endpoint sees, if that is not the client's address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub masqueraded_as: Option<SocketAddr>,
    /// Its duration so far, or until it ended, in seconds; missing if the kernel does not know.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds: Option<u64>,
}

impl NamedConnection {
    /// Names a connection. `now` is the time since 1970.
    pub fn of(tracked: &Tracked, names: &Names, now: Duration) -> Self {
        let entry = &tracked.entry;
        let place = |address: SocketAddr| NamedAddress {
            address,
            name: names.owner(address.ip()).map(str::to_owned),
        };
        let service = names.service(tracked.protocol, entry.destination);
        Self {
            protocol: tracked.protocol.as_str(),
            state: tracked.state,
            client: place(entry.source),
            destination: place(entry.destination),
            service: service.map(str::to_owned),
            draining_since: service
                .and_then(|service| names.draining(service, entry.reply_source))
                .cloned(),
            endpoint: entry.is_translated().then(|| place(entry.reply_source)),
            masqueraded_as: entry.is_masqueraded().then_some(entry.reply_destination),
            seconds: tracked.age(now).map(|age| age.as_secs()),
        }
    }
}

impl fmt::Display for NamedConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.protocol)?;
        if let Some(state) = self.state {
            write!(f, " {state}")?;
        }
        write!(f, ": {} to ", self.client)?;
        match &self.service {
            Some(service) => write!(f, "{} ({service})", self.destination.address)?,
            None => write!(f, "{}", self.destination)?,
        }
        if let Some(endpoint) = &self.endpoint {
            write!(f, ", endpoint {endpoint}")?;
        }
        if let Some(since) = &self.draining_since {
            write!(f, ", draining {since}")?;
        }
        if let Some(source) = &self.masqueraded_as {
            write!(f, ", masqueraded as {source}")?;
        }
        match self.seconds {
            Some(seconds) => write!(f, ", {seconds} s"),
            None => Ok(()),
        }
    }
}
