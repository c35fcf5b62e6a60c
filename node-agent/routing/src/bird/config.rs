//! The section `routing.bird` of the configuration.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::Duration;

use ipnetwork::IpNetwork;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use super::BGP_PORT;
use super::address::{PeerAddress, is_link_local, is_of_a_host};
use denizen_model::{Family, Labels, family_of};
use denizen_plan::AnnouncementClass;
use denizen_text::duration;

/// A name is a part of one of BIRD's symbols, which have up to 63 bytes.
const LONGEST_NAME: usize = 40;
/// The hold times that BGP permits (RFC 4271, 4.2), in seconds.
const HOLD: std::ops::RangeInclusive<u64> = 3..=65535;
/// The longest graceful-restart time that BGP can express (RFC 4724, 3), in seconds.
const LONGEST_RESTART: u64 = 4095;
/// Longer paths are useless.
const MOST_PREPENDED: u8 = 10;

/// How this node speaks BGP.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BirdConfig {
    pub asn: u32,
    /// BGP's identifier of this node; by default its IPv4 InternalIP, or a hash of its name.
    pub router_id: Option<Ipv4Addr>,
    /// A session ends after this much silence.
    #[serde(default = "default_hold", deserialize_with = "of_text")]
    pub hold_time: Duration,
    /// Graceful-restart time: how long a peer keeps this node's routes while BIRD restarts; 0
    /// disables it.
    #[serde(default = "default_restart", deserialize_with = "of_text")]
    pub graceful_restart: Duration,
    /// How many times a draining node prepends its autonomous system to the path of its services'
    /// announcements.
    #[serde(default)]
    pub drain_prepend: u8,
    /// Whether to open sessions with the Nodes that are on a network of this node.
    #[serde(default)]
    pub mesh: bool,
    /// Sessions with routers.
    #[serde(default)]
    pub peers: Vec<BgpPeer>,
}

/// A router that this node speaks BGP with.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BgpPeer {
    /// Its name in status and metrics.
    pub name: String,
    pub address: PeerAddress,
    /// The families whose routes are exchanged; by default the family of its address.
    #[serde(default, deserialize_with = "families")]
    families: Option<BTreeSet<Family>>,
    pub asn: u32,
    #[serde(default = "default_port")]
    pub port: u16,
    /// Only Nodes with these labels open a session with it.
    #[serde(default)]
    pub node_selector: BTreeMap<String, String>,
    /// A file with the password of its session (TCP MD5, RFC 2385).
    pub password_file: Option<PathBuf>,
    /// Whether BFD detects a broken session at once. Then there is no graceful restart.
    #[serde(default)]
    pub bfd: bool,
    /// Maximum number of hops to it; 0 if it is on a network of this node.
    #[serde(default)]
    pub multihop: u8,
    /// This node's address in the session; by default that of the link, and the InternalIP for
    /// multihop.
    pub local_address: Option<IpAddr>,
    /// Accept only packets whose TTL shows that they come from no farther than the peer (RFC 5082).
    #[serde(default)]
    pub ttl_security: bool,
    /// This node reflects routes to it (RFC 4456).
    #[serde(default)]
    pub rr_client: bool,
    /// How many times this node's own autonomous system may occur in the path of its routes.
    #[serde(default)]
    pub allow_local_as: u8,
    /// Which of its routes are accepted.
    #[serde(default)]
    pub import: Import,
    /// Maximum number of routes that are accepted.
    #[serde(default = "default_limit")]
    pub import_limit: u32,
    /// The communities for announcements of each class, by [`AnnouncementClass::as_str`].
    #[serde(default)]
    pub communities: BTreeMap<String, Vec<Community>>,
}

/// Which routes of a peer are accepted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Import {
    /// Its default route.
    pub default: bool,
    /// Routes within these.
    pub prefixes: Vec<IpNetwork>,
}

/// A community, as BIRD writes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Community {
    /// RFC 1997.
    Standard(u16, u16),
    /// RFC 8092.
    Large(u32, u32, u32),
}

impl fmt::Display for Community {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Standard(a, b) => write!(f, "bgp_community.add(({a},{b}));"),
            Self::Large(a, b, c) => write!(f, "bgp_large_community.add(({a},{b},{c}));"),
        }
    }
}

fn default_hold() -> Duration {
    Duration::from_secs(30)
}

fn default_restart() -> Duration {
    Duration::from_secs(60)
}

fn default_port() -> u16 {
    BGP_PORT
}

fn default_limit() -> u32 {
    1000
}

fn of_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    duration(&String::deserialize(deserializer)?).map_err(D::Error::custom)
}

fn families<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<BTreeSet<Family>>, D::Error> {
    let family = |word: &String| match word.as_str() {
        "ipv4" => Ok(Family::V4),
        "ipv6" => Ok(Family::V6),
        _ => Err(D::Error::custom(format!("{word:?} is neither ipv4 nor ipv6"))),
    };
    let words = Option::<Vec<String>>::deserialize(deserializer)?;
    words.map(|words| words.iter().map(family).collect()).transpose()
}

impl<'de> Deserialize<'de> for Import {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum PeerText {
            One(String),
            Many(Vec<String>),
        }
        let words = match PeerText::deserialize(deserializer)? {
            PeerText::One(word) if word == "none" => Vec::new(),
            PeerText::One(word) => vec![word],
            PeerText::Many(words) => words,
        };
        let mut import = Self::default();
        for word in words {
            match (word.as_str(), word.parse::<IpNetwork>()) {
                ("default", _) => import.default = true,
                (_, Ok(range)) if range.prefix() > 0 => import.prefixes.push(range),
                (_, Ok(_)) => {
                    return Err(D::Error::custom("write \"default\" for the default route"));
                }
                (_, Err(_)) => {
                    let text = format!("{word:?} is not none, default or a CIDR");
                    return Err(D::Error::custom(text));
                }
            }
        }
        Ok(import)
    }
}

