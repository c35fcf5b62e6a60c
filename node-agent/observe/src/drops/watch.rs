//! Receives what the kernel reports of packets that the agent's rules drop or refuse.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use denizen_netlink::NetlinkError;
use denizen_nft::{Kernel, NftError, TraceMessage, TraceVerdict, TracedPacket, Tracer};
use serde::Serialize;
use thiserror::Error;

use super::DropVerdict;
use crate::names::Names;
use crate::trace::{NamedAddress, PacketAddresses, TracedRules, interface, is_agents};
use denizen_model::Protocol;

/// Maximum number of packets that wait for the message with their verdict.
const AWAITED: usize = 1024;

#[derive(Debug, Error)]
pub enum WatchError {
    #[error("cannot receive what the kernel reports of packets")]
    Netlink(#[from] NetlinkError),
    /// The sampling rules of a killed agent cannot be removed.
    #[error("cannot remove the rules that show dropped packets")]
    Left(#[from] NftError),
}

/// A packet that a rule of the agent dropped or refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DroppedPacket {
    /// Whether it was dropped or refused.
    pub verdict: DropVerdict,
    pub reason: String,
    /// The policy that drops it, if one does and the agent can name it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// `<family> <table>` of the rule.
    pub table: String,
    /// The packet; missing if it is not IP.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub packet: Option<PacketReport>,
}

/// A packet as the rule saw it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PacketReport {
    /// The protocol: `tcp`, `udp`, `sctp`, or its number.
    pub protocol: String,
    pub source: NamedAddress,
    /// Its destination; if a service has not translated it yet, the frontend.
    pub destination: NamedAddress,
    /// The service port that the destination is a frontend of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<String>,
}

/// Receives dropped packets while the agent's rules sample them.
pub struct DropWatch {
    tracer: Tracer,
    kernel: Kernel,
    rules: TracedRules,
    /// Packets whose message with the verdict has not come yet, by the kernel's number of the
    /// packet.
    packets: HashMap<u32, TracedPacket>,
}

impl DropWatch {
    /// Receives from now on, in this thread's network namespace.
    pub fn open() -> Result<Self, WatchError> {
        let (tracer, kernel) = (Tracer::open()?, Kernel::open()?);
        Ok(Self { tracer, kernel, rules: TracedRules::default(), packets: HashMap::new() })
    }

    /// Waits for packets up to `wait`, and passes each to `each`. Returns whether the kernel had
    /// more to report than was read in time.
    pub fn receive(
        &mut self,
        wait: Duration,
        names: &Names,
        mut each: impl FnMut(DroppedPacket),
    ) -> Result<bool, WatchError> {
        let mut messages = Vec::new();
        let received = self.tracer.receive(wait, |message| messages.push(message));
        let has_lost = matches!(received, Err(NetlinkError::Overflow));
        if !has_lost {
            received?;
        }
        messages.retain(|message| is_agents(&message.table, &message.chain));
        self.rules.learn(&mut self.kernel, &messages);
        for message in messages {
            self.take(message, names).into_iter().for_each(&mut each);
        }
        Ok(has_lost)
    }

    fn take(&mut self, message: TraceMessage, names: &Names) -> Option<DroppedPacket> {
        if let Some(packet) = &message.packet {
            if self.packets.len() >= AWAITED {
                self.packets.clear();
            }
            self.packets.insert(message.id, packet.clone());
        }
        if message.verdict() != Some(&TraceVerdict::Drop) {
            return None;
        }
        let rule = self.rules.of(&message)?;
        let family = message.family?;
        Some(DroppedPacket {
            verdict: if rule.refuses { DropVerdict::Refused } else { DropVerdict::Dropped },
            reason: rule.comment.clone().unwrap_or_else(|| rule.text.clone()),
            policy: None,
            table: format!("{family} {}", message.table),
            packet: self.packets.remove(&message.id).map(|packet| PacketReport::of(&packet, names)),
        })
    }
}

impl PacketReport {
    fn of(packet: &TracedPacket, names: &Names) -> Self {
        let PacketAddresses { source, destination } = packet.into();
        let protocol = Protocol::from_number(packet.protocol);
        let place = |address: std::net::SocketAddr| NamedAddress {
            address,
            name: names.owner(address.ip()).map(str::to_owned),
        };
        let service = protocol.and_then(|protocol| names.service(protocol, destination));
        Self {
            protocol: protocol
                .map_or_else(|| packet.protocol.to_string(), |protocol| protocol.to_string()),
            source: place(source),
            destination: place(destination),
            service: service.map(str::to_owned),
            input: packet.input.map(interface),
        }
    }
}

impl fmt::Display for DroppedPacket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { verdict, reason, policy, table, packet } = self;
        write!(f, "{verdict} ")?;
        match packet {
            Some(packet) => write!(f, "{packet}")?,
            None => write!(f, "a packet that is not IP")?,
        }
        write!(f, ": {reason}")?;
        if let Some(policy) = policy {
            write!(f, ": {policy}")?;
        }
        write!(f, " ({table})")
    }
}

impl fmt::Display for PacketReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { protocol, source, destination, service, input } = self;
        write!(f, "{protocol} {source} to ")?;
        match service {
            Some(service) => write!(f, "{} ({service})", destination.address)?,
            None => write!(f, "{destination}")?,
        }
        match input {
            Some(input) => write!(f, ", in through {input}"),
            None => Ok(()),
        }
    }
}
