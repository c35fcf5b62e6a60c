//! The routes of the main table that BIRD has learned. They are recognised by its protocol number
//! and by the metric in its configuration.

use denizen_route::{MAIN, RouteCommand, RouteError, RouteKey, Routes};

use super::METRIC;

/// `RTPROT_BIRD`.
pub(super) const BIRD: u8 = 12;

/// The routes that BIRD has made.
#[derive(Debug)]
pub struct LearnedRoutes(Routes);

impl LearnedRoutes {
    /// Opens the routes of this thread's network namespace.
    pub fn open() -> Result<Self, RouteError> {
        Ok(Self(Routes::open(BIRD)?))
    }

    pub fn count(&mut self) -> Result<usize, RouteError> {
        Ok(self.keys()?.len())
    }

    /// Removes all of them, once BIRD is gone. Returns how many there were.
    pub fn remove(&mut self) -> Result<usize, RouteError> {
        let keys = self.keys()?;
        let commands: Vec<RouteCommand> = keys.into_iter().map(RouteCommand::Remove).collect();
        // If another program removes them at the same time, that does no harm.
        self.0.apply(&commands)?;
        Ok(commands.len())
    }

    fn keys(&mut self) -> Result<Vec<RouteKey>, RouteError> {
        let own = self.0.own()?;
        let is_learned = |key: &RouteKey| key.table == MAIN && key.metric == METRIC;
        Ok(own.into_iter().map(|route| route.key).filter(is_learned).collect())
    }
}
