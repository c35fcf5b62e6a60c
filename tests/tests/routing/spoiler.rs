//! Between an agent and its BIRD: makes every new configuration one that BIRD refuses.

use std::fs::{self, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread;

use anyhow::Result;

/// Takes the place of BIRD's control socket until it is dropped.
pub(super) struct Spoiler {
    socket: PathBuf,
    behind: PathBuf,
}

impl Spoiler {
    /// In front of the BIRD with this control socket.
    pub(super) fn before(socket: &Path) -> Result<Self> {
        let behind = socket.with_extension("behind");
        fs::rename(socket, &behind)?;
        let listener = UnixListener::bind(socket)?;
        let to = behind.clone();
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let to = to.clone();
                thread::spawn(move || pass_on(client, &to));
            }
        });
        Ok(Self { socket: socket.to_owned(), behind })
    }
}

impl Drop for Spoiler {
    fn drop(&mut self) {
        let _ = fs::rename(&self.behind, &self.socket);
    }
}

/// Passes on all lines and all answers. What BIRD is to read gets a line more.
fn pass_on(client: UnixStream, to: &Path) -> io::Result<()> {
    let mut bird = UnixStream::connect(to)?;
    let (mut answers, mut back) = (bird.try_clone()?, client.try_clone()?);
    thread::spawn(move || {
        let _ = io::copy(&mut answers, &mut back);
        back.shutdown(Shutdown::Both)
    });
    for line in BufReader::new(client).lines() {
        let line = line?;
        if let Some(path) = line.strip_prefix("configure ") {
            let mut file = OpenOptions::new().append(true).open(path.trim_matches('"'))?;
            writeln!(file, "nonsense;")?;
        }
        writeln!(bird, "{line}")?;
    }
    bird.shutdown(Shutdown::Both)
}
