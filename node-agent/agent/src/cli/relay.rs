//! `relay`: the requests of `kubectl denizen`, which runs this command in the agent's container.
//!
//! One process answers several requests, a JSON line each, since starting one through the API
//! server takes longer than any answer. The first line out tells the release, before anything is
//! asked.

mod route;

use std::io::{self, BufRead, Read, Write};
use std::net::IpAddr;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::connections::{self, ConnectionsQuery};
use super::drops::{self, DroppedQuery, RefusedQuery};
use super::{ask, check};
use crate::config::RunDirArgs;
use crate::control::{Empty, ExplainQuery, Request};
use denizen_observe::status::view::ViewQuery;
use denizen_text::{eprint_line, printable_json};

/// The version of the protocol. It changes when the meaning of an answer changes, not when an
/// answer is added.
const PROTOCOL: u32 = 1;

/// Size limit of a request in bytes.
const LONGEST_REQUEST: u64 = 64 * 1024;

/// Size limit of an answer in bytes. Clients ask hundreds of nodes, and keep their answers.
const LONGEST_ANSWER: usize = 16 << 20;

/// Time limit of the whole process: a client that is gone may not close the input.
const SESSION: Duration = Duration::from_secs(60);

#[derive(Debug, Args)]
pub(super) struct RelayArgs {
    #[command(flatten)]
    run_dir: RunDirArgs,
}

/// The permitted requests: not the plugin's, and none that changes a decision.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
enum RelayRequest {
    Status(Empty),
    View(ViewQuery),
    Names(Empty),
    Explain(ExplainQuery),
    Announce(IpAddr),
    Trace(ExplainQuery),
    VirtualServers(Empty),
    /// As `denizen-agent check --run-dir`, with the flags that this container's environment sets.
    Check(Empty),
    /// As `denizen-agent connections`, limited.
    Connections(ConnectionsQuery),
    /// As `denizen-agent drops`, without flows.
    Drops(Empty),
    /// What `denizen-agent drops --watch` shows within a few seconds. Packets that differ only in
    /// their source port are one row.
    Dropped(DroppedQuery),
    /// The flows whose packets were dropped or refused within the last 15 minutes.
    Refused(RefusedQuery),
    /// How packets to an address leave this node.
    Route(IpAddr),
    /// No more requests follow. The client cannot close the input instead: through some API servers
    /// that cuts off the output.
    End(Empty),
}

/// The first line.
#[derive(Serialize)]
struct Hello {
    agent: &'static str,
    protocol: u32,
}

pub(super) fn relay(args: &RelayArgs) -> anyhow::Result<()> {
    thread::spawn(|| {
        thread::sleep(SESSION);
        eprint_line(format_args!("denizen-agent relay: ends after {SESSION:?}"));
        std::process::exit(1);
    });
    let (mut requests, mut out) = (io::stdin().lock(), io::stdout().lock());
    let hello = Hello { agent: env!("CARGO_PKG_VERSION"), protocol: PROTOCOL };
    write(&mut out, &serde_json::to_string(&hello)?)?;
    while let Some(line) = read(&mut requests)? {
        let answer = match serde_json::from_slice(&line) {
            Ok(RelayRequest::End(_)) => return Ok(()),
            Ok(request) => answer(request, &args.run_dir.run_dir),
            Err(error) => Err(anyhow::Error::new(error).context("not a request")),
        };
        write(&mut out, &answer_line(answer))?;
    }
    Ok(())
}

/// The next line; `None` after the last.
fn read(input: &mut impl BufRead) -> anyhow::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    input.take(LONGEST_REQUEST).read_until(b'\n', &mut line).context("cannot read a request")?;
    // The rest of a longer line is not another request.
    ensure!((line.len() as u64) < LONGEST_REQUEST, "a request has {LONGEST_REQUEST} bytes or more");
    Ok((!line.is_empty()).then_some(line))
}

