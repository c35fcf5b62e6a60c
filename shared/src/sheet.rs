//! The state file as text, record by record: to change one without taking the other thousand apart.
//!
//! The plugin is started for every pod, and most of what a whole read and write would cost it goes into values that it
//! hands on as they are. Everything is checked all the same. What is not as this module expects it (a repeated
//! key; other formatting does no harm) makes [`Sheet::parse`] say `None`, and the typed way is taken: this one is an optimisation
//! and decides nothing. A test holds that both write the same bytes.

mod printed;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::io::{self, Write};
use std::net::IpAddr;

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::state::{Attachment, AttachmentId, Epoch, Generation, VERSION};

/// A readable file of our version.
pub(crate) struct Sheet<'a> {
    pub(crate) epoch: Epoch,
    pub(crate) generation: Generation,
    /// Every member of the file's object, in its order.
    members: Vec<Member<'a>>,
    /// *Invariant:* in the order of their ids, each once.
    records: Vec<Record<'a>>,
}

enum Member<'a> {
    Generation,
    Attachments,
    /// As it stands in the file.
    Other {
        key: &'a str,
        value: &'a str,
    },
}

struct Record<'a> {
    id: Cow<'a, str>,
    /// The record's text.
    text: Cow<'a, str>,
}

impl<'a> Sheet<'a> {
    /// Reads `text`. `None` when it has to be read in the typed way, which knows what is wrong with it, if
    /// anything is.
    pub(crate) fn parse(text: &'a [u8]) -> Option<Sheet<'a>> {
        let mut cursor = Cursor {
            text: std::str::from_utf8(text).ok()?,
            at: 0,
        };
        let (mut version, mut epoch, mut generation, mut records) = (None, None, None, None);
        let (mut members, mut seen) = (Vec::new(), BTreeSet::new());
        cursor.object(|key, raw_key, cursor| {
            let member = match key {
                "generation" => {
                    generation = Some(cursor.value::<Generation>()?.0);
                    Member::Generation
                }
                "attachments" => {
                    records = Some(cursor.records()?);
                    Member::Attachments
                }
                _ => Member::Other {
                    key: raw_key,
                    value: cursor.value::<Value>()?.1,
                },
            };
            if let Member::Other { value, .. } = &member {
                match key {
                    "version" => version = Some(serde_json::from_str::<u32>(value).ok()?),
                    "epoch" => epoch = Some(serde_json::from_str::<Epoch>(value).ok()?),
                    _ => {}
                }
            }
            members.push(member);
            seen.insert(key.to_owned()).then_some(())
        })?;
        let (epoch, generation, records) = (epoch?, generation?, records?);
        (cursor.is_at_end() && version == Some(VERSION)).then_some(Sheet {
            epoch,
            generation,
            members,
            records,
        })
    }

    /// Puts `record` in the place of the one of its name, which is returned. The same one again changes nothing.
    pub(crate) fn put(&mut self, record: &Attachment) -> serde_json::Result<Option<Attachment>> {
        let id = record.id().0;
        let text = || Ok::<_, serde_json::Error>(Cow::Owned(serde_json::to_string(record)?));
        match self.place(&id) {
            Ok(place) => {
                let before: Attachment = serde_json::from_str(&self.records[place].text)?;
                if before != *record {
                    self.records[place].text = text()?;
                    self.generation.0 += 1;
                }
                Ok(Some(before))
            }
            Err(place) => {
                self.records.insert(
                    place,
                    Record {
                        text: text()?,
                        id: Cow::Owned(id),
                    },
                );
                self.generation.0 += 1;
                Ok(None)
            }
        }
    }

    /// Removes the record of `id`, if there is one.
    pub(crate) fn remove(&mut self, id: &AttachmentId) {
        if let Ok(place) = self.place(&id.0) {
            self.records.remove(place);
            self.generation.0 += 1;
        }
    }

    /// Whether there is a record of `id`.
    pub(crate) fn has(&self, id: &AttachmentId) -> bool {
        self.place(&id.0).is_ok()
    }

    fn place(&self, id: &str) -> Result<usize, usize> {
        self.records.binary_search_by(|record| record.id.as_ref().cmp(id))
    }

    /// Writes the file's text, as [`crate::format::print`] would print it, to `out`.
    pub(crate) fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut separator = "{\n";
        for member in &self.members {
            out.write_all(separator.as_bytes())?;
            separator = ",\n";
            match member {
                Member::Generation => write!(out, "\"generation\": {}", self.generation.0)?,
                Member::Attachments => self.print_records(out)?,
                Member::Other { key, value } => write!(out, "{key}: {value}")?,
            }
        }
        out.write_all(b"\n}\n")
    }

