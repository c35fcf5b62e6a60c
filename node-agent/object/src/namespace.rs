//! Namespace (`v1`).

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::{BorrowedText, Decoder, Notes, ObjectError, ObjectKind, TextMap, Warning};
use crate::protobuf::{Field, FromProtobuf, ProtobufError};

/// A Namespace, reduced to the fields that are used.
#[derive(Debug, Default, Deserialize)]
pub struct NamespaceObject<'a> {
    #[serde(default, borrow)]
    metadata: NamespaceMetadata<'a>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct NamespaceMetadata<'a> {
    #[serde(default, borrow)]
    name: BorrowedText<'a>,
    labels: Option<TextMap<'a>>,
    deletion_timestamp: Option<IgnoredAny>,
}

impl<'a> FromProtobuf<'a> for NamespaceObject<'a> {
    fn take(&mut self, field: &Field<'a>) -> Result<(), ProtobufError> {
        match field.number {
            1 => self.metadata.merge(field.bytes()?),
            _ => Ok(()),
        }
    }
}

impl<'a> FromProtobuf<'a> for NamespaceMetadata<'a> {
    fn take(&mut self, field: &Field<'a>) -> Result<(), ProtobufError> {
        match field.number {
            1 => self.name = field.text()?,
            9 => self.deletion_timestamp = Some(IgnoredAny),
            11 => self.labels.get_or_insert_default().take(field)?,
            _ => {}
        }
        Ok(())
    }
}

/// The Namespace in the model's terms.
pub fn namespace(
    raw: &NamespaceObject<'_>,
    decoder: &mut Decoder,
    warnings: &mut Vec<Warning>,
) -> Result<denizen_model::Namespace, ObjectError> {
    let NamespaceMetadata { name, labels, deletion_timestamp } = &raw.metadata;
    Notes::named(ObjectKind::Namespace, "", name, warnings)?;
    Ok(denizen_model::Namespace {
        name: decoder.text(name),
        labels: decoder.labels(labels.as_ref()),
        is_ending: deletion_timestamp.is_some(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn converted(json: &str) -> Result<denizen_model::Namespace, ObjectError> {
        let raw = serde_json::from_str(json).unwrap();
        namespace(&raw, &mut Decoder::new("n".into()), &mut Vec::new())
    }

    #[test]
    fn labels_of_a_namespace() {
        let found = converted(r#"{"metadata":{"name":"shop","labels":{"team":"a"}}}"#).unwrap();
        assert_eq!((&*found.name, found.labels.get("team")), ("shop", Some("a")));
        assert!(!found.is_ending);
        let ending = r#"{"metadata":{"name":"shop","deletionTimestamp":"2026-01-01T00:00:00Z"}}"#;
        assert!(converted(ending).unwrap().is_ending);
        let found = converted(r#"{"metadata":{"name":"shop","labels":null},"spec":7}"#).unwrap();
        assert_eq!(found.labels.iter().count(), 0);
        let error = converted(r#"{"metadata":{}}"#).unwrap_err();
        assert_eq!(error.to_string(), "Namespace without metadata.name");
    }
}
