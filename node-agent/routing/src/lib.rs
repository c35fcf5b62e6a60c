//! Routing: routes to other nodes' pods, the addresses that this node announces, and BIRD.
//!
//! The agent's loop passes it what is planned and programmed. [`SendNotice`] makes Kubernetes
//! events for operators.

mod announcer;
pub mod bird;
mod direct;
mod pollable;
pub mod routes;
mod routing;
mod routing_report;
mod settings;
mod status;

use std::sync::Arc;

use denizen_model::Notice;

pub use self::announcer::ProgrammedPlan;
pub use self::pollable::pollable;
pub use self::routing::Routing;
pub use self::routing_report::RoutingReport;
pub use self::settings::{AnnounceConfig, RoutingSettings};
pub use self::status::{AnnouncementsStatus, RoutingStatus};

/// Sends an event for operators. It never blocks.
pub type SendNotice = Arc<dyn Fn(Notice) + Send + Sync>;
