//! A followed packet, for a person and for a program.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use denizen_nft::{TableFamily, TraceEvent, TraceMessage, TraceVerdict, TracedPacket};
use serde::Serialize;

use super::Prediction;
use super::compare::{PacketFate, PacketOutcome, TraceComparison, compare};
use super::journey::{Journey, is_of_trace};
use super::rules::{TracedRules, is_agents};

/// All packets that were followed.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TracedPackets {
    pub packets: Vec<TraceReport>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TraceReport {
    /// Its number, counted from 1.
    pub number: usize,
    /// What no node on its way changes: the same packet has the same on all of them.
    pub identity: PacketIdentity,
    /// Its source as it came in.
    pub source: NamedAddress,
    /// Its destination as it came in.
    pub destination: NamedAddress,
    /// The service port that its destination is a frontend of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// The pod whose host port its destination is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_port: Option<String>,
    /// What each hook did to it, in order.
    pub hooks: Vec<HookReport>,
    /// The virtual server of IPVS that gave it its endpoint, between two hooks. No rule does that,
    /// so the kernel has no message about it: it is the one that `explain` names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub virtual_server: Option<String>,
    pub fate: PacketFate,
    /// Which rule or policy ended it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// Its source when it was last seen.
    pub last_source: NamedAddress,
    /// Its destination when it was last seen.
    pub last_destination: NamedAddress,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    /// Whether `explain` says the same.
    pub comparison: TraceComparison,
}

/// Fields of a packet's headers that count packets, and that are not translated. 0 where there is
/// none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct PacketIdentity {
    /// IPv4's identification.
    pub identification: u16,
    /// TCP's sequence number.
    pub sequence: u32,
}

/// An address and port, and the name of their owner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NamedAddress {
    /// `ADDR:PORT`.
    pub address: SocketAddr,
    /// A pod, or `this node`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HookReport {
    /// `prerouting` and so on, of a bridge or of the IP stack.
    pub hook: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    /// Its source when the hook began.
    pub source: NamedAddress,
    /// Its destination when the hook began.
    pub destination: NamedAddress,
    /// The rules that matched, and policies that did not accept.
    pub rules: Vec<RuleReport>,
}

/// What a rule, or a chain's policy, did to a packet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RuleReport {
    /// `<family> <table>`.
    pub table: String,
    pub chain: String,
    /// The rule's number in the kernel; missing for a policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub handle: Option<u64>,
    /// What the rule matches and does, as far as it is understood; missing if the rule is gone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// The rule's comment; for a rule of the agent, the reason for the rule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Whether the agent programs the rule's chain.
    pub is_agents: bool,
    /// What it decided.
    pub verdict: String,
}

/// Names for addresses, interfaces and rules.
pub(super) struct ReportNames<'a> {
    pub rules: &'a TracedRules,
    pub names: &'a BTreeMap<IpAddr, String>,
    /// The name of the interface with this index.
    pub interface: &'a dyn Fn(u32) -> String,
}

impl TraceReport {
    /// The report of a journey; `None` if the kernel showed no headers.
    pub(super) fn of(
        number: usize,
        journey: &Journey,
        prediction: &Prediction,
        words: &ReportNames<'_>,
    ) -> Option<Self> {
        let outcome = PacketOutcome::of(journey, words.rules, prediction.is_from_node)?;
        let hooks = words.hooks(journey);
        let end = |at: usize| words.rule(&journey.messages[at]).to_string();
        let by = match outcome.by {
            Some(at) => format!("by {}", end(at)),
            None => hooks.last().map(|hook| hook.hook.clone()).unwrap_or_default(),
        };
        let output = hooks.last().and_then(|hook| hook.output.clone());
        let end_reached = outcome.last.destination.to_string();
        let server = prediction.explanation.virtual_server.as_ref();
        let server = server.filter(|_| prediction.explanation.endpoints.contains(&end_reached));
        let (identification, sequence) = journey.first()?.serial;
        Some(Self {
            number,
            identity: PacketIdentity { identification, sequence },
            source: words.place(outcome.first.source),
            destination: words.place(outcome.first.destination),
            service: prediction.explanation.service.clone(),
            host_port: prediction.explanation.host_port.clone(),
            hooks,
            virtual_server: server
                .map(|server| format!("{} by {}", server.address, server.scheduler)),
            fate: outcome.fate,
            by: outcome.by.map(end),
            last_source: words.place(outcome.last.source),
            last_destination: words.place(outcome.last.destination),
            output: output.filter(|_| outcome.fate == PacketFate::Sent),
            comparison: compare(&prediction.explanation, &outcome, journey.is_established(), &by),
        })
    }
}