    fn print_records(&self, out: &mut dyn Write) -> io::Result<()> {
        out.write_all(b"\"attachments\": {")?;
        let mut separator = "\n";
        for record in &self.records {
            out.write_all(separator.as_bytes())?;
            separator = ",\n";
            serde_json::to_writer(&mut *out, &record.id)?;
            out.write_all(b": ")?;
            out.write_all(record.text.as_bytes())?;
        }
        out.write_all(b"\n}")
    }
}

/// A place in a JSON text.
struct Cursor<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Cursor<'a> {
    /// The value here, and its text.
    fn value<T: Deserialize<'a>>(&mut self) -> Option<(T, &'a str)> {
        self.skip_space();
        let rest = &self.text[self.at..];
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<T>();
        let value = values.next()?.ok()?;
        let length = values.byte_offset();
        self.at += length;
        Some((value, &rest[..length]))
    }

    /// The members of the object here: `member` gets each key, as it is meant and as it is written, and reads the value.
    fn object(&mut self, mut member: impl FnMut(&str, &'a str, &mut Cursor<'a>) -> Option<()>) -> Option<()> {
        self.take(b'{')?;
        if self.take(b'}').is_some() {
            return Some(());
        }
        loop {
            let (key, raw_key) = self.value::<Text<'a>>()?;
            self.take(b':')?;
            member(&key.0, raw_key, self)?;
            if self.take(b'}').is_some() {
                return Some(());
            }
            self.take(b',')?;
        }
    }

    /// The records in the object here, each checked.
    fn records(&mut self) -> Option<Vec<Record<'a>>> {
        let mut records: Vec<Record<'a>> = Vec::new();
        self.object(|id, raw_id, cursor| {
            let (container, interface, text) = cursor.record()?;
            let is_its_own = id
                .split_once('/')
                .is_some_and(|(one, two)| one == container && two == interface);
            let in_order = records.last().is_none_or(|last| last.id.as_ref() < id);
            // Without escapes the id is the text between the quotes: no copy.
            let plain = raw_id.get(1..raw_id.len() - 1).filter(|raw| *raw == id);
            let id = plain.map_or_else(|| Cow::Owned(id.to_owned()), Cow::Borrowed);
            records.push(Record {
                id,
                text: Cow::Borrowed(text),
            });
            (is_its_own && in_order).then_some(())
        })?;
        Some(records)
    }

    /// The record here: its container id, its interface name, its text.
    fn record(&mut self) -> Option<(Cow<'a, str>, Cow<'a, str>, &'a str)> {
        self.skip_space();
        let rest = &self.text[self.at..];
        if let Some((container, interface, length)) = printed::record(rest) {
            self.at += length;
            return Some((
                Cow::Borrowed(container),
                Cow::Borrowed(interface),
                &rest[..length],
            ));
        }
        let begin = self.at;
        if let Some((checked, text)) = self.value::<Checked<'a>>() {
            return Some((checked.container_id, checked.if_name, text));
        }
        // Fields that this program does not know need to be looked at in full.
        self.at = begin;
        let (record, text) = self.value::<Attachment>()?;
        Some((Cow::Owned(record.container_id), Cow::Owned(record.if_name), text))
    }

    fn take(&mut self, byte: u8) -> Option<()> {
        self.skip_space();
        (self.text.as_bytes().get(self.at) == Some(&byte)).then(|| self.at += 1)
    }

    fn skip_space(&mut self) {
        let rest = &self.text.as_bytes()[self.at..];
        self.at += rest
            .iter()
            .take_while(|byte| matches!(byte, b' ' | b'\n' | b'\t' | b'\r'))
            .count();
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
