//! Netlink messages and attributes as bytes (`struct nlmsghdr`, `struct nlattr`; linux/netlink.h).

use nix::libc;

const MESSAGE_HEADER: usize = 16;
const ATTRIBUTE_HEADER: usize = 4;
const NESTED: u16 = libc::NLA_F_NESTED as u16;

/// Appends messages to a buffer.
///
/// An attribute's length has 16 bits: a caller that nests more than 65,535 bytes must split them,
/// and [`Writer::nested_len`] shows how many bytes are nested so far.
#[derive(Debug, Default)]
pub struct Writer {
    buffer: Vec<u8>,
}

/// A message or attribute whose length is not known yet.
#[derive(Debug)]
#[must_use = "its length must be written by `end` or `end_message`"]
pub struct Open {
    start: usize,
}

impl Writer {
    /// The bytes of the messages so far.
    pub fn bytes(&self) -> &[u8] {
        &self.buffer
    }

    /// The bytes of all messages.
    pub fn into_bytes(self) -> Vec<u8> {
        self.buffer
    }

    /// Sets flags of the message that begins at this byte.
    pub fn add_flags(&mut self, message: usize, flags: u16) {
        let at = message + 6;
        let before = u16::from_ne_bytes([self.buffer[at], self.buffer[at + 1]]);
        self.buffer[at..at + 2].copy_from_slice(&(before | flags).to_ne_bytes());
    }

    /// Begins a message of a netfilter subsystem: `struct nfgenmsg` follows `struct nlmsghdr`.
    pub fn begin_message(
        &mut self,
        kind: u16,
        flags: u16,
        sequence: u32,
        family: u8,
        resource: u16,
    ) -> Open {
        let [high, low] = resource.to_be_bytes();
        self.begin_message_with(kind, flags, sequence, &[family, 0, high, low])
    }

    /// Begins a request whose fixed header, behind `struct nlmsghdr`, is `header` (`struct
    /// nfgenmsg`, `struct ifinfomsg`, …). Its length must be a multiple of four.
    pub fn begin_message_with(
        &mut self,
        kind: u16,
        flags: u16,
        sequence: u32,
        header: &[u8],
    ) -> Open {
        assert!(header.len().is_multiple_of(4), "a header of {} bytes", header.len());
        let open = Open { start: self.buffer.len() };
        self.buffer.extend_from_slice(&0_u32.to_ne_bytes());
        self.buffer.extend_from_slice(&kind.to_ne_bytes());
        self.buffer.extend_from_slice(&(flags | libc::NLM_F_REQUEST as u16).to_ne_bytes());
        self.buffer.extend_from_slice(&sequence.to_ne_bytes());
        self.buffer.extend_from_slice(&0_u32.to_ne_bytes());
        self.buffer.extend_from_slice(header);
        open
    }

    /// Ends a message: writes its length into its header.
    pub fn end_message(&mut self, open: Open) {
        let length = (self.buffer.len() - open.start) as u32;
        self.buffer[open.start..open.start + 4].copy_from_slice(&length.to_ne_bytes());
    }

    /// Begins an attribute that contains attributes.
    pub fn begin(&mut self, kind: u16) -> Open {
        self.header(kind | NESTED)
    }

    /// Ends a nested attribute: writes its length into its header.
    pub fn end(&mut self, open: Open) {
        let length = self.buffer.len() - open.start;
        assert!(length <= usize::from(u16::MAX), "an attribute of {length} bytes");
        self.buffer[open.start..open.start + 2].copy_from_slice(&(length as u16).to_ne_bytes());
    }

    /// How many bytes an open attribute has so far.
    pub fn nested_len(&self, open: &Open) -> usize {
        self.buffer.len() - open.start
    }

    /// Writes an attribute with these bytes, padded to 4.
    pub fn put(&mut self, kind: u16, value: &[u8]) {
        let open = self.header(kind);
        self.buffer.extend_from_slice(value);
        self.end(open);
        while !self.buffer.len().is_multiple_of(4) {
            self.buffer.push(0);
        }
    }

    /// A number in network byte order, as nf_tables has all of its numbers.
    pub fn put_u32(&mut self, kind: u16, value: u32) {
        self.put(kind, &value.to_be_bytes());
    }

    /// A string with a terminating zero byte.
    pub fn put_str(&mut self, kind: u16, value: &str) {
        let open = self.header(kind);
        self.buffer.extend_from_slice(value.as_bytes());
        self.buffer.push(0);
        self.end(open);
        while !self.buffer.len().is_multiple_of(4) {
            self.buffer.push(0);
        }
    }

    fn header(&mut self, kind: u16) -> Open {
        let open = Open { start: self.buffer.len() };
        self.buffer.extend_from_slice(&[0; 2]);
        self.buffer.extend_from_slice(&kind.to_ne_bytes());
        open
    }
}

