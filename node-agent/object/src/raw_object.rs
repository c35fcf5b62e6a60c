//! An object as it was written, and its conversion to the model's terms.

use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::Arc;

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;

use super::{
    Decoder, EndpointSlice, ObjectError, ObjectKey, ObjectKind, ServiceObject, Warning,
    cluster_network_policy, foreign_service, namespace, network_policy, node, other_node, pod,
    service, service_cidr, slice,
};
use crate::protobuf::{Field, Fields, FromProtobuf, ProtobufError};
use denizen_model::Event;

/// An object of a known kind that is not decoded yet.
#[derive(Debug)]
pub struct RawObject<'a> {
    kind: ObjectKind,
    raw: RawText<'a>,
}

#[derive(Debug)]
enum RawText<'a> {
    Json(&'a str),
    Tree(Value),
    /// A message without its envelope.
    Protobuf(&'a [u8]),
}

#[derive(Debug)]
pub struct DecodedObject {
    pub key: ObjectKey,
    /// A hash of the object as it is written; of a pod, whose status often changes, only of what is
    /// decoded.
    pub digest: u64,
    /// The object in the model's terms.
    pub event: Event,
    /// When the change happened that led to this state of a slice (KEP-760's SLI).
    pub triggered: Option<Timestamp>,
}

/// The name of an object that is otherwise malformed.
#[derive(Default, Deserialize)]
struct ObjectWithName {
    metadata: NamedMetadata,
}

#[derive(Default, Deserialize)]
struct NamedMetadata {
    namespace: Option<String>,
    name: String,
}

impl<'a> FromProtobuf<'a> for ObjectWithName {
    fn take(&mut self, field: &Field<'a>) -> Result<(), ProtobufError> {
        match field.number {
            1 => self.metadata.merge(field.bytes()?),
            _ => Ok(()),
        }
    }
}

impl<'a> FromProtobuf<'a> for NamedMetadata {
    fn take(&mut self, field: &Field<'a>) -> Result<(), ProtobufError> {
        match field.number {
            1 => self.name = field.text()?.to_string(),
            3 => self.namespace = Some(field.text()?.to_string()).filter(|name| !name.is_empty()),
            _ => {}
        }
        Ok(())
    }
}

impl ObjectWithName {
    /// The name in a message, even if the message cannot be read to its end: the name comes first.
    fn of_message(message: &[u8]) -> Option<Self> {
        let mut named = Self::default();
        // What was read before the error counts.
        let _ = named.merge(message);
        (!named.metadata.name.is_empty()).then_some(named)
    }
}

impl<'a> RawObject<'a> {
    pub fn json(kind: ObjectKind, json: &'a str) -> Self {
        Self { kind, raw: RawText::Json(json) }
    }

    /// An object as a JSON tree, decoded from another format.
    pub fn tree(kind: ObjectKind, tree: Value) -> Self {
        Self { kind, raw: RawText::Tree(tree) }
    }

    /// An object as protobuf, without its envelope.
    pub fn protobuf(kind: ObjectKind, message: &'a [u8]) -> Self {
        Self { kind, raw: RawText::Protobuf(message) }
    }

    pub fn kind(&self) -> ObjectKind {
        self.kind
    }

    pub(crate) fn digest(&self, decoder: &Decoder) -> u64 {
        match &self.raw {
            RawText::Json(json) => decoder.digests.hash_one(json),
            RawText::Tree(tree) => decoder.digests.hash_one(tree),
            RawText::Protobuf(message) => digest_of_message(message, decoder),
        }
    }

    /// Decodes the object; `None` for another node's Node, unless the decoder wants those.
    ///
    /// # Errors
    /// [`ObjectError`] if nothing of it can be used.
    pub fn decode(
        &self,
        decoder: &mut Decoder,
        warnings: &mut Vec<Warning>,
    ) -> Result<Option<DecodedObject>, ObjectError> {
        let mut triggered = None;
        let (key, event) = match self.kind {
            ObjectKind::Service => self.decode_service(warnings)?,
            ObjectKind::EndpointSlice => {
                let raw: EndpointSlice<'_> = self.typed()?;
                let slice = slice(&raw, warnings)?;
                let shared = slice.as_ref().map(|slice| slice.name.clone());
                let name = shared.unwrap_or_else(|| raw.metadata.slice_name());
                triggered = raw.metadata.triggered();
                (ObjectKey::Slice(name.clone()), Event::Slice(name, slice))
            }
            ObjectKind::Node | ObjectKind::OtherNode => {
                match self.decode_node(decoder, warnings)? {
                    Some(decoded) => decoded,
                    None => return Ok(None),
                }
            }
            ObjectKind::ServiceCidr => {
                let (name, ranges) = service_cidr(&self.typed()?, warnings)?;
                let key = ObjectKey::ServiceCidr(name.clone());
                (key, Event::ServiceCidr(name, Some(ranges)))
            }
            ObjectKind::Namespace => {
                let namespace = namespace(&self.typed()?, decoder, warnings)?;
                let name = namespace.name.clone();
                (ObjectKey::Namespace(name.clone()), Event::Namespace(name, Some(namespace)))
            }
            ObjectKind::Pod => {
                let (name, pod) = pod(&self.typed()?, decoder, warnings)?;
                let digest = decoder.digests.hash_one(&pod);
                let key = ObjectKey::Pod(name.clone());
                let event = Event::ClusterPod(name, pod.map(Arc::new));
                return Ok(Some(DecodedObject { key, digest, event, triggered }));
            }
            ObjectKind::ClusterNetworkPolicy => {
                let (name, policy) = cluster_network_policy(&self.written()?, warnings)?;
                let key = ObjectKey::ClusterNetworkPolicy(name.clone());
                (key, Event::ClusterNetworkPolicy(name, policy))
            }
            ObjectKind::NetworkPolicy => {
                let policy = network_policy(&self.typed()?, decoder, warnings)?;
                let name = policy.name.clone();
                (ObjectKey::NetworkPolicy(name.clone()), Event::NetworkPolicy(name, Some(policy)))
            }
        };
        let digest = self.digest(decoder);
        Ok(Some(DecodedObject { key, digest, event, triggered }))
    }

    fn decode_service(
        &self,
        warnings: &mut Vec<Warning>,
    ) -> Result<(ObjectKey, Event), ObjectError> {
        let raw: ServiceObject<'_> = self.typed()?;
        let service = service(&raw, warnings)?;
        let shared = service.as_ref().map(|service| service.name.clone());
        let name = shared.unwrap_or_else(|| raw.metadata.service_name());
        let key = ObjectKey::Service(name.clone());
        Ok(match foreign_service(&raw) {
            Some(foreign) => (key, Event::ForeignService(name, foreign)),
            None => (key, Event::Service(name, service)),
        })
    }

    /// A Node of either kind: this node's, or another node's if the decoder wants those.
    fn decode_node(
        &self,
        decoder: &Decoder,
        warnings: &mut Vec<Warning>,
    ) -> Result<Option<(ObjectKey, Event)>, ObjectError> {
        let raw: super::NodeObject<'_> = self.typed()?;
        let is_this_node = *raw.metadata.name == *decoder.node_name;
        if is_this_node && self.kind == ObjectKind::Node {
            return Ok(Some((ObjectKey::Node, Event::Node(Some(node(&raw, warnings)?)))));
        }
        if is_this_node || (self.kind == ObjectKind::Node && !decoder.other_nodes) {
            return Ok(None);
        }
        let (name, node) = other_node(&raw, warnings)?;
        Ok(Some((ObjectKey::OtherNode(name.clone()), Event::OtherNode(name, Some(node)))))
    }

    /// Names the object, if at least its name can be read.
    pub fn key(&self, decoder: &Decoder) -> Option<ObjectKey> {
        let NamedMetadata { namespace, name } = self.named()?;
        let namespace = namespace.filter(|namespace| !namespace.is_empty());
        let namespace = namespace.as_deref().unwrap_or("default");
        Some(ObjectKey::new(self.kind, namespace, &name, &decoder.node_name))
    }

    fn typed<'de, T>(&'de self) -> Result<T, ObjectError>
    where
        T: Deserialize<'de> + FromProtobuf<'de>,
    {
        match &self.raw {
            RawText::Json(_) | RawText::Tree(_) => self.written(),
            RawText::Protobuf(message) => T::decode(message).map_err(|source| {
                ObjectError::Unreadable { kind: self.kind, name: self.shown_name(), source }
            }),
        }
    }

    /// The object as another type, from JSON or a tree: for what has no protobuf, such as objects
    /// of CustomResourceDefinitions.
    ///
    /// # Errors
    /// [`ObjectError`] if the object does not have that type.
    pub fn written<'de, T: Deserialize<'de>>(&'de self) -> Result<T, ObjectError> {
        // Tracking the path costs time, so it is done only after an error.
        let typed = match &self.raw {
            RawText::Json(json) => serde_json::from_str(json),
            RawText::Tree(tree) => T::deserialize(tree),
            RawText::Protobuf(_) => return self.typed_with_path(),
        };
        typed.or_else(|_| self.typed_with_path())
    }

    fn typed_with_path<'de, T: Deserialize<'de>>(&'de self) -> Result<T, ObjectError> {
        let typed = match &self.raw {
            RawText::Json(json) => {
                serde_path_to_error::deserialize(&mut serde_json::Deserializer::from_str(json))
            }
            RawText::Tree(tree) => serde_path_to_error::deserialize(tree),
            RawText::Protobuf(_) => serde_path_to_error::deserialize(&Value::Null),
        };
        typed.map_err(|error| ObjectError::Malformed {
            kind: self.kind,
            name: self.shown_name(),
            field: error.path().to_string(),
            source: error.into_inner(),
        })
    }

    fn shown_name(&self) -> String {
        match self.named() {
            Some(NamedMetadata { namespace: Some(namespace), name }) => {
                format!("{namespace}/{name}")
            }
            Some(NamedMetadata { namespace: None, name }) => name,
            None => "without a readable name".to_owned(),
        }
    }

    fn named(&self) -> Option<NamedMetadata> {
        let named = match &self.raw {
            RawText::Json(json) => serde_json::from_str::<ObjectWithName>(json).ok(),
            RawText::Tree(tree) => ObjectWithName::deserialize(tree).ok(),
            RawText::Protobuf(message) => ObjectWithName::of_message(message),
        };
        named.map(|named| named.metadata)
    }
}

/// The metadata's fields that change although no field that is used does.
const RESOURCE_VERSION: u32 = 6;
const MANAGED_FIELDS: u32 = 17;

/// A hash of a message, without the fields that every write changes.
fn digest_of_message(message: &[u8], decoder: &Decoder) -> u64 {
    let mut hasher = decoder.digests.build_hasher();
    for field in Fields::of(message) {
        match field {
            Ok(field) if field.number == 1 && field.bytes().is_ok() => {
                let metadata = Fields::of(field.bytes().unwrap_or_default()).flatten();
                let used =
                    |field: &Field<'_>| !matches!(field.number, RESOURCE_VERSION | MANAGED_FIELDS);
                metadata.filter(used).for_each(|field| field.hash(&mut hasher));
            }
            Ok(field) => field.hash(&mut hasher),
            Err(_) => message.hash(&mut hasher),
        }
    }
    hasher.finish()
}
