//! Limits the rate of events. Pure.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use denizen_model::Notice;

/// The same event is not written again within this time, and …
const WINDOW: Duration = Duration::from_secs(300);
/// … at most this many different ones are, as client-go's burst: all nodes share one API.
const MOST: usize = 25;

/// The events that were written recently.
#[derive(Debug, Default)]
pub(super) struct EventLimit {
    written: HashMap<Notice, Instant>,
}

impl EventLimit {
    /// Whether this event may be written now. If so, it counts as written.
    pub(super) fn permits(&mut self, notice: &Notice, now: Instant) -> bool {
        self.written.retain(|_, at| now.duration_since(*at) < WINDOW);
        let permitted = self.written.len() < MOST && !self.written.contains_key(notice);
        if permitted {
            self.written.insert(notice.clone(), now);
        }
        permitted
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use denizen_model::ServiceName;
    use denizen_model::{NoticeReason, NoticeSubject};

    fn about(service: usize) -> Notice {
        Notice {
            about: NoticeSubject::Service(ServiceName::new("default", &format!("s{service}"))),
            reason: NoticeReason::HealthCheckUnserved,
            text: String::new(),
        }
    }

    #[test]
    fn an_event_is_written_once_and_all_together_are_limited() {
        let (mut limit, now) = (EventLimit::default(), Instant::now());
        assert!(limit.permits(&about(0), now));
        assert!(!limit.permits(&about(0), now), "the same again");
        let permitted = (1..100).filter(|n| limit.permits(&about(*n), now)).count();
        assert_eq!(permitted, MOST - 1);
        assert!(!limit.permits(&about(0), now + WINDOW / 2));
        assert!(limit.permits(&about(0), now + WINDOW), "it is news again");
    }
}
