//! Which connections are shown.

use std::collections::BTreeSet;
use std::net::IpAddr;

use thiserror::Error;

use super::NamedConnection;
use crate::names::Names;
use crate::trace::NamedAddress;
use denizen_model::{Family, Protocol};

/// Selects connections; the default selects all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConnectionFilter {
    /// Only those of this pod: its name or one of its addresses.
    pub pod: Option<String>,
    /// Only those of this service, `NAMESPACE/NAME`, or of one of its ports, `NAMESPACE/NAME:PORT`.
    pub service: Option<String>,
}

/// Nothing has the name that was asked for.
#[derive(Debug, Error)]
pub enum NoSuchName {
    /// No pod has this name.
    #[error("the agent knows no pod {0}")]
    Pod(String),
    /// No service has this name.
    #[error("the agent knows no service {0}")]
    Service(String),
}

impl ConnectionFilter {
    /// Checks that the names exist.
    pub fn check(&self, names: &Names) -> Result<(), NoSuchName> {
        let is_known = |pod: &String| names.has_pod(pod) || pod.parse::<IpAddr>().is_ok();
        match (self.pod.clone().filter(|pod| !is_known(pod)), self.parts(names)) {
            (Some(pod), _) => Err(NoSuchName::Pod(pod)),
            (None, Some(parts)) if parts.is_empty() => {
                Err(NoSuchName::Service(self.service.clone().unwrap_or_default()))
            }
            (None, Some(_) | None) => Ok(()),
        }
    }

    /// The families and protocols that selected connections may have; `None` for all.
    pub fn parts(&self, names: &Names) -> Option<BTreeSet<(Family, Protocol)>> {
        let service = self.service.as_deref()?;
        Some(names.parts_of(|name| is_of(name, service)))
    }

    pub fn selects(&self, connection: &NamedConnection) -> bool {
        let NamedConnection { client, destination, endpoint, .. } = connection;
        let is_pod = |pod: &str, place: &NamedAddress| {
            let is_address = || pod.parse() == Ok(place.address.ip());
            place.name.as_deref() == Some(pod) || is_address()
        };
        let mut ends = [Some(client), Some(destination), endpoint.as_ref()].into_iter().flatten();
        let is_pods = self.pod.as_deref().is_none_or(|pod| ends.any(|end| is_pod(pod, end)));
        let service = connection.service.as_deref();
        let is_services = |wanted: &str| service.is_some_and(|service| is_of(service, wanted));
        is_pods && self.service.as_deref().is_none_or(is_services)
    }
}

/// Whether `wanted` names this service port, or its service.
fn is_of(service_port: &str, wanted: &str) -> bool {
    let rest = service_port.strip_prefix(wanted);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
}
