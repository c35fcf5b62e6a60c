//! `ui`: a picture of who talks to whom, served on this machine alone, while the command runs.
//!
//! | file | knows |
//! | --- | --- |
//! | `server` | who may ask, and the page's frame |
//! | `round` | what agents are asked, and on which nodes packets are watched |
//! | `round_result` | what a round brings besides edges |
//! | `state` | all that is known, and the page's parts of it. Pure |
//! | `directory` | which workload, service or node has an address |
//! | `observation` | what agents say, as edges. Pure |
//! | `history` | the last minutes of each edge. Pure |
//! | `drawing` | which boxes and edges are drawn. Pure |
//! | `layout`, `track`, `curve`, `dimensions` | where boxes and edges are drawn. Pure |
//! | `draw`, `rows` | the picture, and the table beside it. Pure |

#![expect(clippy::disallowed_methods, reason = "minutes pass")]

mod curve;
mod dimensions;
mod directory;
mod draw;
mod drawing;
mod history;
mod layout;
mod observation;
mod participant;
mod round;
mod round_result;
mod rows;
mod server;
mod state;
#[cfg(test)]
mod tests;
mod track;

use std::cell::RefCell;
use std::net::Ipv4Addr;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use denizen_text::{duration, printable_lines};
use tokio::net::TcpListener;
use tokio::sync::{Mutex, Semaphore};
use tokio::task::{LocalSet, spawn_local};
use tokio::time::{sleep, timeout};

use self::history::MINUTES;
use self::observation::ExampleEnds;
use self::round::{RoundMemory, round};
use self::state::State;
use crate::cluster::Api;
use crate::output::{described, print};
use crate::survey::Limits;
use crate::verb::explain::{self, ExplainArgs};

/// The most connections of browsers at a time.
const BROWSERS: usize = 64;

/// The pause after an error of the listener, such as too many open files.
const PAUSE: Duration = Duration::from_millis(100);

/// Time for processing the nodes' answers.
const PROCESSING_TIME: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, Args)]
pub struct UiArgs {
    /// The port on 127.0.0.1; without it, any that is free
    #[arg(long, value_name = "PORT", default_value = "0")]
    port: u16,
    /// How often all nodes are asked while somebody looks
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "10s")]
    every: Duration,
}

/// How agents are asked.
#[derive(Debug, Clone, Copy)]
pub struct QueryOptions {
    pub parallel: usize,
    pub timeout: Duration,
}

/// What all connections of browsers share.
pub struct Ui {
    api: Api,
    every: Duration,
    options: QueryOptions,
    port: u16,
    token: String,
    started: Instant,
    state: RefCell<State>,
    /// When the last round began, and what it leaves for the next. Locked during a round.
    rounds: Arc<Mutex<(Option<Instant>, RoundMemory)>>,
}

/// Serves until it is interrupted.
pub async fn ui(api: Api, options: QueryOptions, args: &UiArgs) -> anyhow::Result<ExitCode> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, args.port)).await;
    let listener = listener.context("cannot listen on 127.0.0.1")?;
    let port = listener.local_addr()?.port();
    let token = token()?;
    print(&format!("http://127.0.0.1:{port}/#{token}\n"))?;
    let ui = Rc::new(Ui {
        api,
        every: args.every,
        options,
        port,
        token,
        started: Instant::now(),
        state: RefCell::default(),
        rounds: Arc::default(),
    });
    LocalSet::new().run_until(accept(listener, ui)).await
}

async fn accept(listener: TcpListener, ui: Rc<Ui>) -> anyhow::Result<ExitCode> {
    let room = Arc::new(Semaphore::new(BROWSERS));
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            sleep(PAUSE).await;
            continue;
        };
        // With no room left, the stream is closed.
        if let Ok(place) = room.clone().try_acquire_owned() {
            let ui = ui.clone();
            spawn_local(async move {
                server::serve(stream, ui).await;
                drop(place);
            });
        }
    }
}

/// 128 bits that nobody guesses.
fn token() -> anyhow::Result<String> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| anyhow::anyhow!("no random numbers: {error}"))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

impl Ui {
    /// Begins a round if the last round began a while ago. Waits for the first round's answers, but
    /// not for the packets that it watches.
    async fn refresh(self: &Rc<Self>) {
        if let Ok(mut rounds) = self.rounds.clone().try_lock_owned()
            && rounds.0.is_none_or(|last| last.elapsed() >= self.every)
        {
            rounds.0 = Some(Instant::now());
            let ui = self.clone();
            // The round goes on if the browser goes away.
            spawn_local(async move { ui.round(&mut rounds.1).await });
        }
        while !self.state.borrow().is_known() {
            sleep(PAUSE).await;
        }
    }

    async fn round(&self, before: &mut RoundMemory) {
        let limits = Limits::new(self.options.parallel, self.options.timeout);
        // What the kernels noted may be older than this program, so minutes do not begin at 0.
        let minute = || MINUTES as u64 + self.started.elapsed().as_secs() / 60;
        if let Err(error) =
            self.bounded(round(&self.api, limits, &self.state, before, minute)).await
        {
            self.state.borrow_mut().failed(described(&error));
        }
    }

    /// What the verb `explain` says of an edge's ends.
    async fn explain(&self, edge: &str) -> String {
        let Some(ends) = self.state.borrow().ends(edge).cloned() else {
            return "This edge is not seen any more.\n".to_owned();
        };
        let ExampleEnds { from, to, via } = ends;
        let limits = Limits::new(self.options.parallel, self.options.timeout);
        let args = ExplainArgs { from, to, via };
        let explained = self.bounded(explain::explain(&self.api, limits, &args)).await;
        let text =
            explained.map_or_else(|error| described(&error) + "\n", |report| report.to_string());
        printable_lines(&text)
    }

    /// The nodes have their deadlines; what is left is the API server itself.
    async fn bounded<T>(&self, work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
        let limit = self.options.timeout + PROCESSING_TIME;
        let done = timeout(limit, work).await;
        done.unwrap_or_else(|_| bail!("the API server does not answer within {limit:?}"))
    }
}
