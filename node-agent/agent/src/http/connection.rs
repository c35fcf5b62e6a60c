//! Accepts and serves connections, within limits: a client with slow, large or invalid requests
//! delays only itself.

use std::convert::Infallible;
use std::io;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::unix::{AsyncFd, AsyncFdReadyGuard};
use tokio::net;
use tokio::task::{JoinSet, yield_now};
use tokio::time::{sleep, timeout};
use tracing::debug;

use super::Site;
use super::answer::Answers;
use super::slots::{Slot, Slots};

/// Time limit for a request: long enough for one retransmission.
const REQUEST_TIME: Duration = Duration::from_secs(3);
/// Time limit for the whole connection, until the client has read the answer.
const WHOLE_TIME: Duration = Duration::from_secs(10);
/// The longest request in bytes. A body is never read.
const LONGEST_REQUEST: usize = 16 * 1024;
/// The most header fields of a request.
const HEADERS: usize = 64;
/// The most connections that one listener accepts before other listeners have their turn. Until the
/// surplus is closed, each connection is an open file.
const AT_ONCE: usize = 256;
/// The pause after an error of the listener, such as too many open files.
const PAUSE: Duration = Duration::from_millis(10);

/// Accepts connections while it is polled; open ones end with it. A connection in the kernel's
/// queue delays those behind it, whichever clients they belong to. So all waiting connections are
/// accepted at once, and the surplus is closed before any other work.
pub(super) async fn accept(
    listener: AsyncFd<TcpListener>,
    site: Site,
    answers: Arc<Answers>,
    slots: Slots,
) {
    let mut connections = JoinSet::new();
    // This fails when the runtime ends.
    while let Ok(ready) = listener.readable().await {
        let (waiting, error) = all_waiting(ready, &slots);
        for (stream, mut slot) in waiting {
            if !slot.is_evicted() {
                connections.spawn(serve(stream, slot, site, answers.clone()));
            }
        }
        while connections.try_join_next().is_some() {}
        match error {
            Some(error) => {
                debug!(%error, "cannot take a connection");
                sleep(PAUSE).await;
            }
            None => yield_now().await,
        }
    }
}

/// The connections in the kernel's queue, each with its slot, and the error that ended accepting,
/// if any.
fn all_waiting(
    mut ready: AsyncFdReadyGuard<'_, TcpListener>,
    slots: &Slots,
) -> (Vec<(TcpStream, Slot)>, Option<io::Error>) {
    let mut waiting = Vec::new();
    while waiting.len() < AT_ONCE {
        match ready.try_io(|listener| listener.get_ref().accept()) {
            Ok(Ok((stream, client))) => {
                waiting.push((stream, slots.take(client.ip().to_canonical())))
            }
            Ok(Err(error)) => return (waiting, Some(error)),
            Err(_nothing_waits) => break,
        }
    }
    (waiting, None)
}

/// Serves one request, unless the connection is evicted before. The server is set up only when data
/// arrives: a connection without a request costs almost nothing.
async fn serve(stream: TcpStream, mut slot: Slot, site: Site, answers: Arc<Answers>) {
    let Ok(stream) = pollable(stream) else { return };
    let has_requested = slot.has_requested();
    let conversation = async {
        match timeout(REQUEST_TIME, stream.readable()).await {
            Ok(Ok(())) => Box::pin(converse(stream, has_requested, site, answers)).await,
            Ok(Err(_)) | Err(_) => debug!("a client sent no request"),
        }
    };
    tokio::select! {
        () = conversation => {}
        () = slot.evicted() => debug!("a client's connection was closed in favour of others"),
    }
}

fn pollable(stream: TcpStream) -> io::Result<net::TcpStream> {
    stream.set_nonblocking(true)?;
    net::TcpStream::from_std(stream)
}

async fn converse(
    stream: net::TcpStream,
    has_requested: Arc<AtomicBool>,
    site: Site,
    answers: Arc<Answers>,
) {
    let Ok(local) = stream.local_addr() else { return };
    let answer = service_fn(|request| {
        has_requested.store(true, Ordering::Relaxed);
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
