//! How many connections there are, by service.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Serialize, Serializer};

use super::NamedConnection;

/// How many connections were shown.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    pub total: u64,
    /// The connections of each service port, by name.
    #[serde(serialize_with = "values")]
    pub services: BTreeMap<String, ServiceTotal>,
}

/// The connections of one service port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ServiceTotal {
    pub service: String,
    pub connections: u64,
    /// Connections whose endpoint sees another source than the client's address.
    pub masqueraded: u64,
}

impl Totals {
    pub fn add(&mut self, connection: &NamedConnection) {
        self.total += 1;
        let Some(service) = &connection.service else { return };
        if !self.services.contains_key(service) {
            let none = ServiceTotal { service: service.clone(), connections: 0, masqueraded: 0 };
            self.services.insert(service.clone(), none);
        }
        if let Some(total) = self.services.get_mut(service) {
            total.connections += 1;
            total.masqueraded += u64::from(connection.masqueraded_as.is_some());
        }
    }
}

fn values<S: Serializer>(
    services: &BTreeMap<String, ServiceTotal>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(services.values())
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "connections: {}", self.total)?;
        self.services.values().try_for_each(|ServiceTotal { service, connections, masqueraded }| {
            writeln!(f, "  {service}: {connections}, {masqueraded} of them masqueraded")
        })
    }
}
