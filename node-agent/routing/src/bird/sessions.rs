//! The state of BGP sessions, from what BIRD shows of its protocols.

use std::fmt;

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Session {
    /// The peer: `peer:NAME`, or `node:ADDRESS` of the mesh.
    pub peer: String,
    /// BGP's state: `Established`, `Active`, …
    pub state: String,
    /// Since when BIRD's protocol is up or down, as BIRD writes it (its local time).
    pub since: String,
    /// Number of accepted routes.
    pub imported: usize,
    /// Number of exported routes.
    pub exported: usize,
    /// The peer sends more routes than are accepted.
    pub is_limited: bool,
    /// The families (`ipv4`, `ipv6`) whose routes are not exchanged. If the session is up, the peer
    /// does not offer them.
    #[serde(default)]
    pub families_down: Vec<String>,
    /// Why it ended, or cannot begin.
    pub last_error: Option<String>,
}

impl Session {
    /// Routes are exchanged.
    pub fn is_up(&self) -> bool {
        self.state == "Established"
    }

    /// What an operator should know about it.
    pub fn problem(&self) -> Option<String> {
        match (self.is_up(), self.families_down.as_slice()) {
            (false, _) => Some(format!("no BGP session with {self}")),
            (true, []) => None,
            (true, families) => {
                Some(format!("no {} routes are exchanged with {self}", families.join(" and ")))
            }
        }
    }
}

impl fmt::Display for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { peer, state, since, imported, exported, is_limited, last_error, .. } = self;
        write!(f, "{peer} {state} since {since}, {exported} exported, {imported} imported")?;
        if *is_limited {
            write!(f, " (no more are taken: importLimit)")?;
        }
        last_error.iter().try_for_each(|error| write!(f, ", {error}"))
    }
}

/// Reads the answer to `show protocols all`: one line for each protocol, with details below it.
pub fn sessions(lines: &[String]) -> Vec<Session> {
    let mut found: Vec<Session> = Vec::new();
    let mut is_bgp = false;
    let mut channel = None;
    for line in lines {
        if !line.starts_with(' ') {
            let begun = session(line);
            is_bgp = begun.is_some();
            channel = None;
            found.extend(begun);
        } else if let Some(name) = line.trim().strip_prefix("Channel ") {
            channel = Some(name);
        } else if let Some(session) = found.last_mut().filter(|_| is_bgp) {
            session.note(line.trim(), channel);
        }
    }
    found
}

/// `NAME BGP TABLE STATE DATE TIME INFO`.
fn session(line: &str) -> Option<Session> {
    let words: Vec<&str> = line.split_whitespace().collect();
    match words.as_slice() {
        [peer, "BGP", _table, _state, date, time, ..] => Some(Session {
            peer: (*peer).to_owned(),
            since: format!("{date} {time}"),
            ..Session::default()
        }),
        _ => None,
    }
}

impl Session {
    /// Takes a detail of the session, or of its channel of a family.
    fn note(&mut self, line: &str, channel: Option<&str>) {
        let Some((what, value)) = line.split_once(':') else { return };
        let value = value.trim();
        match what {
            // With a peer that offers a family but not its next hops (RFC 8950), the channel has no
            // next hop.
            "BGP Next hop" if value == "::" => {
                self.families_down.extend(channel.map(str::to_owned));
            }
            "State" if value != "UP" => self.families_down.extend(channel.map(str::to_owned)),
            "BGP state" => self.state = value.to_owned(),
            "Last error" => self.last_error = Some(value.to_owned()),
            "Import limit" | "Receive limit" => self.is_limited |= value.ends_with("[HIT]"),
            "Routes" => {
                self.imported += count(value, "imported");
                self.exported += count(value, "exported");
            }
            _ => {}
        }
    }
}

/// `N imported, N exported, …`
fn count(text: &str, what: &str) -> usize {
    let parts = text.split(',').map(str::trim);
    let named = parts.filter_map(|part| part.strip_suffix(what)?.trim().parse::<usize>().ok());
    named.sum()
}
