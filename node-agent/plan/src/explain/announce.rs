//! Why an address is, or is not, announced.

use std::fmt;
use std::net::IpAddr;

use ipnetwork::IpNetwork;
use serde::{Deserialize, Serialize};

use crate::{Announcement, Announcements, PrefixOwner, Withheld};
use denizen_text::Printable;

/// The answer to `denizen-agent explain --announce`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Announced {
    pub address: IpAddr,
    /// Whether it is in the kernel's table of announcements, from which routing daemons learn it.
    pub announced: bool,
    /// The prefix that contains it; `None` if no prefix contains it that this node announces or
    /// withholds.
    pub prefix: Option<IpNetwork>,
    /// Its class: see [`AnnouncementClass`](crate::AnnouncementClass).
    pub class: Option<String>,
    pub metric: Option<u32>,
    pub owner: Option<String>,
    /// The code of the reason why it is not announced; `None` if it is.
    pub reason: Option<String>,
    /// Why it is, or is not, announced.
    pub why: String,
    /// The frontends at the address that drop packets, although it is announced.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dropped: Vec<String>,
    /// The BGP peers to which it was exported; `None` if the agent does not know of peers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peers: Option<Vec<String>>,
}

impl Announced {
    /// From the decisions (`None` while a first list is missing) and the kernel's table. `failure`:
    /// why the table could not be programmed.
    pub fn of(
        address: IpAddr,
        decided: Option<&Announcements>,
        is_published: impl Fn(&IpNetwork) -> bool,
        failure: Option<&str>,
    ) -> Self {
        let unknown = |reason: &str, why: &str| Self {
            address,
            announced: false,
            prefix: None,
            class: None,
            metric: None,
            owner: None,
            reason: Some(reason.to_owned()),
            why: why.to_owned(),
            dropped: Vec::new(),
            peers: None,
        };
        let Some(decided) = decided else {
            return unknown("rules-not-programmed", "a first list is missing: nothing is decided");
        };
        let wanted = |prefix, wanted| {
            let dropped = decided.dropped.get(&prefix).into_iter().flatten();
            let dropped = dropped.map(ToString::to_string).collect();
            Self { dropped, ..Self::wanted(address, prefix, wanted) }
        };
        match decided.about(address) {
            None => unknown("unknown", "it is no address of a Service or a pod of this node"),
            Some((prefix, Err(withheld))) => Self::withheld(address, prefix, withheld),
            Some((prefix, Ok(it))) if is_published(&prefix) => wanted(prefix, it),
            Some((prefix, Ok(it))) => Self {
                announced: false,
                reason: Some("rules-not-programmed".to_owned()),
                why: failure.unwrap_or("its rules are not all in the kernel yet").to_owned(),
                ..wanted(prefix, it)
            },
        }
    }

    fn wanted(address: IpAddr, prefix: IpNetwork, wanted: &Announcement) -> Self {
        Self {
            address,
            announced: true,
            prefix: Some(prefix),
            class: Some(wanted.class.as_str().to_owned()),
            metric: Some(wanted.metric()),
            owner: Some(PrefixOwner::from(wanted.reason.clone()).to_string()),
            reason: None,
            why: wanted.why(),
            dropped: Vec::new(),
            peers: None,
        }
    }

    fn withheld(address: IpAddr, prefix: IpNetwork, withheld: &Withheld) -> Self {
        Self {
            address,
            announced: false,
            prefix: Some(prefix),
            class: None,
            metric: None,
            owner: Some(withheld.owner.to_string()),
            reason: Some(withheld.reason.code().to_owned()),
            why: withheld.reason.to_string(),
            dropped: Vec::new(),
            peers: None,
        }
    }

    /// Adds the BGP peers to which it is exported.
    #[must_use]
    pub fn exported_to(self, peers: Vec<String>) -> Self {
        Self { peers: Some(peers), ..self }
    }

    /// Changes the answer to: in the table, but exported to no peer.
    #[must_use]
    pub fn not_exported(self, reason: &str, why: String) -> Self {
        let (announced, reason) = (false, Some(reason.to_owned()));
        Self { announced, reason, why, peers: Some(Vec::new()), ..self }
    }
}

impl fmt::Display for Announced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, announced, prefix, class, metric, owner, reason, why, dropped, peers } =
            self;
        let verdict = if *announced { "announced" } else { "not announced" };
        writeln!(f, "{address} is {verdict}: {}", Printable(why))?;
        let lines = [
            ("reason", reason.clone()),
            ("prefix", prefix.map(|prefix| prefix.to_string())),
            ("class", class.clone()),
            ("metric", metric.map(|metric| metric.to_string())),
            ("owner", owner.clone()),
            ("peers", peers.as_ref().map(|peers| peers.join(", "))),
        ];
        let known = lines.into_iter().filter_map(|(what, value)| Some((what, value?)));
        known
            .chain(dropped.iter().map(|dropped| ("but", dropped.clone())))
            .try_for_each(|(what, value)| writeln!(f, "  {what:<8}{}", Printable(&value)))
    }
}