impl<'de> Deserialize<'de> for Community {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let numbers: Option<Vec<u32>> = text.split(':').map(|word| word.parse().ok()).collect();
        let standard =
            |a: u32, b: u32| Some(Self::Standard(u16::try_from(a).ok()?, u16::try_from(b).ok()?));
        let community = match numbers.as_deref() {
            Some([a, b]) => standard(*a, *b),
            Some([a, b, c]) => Some(Self::Large(*a, *b, *c)),
            Some(_) | None => None,
        };
        let error = || format!("{text:?} is no community such as 64512:100 or 64512:100:1");
        community.ok_or_else(|| D::Error::custom(error()))
    }
}

impl BirdConfig {
    /// Reads and checks the section, in JSON.
    ///
    /// # Errors
    /// Which field is wrong, and why.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut json = serde_json::Deserializer::from_str(text);
        let config: Self = serde_path_to_error::deserialize(&mut json)
            .map_err(|error| format!("{}: {}", error.path(), error.inner()))?;
        config.check()?;
        Ok(config)
    }

    /// The peers of a node with these labels and addresses. A node is not a peer of itself.
    pub fn peers_of(&self, labels: &Labels, own: &[IpAddr]) -> impl Iterator<Item = &BgpPeer> {
        let is_selected = |peer: &&BgpPeer| {
            let mut selector = peer.node_selector.iter();
            selector.all(|(key, value)| labels.get(key) == Some(value))
        };
        self.peers.iter().filter(|peer| !own.contains(&peer.address.ip())).filter(is_selected)
    }

    fn check(&self) -> Result<(), String> {
        if self.asn == 0 {
            return Err("asn: it must not be 0".to_owned());
        }
        if !HOLD.contains(&self.hold_time.as_secs()) {
            return Err("holdTime: it must be between 3s and 65535s".to_owned());
        }
        if self.graceful_restart.as_secs() > LONGEST_RESTART {
            return Err("gracefulRestart: the longest time is 4095s".to_owned());
        }
        if self.drain_prepend > MOST_PREPENDED {
            return Err(format!("drainPrepend: the most is {MOST_PREPENDED}"));
        }
        let (mut names, mut addresses) = (BTreeSet::new(), BTreeSet::new());
        for (index, peer) in self.peers.iter().enumerate() {
            let at = |what: &str| format!("peers[{index}]{what}");
            peer.check(self.asn).map_err(|what| at(&what))?;
            if !names.insert(&peer.name) {
                return Err(at(&format!(".name: {} is another peer's", peer.name)));
            }
            if !addresses.insert(&peer.address) {
                return Err(at(&format!(".address: {} is another peer's", peer.address)));
            }
        }
        Ok(())
    }
}

impl BgpPeer {
    /// The families whose routes are exchanged.
    pub fn families(&self) -> BTreeSet<Family> {
        self.families.clone().unwrap_or_else(|| [self.address.family()].into())
    }

    fn check(&self, own_asn: u32) -> Result<(), String> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-.".contains(&byte);
        let is_name = (1..=LONGEST_NAME).contains(&self.name.len());
        if !is_name || !self.name.bytes().all(is_plain) {
            let what = format!("up to {LONGEST_NAME} letters, digits, hyphens and dots");
            return Err(format!(".name: {:?} is not {what}", self.name));
        }
        if self.asn == 0 || self.port == 0 {
            return Err(": asn and port must not be 0".to_owned());
        }
        if self.rr_client && self.asn != own_asn {
            return Err(".rrClient: routes are reflected to peers with this node's asn".to_owned());
        }
        self.check_address()?;
        self.check_families()?;
        let is_class =
            |name: &&String| AnnouncementClass::ALL.iter().any(|class| class.as_str() == *name);
        match self.communities.keys().find(|name| !is_class(name)) {
            Some(name) => {
                let known = AnnouncementClass::ALL.map(AnnouncementClass::as_str).join(", ");
                Err(format!(".communities: {name} is none of {known}"))
            }
            None => Ok(()),
        }
    }

    fn check_address(&self) -> Result<(), String> {
        let address = self.address.ip();
        if is_link_local(address) && self.multihop > 0 {
            return Err(format!(".multihop: {address} is link-local, and so a neighbour's"));
        }
        match self.local_address {
            Some(local)
                if !is_of_a_host(local)
                    || family_of(local) != family_of(address)
                    || is_link_local(local) != is_link_local(address) =>
            {
                Err(format!(".localAddress: {local} cannot reach {address}"))
            }
            Some(_) | None => Ok(()),
        }
    }

    fn check_families(&self) -> Result<(), String> {
        let (address, families) = (&self.address, self.families());
        if families.is_empty() {
            return Err(".families: name at least one, or leave it out".to_owned());
        }
        if address.family() == Family::V4 && families.contains(&Family::V6) {
            return Err(format!(
                ".families: IPv6 routes need a peer's IPv6 address, not {address}"
            ));
        }
        // BIRD resolves a next hop that is not a neighbour by routes that it has learned itself.
        if self.multihop > 0 && self.import != Import::default() {
            return Err(format!(
                ".import: with multihop, nothing is taken: {address} is no neighbour"
            ));
        }
        let is_other = |range: &&IpNetwork| !families.contains(&family_of(range.ip()));
        match self.import.prefixes.iter().find(is_other) {
            Some(range) => {
                let family = family_of(range.ip());
                Err(format!(".import: no {family} routes are exchanged with {address}: {range}"))
            }
            None => Ok(()),
        }
    }
}