fn answer(request: RelayRequest, run_dir: &Path) -> anyhow::Result<Value> {
    let request = match request {
        RelayRequest::Status(status) => Request::Status { status },
        RelayRequest::View(view) => Request::View { view },
        RelayRequest::Names(names) => Request::Names { names },
        RelayRequest::Explain(explain) => Request::Explain { explain },
        RelayRequest::Announce(announce) => Request::Announce { announce },
        RelayRequest::Trace(trace) => Request::Trace { trace },
        RelayRequest::VirtualServers(virtual_servers) => {
            Request::VirtualServers { virtual_servers }
        }
        RelayRequest::Check(_) => return Ok(json!(check::report(run_dir)?)),
        RelayRequest::Connections(query) => return Ok(json!(connections::list(query, run_dir)?)),
        RelayRequest::Drops(_) => return Ok(json!(drops::counts(run_dir)?)),
        RelayRequest::Dropped(query) => return Ok(json!(drops::dropped(query, run_dir)?)),
        RelayRequest::Refused(query) => return Ok(json!(drops::refused(query, run_dir)?)),
        RelayRequest::Route(to) => return Ok(json!(route::route(to)?)),
        RelayRequest::End(_) => return Ok(Value::Null),
    };
    ask(run_dir, async |agent| agent.relay(request).await)
}

/// `{"answer": …}` or `{"error": …}`: an answer may itself have a key `error`.
fn answer_line(answer: anyhow::Result<Value>) -> String {
    let line = match answer {
        Ok(answer) => json!({ "answer": answer }).to_string(),
        Err(error) => json!({ "error": format!("{error:#}") }).to_string(),
    };
    match line.len() {
        ..=LONGEST_ANSWER => printable_json(&line),
        bytes => {
            let limit = format!("the answer has {bytes} bytes, more than {LONGEST_ANSWER}");
            json!({ "error": format!("{limit}: ask for a part") }).to_string()
        }
    }
}

fn write(out: &mut impl Write, line: &str) -> anyhow::Result<()> {
    let written = writeln!(out, "{line}").and_then(|()| out.flush());
    written.context("cannot write to standard output")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<RelayRequest, String> {
        serde_json::from_str(line).map_err(|error| error.to_string())
    }

    #[test]
    fn only_listed_requests_are_taken() {
        let taken = [
            r#"{"status":{}}"#,
            r#"{"view":{"search":"web","skip":0}}"#,
            r#"{"names":{}}"#,
            r#"{"explain":{"from":"a/b","to":"c/d:80"}}"#,
            r#"{"announce":"10.0.0.1"}"#,
            r#"{"trace":{"from":"a/b","to":"c/d:80"}}"#,
            r#"{"virtualServers":{}}"#,
            r#"{"check":{}}"#,
            r#"{"connections":{"limit":5}}"#,
            r#"{"drops":{}}"#,
            r#"{"dropped":{"seconds":5}}"#,
            r#"{"refused":{"limit":20}}"#,
            r#"{"route":"fd00::1"}"#,
            r#"{"end":{}}"#,
            // A newer client may say more.
            r#"{"status":{"more":1}}"#,
        ];
        for line in taken {
            assert!(parsed(line).is_ok(), "{line}: {:?}", parsed(line));
        }
        let others = [
            r#"{"generation":5,"timeoutMilliseconds":100}"#,
            r#"{"waitFor":{}}"#,
            r#"{"sample":{}}"#,
            r#"{"measure":{}}"#,
            r#"{"status":{},"sample":{}}"#,
            "status",
            "[]",
            "",
        ];
        for line in others {
            assert!(parsed(line).is_err(), "{line}");
        }
        let error = parsed(r#"{"sample":{}}"#).unwrap_err();
        assert!(error.contains("`status`") && error.contains("`drops`"), "{error}");
    }

    #[test]
    fn a_request_that_is_too_long_ends_the_session() {
        let mut short: &[u8] = b"{}\n{\"a\":1}\nrest";
        for expected in [&b"{}\n"[..], b"{\"a\":1}\n", b"rest"] {
            assert_eq!(read(&mut short).unwrap().as_deref(), Some(expected));
        }
        assert_eq!(read(&mut short).unwrap(), None);
        let long = vec![b'x'; 2 * LONGEST_REQUEST as usize];
        assert!(read(&mut &long[..]).is_err());
    }

    #[test]
    fn an_answer_is_one_printable_line_of_limited_size() {
        let answer = json!({ "error": "not ours", "name": "a\u{1b}[2J\nb\u{202e}" });
        let line = answer_line(Ok(answer.clone()));
        assert!(!line.contains(['\n', '\u{1b}', '\u{202e}']), "{line}");
        assert_eq!(serde_json::from_str::<Value>(&line).unwrap(), json!({ "answer": answer }));
        let line = answer_line(Ok(json!("x".repeat(LONGEST_ANSWER))));
        assert!(line.len() < 200 && line.contains("ask for a part"), "{line}");
        let failed = answer_line(Err(anyhow::anyhow!("no agent").context("cannot ask")));
        assert_eq!(failed, r#"{"error":"cannot ask: no agent"}"#);
    }
}
