//! A bearer token in a file that somebody replaces.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use denizen_shared::regular;
use hyper::Request;
use hyper::header::{AUTHORIZATION, HeaderValue};

/// A token, read anew for every request, so that its successor counts at once.
///
/// kube's own reading notices a new token after up to a minute, and refuses a file that ends with a
/// newline, as those do that people write. Requests are few: two a minute.
#[derive(Debug, Clone)]
pub(super) struct TokenFile {
    path: PathBuf,
    /// What it held last: for requests while it is being replaced.
    last: Arc<Mutex<HeaderValue>>,
}

impl TokenFile {
    /// Reads it for the first time.
    ///
    /// # Errors
    /// It cannot be read, or what it holds cannot be in a header.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), last: Arc::new(Mutex::new(read(path)?)) })
    }

    /// The same request, with the token that the file holds now.
    pub(super) fn put_into<B>(&self, mut request: Request<B>) -> Request<B> {
        let mut last = self.last.lock().expect("nobody panics while holding it");
        if let Ok(now) = read(&self.path) {
            *last = now;
        }
        request.headers_mut().insert(AUTHORIZATION, last.clone());
        request
    }
}

/// More than any token has, and than a header may have, in bytes.
const LONGEST: u64 = 64 << 10;

fn read(path: &Path) -> io::Result<HeaderValue> {
    let text = regular::read_to_string(path, LONGEST)?;
    let token = text.trim();
    if token.is_empty() {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it is empty"));
    }
    let header = HeaderValue::try_from(format!("Bearer {token}"));
    let mut header = header.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    header.set_sensitive(true);
    Ok(header)
}
