//! How many events are too many. Pure.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use super::{About, Notice, Reason};

/// An event is not written again within this, and …
const WINDOW: Duration = Duration::from_secs(300);
/// … so many different ones at most, as client-go's burst: a cluster of such nodes shares one API.
const MOST: usize = 25;

/// What was written lately.
#[derive(Debug, Default)]
pub(super) struct Limit {
    written: HashMap<(About, Reason), Instant>,
}

impl Limit {
    /// Whether this may be written now; then it counts as written.
    pub(super) fn permits(&mut self, notice: &Notice, now: Instant) -> bool {
        self.written.retain(|_, at| now.duration_since(*at) < WINDOW);
        let key = (notice.about.clone(), notice.reason);
        let permitted = self.written.len() < MOST && !self.written.contains_key(&key);
        if permitted {
            self.written.insert(key, now);
        }
        permitted
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ServiceName;

    fn about(service: usize) -> Notice {
        Notice {
            about: About::Service(ServiceName::new("default", &format!("s{service}"))),
            reason: Reason::HealthCheckUnserved,
            text: String::new(),
        }
    }

    #[test]
    fn one_event_once_and_so_many_in_all() {
        let (mut limit, now) = (Limit::default(), Instant::now());
        assert!(limit.permits(&about(0), now));
        assert!(!limit.permits(&about(0), now), "the same again");
        let permitted = (1..100).filter(|n| limit.permits(&about(*n), now)).count();
        assert_eq!(permitted, MOST - 1);
        assert!(!limit.permits(&about(0), now + WINDOW / 2));
        assert!(limit.permits(&about(0), now + WINDOW), "it is news again");
    }
}
