//! One connection after the other, within bounds: whoever asks slowly, much or nonsense holds up nobody but himself.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tracing::debug;

use super::Site;
use super::answer::Answers;

/// Connections of one listener at a time. More wait in the kernel's queue.
const CONNECTIONS: usize = 64;
/// Within which a request must be there.
const REQUEST_TIME: Duration = Duration::from_secs(5);
/// Within which the answer must have been taken.
const WHOLE_TIME: Duration = Duration::from_secs(30);
/// The longest request, in bytes; the body, if any, is never read.
const LONGEST_REQUEST: usize = 16 * 1024;
/// The most header fields.
const HEADERS: usize = 64;
/// After an error of the listener, such as too many open files.
const PAUSE: Duration = Duration::from_millis(100);

/// Takes connections for as long as it is polled; those that are open end with it.
pub(super) async fn accept(listener: TcpListener, site: Site, answers: Arc<Answers>) {
    let permits = Arc::new(Semaphore::new(CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        let permit = permits.clone().acquire_owned().await;
        while connections.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((stream, _)) => {
                let conversation = converse(stream, site, answers.clone());
                connections.spawn(async move {
                    conversation.await;
                    drop(permit);
                });
            }
            Err(error) => {
                debug!(%error, "cannot take a connection");
                sleep(PAUSE).await;
            }
        }
    }
}

/// One request and its answer.
async fn converse(stream: TcpStream, site: Site, answers: Arc<Answers>) {
    let Ok(local) = stream.local_addr() else { return };
    let answer = service_fn(|request| {
        let answers = answers.clone();
        async move { Ok::<_, Infallible>(answers.answer(site, local, &request).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST_TIME)
        .keep_alive(false)
        .max_buf_size(LONGEST_REQUEST)
        .max_headers(HEADERS)
        .serve_connection(TokioIo::new(stream), answer);
    match timeout(WHOLE_TIME, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => debug!(%error, "a client went away"),
        Err(_) => debug!("a client took too long"),
    }
}
