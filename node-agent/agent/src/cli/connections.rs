//! `connections`.

#![expect(clippy::disallowed_methods, reason = "the age of a connection is the time until now")]

use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use anyhow::Context;
use clap::Args;
use denizen_netlink::NetlinkError;
use serde::{Deserialize, Serialize};

use super::{Output, end_with_reader, names};
use crate::config::RunDirArgs;
use denizen_observe::connections::{
    ConnectionFilter, ConnectionReader, NamedConnection, Totals, TrackedEvent,
};
use denizen_observe::names::Names;
use denizen_text::{Printable, eprint_line, printable_json, printable_lines};

/// How long names are used before the agent is asked for them again.
const NAMES_FOR: Duration = Duration::from_secs(5);

#[derive(Debug, Args)]
pub(super) struct ConnectionsArgs {
    /// Only the connections of this pod
    #[arg(long, value_name = "NAMESPACE/POD|ADDR")]
    pod: Option<String>,
    /// Only the connections to this service, or to one of its ports
    #[arg(long, value_name = "NAMESPACE/NAME[:PORT]")]
    service: Option<String>,
    /// Show connections as they begin and end, until interrupted
    #[arg(long)]
    watch: bool,
    #[command(flatten)]
    run_dir: RunDirArgs,
    /// Output format
    #[arg(long, value_enum, default_value = "text")]
    output: Output,
}

/// Prints each connection as it is read, so that a table of any size needs no memory.
pub(super) fn connections(args: ConnectionsArgs) -> anyhow::Result<()> {
    let ConnectionsArgs { pod, service, watch, run_dir, output } = args;
    let filter = ConnectionFilter { pod, service };
    let names = names(&run_dir.run_dir)?;
    filter.check(&names)?;
    let mut reader = ConnectionReader::open()?;
    let out = BufWriter::new(io::stdout().lock());
    let mut show = Show { out, output, filter, names, failed: None };
    let done = match watch {
        true => show.watch(&mut reader, &run_dir.run_dir),
        false => show.list(&mut reader),
    };
    match show.failed {
        // The reader, such as `head`, has read enough.
        Some(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        Some(error) => Err(error).context("cannot write to standard output"),
        None => done,
    }
}

/// Which connections [`list`] shows.
#[derive(Debug, Deserialize)]
pub(super) struct ConnectionsQuery {
    #[serde(default)]
    pod: Option<String>,
    #[serde(default)]
    service: Option<String>,
    /// The most connections that are shown; all are counted.
    limit: usize,
}

/// A part of the connections, as `--output json` has them.
#[derive(Debug, Default, Serialize)]
pub(super) struct ConnectionList {
    connections: Vec<NamedConnection>,
    #[serde(flatten)]
    totals: Totals,
}

/// Connections for `relay`. A pod or service that this node does not know is no error, but has no
/// connections here: another node may know it.
pub(super) fn list(query: ConnectionsQuery, run_dir: &Path) -> anyhow::Result<ConnectionList> {
    let ConnectionsQuery { pod, service, limit } = query;
    let filter = ConnectionFilter { pod, service };
    let (names, now) = (names(run_dir)?, now());
    let mut reader = ConnectionReader::open()?;
    let mut list = ConnectionList::default();
    let each = |tracked| {
        let connection = NamedConnection::of(&tracked, &names, now);
        if filter.selects(&connection) {
            list.totals.add(&connection);
            if list.connections.len() < limit {
                list.connections.push(connection);
            }
        }
    };
    let read = match filter.parts(&names) {
        Some(parts) => reader.read(&parts, each),
        None => reader.read_all(each),
    };
    read.context("cannot read the connections")?;
    Ok(list)
}

/// Since 1970.
fn now() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// A connection that began or ended.
#[derive(Serialize)]
struct Event<'a> {
    event: &'static str,
    #[serde(flatten)]
    connection: &'a NamedConnection,
}

struct Show<W> {
    out: W,
    output: Output,
    filter: ConnectionFilter,
    names: Names,
    failed: Option<io::Error>,
}

impl<W: Write> Show<W> {
    fn write(&mut self, text: &str) {
        if self.failed.is_none() {
            self.failed = self.out.write_all(text.as_bytes()).err();
        }
    }

    fn flush(&mut self) {
        if self.failed.is_none() {
            self.failed = self.out.flush().err();
        }
    }

    fn list(&mut self, reader: &mut ConnectionReader) -> anyhow::Result<()> {
        let now = now();
        let mut totals = Totals::default();
        let parts = self.filter.parts(&self.names);
        if self.output == Output::Json {
            self.write("{\"connections\":[");
        }
        let each = |tracked| {
            let connection = NamedConnection::of(&tracked, &self.names, now);
            if self.failed.is_none() && self.filter.selects(&connection) {
                self.row(&connection, totals.total == 0);
                totals.add(&connection);
            }
        };
        let read = match parts {
            Some(parts) => reader.read(&parts, each),
            None => reader.read_all(each),
        };
        read.context("cannot read the connections")?;
        let end = match self.output {
            Output::Text => printable_lines(&totals.to_string()),
            Output::Json => {
                // The end of the JSON object that the first row began.
                let rest = serde_json::to_string(&totals)?;
                printable_json(&rest).replacen('{', "\n],", 1) + "\n"
            }
        };
        self.write(&end);
        self.flush();
        Ok(())
    }

    fn row(&mut self, connection: &NamedConnection, is_first: bool) {
        match self.output {
            Output::Text => {
                let line = format!("{}\n", Printable(&connection.to_string()));
                self.write(&line);
            }
            Output::Json => {
                let json = serde_json::to_string(connection).expect("plain data");
                self.write(if is_first { "\n" } else { ",\n" });
                self.write(&printable_json(&json));
            }
        }
    }

    /// Watches until the output is closed, or the command is interrupted.
    fn watch(&mut self, reader: &mut ConnectionReader, run_dir: &Path) -> anyhow::Result<()> {
        end_with_reader();
        reader.listen().context("cannot watch connections")?;
        eprint_line("watching connections that begin and end");
        let mut named = Instant::now();
        while self.failed.is_none() {
            let mut events = Vec::new();
            match reader.receive(|event| events.push(event)) {
                Err(NetlinkError::Overflow) => {
                    eprint_line("events are missing: the kernel had more to tell than was read");
                }
                received => received.context("cannot watch connections")?,
            }
            if named.elapsed() > NAMES_FOR {
                // Names that are known stay if the agent is gone.
                self.names = names(run_dir).unwrap_or_else(|_| std::mem::take(&mut self.names));
                named = Instant::now();
            }
            let now = now();
            events.iter().for_each(|event| self.event(event, now));
            self.flush();
        }
        Ok(())
    }

    fn event(&mut self, event: &TrackedEvent, now: Duration) {
        let (event, tracked) = match event {
            TrackedEvent::New(tracked) => ("new", tracked),
            TrackedEvent::Ended(tracked) => ("ended", tracked),
        };
        let connection = &NamedConnection::of(tracked, &self.names, now);
        if !self.filter.selects(connection) {
            return;
        }
        let line = match self.output {
            Output::Text => Printable(&format!("{event} {connection}")).to_string(),
            Output::Json => {
                let json = serde_json::to_string(&Event { event, connection }).expect("plain data");
                printable_json(&json)
            }
        };
        self.write(&(line + "\n"));
    }
}
