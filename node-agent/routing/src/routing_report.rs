//! What routes, announcements and BIRD report, together.

use crate::bird::BgpStatus;
use crate::{AnnouncementsStatus, RoutingStatus};

/// What `status` says of routing.
#[derive(Debug, Default)]
pub struct RoutingReport {
    pub routes: Option<RoutingStatus>,
    pub announcements: Option<AnnouncementsStatus>,
    pub bgp: Option<BgpStatus>,
    pub errors: Vec<String>,
    /// What somebody asks for in vain, and what is dropped.
    pub warnings: Vec<String>,
}
