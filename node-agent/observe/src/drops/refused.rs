//! The flows whose packets the rules dropped or refused within the last 15 minutes, by name.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;

use denizen_netlink::NetlinkError;
use denizen_nft::{Kernel, TableFamily};
use serde::Serialize;

use super::DropVerdict;
use crate::names::Names;
use crate::trace::NamedAddress;
use denizen_backend::refusals::{FLOWS, RefusalReason, RefusedFlow, read};
use denizen_model::Protocol;
use denizen_text::named_address;

/// How many flows are shown as text.
const SHOWN: usize = 20;

/// The flows of dropped and refused packets that the kernel has noted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RefusedFlows {
    /// Most packets first.
    pub flows: Vec<NamedFlow>,
    /// How many more there are.
    pub more_flows: usize,
    /// Which flows are not noted, and why.
    pub not_noted: Vec<String>,
}

/// A flow: packets that differ only in their source port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NamedFlow {
    pub verdict: DropVerdict,
    pub reason: String,
    /// The policy that drops the flow by the current plan, if one does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// `<family> <table>` of the rule.
    pub table: String,
    /// `tcp`, `udp`, `sctp`, or its number.
    pub protocol: String,
    /// The port is 0: it is not noted.
    pub source: NamedAddress,
    pub destination: NamedAddress,
    /// The service port that the destination is a frontend of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    pub packets: u64,
    /// Seconds since its first packet.
    pub seconds: u64,
}

/// The text about services if their rules are in iptables.
const IPTABLES: &str = "what the rules of services refuse: they are in iptables";

/// Reads what the kernel has noted. At most `limit` flows are named.
///
/// # Errors
///
/// [`NetlinkError`].
pub fn refused(
    kernel: &mut Kernel,
    is_iptables: bool,
    names: &Names,
    limit: usize,
) -> Result<RefusedFlows, NetlinkError> {
    Ok(named(read(kernel, RefusalReason::ALL)?, is_iptables, names, limit))
}

fn named(
    mut flows: Vec<RefusedFlow>,
    is_iptables: bool,
    names: &Names,
    limit: usize,
) -> RefusedFlows {
    let mut sizes: BTreeMap<(String, &str), u32> = BTreeMap::new();
    for flow in &flows {
        *sizes.entry((table_of(flow), flow.reason.set())).or_default() += 1;
    }
    let full = sizes.into_iter().filter(|(_, size)| *size >= FLOWS);
    let full = full.map(|((table, set), _)| {
        format!("flows that began while the set {set} was full: it has {FLOWS} flows ({table})")
    });
    let not_noted = is_iptables.then(|| IPTABLES.to_owned()).into_iter().chain(full).collect();
    flows.sort_by_key(|flow| {
        let RefusedFlow { reason, protocol, source, destination, .. } = *flow;
        (Reverse(flow.packets), reason, protocol, source, destination)
    });
    let more_flows = flows.len().saturating_sub(limit);
    let flows = flows.iter().take(limit).map(|flow| NamedFlow::of(flow, names)).collect();
    RefusedFlows { flows, more_flows, not_noted }
}

fn table_of(flow: &RefusedFlow) -> String {
    format!("{} {}", TableFamily::from(flow.family), flow.reason.table())
}

impl NamedFlow {
    fn of(flow: &RefusedFlow, names: &Names) -> Self {
        let RefusedFlow { reason, source, destination, packets, .. } = *flow;
        let protocol = Protocol::from_number(flow.protocol);
        let of = |address: SocketAddr| NamedAddress {
            address,
            name: names.owner(address.ip()).map(str::to_owned),
        };
        let service = protocol.and_then(|protocol| names.service(protocol, destination));
        Self {
            verdict: match reason.is_answered() {
                true => DropVerdict::Refused,
                false => DropVerdict::Dropped,
            },
            reason: reason.text().to_owned(),
            policy: None,
            table: table_of(flow),
            protocol: protocol
                .map_or_else(|| flow.protocol.to_string(), |protocol| protocol.to_string()),
            source: of(SocketAddr::new(source, 0)),
            destination: of(destination),
            service: service.map(str::to_owned),
            packets,
            seconds: flow.age.as_secs(),
        }
    }
}

