//! A bearer token in a file that may be replaced.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use denizen_state::regular;
use hyper::Request;
use hyper::header::{AUTHORIZATION, HeaderValue};

/// A token that is read again for every request, so that a new one counts at once.
///
/// kube's own reader notices a new token after up to a minute, and refuses a file that ends with a
/// newline, which hand-written files do. Requests are few: two a minute.
#[derive(Debug, Clone)]
pub(super) struct TokenFile {
    path: PathBuf,
    /// The last token, for requests while the file is being replaced.
    last: Arc<Mutex<HeaderValue>>,
}

impl TokenFile {
    /// Reads it for the first time.
    ///
    /// # Errors
    /// The file cannot be read, or its content is not valid in a header.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), last: Arc::new(Mutex::new(read(path)?)) })
    }

    /// Adds the current token to the request.
    pub(super) fn put_into<B>(&self, mut request: Request<B>) -> Request<B> {
        let mut last = self.last.lock().expect("nobody panics while holding it");
        if let Ok(now) = read(&self.path) {
            *last = now;
        }
        request.headers_mut().insert(AUTHORIZATION, last.clone());
        request
    }
}

/// Size limit in bytes: more than any token has, and than a header may have.
const MAX_FILE_BYTES: u64 = 64 << 10;

fn read(path: &Path) -> io::Result<HeaderValue> {
    let text = regular::read_to_string(path, MAX_FILE_BYTES)?;
    let token = text.trim();
    if token.is_empty() {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it is empty"));
    }
    let header = HeaderValue::try_from(format!("Bearer {token}"));
    let mut header = header.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    header.set_sensitive(true);
    Ok(header)
}
