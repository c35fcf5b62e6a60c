//! A record exactly as this program prints it, which nearly every record is: its bytes are
//! compared, where a parser would look for what they mean. What looks otherwise is no mistake; it
//! is for the parser.

use std::net::IpAddr;
use std::ops::Range;

/// Whether strings in `text` end at the next quotation mark: nothing is escaped, and no control
/// character is there that JSON does not allow, but for the line ends, which [`Rest::string`] looks
/// for.
pub(super) fn is_plain(text: &[u8]) -> bool {
    // Not `any`, which looks at one byte after the other.
    !text
        .iter()
        .fold(false, |found, byte| found | (*byte == b'\\') | ((*byte < b' ') & (*byte != b'\n')))
}

/// The id of the record with which `text`, which is plain, begins, and where the record is in it,
/// if it is as printed.
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
    rest.after(",\"addedAt\":")?.string()?;
    rest.after("}")?;
    Some((container_id, if_name))
}

/// What has not been looked at yet.
struct Rest<'a>(&'a str);

impl<'a> Rest<'a> {
    /// Inlined, so that the length is known and nobody is called to compare.
    #[inline(always)]
    fn after(&mut self, literal: &str) -> Option<&mut Self> {
        self.0 = self.0.strip_prefix(literal)?;
        Some(self)
    }

    /// A string without escapes: its text is what it says.
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
        // JSON has no number like 012.
        digits.parse().ok().filter(|_| length == 1 || !digits.starts_with('0'))
    }

    /// The addresses of a list whose bracket is open, and the bracket that closes it.
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

/// Where the first quotation mark or line end is; all of `bytes` when there is none.
///
/// Eight bytes at a time: a byte of `word` that is `wanted` is 0 in the exclusive or, and the first
/// 0 is where the subtraction first borrows.
fn end_of_string(bytes: &[u8]) -> usize {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    let first = |word: u64, wanted: u8| {
        let zero = word ^ (ONES * u64::from(wanted));
        zero.wrapping_sub(ONES) & !zero & (ONES << 7)
    };
    let (words, tail) = bytes.as_chunks();
    for (number, word) in words.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        let found = first(word, b'"') | first(word, b'\n');
        if found != 0 {
            return number * 8 + found.trailing_zeros() as usize / 8;
        }
    }
    let in_tail = tail.iter().position(|byte| matches!(byte, b'"' | b'\n'));
    words.len() * 8 + in_tail.unwrap_or(tail.len())
}