impl fmt::Display for NamedFlow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { verdict, reason, policy, table, protocol, packets, seconds, .. } = self;
        let [source, destination] = [&self.source, &self.destination]
            .map(|end| named_address(end.address, end.name.as_deref()));
        write!(f, "{packets} {verdict}: {protocol} {source} to {destination}")?;
        if let Some(service) = &self.service {
            write!(f, " ({service})")?;
        }
        write!(f, " since {}m{:02}s: {reason}", seconds / 60, seconds % 60)?;
        if let Some(policy) = policy {
            write!(f, ": {policy}")?;
        }
        write!(f, " ({table})")
    }
}

impl fmt::Display for RefusedFlows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { flows, more_flows, not_noted } = self;
        if !flows.is_empty() {
            writeln!(f, "flows of the last 15 minutes:")?;
        }
        flows.iter().take(SHOWN).try_for_each(|flow| writeln!(f, "{flow}"))?;
        match flows.len().saturating_sub(SHOWN) + more_flows {
            0 => {}
            more => writeln!(f, "and {more} more flows")?,
        }
        not_noted.iter().try_for_each(|what| writeln!(f, "not noted: {what}"))
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::time::Duration;

    use denizen_model::Family;
    use denizen_plan::Direction;

    use super::*;

    fn flow(reason: RefusalReason, protocol: u8, last: u8, packets: u64) -> RefusedFlow {
        let source = IpAddr::from([10, 0, 0, last]);
        let port = if Protocol::from_number(protocol).is_some() { 80 } else { 0 };
        RefusedFlow {
            family: Family::V4,
            reason,
            protocol,
            source,
            destination: SocketAddr::from(([10, 0, 9, 9], port)),
            packets,
            age: Duration::from_secs(75),
        }
    }

    #[test]
    fn most_packets_come_first_and_what_is_left_out_is_counted() {
        let flows = vec![
            flow(RefusalReason::NoEndpoints, 6, 1, 2),
            flow(RefusalReason::NoPolicy(Direction::Ingress), 1, 2, 40),
            flow(RefusalReason::SourceRanges, 17, 3, 1),
        ];
        let shown = named(flows, true, &Names::default(), 2);
        assert_eq!(
            shown.to_string(),
            "flows of the last 15 minutes:\n\
             40 dropped: 1 10.0.0.2 to 10.0.9.9 since 1m15s: no policy permits this to reach the \
             pod (ip denizen-firewall)\n\
             2 refused: tcp 10.0.0.1 to 10.0.9.9:80 since 1m15s: no endpoints: refuse at once \
             (ip denizen)\n\
             and 1 more flows\n\
             not noted: what the rules of services refuse: they are in iptables\n"
        );
        assert_eq!(named(Vec::new(), false, &Names::default(), 5), RefusedFlows::default());
    }

    #[test]
    fn a_set_that_is_full_is_named() {
        let of = |n: u32| {
            let source = IpAddr::from(n.to_be_bytes());
            RefusedFlow { source, ..flow(RefusalReason::NoLocalEndpoints, 6, 0, 1) }
        };
        let shown = named((0..FLOWS - 1).map(of).collect(), false, &Names::default(), 9);
        assert_eq!((shown.more_flows, shown.not_noted.len()), (FLOWS as usize - 10, 0));
        let shown = named((0..FLOWS).map(of).collect(), false, &Names::default(), 9);
        let [text] = &shown.not_noted[..] else { panic!("{shown}") };
        assert!(text.contains("set dropped-no-local-endpoints was full"), "{text}");
    }
}
