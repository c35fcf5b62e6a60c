//! The parts of an answer around its objects, in both encodings. Pure.

use std::borrow::Cow;
use std::io;

use kube::core::Status;
use kube::core::response::StatusDetails;
use serde::Deserialize;
use serde_json::value::RawValue;
use thiserror::Error;

use denizen_object::protobuf::{Envelope, Field, Fields, FromProtobuf, ProtobufError};
use denizen_object::{BorrowedText, ObjectKind, RawObject};

/// What a client asks for: protobuf, and JSON where there is none.
pub(super) const ACCEPT: &str = "application/vnd.kubernetes.protobuf, application/json";

/// As [`ACCEPT`], for a list that has only the metadata of its objects.
pub(super) const ACCEPT_METADATA: &str = concat!(
    "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1, ",
    "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
);

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const JSON: &str = "application/json";

/// The longest event of a watch, and the longest object of a list, as in client-go.
pub(super) const MAX_OBJECT_BYTES: usize = 16 << 20;

/// How an answer is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    Json,
    Protobuf,
}

/// Why an answer cannot be read.
#[derive(Debug, Error)]
pub enum Unreadable {
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error(transparent)]
    Protobuf(#[from] ProtobufError),
    #[error("it says that it is protobuf, and is not")]
    NotProtobuf,
    #[error("it is neither protobuf nor JSON, but {0:?}")]
    ContentType(String),
    #[error("it is compressed, but not by gzip: {0:?}")]
    ContentEncoding(String),
    #[error("what is compressed in it is damaged")]
    Compressed(#[from] io::Error),
    #[error("an object in it has more than 16 MiB")]
    TooLarge,
    #[error("it is not a list")]
    NotAList,
    #[error("it is only a part of the list")]
    PartOfAList,
    #[error("a list has no resource version")]
    NoVersion,
    #[error("{0:?} is no type of a watch's event")]
    EventType(String),
}

impl Encoding {
    /// From the header of an answer. An answer without a type is read as JSON, and is an error if
    /// it is not JSON.
    pub(super) fn of_content_type(written: &str) -> Result<Self, Unreadable> {
        let name = written.split(';').next().unwrap_or_default().trim();
        if name.eq_ignore_ascii_case(PROTOBUF) {
            Ok(Self::Protobuf)
        } else if name.is_empty() || name.eq_ignore_ascii_case(JSON) {
            Ok(Self::Json)
        } else {
            Err(Unreadable::ContentType(name.chars().take(100).collect()))
        }
    }
}

/// An object in an answer. It is not kept: the model has it.
#[derive(Debug, Clone, Copy)]
pub(super) enum Object<'a> {
    Json(&'a str),
    /// A message without its envelope.
    Protobuf(&'a [u8]),
}

/// The metadata that is needed before an object is decoded.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ObjectMetadata<'a> {
    #[serde(borrow)]
    pub(super) resource_version: BorrowedText<'a>,
    pub(super) namespace: BorrowedText<'a>,
    pub(super) name: BorrowedText<'a>,
}

#[derive(Debug, Default, Deserialize)]
struct WithMetadata<'a> {
    #[serde(borrow)]
    metadata: ObjectMetadata<'a>,
}

impl<'a> Object<'a> {
    pub(super) fn found(self, kind: ObjectKind) -> RawObject<'a> {
        match self {
            Self::Json(json) => RawObject::json(kind, json),
            Self::Protobuf(message) => RawObject::protobuf(kind, message),
        }
    }

    /// The object's version and name; `None` if they cannot be read, or the object has no version.
    pub(super) fn metadata(self) -> Option<ObjectMetadata<'a>> {
        let decoded = match self {
            Self::Json(json) => serde_json::from_str(json).ok(),
            Self::Protobuf(message) => WithMetadata::decode(message).ok(),
        };
        let WithMetadata { metadata } = decoded?;
        (!metadata.resource_version.is_empty()).then_some(metadata)
    }
}

impl<'a> FromProtobuf<'a> for WithMetadata<'a> {
    fn take(&mut self, field: &Field<'a>) -> Result<(), ProtobufError> {
        match field.number {
            1 => self.metadata.merge(field.bytes()?),
            _ => Ok(()),
        }
    }
}

