//! EndpointSlice (`discovery.k8s.io/v1`).

mod convert;
#[cfg(test)]
mod tests;

use serde::Deserialize;

pub use self::convert::slice;
use super::{BorrowedText, Metadata};
use crate::protobuf::{Field, FromProtobuf, ProtobufError};

/// An EndpointSlice, reduced to the fields that are used.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EndpointSlice<'a> {
    #[serde(default, borrow)]
    pub metadata: Metadata<'a>,
    /// `IPv4`, `IPv6` or `FQDN`.
    #[serde(default)]
    pub address_type: BorrowedText<'a>,
    /// The ports at which the endpoints listen.
    pub ports: Option<Vec<EndpointPort<'a>>>,
    pub endpoints: Option<Vec<EndpointEntry<'a>>>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct EndpointPort<'a> {
    /// Matches the name of the Service's port.
    #[serde(borrow)]
    pub name: Option<BorrowedText<'a>>,
    /// TCP when missing.
    pub protocol: Option<BorrowedText<'a>>,
    /// Missing means all ports, which no proxy can map to one service port.
    pub port: Option<i64>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EndpointEntry<'a> {
    /// The first is the address; the API says that the others must not be used.
    #[serde(borrow)]
    pub addresses: Option<Vec<BorrowedText<'a>>>,
    pub conditions: Option<Conditions>,
    /// The node that it runs on.
    pub node_name: Option<BorrowedText<'a>>,
    /// The zones and nodes whose clients should prefer it.
    pub hints: Option<EndpointHints<'a>>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub struct Conditions {
    /// Missing means true.
    pub ready: Option<bool>,
    /// Missing means true.
    pub serving: Option<bool>,
    /// Missing means false.
    pub terminating: Option<bool>,
}

/// `endpoints[].hints`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EndpointHints<'a> {
    #[serde(borrow)]
    pub for_zones: Option<Vec<Hint<'a>>>,
    pub for_nodes: Option<Vec<Hint<'a>>>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Hint<'a> {
    /// The zone or node.
    #[serde(default, borrow)]
    pub name: BorrowedText<'a>,
}

impl<'a> FromProtobuf<'a> for EndpointSlice<'a> {
    fn take(&mut self, field: &Field<'a>) -> Result<(), ProtobufError> {
        match field.number {
            1 => self.metadata.merge(field.bytes()?)?,
            2 => field.push_into(&mut self.endpoints)?,
            3 => field.push_into(&mut self.ports)?,
            4 => self.address_type = field.text()?,
            _ => {}
        }
        Ok(())
    }
}

impl<'a> FromProtobuf<'a> for EndpointPort<'a> {
    fn take(&mut self, field: &Field<'a>) -> Result<(), ProtobufError> {
        match field.number {
            1 => self.name = Some(field.text()?),
            2 => self.protocol = Some(field.text()?),
            3 => self.port = Some(field.number()?),
            _ => {}
        }
        Ok(())
    }
}

impl<'a> FromProtobuf<'a> for EndpointEntry<'a> {
    fn take(&mut self, field: &Field<'a>) -> Result<(), ProtobufError> {
        match field.number {
            1 => field.push_text(&mut self.addresses)?,
            2 => field.merge_into(&mut self.conditions)?,
            6 => self.node_name = Some(field.text()?),
            8 => field.merge_into(&mut self.hints)?,
            _ => {}
        }
        Ok(())
    }
}

impl<'a> FromProtobuf<'a> for Conditions {
    fn take(&mut self, field: &Field<'a>) -> Result<(), ProtobufError> {
        match field.number {
            1 => self.ready = Some(field.flag()?),
            2 => self.serving = Some(field.flag()?),
            3 => self.terminating = Some(field.flag()?),
            _ => {}
        }
        Ok(())
    }
}

impl<'a> FromProtobuf<'a> for EndpointHints<'a> {
    fn take(&mut self, field: &Field<'a>) -> Result<(), ProtobufError> {
        match field.number {
            1 => field.push_into(&mut self.for_zones),
            2 => field.push_into(&mut self.for_nodes),
            _ => Ok(()),
        }
    }
}

impl<'a> FromProtobuf<'a> for Hint<'a> {
    fn take(&mut self, field: &Field<'a>) -> Result<(), ProtobufError> {
        if field.number == 1 {
            self.name = field.text()?;
        }
        Ok(())
    }
}
