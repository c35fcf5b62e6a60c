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
    /// Routes and announcements that are missing, connections that are dropped, problems of BGP
    /// sessions.
    pub warnings: Vec<String>,
}