impl<'a> FromProtobuf<'a> for ObjectMetadata<'a> {
    fn take(&mut self, field: &Field<'a>) -> Result<(), ProtobufError> {
        match field.number {
            1 => self.name = field.text()?,
            3 => self.namespace = field.text()?,
            6 => self.resource_version = field.text()?,
            _ => {}
        }
        Ok(())
    }
}

/// A list in JSON.
#[derive(Deserialize)]
pub(super) struct JsonList<'a> {
    #[serde(borrow)]
    pub(super) metadata: ListMetadata<'a>,
    #[serde(borrow)]
    pub(super) items: Option<Vec<&'a RawValue>>,
}

/// A list's metadata.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ListMetadata<'a> {
    #[serde(borrow)]
    resource_version: BorrowedText<'a>,
    #[serde(rename = "continue")]
    pub(super) continue_token: BorrowedText<'a>,
    /// How many objects are not in this part of the list.
    #[serde(rename = "remainingItemCount")]
    pub(super) remaining: i64,
}

impl ListMetadata<'_> {
    /// The version to watch from, if this is the whole list.
    pub(super) fn version(&self) -> Result<String, Unreadable> {
        if !self.continue_token.is_empty() {
            return Err(Unreadable::PartOfAList);
        }
        match &*self.resource_version {
            "" => Err(Unreadable::NoVersion),
            version => Ok(version.to_owned()),
        }
    }
}

impl<'a> FromProtobuf<'a> for ListMetadata<'a> {
    fn take(&mut self, field: &Field<'a>) -> Result<(), ProtobufError> {
        match field.number {
            2 => self.resource_version = field.text()?,
            3 => self.continue_token = field.text()?,
            4 => self.remaining = field.number()?,
            _ => {}
        }
        Ok(())
    }
}

/// The objects of an answer that is either one object or a list of them.
pub(super) fn objects(encoding: Encoding, answer: &[u8]) -> Result<Vec<Object<'_>>, Unreadable> {
    match encoding {
        Encoding::Json => {
            let whole: &RawValue = serde_json::from_slice(answer)?;
            let list: Option<JsonList<'_>> = serde_json::from_str(whole.get()).ok();
            Ok(match list.and_then(|list| list.items) {
                Some(items) => items.into_iter().map(|item| Object::Json(item.get())).collect(),
                None => vec![Object::Json(whole.get())],
            })
        }
        Encoding::Protobuf => {
            let Envelope { kind, object } =
                Envelope::open(answer)?.ok_or(Unreadable::NotProtobuf)?;
            if !kind.ends_with("List") {
                return Ok(vec![Object::Protobuf(object)]);
            }
            let mut objects = Vec::new();
            for field in Fields::of(object) {
                let field = field?;
                if field.number == 2 {
                    objects.push(Object::Protobuf(field.bytes()?));
                }
            }
            Ok(objects)
        }
    }
}

/// An event of a watch.
#[derive(Debug)]
pub(super) enum WatchEvent<'a> {
    /// Added or modified.
    Changed(Object<'a>),
    Deleted(Object<'a>),
    /// No event of interest happened up to this version. The object has nothing but the version.
    Bookmark(Object<'a>),
    /// The server ends the watch.
    Refused(Box<Status>),
}

impl<'a> WatchEvent<'a> {
    pub(super) fn decode(encoding: Encoding, event: &'a [u8]) -> Result<Self, Unreadable> {
        let (kind, object): (Cow<'a, str>, Object<'a>) = match encoding {
            Encoding::Json => {
                let event: JsonEvent<'a> = serde_json::from_slice(event)?;
                (event.kind, Object::Json(event.object.get()))
            }
            Encoding::Protobuf => {
                let event = ProtobufEvent::decode(event)?;
                let envelope = Envelope::open(event.object)?.ok_or(Unreadable::NotProtobuf)?;
                (event.kind.to_string().into(), Object::Protobuf(envelope.object))
            }
        };
        Ok(match &*kind {
            "ADDED" | "MODIFIED" => Self::Changed(object),
            "DELETED" => Self::Deleted(object),
            "BOOKMARK" => Self::Bookmark(object),
            "ERROR" => Self::Refused(Box::new(match object {
                Object::Json(json) => serde_json::from_str(json)?,
                Object::Protobuf(message) => WireStatus::decode(message)?.into(),
            })),
            other => return Err(Unreadable::EventType(other.chars().take(100).collect())),
        })
    }
}

#[derive(Deserialize)]
struct JsonEvent<'a> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    object: &'a RawValue,
}

#[derive(Debug, Default)]
struct ProtobufEvent<'a> {
    kind: BorrowedText<'a>,
    object: &'a [u8],
}