impl ReportNames<'_> {
    fn place(&self, address: SocketAddr) -> NamedAddress {
        NamedAddress { address, name: self.names.get(&address.ip()).cloned() }
    }

    fn hooks(&self, journey: &Journey) -> Vec<HookReport> {
        let mut hooks: Vec<HookReport> = Vec::new();
        for message in &journey.messages {
            if let Some(packet) = &message.packet {
                let begun = self.hook(message, packet);
                if hooks.last().is_none_or(|last| last.hook != begun.hook) {
                    hooks.push(begun);
                }
            }
            if let Some(hook) = hooks.last_mut().filter(|_| is_reported(message)) {
                hook.rules.push(self.rule(message));
            }
        }
        hooks
    }

    fn hook(&self, message: &TraceMessage, packet: &TracedPacket) -> HookReport {
        let name = self.rules.hook(message).map_or("a hook", |hook| hook.as_str());
        let named = |index: Option<u32>| index.map(self.interface);
        let addresses = super::compare::PacketAddresses::from(packet);
        HookReport {
            hook: match message.family {
                Some(TableFamily::Bridge) => format!("bridge {name}"),
                Some(TableFamily::Ip | TableFamily::Ip6 | TableFamily::Inet | TableFamily::Arp)
                | None => name.to_owned(),
            },
            input: named(packet.input),
            output: named(packet.output),
            source: self.place(addresses.source),
            destination: self.place(addresses.destination),
            rules: Vec::new(),
        }
    }

    fn rule(&self, message: &TraceMessage) -> RuleReport {
        let found = self.rules.of(message);
        let family =
            message.family.map_or("another family's".to_owned(), |family| family.to_string());
        let (handle, verdict) = match &message.event {
            TraceEvent::Rule { handle, verdict } => (Some(*handle), words_of(verdict)),
            TraceEvent::NoRule => (None, "continue".to_owned()),
            TraceEvent::Return => (None, "return".to_owned()),
            TraceEvent::Policy(verdict) => (None, words_of(verdict)),
        };
        RuleReport {
            table: format!("{family} {}", message.table),
            chain: message.chain.clone(),
            handle,
            rule: found.map(|found| found.text.clone()),
            reason: found.and_then(|found| found.comment.clone()),
            is_agents: is_agents(&message.table, &message.chain),
            verdict,
        }
    }
}

/// Whether a message is reported: not those of the trace's own rules, nor ends of chains that
/// decided nothing.
fn is_reported(message: &TraceMessage) -> bool {
    let decides = match &message.event {
        TraceEvent::Rule { .. } => true,
        TraceEvent::NoRule | TraceEvent::Return => false,
        TraceEvent::Policy(verdict) => *verdict != TraceVerdict::Accept,
    };
    decides && !is_of_trace(message)
}

fn words_of(verdict: &TraceVerdict) -> String {
    match verdict {
        TraceVerdict::Continue => "continue".to_owned(),
        TraceVerdict::Accept => "accept".to_owned(),
        TraceVerdict::Drop => "drop".to_owned(),
        TraceVerdict::Return => "return".to_owned(),
        TraceVerdict::Jump(chain) => format!("jump {chain}"),
        TraceVerdict::Goto(chain) => format!("goto {chain}"),
        TraceVerdict::Queue => "queue".to_owned(),
        TraceVerdict::Stolen => "taken".to_owned(),
    }
}

impl fmt::Display for TracedPackets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.packets.iter().try_for_each(|packet| packet.fmt(f))
    }
}

impl fmt::Display for NamedAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.address)?;
        self.name.as_ref().map_or(Ok(()), |name| write!(f, " ({name})"))
    }
}

impl fmt::Display for RuleReport {
    /// For a rule of the agent it shows the reason, for others the rule itself.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { table, chain, handle, rule, reason, is_agents, verdict } = self;
        write!(f, "table {table}, chain {chain}")?;
        match handle {
            Some(handle) => write!(f, ", rule {handle}: ")?,
            None => write!(f, ", its policy: ")?,
        }
        match (is_agents, reason, rule) {
            (true, Some(reason), _) => write!(f, "{reason}"),
            (_, Some(reason), Some(rule)) => write!(f, "{rule} \"{reason}\""),
            (_, None, Some(rule)) => write!(f, "{rule}"),
            (_, _, None) => Ok(()),
        }?;
        write!(f, " [{verdict}]")
    }
}

impl fmt::Display for HookReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "  {}", self.hook)?;
        if let Some(input) = &self.input {
            write!(f, ", in through {input}")?;
        }
        if let Some(output) = &self.output {
            write!(f, ", out through {output}")?;
        }
        writeln!(f, ": {} to {}", self.source, self.destination)?;
        self.rules.iter().try_for_each(|rule| writeln!(f, "    {rule}"))
    }
}

impl fmt::Display for TraceReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "packet {}: {} to {}", self.number, self.source, self.destination)?;
        match (&self.service, &self.host_port) {
            (Some(service), _) => writeln!(f, ", service {service}")?,
            (None, Some(pod)) => writeln!(f, ", host port of {pod}")?,
            (None, None) => writeln!(f)?,
        }
        self.hooks.iter().try_for_each(|hook| write!(f, "{hook}"))?;
        if let Some(server) = &self.virtual_server {
            writeln!(f, "  IPVS chose {}, at {server}", self.last_destination)?;
        }
        let by = self.by.as_deref().unwrap_or_default();
        match self.fate {
            PacketFate::Sent => {
                write!(f, "=> sent to {} from {}", self.last_destination, self.last_source)?;
                let output = self.output.as_deref().unwrap_or("an interface without a name");
                writeln!(f, ", through {output}")
            }
            PacketFate::Delivered => {
                writeln!(f, "=> reached this node's {}", self.last_destination)
            }
            PacketFate::Refused => writeln!(f, "=> refused by {by}"),
            PacketFate::Dropped => writeln!(f, "=> dropped by {by}"),
            PacketFate::Taken => writeln!(f, "=> taken by {by}"),
            PacketFate::Lost => writeln!(f, "=> lost: no hook saw it any more"),
        }?;
        write!(f, "{}", self.comparison)
    }
}

impl fmt::Display for TraceComparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AsPredicted => writeln!(f, "=> as predicted by explain"),
            Self::Differs(all) => {
                all.iter().try_for_each(|difference| writeln!(f, "=> differs here: {difference}"))
            }
            Self::NotComparable(why) => writeln!(f, "=> not compared with explain: {why}"),
        }
    }
}
