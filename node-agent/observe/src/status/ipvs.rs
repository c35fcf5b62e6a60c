//! What IPVS does, for people and programs.

use std::fmt;

use serde::{Deserialize, Serialize};

use denizen_backend::EndedConnections;

/// Maximum number of endpoints that are named in text.
const MOST_LINES: usize = 20;

/// Who chooses among endpoints, counted by service port and family.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IpvsStatus {
    /// Planned virtual servers. If the kernel lacks one, that is an error.
    pub virtual_servers: usize,
    /// Service ports with endpoints for which IPVS cannot be used.
    pub carried_by_nftables: usize,
    /// Endpoints that keep their connections and get no new ones.
    #[serde(default)]
    pub draining: Vec<DrainingStatus>,
    /// Connections that ended because their endpoint was removed.
    #[serde(default)]
    pub ended_connections: EndedConnections,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DrainingStatus {
    pub service: String,
    /// The endpoint's address and port.
    pub endpoint: String,
    pub since: DrainingSince,
    pub active: u32,
    /// Its connections that are closing, or were closed and are remembered.
    pub inactive: u32,
}

/// When the agent made an endpoint drain, RFC 3339 in UTC. `None`: it drained when the agent
/// started. (The kernel does not know since when.)
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainingSince(pub Option<String>);

impl fmt::Display for DrainingSince {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(at) => write!(f, "since {at}"),
            None => f.write_str("since before the agent started"),
        }
    }
}

impl fmt::Display for DrainingStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { service, endpoint, since, active, inactive } = self;
        write!(f, "{service} at {endpoint} {since}: {active} connections, {inactive} closed")
    }
}

impl IpvsStatus {
    /// The lines of the text form, each with its title.
    pub fn lines(&self) -> impl Iterator<Item = (&'static str, String)> + '_ {
        let Self { virtual_servers, carried_by_nftables: others, draining, ended_connections } =
            self;
        let counts = format!("{virtual_servers}; nftables carries {others} other service ports");
        let more = draining.len().saturating_sub(MOST_LINES);
        let more = (more > 0).then(|| format!("and {more} more like these"));
        let draining = draining.iter().take(MOST_LINES).map(ToString::to_string).chain(more);
        let draining = draining.map(|line| ("draining", line));
        let EndedConnections { pod_ended, timed_out } = ended_connections;
        let ended = (pod_ended + timed_out > 0).then(|| {
            let text = format!(
                "{pod_ended} when their pod had ended, {timed_out} after a quarter of an hour"
            );
            ("ended connections", text)
        });
        [("virtual servers", counts)].into_iter().chain(draining).chain(ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_names_a_few_endpoints_and_counts_the_others() {
        let one = |last| DrainingStatus {
            service: "default/web:http".to_owned(),
            endpoint: format!("10.1.2.{last}:80"),
            since: DrainingSince((last > 1).then(|| "2026-11-23T20:00:00Z".to_owned())),
            active: 3,
            inactive: 2,
        };
        let draining = (1..=22).map(one).collect();
        let ended_connections = EndedConnections { pod_ended: 3, timed_out: 1 };
        let status =
            IpvsStatus { virtual_servers: 4, carried_by_nftables: 1, draining, ended_connections };
        let lines: Vec<_> = status.lines().collect();
        assert_eq!(
            lines[0],
            ("virtual servers", "4; nftables carries 1 other service ports".into())
        );
        let text = "default/web:http at 10.1.2.1:80 since before the agent started: \
                    3 connections, 2 closed";
        assert_eq!(lines[1], ("draining", text.into()));
        assert!(lines[2].1.contains("10.1.2.2:80 since 2026-11-23T20:00:00Z: 3"), "{lines:?}");
        assert_eq!(lines.len(), 23);
        assert_eq!(lines[21], ("draining", "and 2 more like these".into()));
        let text = "3 when their pod had ended, 1 after a quarter of an hour";
        assert_eq!(lines[22], ("ended connections", text.into()));
        assert_eq!(IpvsStatus::default().lines().count(), 1);
    }
}
