//! The state file as text: to change one record without taking the other thousand apart.
//!
//! The plugin is started for every pod, and most of what a whole read and write would cost it goes
//! into values that it hands on as they are. Everything is checked all the same. What is not as
//! this module expects it (a repeated key; other formatting does no harm) makes
//! [`StateEditor::parse`] say `None`, and the typed way is taken: this one is an optimisation and
//! decides nothing. A test holds that both write the same bytes.

mod printed;

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::fmt;
use std::io::{self, Write};
use std::net::IpAddr;
use std::ops::Range;

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::state::{Attachment, AttachmentId, Epoch, Generation, VERSION};

/// A readable file of our version, open at one record's place.
pub(crate) struct StateEditor<'a> {
    pub(crate) epoch: Epoch,
    pub(crate) generation: Generation,
    text: &'a str,
    /// Where the file says its generation.
    generation_at: Range<usize>,
    place: Place,
    /// What is cut out of the text, and what comes there.
    edit: Option<(Range<usize>, String)>,
}

/// Where a record is, or would be.
#[derive(Default)]
struct Place {
    /// Behind the brace that opens the records.
    open: usize,
    /// The end of the record before.
    before: Option<usize>,
    own: Option<Member>,
    /// Where the record behind begins.
    after: Option<usize>,
}

/// Where a record is: from its id on.
struct Member {
    begin: usize,
    record: Range<usize>,
}

impl<'a> StateEditor<'a> {
    /// Reads `text`, to change the record of `id`. `None` when it has to be read in the typed way,
    /// which knows what is wrong with it, if anything is.
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

    /// Puts `record` in the place of the one of its name, which is returned. The same one again
    /// changes nothing.
    pub(crate) fn put(&mut self, record: &Attachment) -> serde_json::Result<Option<Attachment>> {
        if let Some(own) = &self.place.own {
            let before: Attachment = serde_json::from_str(&self.text[own.record.clone()])?;
            if before != *record {
                self.change(own.record.clone(), serde_json::to_string(record)?);
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

    /// Whether there is a record.
    pub(crate) fn has(&self) -> bool {
        self.place.own.is_some()
    }

    fn change(&mut self, cut: Range<usize>, new: String) {
        self.edit = Some((cut, new));
        self.generation.0 += 1;
    }

    /// Writes the file's text, as [`crate::format::print`] would print it, to `out`.
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

/// A place in a JSON text.
struct Cursor<'a> {
    text: &'a str,
    at: usize,
    /// [`printed`] may look at it.
    is_plain: bool,
}

impl<'a> Cursor<'a> {
    /// The value here, and where it is.
    fn value<T: Deserialize<'a>>(&mut self) -> Option<(T, Range<usize>)> {
        self.skip_space();
        let begin = self.at;
        let mut values = serde_json::Deserializer::from_str(&self.text[begin..]).into_iter::<T>();
        let value = values.next()?.ok()?;
        self.at += values.byte_offset();
        Some((value, begin..self.at))
    }

    /// The members of the object here: `member` gets each key and reads the value.
    fn object(
        &mut self,
        mut member: impl FnMut(&str, &mut Cursor<'a>) -> Option<()>,
    ) -> Option<()> {
        self.take(b'{')?;
        if self.take(b'}').is_some() {
            return Some(());
        }
        loop {
            let (key, _) = self.value::<Text<'a>>()?;
            self.take(b':')?;
            member(&key.0, self)?;
            if self.take(b'}').is_some() {
                return Some(());
            }
            self.take(b',')?;
        }
    }

    /// The place of `id` among the records in the object here, each of which is checked.
    fn place(&mut self, id: &str) -> Option<Place> {
        self.take(b'{')?;
        let mut place = Place { open: self.at, ..Place::default() };
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

    /// The record here, and its id, which says the same as the record.
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
        let (id, _) = self.value::<Text<'a>>()?;
        self.take(b':')?;
        self.skip_space();
        let (container, interface, record) = self.record()?;
        let (one, two) = id.0.split_once('/')?;
        (one == container && two == interface).then_some((id.0, Member { begin, record }))
    }

    /// The record here: its container id, its interface name, and where it is.
    fn record(&mut self) -> Option<(Cow<'a, str>, Cow<'a, str>, Range<usize>)> {
        let begin = self.at;
        if let Some((checked, place)) = self.value::<Checked<'a>>() {
            return Some((checked.container_id, checked.if_name, place));
        }
        // Fields that this program does not know need to be looked at in full.
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

/// What an [`Attachment`] without unknown fields is, with nothing kept that is not needed.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[expect(dead_code, reason = "that a field can be read is what is checked")]
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
    ips: Addresses,
    added_at: AnyText,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "that a field can be read is what is checked")]
struct CheckedPod {
    namespace: AnyText,
    name: AnyText,
    uid: Option<AnyText>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "that a field can be read is what is checked")]
struct CheckedInterface {
    name: AnyText,
    index: u32,
    mac: AnyText,
}

/// A string, copied only where it has escapes.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// A string that nobody looks at.
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

/// A list of addresses that nobody looks at.
struct Addresses;

impl<'de> Deserialize<'de> for Addresses {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Addresses, D::Error> {
        struct Every;
        impl<'de> Visitor<'de> for Every {
            type Value = Addresses;
            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a list of addresses")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Addresses, A::Error> {
                while list.next_element::<IpAddr>()?.is_some() {}
                Ok(Addresses)
            }
        }
        deserializer.deserialize_seq(Every)
    }
}

#[cfg(test)]
mod tests;
