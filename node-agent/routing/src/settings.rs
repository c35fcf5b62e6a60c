//! What is routed and announced, by the flags.

use std::time::Duration;

use denizen_plan::AnnounceSettings;

use crate::bird::BirdConfig;

/// `--routing-mode` and its flags, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RoutingSettings {
    /// Nothing is routed, and nothing announced.
    Off,
    /// Routes to the other nodes' pods.
    Direct,
    /// Announcements.
    Table(Box<AnnounceConfig>),
}

/// What is announced, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnnounceConfig {
    pub table: u32,
    pub settings: AnnounceSettings,
    /// How long a draining node still announces what others serve too.
    pub drain_wait: Duration,
    /// How BIRD is configured; `None` if another program configures the routing daemon.
    pub bird: Option<BirdConfig>,
}

impl RoutingSettings {
    /// What is announced; `None` for nothing.
    pub fn announced(&self) -> Option<&AnnounceConfig> {
        match self {
            Self::Off | Self::Direct => None,
            Self::Table(config) => Some(config.as_ref()),
        }
    }
}
