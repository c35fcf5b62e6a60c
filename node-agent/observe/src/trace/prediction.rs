//! What the running agent says before packets are followed.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use denizen_plan::Plan;
use denizen_plan::explain::{Explanation, FirstPacket};

/// Which packets to follow, what should happen to them, and names for their report.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Prediction {
    /// `ADDR[@INTERFACE]`.
    pub from: String,
    /// As [`FirstPacket::destination_text`].
    pub to: String,
    /// Whether the source is an address of this node.
    pub is_from_node: bool,
    /// Whether the packets come through a port of a bridge, according to the recorded pods.
    pub is_bridged: bool,
    /// If the named interface is a bridge's port, the interface that the IP stack sees.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bridge: Option<String>,
    /// What should happen to the packets.
    pub explanation: Explanation,
    pub names: BTreeMap<IpAddr, String>,
    /// The backend whose rules serve services.
    pub backend: String,
}

impl Prediction {
    /// The prediction for a packet, from the plan. Pure.
    pub fn of(
        plan: &Plan,
        packet: &FirstPacket,
        explanation: Explanation,
        backend: String,
    ) -> Self {
        let pods = plan.recorded();
        let bridge = packet.interface.as_deref().and_then(|named| {
            let pod = pods.iter().find(|pod| pod.port.as_deref() == Some(named))?;
            Some(pod.interface.to_string())
        });
        let is_source = |ips: &[IpAddr]| ips.contains(&packet.source);
        let behind_port = pods.iter().any(|pod| pod.port.is_some() && is_source(&pod.ips));
        let ends =
            explanation.endpoints.iter().filter_map(|endpoint| endpoint.parse::<SocketAddr>().ok());
        let addresses = ends.map(|end| end.ip()).chain([packet.source, packet.destination]);
        let name = |address: IpAddr| {
            let pod = pods.iter().find(|pod| pod.ips.contains(&address)).map(ToString::to_string);
            let is_own = plan.node().addresses.contains(&address);
            let name = pod.or_else(|| is_own.then(|| "this node".to_owned()))?;
            Some((address, name))
        };
        Self {
            from: packet.source_text(),
            to: packet.destination_text(),
            is_from_node: packet.source.is_loopback()
                || plan.node().addresses.contains(&packet.source),
            is_bridged: bridge.is_some() || behind_port,
            bridge,
            names: addresses.filter_map(name).collect(),
            explanation,
            backend,
        }
    }
}