impl<'a> FromProtobuf<'a> for ProtobufEvent<'a> {
    fn take(&mut self, field: &Field<'a>) -> Result<(), ProtobufError> {
        match field.number {
            1 => self.kind = field.text()?,
            2 => self.object = field.message::<RawExtension<'a>>()?.raw,
            _ => {}
        }
        Ok(())
    }
}

#[derive(Debug, Default)]
struct RawExtension<'a> {
    raw: &'a [u8],
}

impl<'a> FromProtobuf<'a> for RawExtension<'a> {
    fn take(&mut self, field: &Field<'a>) -> Result<(), ProtobufError> {
        if field.number == 1 {
            self.raw = field.bytes()?;
        }
        Ok(())
    }
}

/// A failure in protobuf.
#[derive(Debug, Default)]
struct WireStatus<'a> {
    message: BorrowedText<'a>,
    reason: BorrowedText<'a>,
    code: i64,
    retry_after: i64,
}

impl<'a> FromProtobuf<'a> for WireStatus<'a> {
    fn take(&mut self, field: &Field<'a>) -> Result<(), ProtobufError> {
        match field.number {
            3 => self.message = field.text()?,
            4 => self.reason = field.text()?,
            5 => self.retry_after = field.message::<WireDetails>()?.retry_after,
            6 => self.code = field.number()?,
            _ => {}
        }
        Ok(())
    }
}

#[derive(Debug, Default)]
struct WireDetails {
    retry_after: i64,
}

impl<'a> FromProtobuf<'a> for WireDetails {
    fn take(&mut self, field: &Field<'a>) -> Result<(), ProtobufError> {
        if field.number == 5 {
            self.retry_after = field.number()?;
        }
        Ok(())
    }
}

impl From<WireStatus<'_>> for Status {
    fn from(written: WireStatus<'_>) -> Self {
        let status = Self::failure(&written.message, &written.reason);
        let status = status.with_code(u16::try_from(written.code).unwrap_or_default());
        with_retry_after(status, u32::try_from(written.retry_after).unwrap_or_default())
    }
}

fn with_retry_after(mut status: Status, seconds: u32) -> Status {
    if seconds > 0 {
        let details = StatusDetails {
            name: String::new(),
            group: String::new(),
            kind: String::new(),
            uid: String::new(),
            causes: Vec::new(),
            retry_after_seconds: 0,
        };
        let details = status.details.get_or_insert(details);
        details.retry_after_seconds = details.retry_after_seconds.max(seconds);
    }
    status
}

/// Maximum number of characters that are shown of a refusal that is plain text.
const MAX_SHOWN_CHARS: usize = 200;

/// The server's refusal, from the answer's code, its `Retry-After` in seconds, and its body:
/// protobuf, JSON, a text, or nothing. The server's own words may come in another encoding than was
/// asked for.
pub(super) fn refusal(code: u16, reason: &str, retry_after: u32, body: &[u8]) -> Status {
    let in_protobuf = Envelope::open(body).ok().flatten();
    let in_protobuf = in_protobuf.filter(|envelope| &*envelope.kind == "Status");
    let in_protobuf =
        in_protobuf.and_then(|envelope| Some(WireStatus::decode(envelope.object).ok()?.into()));
    let in_json = || {
        let status: Option<Status> = serde_json::from_slice(body).ok();
        status.filter(|status| !status.message.is_empty() || !status.reason.is_empty())
    };
    let mut status = in_protobuf.or_else(in_json).unwrap_or_else(|| {
        let text = std::str::from_utf8(body).unwrap_or_default().trim();
        let text: String = text.chars().filter(|c| !c.is_control()).take(MAX_SHOWN_CHARS).collect();
        let message = if text.is_empty() { "the API server does not say why" } else { &text };
        Status::failure(message, reason)
    });
    status.code = code;
    with_retry_after(status, retry_after)
}

#[cfg(test)]
mod tests;
