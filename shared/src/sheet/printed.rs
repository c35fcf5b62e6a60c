//! A record exactly as this program prints it, which nearly every record is: its bytes are compared, where a parser would
//! look for what they mean. What looks otherwise is no mistake; it is for the parser.

use std::net::IpAddr;

/// A record's container id, interface name and length, if `text` begins with one as printed.
pub(super) fn record(text: &str) -> Option<(&str, &str, usize)> {
    let mut rest = Rest(text);
    let container_id = rest.after("{\"containerId\":")?.string()?;
    let if_name = rest.after(",\"ifName\":")?.string()?;
    rest.after(",\"network\":")?.string()?;
    rest.after(",\"pod\":")?.or_null(|rest| {
        rest.after("{\"namespace\":")?.string()?;
        rest.after(",\"name\":")?.string()?;
        rest.after(",\"uid\":")?.or_null(|rest| rest.string().map(drop))?;
        rest.after("}").map(drop)
    })?;
    rest.after(",\"netns\":")?
        .or_null(|rest| rest.string().map(drop))?;
    rest.after(",\"hostInterface\":")?.or_null(|rest| {
        rest.after("{\"name\":")?.string()?;
        rest.after(",\"index\":")?.index()?;
        rest.after(",\"mac\":")?.string()?;
        rest.after("}").map(drop)
    })?;
    if rest.after(",\"l3Interface\":").is_some() {
        rest.string()?;
    }
    rest.after(",\"bridge\":")?
        .or_null(|rest| rest.string().map(drop))?;
    rest.after(",\"ips\":[")?.addresses()?;
    rest.after(",\"addedAt\":")?.string()?;
    rest.after("}")?;
    Some((container_id, if_name, text.len() - rest.0.len()))
}

/// What has not been looked at yet.
struct Rest<'a>(&'a str);

impl<'a> Rest<'a> {
    fn after(&mut self, literal: &str) -> Option<&mut Self> {
        self.0 = self.0.strip_prefix(literal)?;
        Some(self)
    }

    /// A string without escapes: its text is what it says.
    fn string(&mut self) -> Option<&'a str> {
        let (string, rest) = self.0.strip_prefix('"')?.split_once('"')?;
        // Not `any`, which looks at one byte after the other.
        let is_special = string
            .bytes()
            .fold(false, |found, byte| found | (byte < b' ') | (byte == b'\\'));
        self.0 = rest;
        (!is_special).then_some(string)
    }

    fn or_null(&mut self, value: impl FnOnce(&mut Self) -> Option<()>) -> Option<()> {
        if self.after("null").is_some() {
            Some(())
        } else {
            value(self)
        }
    }

    fn index(&mut self) -> Option<u32> {
        let length = self.0.bytes().take_while(u8::is_ascii_digit).count();
        let (digits, rest) = self.0.split_at(length);
        self.0 = rest;
        // JSON has no number like 012.
        digits
            .parse()
            .ok()
            .filter(|_| length == 1 || !digits.starts_with('0'))
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
