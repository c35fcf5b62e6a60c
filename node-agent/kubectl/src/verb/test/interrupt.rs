//! Signals that end a test early: it still deletes what it made.

use std::io;

/// What ends a test: Ctrl-C, a signal, a terminal that is closed.
#[cfg(unix)]
pub struct Interrupt([tokio::signal::unix::Signal; 3]);

#[cfg(unix)]
impl Interrupt {
    /// From now on signals do not end the program.
    pub fn listen() -> io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self([
            signal(SignalKind::interrupt())?,
            signal(SignalKind::terminate())?,
            signal(SignalKind::hangup())?,
        ]))
    }

    /// Waits for the next signal.
    pub async fn next(&mut self) {
        let [interrupt, terminate, hangup] = &mut self.0;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}

/// What ends a test: Ctrl-C.
#[cfg(not(unix))]
pub struct Interrupt;

#[cfg(not(unix))]
impl Interrupt {
    /// From now on Ctrl-C does not end the program, while somebody waits for it.
    pub fn listen() -> io::Result<Self> {
        Ok(Self)
    }

    /// Waits for the next Ctrl-C.
    pub async fn next(&mut self) {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
