//! Another program's routes, which come and go all the time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, sleep};
use std::time::Duration;

use anyhow::{Result, anyhow, ensure};
use denizen_route::{MAIN, Route, RouteCommand, RouteKey, RouteTarget, Routes};
use denizen_tests::node::netns::Netns;

/// `RTPROT_STATIC`.
const THEIRS: u8 = 4;
/// So many changes at once, and the pause after them: 5,000 a second.
const AT_ONCE: usize = 250;
const PAUSE: Duration = Duration::from_millis(50);

/// It ends when it is dropped.
pub(super) struct Storm {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<usize>>>,
}

impl Storm {
    pub(super) fn start(netns: &Netns) -> Result<Self> {
        let is_over = Arc::<AtomicBool>::default();
        let (over, routes) = (is_over.clone(), netns.run(|| Routes::open(THEIRS))??);
        let blow = move || {
            let (mut routes, mut changes) = (routes, 0);
            while !over.load(Ordering::Relaxed) {
                changes += come_and_go(&mut routes, AT_ONCE)?;
                sleep(PAUSE);
            }
            Ok(changes)
        };
        Ok(Self { is_over, thread: Some(std::thread::spawn(blow)) })
    }

    /// Ends it. Returns how many changes there were.
    pub(super) fn stop(mut self) -> Result<usize> {
        self.is_over.store(true, Ordering::Relaxed);
        let thread = self.thread.take().ok_or_else(|| anyhow!("it was stopped"))?;
        thread.join().map_err(|_| anyhow!("it panicked"))?
    }
}

impl Drop for Storm {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

/// So many changes at once.
pub(super) fn change(netns: &Netns, changes: usize) -> Result<()> {
    let mut routes = netns.run(|| Routes::open(THEIRS))??;
    come_and_go(&mut routes, changes).map(drop)
}

/// Half of the changes make routes, and half of them remove these again.
fn come_and_go(routes: &mut Routes, changes: usize) -> Result<usize> {
    let key = |index: usize| {
        let text = format!("10.200.{}.{}/32", index / 250, index % 250);
        Ok(RouteKey { table: MAIN, destination: text.parse()?, metric: 77 })
    };
    let keys = (0..changes / 2).map(key).collect::<Result<Vec<_>>>()?;
    let route = |key: &RouteKey| Route {
        key: *key,
        target: RouteTarget::Blackhole,
        source: None,
        window: None,
    };
    let made = keys.iter().map(|key| RouteCommand::Add(route(key)));
    let commands: Vec<RouteCommand> =
        made.chain(keys.iter().copied().map(RouteCommand::Remove)).collect();
    let refused = routes.apply(&commands)?;
    ensure!(refused.is_empty(), "{} changes of routes were refused", refused.len());
    Ok(commands.len())
}
