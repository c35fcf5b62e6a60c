//! The kernel's connections for the page. The table may be large, so it is read only on demand, and
//! its summary is kept for a while.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use denizen_netlink::NetlinkError;
use tokio::sync::Mutex;

use denizen_observe::connections::{ConnectionReader, Summary, SummaryBuilder};
use denizen_observe::names::Names;
use denizen_text::describe;

/// How long a summary is shown. Reading 100,000 connections takes a tenth of a second of one
/// processor.
const MAX_SUMMARY_AGE: Duration = Duration::from_secs(10);

/// The last summary. The lock lets one request read at a time.
#[derive(Debug, Default)]
pub(super) struct Connections {
    last: Arc<Mutex<Option<Read>>>,
}

#[derive(Debug)]
struct Read {
    at: Instant,
    summary: Arc<Summary>,
}

impl Connections {
    /// What was read at most [`MAX_SUMMARY_AGE`] ago, or what is read now, with the names that
    /// `names` gives.
    pub async fn summary(
        &self,
        names: impl Future<Output = Result<Names, String>>,
    ) -> Result<Arc<Summary>, String> {
        self.at_most(MAX_SUMMARY_AGE, names, read).await
    }

    async fn at_most(
        &self,
        age: Duration,
        names: impl Future<Output = Result<Names, String>>,
        read: impl FnOnce(&Names) -> Result<Summary, NetlinkError> + Send + 'static,
    ) -> Result<Arc<Summary>, String> {
        let mut last = self.last.clone().lock_owned().await;
        if let Some(read) = last.as_ref().filter(|read| read.at.elapsed() < age) {
            return Ok(read.summary.clone());
        }
        let names = names.await?;
        // The reading thread holds the lock: if the client leaves, others still wait for this read
        // and begin none of their own.
        let reading = tokio::task::spawn_blocking(move || {
            let summary = Arc::new(read(&names).map_err(|error| describe(&error))?);
            *last = Some(Read { at: Instant::now(), summary: summary.clone() });
            Ok(summary)
        });
        reading.await.map_err(|error| error.to_string())?
    }
}

fn read(names: &Names) -> Result<Summary, NetlinkError> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let mut builder = SummaryBuilder::new(names, now);
    ConnectionReader::open()?.read_all(|tracked| builder.add(&tracked))?;
    Ok(builder.summary())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// Returns the number of the read that the summary is from.
    async fn ask(connections: &Connections, age: Duration, reads: &Arc<AtomicU64>) -> u64 {
        let reads = reads.clone();
        let read = move |_: &Names| {
            let at = Duration::from_secs(reads.fetch_add(1, Ordering::Relaxed) + 1);
            Ok(Summary { at, ..Summary::default() })
        };
        let names = async { Ok(Names::default()) };
        connections.at_most(age, names, read).await.unwrap().at.as_secs()
    }

    #[tokio::test]
    async fn the_table_is_read_for_the_first_who_asks_and_for_nobody_soon_after() {
        let (connections, reads) = (Connections::default(), Arc::default());
        let (never, at_once) = (Duration::from_secs(3600), Duration::ZERO);
        let both = [ask(&connections, never, &reads), ask(&connections, never, &reads)];
        let [first, second] = both;
        assert_eq!(tokio::join!(first, second), (1, 1), "at once");
        assert_eq!(ask(&connections, never, &reads).await, 1);
        assert_eq!(ask(&connections, at_once, &reads).await, 2, "later");
        let failed = connections.at_most(at_once, async { Err("busy".to_owned()) }, read).await;
        assert_eq!(failed.unwrap_err(), "busy");
    }
}
