//! Times of objects.

use jiff::Timestamp;
use serde::Deserialize;

use crate::BorrowedText;
use crate::protobuf::{Field, FromProtobuf, ProtobufError};

/// A time: RFC 3339 in JSON, seconds in protobuf.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Time<'a> {
    Written(BorrowedText<'a>),
    Seconds(i64),
}

impl<'de: 'a, 'a> Deserialize<'de> for Time<'a> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        BorrowedText::deserialize(deserializer).map(Self::Written)
    }
}

impl<'a> Time<'a> {
    /// The time in a field; `None` if its message is empty.
    pub(super) fn of(field: &Field<'a>) -> Result<Option<Self>, ProtobufError> {
        Ok(field.message::<WrittenTime>()?.seconds.map(Self::Seconds))
    }

    /// Seconds since 1970; the text if it is not a time.
    pub(super) fn seconds(&self) -> Result<i64, &str> {
        match self {
            Self::Written(text) => {
                let time: Result<Timestamp, _> = text.parse();
                time.map(Timestamp::as_second).map_err(|_| &**text)
            }
            Self::Seconds(seconds) => Ok(*seconds),
        }
    }

    /// As the API writes it in JSON.
    pub(super) fn to_text(&self) -> String {
        match self {
            Self::Written(text) => text.to_string(),
            Self::Seconds(seconds) => {
                Timestamp::from_second(*seconds).map(|time| time.to_string()).unwrap_or_default()
            }
        }
    }
}

/// A time in protobuf; the message of none is empty.
#[derive(Debug, Default)]
struct WrittenTime {
    seconds: Option<i64>,
}

impl<'a> FromProtobuf<'a> for WrittenTime {
    fn take(&mut self, field: &Field<'a>) -> Result<(), ProtobufError> {
        if field.number == 1 {
            self.seconds = Some(field.number()?);
        }
        Ok(())
    }
}
