//! What both ends of a probe say to each other: a line of JSON each way. No datagram is answered by
//! a longer one, and no answer is taken for a request.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::result::ProbeResult;

/// Size limit of a line in bytes: `--first` may have many results.
pub(super) const MAX_MESSAGE_BYTES: u64 = 64 << 10;

/// Time limit for the server's connection back, for which the client waits too. A client that
/// cannot be reached costs all of it.
pub(super) const BACK: Duration = Duration::from_millis(1500);

/// A datagram is filled up to this length. Answers are shorter.
const DATAGRAM: usize = 512;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ProbeRequest {
    /// An id chosen by the client, by which it recognises the answer.
    probe: String,
    /// Connect back to this port, and tell what came of it. Over TCP alone: a datagram's source
    /// address can be forged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) back: Option<u16>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ProbeAnswer {
    answers: String,
    pub(super) name: String,
    /// The client's address, as the server sees it.
    pub(super) client: IpAddr,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) back: Option<Box<ProbeResult>>,
    /// The results of `--first`, once they are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) first: Option<Vec<ProbeResult>>,
}

impl ProbeRequest {
    pub(super) fn new(back: Option<u16>) -> Self {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        Self { probe: format!("{}-{number}", std::process::id()), back }
    }

    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok()
    }

    pub(super) fn line(&self) -> Vec<u8> {
        let mut line = serde_json::to_vec(self).expect("plain data");
        line.push(b'\n');
        line
    }

    pub(super) fn datagram(&self) -> Vec<u8> {
        let mut datagram = self.line();
        datagram.resize(DATAGRAM, b' ');
        datagram
    }

    pub(super) fn answer(&self, name: &str, client: IpAddr) -> ProbeAnswer {
        // An IPv4 client at an IPv6 socket.
        let client = client.to_canonical();
        let (answers, name) = (self.probe.clone(), name.to_owned());
        ProbeAnswer { answers, name, client, back: None, first: None }
    }
}

impl ProbeAnswer {
    /// Parses an answer; `None` if it is not the answer to this request.
    pub(super) fn read(bytes: &[u8], request: &ProbeRequest) -> Option<Self> {
        let answer: Self = serde_json::from_slice(bytes).ok()?;
        (answer.answers == request.probe).then_some(answer)
    }

    pub(super) fn line(&self) -> Vec<u8> {
        let mut line = serde_json::to_vec(self).expect("plain data");
        line.push(b'\n');
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Otherwise two servers might answer each other for ever.
    #[test]
    fn an_answer_is_no_request_and_no_datagram_is_answered_by_a_longer_one() {
        let request = ProbeRequest::new(None);
        let datagram = request.datagram();
        assert_eq!(ProbeRequest::read(&datagram), Some(request.clone()));
        let longest = "x".repeat(253);
        let client = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff".parse().unwrap();
        let answer = request.answer(&longest, client).line();
        assert!(answer.len() <= datagram.len(), "{}", answer.len());
        assert_eq!(ProbeRequest::read(&answer), None);
        assert_eq!(ProbeAnswer::read(&answer, &request).unwrap().client, client);
        assert!(ProbeAnswer::read(&answer, &ProbeRequest::new(None)).is_none());
    }
}
