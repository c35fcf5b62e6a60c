//! BIRD's control socket. A request is one line; the answer's lines begin with codes of four digits
//! (doc/reply_codes of BIRD 2).

#![expect(clippy::disallowed_methods, reason = "BIRD may not answer")]

use std::path::Path;
use std::time::Duration;

use thiserror::Error;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Take};
use tokio::net::UnixStream;
use tokio::time::timeout;

/// Time limit for one answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Size limit of one answer, in bytes.
const LONGEST: u64 = 4 << 20;

/// Why BIRD did not answer, or refused a command.
#[derive(Debug, Error)]
pub enum BirdError {
    /// No process listens at the socket.
    #[error("BIRD does not answer at {path}: {source}")]
    Away {
        path: String,
        #[source]
        source: std::io::Error,
    },
    /// The connection broke, or the answer is too long.
    #[error("BIRD's answer is incomplete: {0}")]
    Broken(#[from] std::io::Error),
    /// No complete answer came within the time limit.
    #[error("BIRD does not answer within {} s", PATIENCE.as_secs())]
    Late,
    /// BIRD answers with an error.
    #[error("BIRD refuses: {0}")]
    Refused(String),
}

#[derive(Debug)]
pub struct Control(BufReader<Take<UnixStream>>);

impl Control {
    pub async fn connect(path: &Path) -> Result<Self, BirdError> {
        let away = |source| BirdError::Away { path: path.display().to_string(), source };
        let connected = timeout(PATIENCE, UnixStream::connect(path)).await;
        let stream = connected.map_err(|_| BirdError::Late)?.map_err(away)?;
        let mut control = Self(BufReader::new(stream.take(0)));
        timeout(PATIENCE, control.answer()).await.map_err(|_| BirdError::Late)??;
        Ok(control)
    }

    /// Sends a command, and returns the lines of the answer without their codes.
    pub async fn ask(&mut self, words: &str) -> Result<Vec<String>, BirdError> {
        let answer = async {
            let line = format!("{words}\n");
            self.0.get_mut().get_mut().write_all(line.as_bytes()).await?;
            self.answer().await
        };
        timeout(PATIENCE, answer).await.map_err(|_| BirdError::Late)?
    }

    async fn answer(&mut self) -> Result<Vec<String>, BirdError> {
        self.0.get_mut().set_limit(LONGEST);
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            if self.0.read_line(&mut line).await? == 0 {
                return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into());
            }
            let line = line.trim_end_matches('\n');
            match Line::of(line) {
                Line::More(text) => lines.push(text.to_owned()),
                Line::Last(text) => {
                    lines.push(text.to_owned());
                    return Ok(lines);
                }
                Line::Refusal(text) => return Err(BirdError::Refused(text.to_owned())),
            }
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line<'a> {
    /// More lines follow.
    More(&'a str),
    Last(&'a str),
    /// The last line, with the code of an error.
    Refusal(&'a str),
}

impl<'a> Line<'a> {
    /// `CODE-TEXT` and ` TEXT` are followed by more lines, `CODE TEXT` is the last. Codes from 8000
    /// on are errors, and so are two lower ones ([`is_refusal`]).
    pub(super) fn of(line: &'a str) -> Self {
        let is_code = |code: &&str| code.bytes().all(|byte| byte.is_ascii_digit());
        match line.split_at_checked(4).filter(|(code, _)| is_code(code)) {
            Some((code, rest)) => match rest.strip_prefix('-') {
                Some(text) => Self::More(text),
                None if is_refusal(code) => Self::Refusal(rest.trim_start()),
                None => Self::Last(rest.strip_prefix(' ').unwrap_or(rest)),
            },
            // One space stands for the code of the line before.
            None => Self::More(line.strip_prefix(' ').unwrap_or(line)),
        }
    }
}

/// 0006: BIRD shuts down, and takes no configuration. 0016: the socket permits only reading.
fn is_refusal(code: &str) -> bool {
    code >= "8000" || matches!(code, "0006" | "0016")
}
