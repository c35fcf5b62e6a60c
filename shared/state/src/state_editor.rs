//! Changes one record in the text of the state file, without decoding a thousand other records.
//!
//! The plugin is started for every pod, and most of the cost of a full read and write is in values
//! that it does not change. Everything is still checked. If the text is not as this module expects
//! (a repeated key; other formatting does no harm), [`StateEditor::parse`] returns `None` and the
//! typed format is used: this module is an optimisation and decides nothing. A test checks that
//! both write the same bytes.

mod printed;

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::fmt;
use std::io::{self, Write};
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::ops::Range;

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::host_port::{HostPortFamily, HostPortProtocol};
use crate::json;
use crate::state::{Attachment, AttachmentId, Epoch, Generation, VERSION};

/// A readable file of our version, with the position of one record.
pub(crate) struct StateEditor<'a> {
    pub(crate) epoch: Epoch,
    pub(crate) generation: Generation,
    text: &'a str,
    /// The position of the generation.
    generation_at: Range<usize>,
    place: RecordPosition,
    /// The range of text to replace, and its replacement.
    edit: Option<(Range<usize>, String)>,
}

/// The position of a record, or where it would be.
#[derive(Default)]
struct RecordPosition {
    /// The position after the opening brace of the records.
    open: usize,
    /// The end of the previous record.
    before: Option<usize>,
    own: Option<Member>,
    /// The beginning of the next record.
    after: Option<usize>,
}

/// The position of a member: its id and its record.
struct Member {
    begin: usize,
    record: Range<usize>,
}

impl<'a> StateEditor<'a> {
    /// Parses `text`, to change the record of `id`. `None` if the typed format must read `text`; it
    /// also reports what is wrong with `text`, if anything is.
    pub(crate) fn parse(text: &'a [u8], id: &AttachmentId) -> Option<StateEditor<'a>> {
        let mut cursor = Cursor {
            text: std::str::from_utf8(text).ok()?,
            at: 0,
            is_plain: printed::is_plain(text),
        };
        let (mut version, mut epoch, mut generation, mut place) = (None, None, None, None);
        let mut seen = BTreeSet::new();
        cursor.object(|key, cursor| {
            match key {
                "version" => version = Some(cursor.value::<u32>()?.0),
                "epoch" => epoch = Some(cursor.value::<Epoch>()?.0),
                "generation" => generation = Some(cursor.value::<Generation>()?),
                "attachments" => place = Some(cursor.place(&id.0)?),
                _ => drop(cursor.value::<Value>()?),
            }
            seen.insert(key.to_owned()).then_some(())
        })?;
        let (generation, generation_at) = generation?;
        let (epoch, place) = (epoch?, place?);
        (cursor.is_at_end() && version == Some(VERSION)).then_some(StateEditor {
            epoch,
            generation,
            text: cursor.text,
            generation_at,
            place,
            edit: None,
        })
    }

    /// Adds `record`, or replaces the record with its id, which is returned. An equal record
    /// changes nothing.
    pub(crate) fn put(&mut self, record: &Attachment) -> serde_json::Result<Option<Attachment>> {
        if let Some(own) = &self.place.own {
            let before: Attachment = json::parse(&self.text[own.record.clone()])?;
            let record = record.clone().in_place_of(&before);
            if before != record {
                self.change(own.record.clone(), serde_json::to_string(&record)?);
            }
            return Ok(Some(before));
        }
        let id = serde_json::to_string(&record.id())?;
        let text = serde_json::to_string(record)?;
        let (at, new) = match (self.place.before, self.place.after) {
            (Some(end), _) => (end, format!(",\n{id}: {text}")),
            (None, Some(begin)) => (begin, format!("{id}: {text},\n")),
            (None, None) => (self.place.open, format!("\n{id}: {text}")),
        };
        self.change(at..at, new);
        Ok(None)
    }

    /// Removes the record, if there is one.
    pub(crate) fn remove(&mut self) {
        let Some(own) = &self.place.own else { return };
        let cut = match (self.place.before, self.place.after) {
            (Some(end), _) => end..own.record.end,
            (None, Some(begin)) => own.begin..begin,
            (None, None) => self.place.open..own.record.end,
        };
        self.change(cut, String::new());
    }

    /// Whether the file has the record.
    pub(crate) fn has(&self) -> bool {
        self.place.own.is_some()
    }

    fn change(&mut self, cut: Range<usize>, new: String) {
        self.edit = Some((cut, new));
        self.generation.0 += 1;
    }

    /// Writes the file's text to `out`, as [`crate::format::print`] prints it.
    pub(crate) fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let text = self.text.as_bytes();
        let generation = (self.generation_at.clone(), self.generation.0.to_string());
        let mut edits = Vec::from_iter(self.edit.iter().chain([&generation]));
        edits.sort_by_key(|(cut, _)| cut.start);
        let mut at = 0;
        for (cut, new) in edits {
            out.write_all(&text[at..cut.start])?;
            out.write_all(new.as_bytes())?;
            at = cut.end;
        }
        out.write_all(&text[at..])
    }
}

/// A position in a JSON text.
struct Cursor<'a> {
    text: &'a str,
    at: usize,
    /// Whether [`printed`] can be used.
    is_plain: bool,
}

