//! Cuts an answer that arrives piece by piece into events or objects. Pure.

use super::envelope::{Encoding, ListMetadata, MAX_OBJECT_BYTES, Object, Unreadable, WatchEvent};
use denizen_object::protobuf::{
    FromProtobuf, Head, MAGIC_LENGTH, Malformation, TypeMeta, begins_protobuf,
};

/// Above this capacity, the memory of an empty buffer is freed.
const KEPT: usize = 256 << 10;

/// Bytes that have arrived and are not used yet.
#[derive(Debug, Default)]
struct Buffer {
    bytes: Vec<u8>,
    /// How many of them are used.
    used: usize,
}

impl Buffer {
    fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..std::mem::take(&mut self.used));
        if self.bytes.is_empty() && self.bytes.capacity() > KEPT {
            self.bytes.shrink_to(bytes.len());
        }
        self.bytes.extend_from_slice(bytes);
    }

    fn rest(&self) -> &[u8] {
        &self.bytes[self.used..]
    }

    /// Takes the next `length` bytes, which must have arrived.
    fn take(&mut self, length: usize) -> &[u8] {
        let from = self.used;
        self.used += length;
        &self.bytes[from..self.used]
    }
}

/// The events of a watch.
#[derive(Debug)]
pub(super) struct Frames {
    encoding: Encoding,
    buffer: Buffer,
    /// In JSON: the number of bytes that were searched for the end of a line.
    searched: usize,
}

/// Before each event in protobuf: its length.
const LENGTH: usize = 4;

impl Frames {
    pub(super) fn new(encoding: Encoding) -> Self {
        Self { encoding, buffer: Buffer::default(), searched: 0 }
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.buffer.push(bytes);
    }

    /// The next event; `None` if it has not arrived as a whole.
    pub(super) fn next(&mut self) -> Result<Option<WatchEvent<'_>>, Unreadable> {
        let frame = match self.encoding {
            Encoding::Protobuf => self.protobuf()?,
            Encoding::Json => self.line()?,
        };
        let Some((before, length)) = frame else { return Ok(None) };
        self.buffer.take(before);
        WatchEvent::decode(self.encoding, self.buffer.take(length)).map(Some)
    }

    /// Whether no event has begun: a watch may end here.
    pub(super) fn is_between_events(&self) -> bool {
        self.buffer.rest().iter().all(|byte| {
            // A line's end may be missing after the last one.
            self.encoding == Encoding::Json && byte.is_ascii_whitespace()
        })
    }

    /// How many bytes come before the event, and how long it is.
    fn protobuf(&self) -> Result<Option<(usize, usize)>, Unreadable> {
        let Some((length, rest)) = self.buffer.rest().split_first_chunk::<LENGTH>() else {
            return Ok(None);
        };
        let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
        if length > MAX_OBJECT_BYTES {
            return Err(Unreadable::TooLarge);
        }
        Ok((rest.len() >= length).then_some((LENGTH, length)))
    }

    fn line(&mut self) -> Result<Option<(usize, usize)>, Unreadable> {
        let rest = self.buffer.rest();
        let blank = rest.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
        let from = self.searched.max(blank);
        match rest.iter().skip(from).position(|byte| *byte == b'\n') {
            Some(more) => {
                self.searched = 0;
                Ok(Some((blank, from + more - blank)))
            }
            None if rest.len() > MAX_OBJECT_BYTES => Err(Unreadable::TooLarge),
            None => {
                self.searched = rest.len();
                Ok(None)
            }
        }
    }
}

/// The objects of a list in protobuf. Only the object that is arriving is kept.
///
/// A list is an envelope whose object has the list's metadata and then its items. Lengths come
/// before the bytes that they count, so the place of each byte is known.
#[derive(Debug, Default)]
pub(super) struct ListItems {
    buffer: Buffer,
    at: Position,
    /// How much of the list's object has not been used.
    left: usize,
    has_object: bool,
    metadata: Option<Result<String, Unreadable>>,
}

/// Where in a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Position {
    #[default]
    Start,
    Envelope,
    Object,
}

const TYPE_META: u32 = 1;
const OBJECT: u32 = 2;
const CONTENT_ENCODING: u32 = 3;
const METADATA: u32 = 1;
const ITEMS: u32 = 2;

impl ListItems {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.buffer.push(bytes);
    }

    /// The next item; `None` if it has not arrived as a whole.
    pub(super) fn next(&mut self) -> Result<Option<Object<'_>>, Unreadable> {
        loop {
            match self.at {
                Position::Start => match begins_protobuf(self.buffer.rest()) {
                    None => return Ok(None),
                    Some(false) => return Err(Unreadable::NotProtobuf),
                    Some(true) => {
                        self.buffer.take(MAGIC_LENGTH);
                        self.at = Position::Envelope;
                    }
                },
                Position::Object if self.left == 0 => self.at = Position::Envelope,
                Position::Envelope => {
                    let Some(head) = self.head()? else { return Ok(None) };
                    if head.number == OBJECT && head.has_bytes() && !self.has_object {
                        self.buffer.take(head.size);
                        (self.left, self.has_object) = (head.length, true);
                        self.at = Position::Object;
                        continue;
                    }
                    let Some(value) = self.whole(head)? else { return Ok(None) };
                    match head.number {
                        TYPE_META if !TypeMeta::decode(value)?.kind.ends_with("List") => {
                            return Err(Unreadable::NotAList);
                        }
                        OBJECT => return Err(Unreadable::NotAList),
                        CONTENT_ENCODING if !value.is_empty() => {
                            return Err(broken(Malformation::Encoded));
                        }
                        _ => {}
                    }
                }
                Position::Object => {
                    let Some(head) = self.head()? else { return Ok(None) };
                    if head.whole() > self.left {
                        return Err(broken(Malformation::BreaksOff));
                    }
                    if head.whole() > self.buffer.rest().len() {
                        return self.whole(head).map(|_| None);
                    }
                    self.left -= head.whole();
                    if head.number == ITEMS && head.has_bytes() {
                        let item = &self.buffer.take(head.whole())[head.size..];
                        return Ok(Some(Object::Protobuf(item)));
                    }
                    let value = &self.buffer.take(head.whole())[head.size..];
                    if head.number == METADATA && head.has_bytes() {
                        self.metadata = Some(ListMetadata::decode(value)?.version());
                    }
                }
            }
        }
    }

    /// The answer has ended: the list's version if it is whole, `None` if it broke off.
    pub(super) fn end(self) -> Result<Option<String>, Unreadable> {
        let is_whole = self.has_object
            && self.left == 0
            && self.at != Position::Start
            && self.buffer.rest().is_empty();
        if !is_whole {
            return Ok(None);
        }
        self.metadata.unwrap_or(Err(Unreadable::NoVersion)).map(Some)
    }

    fn head(&self) -> Result<Option<Head>, Unreadable> {
        Head::of(self.buffer.rest()).map_err(broken)
    }

    /// The value of a field, if it has arrived.
    fn whole(&mut self, head: Head) -> Result<Option<&[u8]>, Unreadable> {
        if head.whole() > MAX_OBJECT_BYTES {
            return Err(Unreadable::TooLarge);
        }
        if head.whole() > self.buffer.rest().len() {
            return Ok(None);
        }
        Ok(Some(&self.buffer.take(head.whole())[head.size..]))
    }
}

fn broken(problem: Malformation) -> Unreadable {
    Unreadable::Protobuf(problem.into())
}

#[cfg(test)]
mod tests;
