//! Recognises a record exactly as this program prints it, which nearly every record is, by
//! comparing bytes instead of parsing. A record with other formatting is no error; the parser reads
//! it.

use std::net::IpAddr;
use std::ops::Range;

use crate::host_port::{HostPortFamily, HostPortProtocol};

/// Whether every string in `text` ends at the next quotation mark: there are no escapes, and no
/// control characters that JSON forbids, except line ends, which [`Rest::string`] checks.
pub(super) fn is_plain(text: &[u8]) -> bool {
    let is_plain = |byte: &u8| *byte != b'\\' && (*byte >= b' ' || *byte == b'\n');
    let (words, tail) = text.as_chunks();
    let are_plain = |bytes: &[u8; 8]| {
        let word = u64::from_le_bytes(*bytes);
        let below_space = word.wrapping_sub(ONES * u64::from(b' ')) & !word & HIGH;
        // Line ends are below a space too, but there is only one in each record.
        found(word, b'\\') | below_space == 0 || bytes.iter().all(is_plain)
    };
    words.iter().all(are_plain) && tail.iter().all(is_plain)
}

/// The id of the record at the beginning of `text`, which is plain, and the record's position;
/// `None` if it is not as printed.
pub(super) fn member(text: &str) -> Option<(&str, Range<usize>)> {
    let mut rest = Rest(text);
    let id = rest.string()?;
    rest.after(": ")?;
    let begin = text.len() - rest.0.len();
    let (container_id, if_name) = record(&mut rest)?;
    let interface = id.strip_prefix(container_id)?.strip_prefix('/')?;
    (interface == if_name).then_some((id, begin..text.len() - rest.0.len()))
}

/// A record's container id and interface name.
fn record<'a>(rest: &mut Rest<'a>) -> Option<(&'a str, &'a str)> {
    let container_id = rest.after("{\"containerId\":")?.string()?;
    let if_name = rest.after(",\"ifName\":")?.string()?;
    rest.after(",\"network\":")?.string()?;
    rest.after(",\"pod\":")?.or_null(|rest| {
        rest.after("{\"namespace\":")?.string()?;
        rest.after(",\"name\":")?.string()?;
        rest.after(",\"uid\":")?.or_null(|rest| rest.string().map(drop))?;
        rest.after("}").map(drop)
    })?;
    rest.after(",\"netns\":")?.or_null(|rest| rest.string().map(drop))?;
    rest.after(",\"hostInterface\":")?.or_null(|rest| {
        rest.after("{\"name\":")?.string()?;
        rest.after(",\"index\":")?.index()?;
        rest.after(",\"mac\":")?.string()?;
        rest.after("}").map(drop)
    })?;
    if rest.after(",\"l3Interface\":").is_some() {
        rest.string()?;
    }
    rest.after(",\"bridge\":")?.or_null(|rest| rest.string().map(drop))?;
    rest.after(",\"ips\":[")?.addresses()?;
    if rest.after(",\"mac\":").is_some() {
        rest.string()?;
    }
    if rest.after(",\"hostPorts\":[").is_some() {
        rest.host_ports()?;
    }
    rest.after(",\"addedAt\":")?.string()?;
    rest.after("}")?;
    Some((container_id, if_name))
}

/// The text that is not yet consumed.
struct Rest<'a>(&'a str);

impl<'a> Rest<'a> {
    /// Inlined, so that the length is a constant and the comparison needs no call.
    #[inline(always)]
    fn after(&mut self, literal: &str) -> Option<&mut Self> {
        self.0 = self.0.strip_prefix(literal)?;
        Some(self)
    }

    /// A string without escapes.
    fn string(&mut self) -> Option<&'a str> {
        let inside = self.0.strip_prefix('"')?;
        let (string, rest) = inside.split_at_checked(end_of_string(inside.as_bytes()))?;
        self.0 = rest.strip_prefix('"')?;
        Some(string)
    }

    #[inline(always)]
    fn or_null(&mut self, value: impl FnOnce(&mut Self) -> Option<()>) -> Option<()> {
        if self.after("null").is_some() { Some(()) } else { value(self) }
    }

    fn index(&mut self) -> Option<u32> {
        let length = self.0.bytes().take_while(u8::is_ascii_digit).count();
        let (digits, rest) = self.0.split_at(length);
        self.0 = rest;
        // JSON numbers have no leading zeros.
        digits.parse().ok().filter(|_| length == 1 || !digits.starts_with('0'))
    }

    /// Consumes the host ports of a list after its opening bracket, and the closing bracket. The
    /// list is not empty: it would not be printed.
    fn host_ports(&mut self) -> Option<()> {
        loop {
            self.after("{")?;
            if self.after("\"ip\":").is_some() {
                self.string()?.parse::<IpAddr>().ok()?;
                self.after(",")?;
            }
            if self.after("\"family\":").is_some() {
                HostPortFamily::try_from(u8::try_from(self.index()?).ok()?).ok()?;
                self.after(",")?;
            }
            let protocol = self.after("\"protocol\":")?.string()?;
            HostPortProtocol::named(protocol).filter(|known| known.name() == protocol)?;
            self.after(",\"port\":")?.port()?;
            self.after(",\"podPort\":")?.port()?;
            self.after("}")?;
            if self.after("]").is_some() {
                return Some(());
            }
            self.after(",")?;
        }
    }

    fn port(&mut self) -> Option<()> {
        let port = u16::try_from(self.index()?).ok()?;
        (port != 0).then_some(())
    }

    /// Consumes the addresses of a list after its opening bracket, and the closing bracket.
    fn addresses(&mut self) -> Option<()> {
        if self.after("]").is_some() {
            return Some(());
        }
        loop {
            self.string()?.parse::<IpAddr>().ok()?;
            if self.after("]").is_some() {
                return Some(());
            }
            self.after(",")?;
        }
    }
}

/// 1 in each byte of a word.
const ONES: u64 = u64::from_ne_bytes([1; 8]);

/// The highest bit of each byte of a word.
const HIGH: u64 = ONES << 7;

/// The highest bit of each byte of `word` that is `wanted`, and perhaps of bytes behind the first
/// such byte. A byte that is `wanted` becomes 0 in the exclusive or, and the first 0 is where the
/// subtraction first borrows. Eight bytes at a time: the plugin is compiled for its size, and so
/// without vectors.
fn found(word: u64, wanted: u8) -> u64 {
    let zero = word ^ (ONES * u64::from(wanted));
    zero.wrapping_sub(ONES) & !zero & HIGH
}

/// The position of the first quotation mark or line end; the length of `bytes` if there is none.
fn end_of_string(bytes: &[u8]) -> usize {
    let (words, tail) = bytes.as_chunks();
    for (number, word) in words.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        let found = found(word, b'"') | found(word, b'\n');
        if found != 0 {
            return number * 8 + found.trailing_zeros() as usize / 8;
        }
    }
    let in_tail = tail.iter().position(|byte| matches!(byte, b'"' | b'\n'));
    words.len() * 8 + in_tail.unwrap_or(tail.len())
}