/// One message that was received.
#[derive(Debug, Clone, Copy)]
pub struct Message<'a> {
    /// The message's type (`nlmsg_type`).
    pub kind: u16,
    /// The message's flags (`nlmsg_flags`).
    pub flags: u16,
    /// `nlmsg_seq`: that of the request it answers.
    pub sequence: u32,
    /// `nlmsg_pid`: the portid of the socket whose request this is about.
    pub portid: u32,
    /// What follows `struct nlmsghdr`.
    pub payload: &'a [u8],
}

impl<'a> Message<'a> {
    /// The attributes of a netfilter message, behind `struct nfgenmsg`.
    pub fn attributes(&self) -> Attributes<'a> {
        self.attributes_after(4)
    }

    /// The attributes behind a fixed header of `header` bytes; none when the message is shorter.
    pub fn attributes_after(&self, header: usize) -> Attributes<'a> {
        Attributes::new(self.payload.get(header..).unwrap_or_default())
    }

    /// The address family in `struct nfgenmsg`.
    pub fn family(&self) -> Option<u8> {
        self.payload.first().copied()
    }
}

/// The messages in what one receive returned.
#[derive(Debug, Clone)]
pub struct Messages<'a> {
    rest: &'a [u8],
}

/// Reads received bytes as messages. A message that is cut short is not returned.
pub fn parse_messages(bytes: &[u8]) -> Messages<'_> {
    Messages { rest: bytes }
}

impl<'a> Iterator for Messages<'a> {
    type Item = Message<'a>;

    fn next(&mut self) -> Option<Message<'a>> {
        let header = self.rest.get(..MESSAGE_HEADER)?;
        let length = u32_at(header, 0)? as usize;
        let payload = self.rest.get(MESSAGE_HEADER..length)?;
        self.rest = self.rest.get(aligned(length)..).unwrap_or_default();
        let (kind, flags) = (u16_at(header, 4)?, u16_at(header, 6)?);
        Some(Message {
            kind,
            flags,
            sequence: u32_at(header, 8)?,
            portid: u32_at(header, 12)?,
            payload,
        })
    }
}

/// A sequence of attributes (`struct nlattr`). Bad lengths end it.
#[derive(Debug, Clone, Copy)]
pub struct Attributes<'a> {
    rest: &'a [u8],
}

impl<'a> Attributes<'a> {
    /// Reads bytes as attributes. An attribute that is cut short is not returned.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// The value of the first attribute of this kind.
    pub fn find(mut self, kind: u16) -> Option<&'a [u8]> {
        self.find_map(|(k, value)| (k == kind).then_some(value))
    }

    /// The attributes within the first attribute of this kind; none when it is missing.
    pub fn nested(self, kind: u16) -> Self {
        Self::new(self.find(kind).unwrap_or_default())
    }

    /// A number in network order.
    pub fn find_u32(self, kind: u16) -> Option<u32> {
        self.find(kind)?.try_into().ok().map(u32::from_be_bytes)
    }

    /// A string, without its final zero byte; `None` when missing or not UTF-8.
    pub fn find_str(self, kind: u16) -> Option<&'a str> {
        let value = self.find(kind)?;
        std::str::from_utf8(value.strip_suffix(&[0]).unwrap_or(value)).ok()
    }
}

impl<'a> Iterator for Attributes<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let length = usize::from(u16_at(self.rest, 0)?);
        let kind = u16_at(self.rest, 2)? & libc::NLA_TYPE_MASK as u16;
        let value = self.rest.get(ATTRIBUTE_HEADER..length)?;
        self.rest = self.rest.get(aligned(length)..).unwrap_or_default();
        Some((kind, value))
    }
}

fn aligned(length: usize) -> usize {
    length.next_multiple_of(4)
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2)?.try_into().ok().map(u16::from_ne_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let mut writer = Writer::default();
        let message = writer.begin_message(7, 0x400, 9, 2, 10);
        writer.put_str(1, "denizen");
        let nest = writer.begin(4);
        writer.put_u32(2, 0x0102_0304);
        writer.put(3, &[1]);
        writer.end(nest);
        writer.end_message(message);

        let mut messages = parse_messages(writer.bytes());
        let read = messages.next().expect("one message");
        assert_eq!((read.kind, read.flags, read.sequence), (7, 0x401, 9));
        assert_eq!(read.family(), Some(2));
        assert_eq!(read.attributes().find_str(1), Some("denizen"));
        assert_eq!(read.attributes().nested(4).find_u32(2), Some(0x0102_0304));
        assert_eq!(read.attributes().nested(4).find(3), Some(&[1][..]));
        assert!(messages.next().is_none());
    }

    #[test]
    fn bytes_cut_anywhere_are_not_read_beyond_their_end() {
        let mut writer = Writer::default();
        let message = writer.begin_message(7, 0, 9, 2, 0);
        writer.put_str(1, "denizen");
        writer.end_message(message);
        for end in 0..writer.bytes().len() {
            assert_eq!(parse_messages(&writer.bytes()[..end]).count(), 0, "cut at {end}");
            let _ = Attributes::new(&writer.bytes()[..end]).count();
        }
    }
}
