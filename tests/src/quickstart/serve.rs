//! The servers of the quick start's pods: separate processes, so that they go on running if the
//! node is left up.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::node::netns::Netns;
use crate::packets::server::{Listen, Server};

/// The argument that makes this program such a process.
pub const WORD: &str = "serve";

/// What such a process prints once it answers.
const READY: &str = "ready";

/// Starts a process inside `netns` that answers at `listens` until it is killed, as it is when the
/// namespace is removed.
pub fn start(netns: &Netns, listens: &[Listen]) -> Result<()> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(WORD).args(listens.iter().map(Listen::to_string));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = netns.run(|| command.spawn())??;
    let mut line = String::new();
    BufReader::new(child.stdout.take().context("no standard output")?).read_line(&mut line)?;
    ensure!(line.trim() == READY, "a server in {} did not come up", netns.name());
    Ok(())
}

/// The main function of that process.
pub fn main(listens: &[String]) -> Result<()> {
    let listens = listens.iter().map(|text| text.parse()).collect::<Result<Vec<_>>>()?;
    let _server = Server::start_here(&listens)?;
    println!("{READY}");
    std::io::stdout().flush()?;
    loop {
        thread::sleep(Duration::from_secs(3600));
    }
}