impl<'a> Cursor<'a> {
    /// Reads the value here. Returns it with its position.
    fn value<T: Deserialize<'a>>(&mut self) -> Option<(T, Range<usize>)> {
        self.skip_space();
        let begin = self.at;
        let text = &self.text.as_bytes()[begin..];
        let mut values = serde_json::Deserializer::from_slice(text).into_iter::<T>();
        let value = values.next()?.ok()?;
        self.at += values.byte_offset();
        Some((value, begin..self.at))
    }

    /// Reads the object here: `member` gets each key and reads the value.
    fn object(
        &mut self,
        mut member: impl FnMut(&str, &mut Cursor<'a>) -> Option<()>,
    ) -> Option<()> {
        self.take(b'{')?;
        if self.take(b'}').is_some() {
            return Some(());
        }
        loop {
            let (key, _) = self.value::<BorrowedText<'a>>()?;
            self.take(b':')?;
            member(&key.0, self)?;
            if self.take(b'}').is_some() {
                return Some(());
            }
            self.take(b',')?;
        }
    }

    /// Reads the object of records here, checks each, and finds the position of `id`.
    fn place(&mut self, id: &str) -> Option<RecordPosition> {
        self.take(b'{')?;
        let mut place = RecordPosition { open: self.at, ..RecordPosition::default() };
        let mut last: Option<Cow<'a, str>> = None;
        if self.take(b'}').is_some() {
            return Some(place);
        }
        loop {
            let (found, member) = self.member()?;
            if last.is_some_and(|last| last >= found) {
                return None;
            }
            match found.as_ref().cmp(id) {
                Ordering::Less => place.before = Some(member.record.end),
                Ordering::Equal => place.own = Some(member),
                Ordering::Greater => _ = place.after.get_or_insert(member.begin),
            }
            last = Some(found);
            if self.take(b'}').is_some() {
                return Some(place);
            }
            self.take(b',')?;
        }
    }

    /// Reads the id and the record here, and checks that they agree.
    fn member(&mut self) -> Option<(Cow<'a, str>, Member)> {
        self.skip_space();
        let begin = self.at;
        if self.is_plain
            && let Some((id, record)) = printed::member(&self.text[begin..])
        {
            self.at = begin + record.end;
            let record = begin + record.start..self.at;
            return Some((Cow::Borrowed(id), Member { begin, record }));
        }
        let (id, _) = self.value::<BorrowedText<'a>>()?;
        self.take(b':')?;
        self.skip_space();
        let (container, interface, record) = self.record()?;
        let (one, two) = id.0.split_once('/')?;
        (one == container && two == interface).then_some((id.0, Member { begin, record }))
    }

    /// Reads the record here: its container id, its interface name, and its position.
    fn record(&mut self) -> Option<(Cow<'a, str>, Cow<'a, str>, Range<usize>)> {
        let begin = self.at;
        if let Some((checked, place)) = self.value::<Checked<'a>>() {
            return Some((checked.container_id, checked.if_name, place));
        }
        // A record with other fields than [`Checked`] must be read in full.
        self.at = begin;
        let (record, place) = self.value::<Attachment>()?;
        Some((Cow::Owned(record.container_id), Cow::Owned(record.if_name), place))
    }

    fn take(&mut self, byte: u8) -> Option<()> {
        self.skip_space();
        (self.text.as_bytes().get(self.at) == Some(&byte)).then(|| self.at += 1)
    }

    fn skip_space(&mut self) {
        let rest = &self.text.as_bytes()[self.at..];
        self.at +=
            rest.iter().take_while(|byte| matches!(byte, b' ' | b'\n' | b'\t' | b'\r')).count();
    }

    fn is_at_end(&mut self) -> bool {
        self.skip_space();
        self.at == self.text.len()
    }
}

/// An [`Attachment`] with only the most usual fields; values that are not needed are not kept.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[expect(dead_code, reason = "the fields are only read to check them")]
struct Checked<'a> {
    #[serde(borrow)]
    container_id: Cow<'a, str>,
    #[serde(borrow)]
    if_name: Cow<'a, str>,
    network: AnyText,
    pod: Option<CheckedPod>,
    netns: Option<AnyText>,
    host_interface: Option<CheckedInterface>,
    l3_interface: Option<AnyText>,
    bridge: Option<AnyText>,
    ips: AnyAddresses,
    mac: Option<AnyText>,
    #[serde(default)]
    host_ports: Vec<CheckedHostPort>,
    added_at: AnyText,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "the fields are only read to check them")]
struct CheckedPod {
    namespace: AnyText,
    name: AnyText,
    uid: Option<AnyText>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "the fields are only read to check them")]
struct CheckedInterface {
    name: AnyText,
    index: u32,
    mac: AnyText,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[expect(dead_code, reason = "the fields are only read to check them")]
struct CheckedHostPort {
    ip: Option<IpAddr>,
    family: Option<HostPortFamily>,
    protocol: HostPortProtocol,
    port: NonZeroU16,
    pod_port: NonZeroU16,
}

/// A string, copied only if it has escapes.
#[derive(Deserialize)]
struct BorrowedText<'a>(#[serde(borrow)] Cow<'a, str>);

/// A string whose value is not needed.
struct AnyText;

impl<'de> Deserialize<'de> for AnyText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<AnyText, D::Error> {
        struct Any;
        impl Visitor<'_> for Any {
            type Value = AnyText;
            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a string")
            }
            fn visit_str<E: Error>(self, _: &str) -> Result<AnyText, E> {
                Ok(AnyText)
            }
        }
        deserializer.deserialize_str(Any)
    }
}

/// A list of addresses whose values are not needed.
struct AnyAddresses;

impl<'de> Deserialize<'de> for AnyAddresses {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<AnyAddresses, D::Error> {
        struct Every;
        impl<'de> Visitor<'de> for Every {
            type Value = AnyAddresses;
            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a list of addresses")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<AnyAddresses, A::Error> {
                while list.next_element::<IpAddr>()?.is_some() {}
                Ok(AnyAddresses)
            }
        }
        deserializer.deserialize_seq(Every)
    }
}

#[cfg(test)]
mod tests;
